package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// opener counts what user code opened and has not closed.
type opener struct{ open *atomic.Int64 }

func (o opener) Open(ctx *topology.ProcessContext) error {
	if !ctx.Planning() {
		o.open.Add(1)
	}
	return nil
}

func (o opener) Process(_ *topology.ProcessContext, in *topology.Rec[string, string], out *topology.Collector[string, string]) error {
	out.Emit(in.Value)
	return nil
}

func (o opener) Close() error { o.open.Add(-1); return nil }

// refusingSource takes no further partitions, once.
type refusingSource struct {
	Source
	refuse *atomic.Bool
}

func (s refusingSource) Add(ps ...element.Position) error {
	if s.refuse.CompareAndSwap(true, false) {
		return errors.New("no more partitions")
	}
	return s.Source.Add(ps...)
}

// openedPlan counts per key behind an opener.
func openedPlan(t *testing.T, open *atomic.Int64) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	opened := topology.Process(in, "opened", func() topology.Processor[string, string, string] { return opener{open} })
	topology.ToTopic(topology.Count(opened, "count"), "out", "out", serde.String(), serde.Int64())
	plan, err := b.Plan()
	require.NoError(t, err)
	return plan
}

// When one of several tasks that are taken in fails, the user code of those behind it is closed as well.
func TestTasksThatAreNotTakenInAreClosed(t *testing.T) {
	w := newWorld(t, 4)
	var open atomic.Int64
	plan := openedPlan(t, &open)
	w.produce(200, 20)
	stop := w.startPlan(plan, w.config(), w.ports(), nil)
	w.caughtUp()
	require.NoError(t, stop())
	require.Zero(t, open.Load())

	var refuse atomic.Bool
	ports := w.ports()
	ports.NewSource = func(p []element.Position) (Source, error) {
		src, err := w.ports().NewSource(p)
		return refusingSource{src, &refuse}, err
	}
	w.assign(1)
	running, left, failed := make(chan int64, 10), make(chan int64, 10), make(chan error, 10)
	r, err := New(plan, w.config(), ports, &Listener{
		AttemptStarted: func(AttemptInfo) { running <- open.Load() },
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
			failed <- err
			left <- open.Load()
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	require.EqualValues(t, 1, <-running)
	refuse.Store(true)
	w.mu.Lock()
	w.gain(func(yield func(int32) bool) { _ = yield(1) && yield(2) && yield(3) })
	w.mu.Unlock()
	require.ErrorContains(t, <-failed, "no more partitions")
	require.Zero(t, <-left)
	require.EqualValues(t, 4, <-running)
	w.produce(200, 20)
	w.caughtUp()
	cancel()
	require.NoError(t, <-done)
	require.Zero(t, open.Load())
	w.exact()
}

// tiring fails at the end of what a task does, when told so.
type tiring struct {
	State
	tired *atomic.Bool
}

func (s tiring) EndBatch() error {
	if s.tired.CompareAndSwap(true, false) {
		return errors.New("its disk is gone")
	}
	return s.State.EndBatch()
}

// The commit with which a task leaves is the moment at which it fails: its user code is closed all the same, whether its goroutine
// has ended before the loop lets it go or ends after that.
func TestATaskThatFailsWhileItLeavesIsClosed(t *testing.T) {
	for name, slow := range map[string]time.Duration{"before": 50 * time.Millisecond, "after": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.slowDrop = slow
			var open atomic.Int64
			var tired atomic.Bool
			ports := w.ports()
			ports.NewState = func(id element.TaskID) State {
				if id.Partition == 1 {
					return tiring{w.ports().NewState(id), &tired}
				}
				return w.ports().NewState(id)
			}
			var ended atomic.Int64
			cfg := w.config()
			cfg.Interval = time.Hour
			stop := w.startPlan(openedPlan(t, &open), cfg, ports, &Listener{
				AttemptEnded: func(int, error, fault.Recovery, time.Duration) { ended.Add(1) },
			})
			w.produce(100, 20)
			require.Eventually(t, func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.open) == 100
			}, patient, time.Millisecond)
			tired.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			defer cancel()
			w.r.Revoke(ctx, []element.TopicPartition{tp(1)})
			require.NoError(t, ctx.Err())
			w.mu.Lock()
			w.lose(1)
			w.mu.Unlock()
			if slow > 0 { // else nothing of what has left may be heard any more
				require.Eventually(t, func() bool { return ended.Load() == 1 }, patient, time.Millisecond)
			}
			require.NoError(t, stop())
			require.Zero(t, open.Load())
		})
	}
}
