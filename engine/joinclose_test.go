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

// When one of several tasks that are taken in fails, the user code of those behind it is closed as well.
func TestTasksThatAreNotTakenInAreClosed(t *testing.T) {
	w := newWorld(t, 4)
	var open atomic.Int64
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	opened := topology.Process(in, "opened", func() topology.Processor[string, string, string] { return opener{&open} })
	topology.ToTopic(topology.Count(opened, "count"), "out", "out", serde.String(), serde.Int64())
	plan, err := b.Plan()
	require.NoError(t, err)
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
