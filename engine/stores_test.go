package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
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
