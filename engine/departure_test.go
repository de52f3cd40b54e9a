package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// A source that does not take a partition whose start position is committed ends the attempt, however much is reported to
// the loop at that moment: the loop itself must not wait for a place among the reports.
func TestAPartitionThatCannotBeFedEndsTheAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.assign(1)
	var ca watch
	ports := w.ports()
	var refused atomic.Bool
	ports.NewSource = func(p []element.Position) (Source, error) {
		s, err := w.ports().NewSource(p)
		return refusing{s, &refused}, err
	}
	stop := w.startWith(w.config(), ports, ca.logging(t))
	require.Eventually(t, w.works(0), patient, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 80 { // more than the channel holds
		wg.Go(func() {
			for ctx.Err() == nil && ca.ended.Load() == 0 {
				w.r.Revoke(ctx, []element.TopicPartition{tp(7)})
			}
		})
	}
	w.give(w.member, 1)
	require.Eventually(t, func() bool { return ca.ended.Load() == 1 }, 6*patient, time.Millisecond, "the loop hangs")
	cancel()
	wg.Wait()
	w.produce(40, 4)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}

// refusing refuses to add, once.
type refusing struct {
	Source
	refused *atomic.Bool
}

func (r refusing) Add(ps ...element.Position) error {
	if r.refused.CompareAndSwap(false, true) {
		return errors.New("this source takes nothing more")
	}
	return r.Source.Add(ps...)
}

// A partition is lost without a word, and the next attempt, which has another one instead, fails while that is restored. The
// local copy is told all the same that the first has gone.
func TestTheLocalCopyIsToldOfALossAlsoWhenTheNextAttemptFails(t *testing.T) {
	w := newWorld(t, 3)
	w.others = true
	a, b := w.member, w.join("i2")
	var ca, cb watch
	w.move(a, b, 0, 2)
	stopB := b.start(b.config(), cb.logging(t))
	local := &farewells{}
	ports := a.ports()
	ports.Local = local
	ports.Checkpoints = brittle{ports.Checkpoints, new(atomic.Bool)}
	stopA := a.startWith(a.config(), ports, ca.logging(t))
	w.produce(60, 6)
	w.caughtUp()
	w.mu.Lock()
	a.lose(1)
	b.lose(2)
	b.gain(slices.Values([]int32{1}))
	a.gain(slices.Values([]int32{2}))
	w.mu.Unlock()
	w.produce(60, 6)
	w.caughtUp()
	require.NoError(t, stopA())
	require.NoError(t, stopB())
	w.exact()
	require.EqualValues(t, 2, ca.ended.Load(), "the loss, and the restore that failed")
	local.mu.Lock()
	defer local.mu.Unlock()
	require.Equal(t, []element.TaskID{{Source: "in", Partition: 1}}, local.left)
}

// farewells notes which tasks have left.
type farewells struct {
	mu   sync.Mutex
	left []element.TaskID
}

func (f *farewells) Restore(context.Context, snapshot.RootRef, snapshot.TaskEntry, func(snapshot.Entry) error) (snapshot.Stats, bool) {
	return snapshot.Stats{}, false
}
func (f *farewells) Committed(snapshot.RootRef, []snapshot.TaskEntry) {}
func (f *farewells) Left(task element.TaskID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = append(f.left, task)
}

// brittle fails to restore, once.
type brittle struct {
	Checkpoints
	failed *atomic.Bool
}

func (b brittle) Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	if b.failed.CompareAndSwap(false, true) {
		return snapshot.Stats{}, errors.New("the disk is slow today")
	}
	return b.Checkpoints.Restore(ctx, entry, keep, apply)
}

// The feeder pauses a partition for a task whose stay is over by then, and the partition is back already: the pause must
// not outlive the delivery that it was for, since the new task does not know of it.
//
//	source: the inbox is full, others starve: it goes in
//	                                               loop: the task leaves; the partition comes back, is added
//	source: pause
func TestAPauseDoesNotReachTheNextStay(t *testing.T) {
	ctx, remove := context.WithCancel(t.Context())
	paused := false
	f := newFeeder(func(...element.TopicPartition) {
		remove() // the stay ends, and another begins
		paused = true
	})
	f.resume = func(...element.TopicPartition) { paused = false }
	old, idle := newInbox(1), newInbox(1)
	f.add(tp(0), old)
	f.add(tp(1), idle)
	require.NoError(t, f.deliver(ctx, element.Delivery{From: tp(0), Records: make([]element.Record, 1), Next: 1}))
	require.NoError(t, f.deliver(ctx, element.Delivery{From: tp(0), Records: make([]element.Record, 1), Next: 2}))
	require.False(t, paused)
}

// The group waits in vain for the loop to look at a revocation, takes the partition away, and gives it again. What the loop
// finds then is about an ownership that is over.
func TestARevocationThatIsLookedAtTooLateTouchesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.assign(1)
	stalled, goOn := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	stop := w.start(w.config(), &Listener{CheckpointCompleted: func(checkpoint.CheckpointStats) {
		if once.CompareAndSwap(false, true) {
			close(stalled)
			<-goOn
		}
	}})
	w.produce(20, 4)
	<-stalled
	w.give(w.member, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	w.r.Revoke(ctx, []element.TopicPartition{tp(1)})
	w.mu.Lock()
	w.lose(1)
	w.mu.Unlock()
	w.give(w.member, 1)
	close(goOn)
	w.produce(20, 4)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}

// The file of a merged run is gone before a root names it: the disk lost it, or somebody tidied up. Nothing committed needs it,
// so the chain that it was merged from goes on being used.
func TestAMergedRunWhoseFileIsGoneIsNotUsed(t *testing.T) {
	w := newWorld(t, 1)
	var ca watch
	ports := w.ports()
	var gone atomic.Int64
	ports.Checkpoints = losing{ports.Checkpoints, func(ref snapshot.RunRef) {
		if gone.Add(1) == 1 {
			require.NoError(t, os.Remove(filepath.Join(w.dir, ref.File)))
		}
	}}
	cfg := w.config()
	cfg.MaxChain = 2
	stop := w.startWith(cfg, ports, ca.logging(t))
	w.produceUntil(func() bool { return gone.Load() > 0 })
	w.produce(40, 4)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.LessOrEqual(t, ca.ended.Load(), int64(1))
}

// losing tells of every merged run.
type losing struct {
	Checkpoints
	merged func(snapshot.RunRef)
}

func (l losing) Merge(ctx context.Context, name element.CheckpointName, entry snapshot.TaskEntry) (snapshot.RunRef, error) {
	ref, err := l.Checkpoints.Merge(ctx, name, entry)
	if err == nil && !ref.IsZero() {
		l.merged(ref)
	}
	return ref, err
}
