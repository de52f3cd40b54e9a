package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// Two instances begin at the same moment, each with a directory of its own. At least one of them sees the other and stops
// before its first record; then either can have all partitions, for no state is in the other's directory.
func TestTwoInstancesThatBeginTogetherWithTwoDirectories(t *testing.T) {
	w := newWorld(t, 2)
	w.others = true
	w.assign(1)
	a := w.member
	w.dir = t.TempDir()
	b := w.join("i2")
	w.give(b, 1)
	var both sync.WaitGroup
	both.Add(2)
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if c.Name.ID == 0 { // neither looks before both commit
			both.Done()
			both.Wait()
		}
		return true, nil
	}
	w.produce(20, 4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	for _, m := range []*member{a, b} {
		r, err := New(countPlan(t), m.config(), m.ports(), nil)
		require.NoError(t, err)
		go func() { ended <- r.Run(ctx) }()
	}
	select {
	case err := <-ended:
		require.Equal(t, fault.HandleMismatch, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "set state.checkpoints.dir to the directory that all instances share")
	case <-time.After(patient):
		require.Fail(t, "both work")
	}
	cancel()
	<-ended
	w.onCommit = nil
	w.mu.Lock()
	processed := len(w.output)
	first := a
	if h := w.committed[tp(1)]; h.Offset > 0 {
		first = b // it is the one that was left, and has processed
	}
	first.gain(slices.Values([]int32{0, 1}))
	w.mu.Unlock()
	require.LessOrEqual(t, processed, 10)
	stop := first.start(first.config(), nil)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}

// A directory is given up after a cancel that deletes: the handles of before lead to nothing in it, and to no instance that works there.
func TestHandlesOfAGivenUpDirectoryStandInNobodysWay(t *testing.T) {
	for name, c := range map[string]struct {
		handles  int // so many partitions have one
		stateful bool
	}{
		"a partition of its own has none":           {2, false},
		"the topic grew before there was any state": {3, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			for p := range c.handles {
				h := snapshot.Handle{Kind: snapshot.HandleEmpty, ClusterID: "c1", StoreID: strings.Repeat("ab", 16), TopicID: element.TopicID{1}, PartitionCount: 2, Partition: int32(p), Life: 1}
				h.Root.Name = element.CheckpointName{ID: 7, Incarnation: 7}
				text, err := h.Encode()
				require.NoError(t, err)
				w.committed[tp(int32(p))] = Committed{Found: true, Metadata: text}
			}
			plan := countPlan(t)
			if !c.stateful {
				b := topology.New(app)
				topology.ToTopic(topology.FromTopic(b, "in", "in", serde.String(), serde.String()), "out", "out", serde.String(), serde.String())
				var err error
				plan, err = b.Plan()
				require.NoError(t, err)
				w.assign(0)
				w.mu.Lock()
				w.gain(slices.Values([]int32{2}))
				w.mu.Unlock()
			}
			cfg := w.config()
			cfg.Life = 1
			stop := w.startPlan(plan, cfg, w.ports(), nil)
			w.produce(30, 3) // ten each
			assert.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.committed[tp(2)].Offset == 10 }, patient, time.Millisecond)
			require.NoError(t, stop())
		})
	}
}
