package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// heldSink fails the test when it is sealed before what was held back is released.
type heldSink struct {
	Sink
	t *testing.T
}

func (s heldSink) Release(element.CheckpointID) error {
	s.t.Error("released although the step before it was not made")
	return nil
}

func (s heldSink) Seal(context.Context, element.CheckpointID) error {
	s.t.Error("sealed although what was held back is not released")
	return nil
}

// A step that did not come about, since the one before it failed or the attempt ended, is not followed as if it had: a flush
// would find records held back of a checkpoint before it. Which of two things that have both happened is seen first is a
// matter of chance, so each is tried often.
func TestNothingIsSealedBehindAReleaseThatDidNotCome(t *testing.T) {
	const tries = 64
	t.Run("the attempt is over", func(t *testing.T) {
		for range tries {
			a, seal := heldAttempt(t)
			a.afterReleased(func() error { <-a.ctx.Done(); return a.ctx.Err() }) // as a Resume that the end cuts short
			a.release(1)
			a.cancel(errAttemptOver)
			seal()
			a.wg.Wait()
			if t.Failed() {
				return
			}
		}
	})
	t.Run("the step before it failed", func(t *testing.T) {
		for range tries {
			a, seal := heldAttempt(t)
			a.afterReleased(func() error { return errPlanted })
			a.release(1)
			seal()
			heard := []event{<-a.events, <-a.events}
			for _, e := range heard {
				require.ErrorIs(t, e.err, errPlanted, "whatever the loop hears first, it is the cause")
			}
			require.ElementsMatch(t, []eventKind{evFailed, evSealed}, []eventKind{heard[0].kind, heard[1].kind})
			a.cancel(errAttemptOver)
			a.wg.Wait()
			if t.Failed() {
				return
			}
		}
	})
}

// The loop waits for barriers to be taken back, between two tasks that it takes in. So a failure must not wait for the loop, and
// ends the attempt there: what was not taken back is sealed still, and no task may write into it.
func TestTheLoopDoesNotWaitForWhatWaitsForIt(t *testing.T) {
	a, _ := heldAttempt(t)
	for range cap(a.events) {
		a.report(event{kind: evMoved})
	}
	a.sink = stuckSink{}
	a.resume(span{2, 2}, nil)
	require.Eventually(t, func() bool { return isClosed(a.resuming.over) }, patient, time.Millisecond, "it waits for a place among the reports")
	require.ErrorIs(t, a.resumed(), errPlanted)
	require.ErrorIs(t, a.onJoined(nil), errPlanted)
	a.cancel(errAttemptOver)
	a.wg.Wait()
}

// stuckSink takes no barrier back.
type stuckSink struct{ Sink }

func (stuckSink) Resume(context.Context, element.CheckpointID, element.CheckpointID) error {
	return errPlanted
}

// heldAttempt is one in whose turn it is to flush checkpoint 2.
func heldAttempt(t *testing.T) (*attempt, func()) {
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &attempt{ctx: ctx, cancel: cancel, sink: heldSink{t: t}, events: make(chan event, 64), released: &step{over: closed}}
	a.pending = []*pending{{name: element.CheckpointName{ID: 2}, stop: func() {}, stopSeal: func() {}}}
	return a, func() { a.seal(2) }
}

// cutSink seals only when the attempt is over, and calls that a failure that no restart cures.
type cutSink struct {
	Sink
	sealing, cut func()
}

func (s cutSink) Seal(ctx context.Context, _ element.CheckpointID) error {
	s.sealing()
	<-ctx.Done()
	defer s.cut()
	return fault.Stopf(fault.Failed, "cut short: %w", context.Cause(ctx))
}

// What fails because the patience with a stop is over says nothing of the work: the run has not failed.
func TestWhatTheEndOfAStopCutsShortIsNoFailure(t *testing.T) {
	t.Parallel()
	for range 20 { // whether the loop sees the end or the failure first is a matter of chance
		w := newWorld(t, 1)
		sealing, cut := make(chan struct{}), make(chan struct{})
		ports := w.ports()
		open := ports.NewSink
		ports.NewSink = func() (Sink, error) {
			s, err := open()
			return cutSink{s, sync.OnceFunc(func() { close(sealing) }), func() { close(cut) }}, err
		}
		cfg := w.config()
		cfg.ShutdownTimeout = 1
		var ends []error
		stop := w.startWith(cfg, ports, &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) { ends = append(ends, err) }})
		w.produce(10, 3)
		<-sealing
		w.r.running.Load().events <- event{kind: evAsk, ask: func() error { // so that both have happened when the loop looks
			<-cut
			time.Sleep(time.Millisecond)
			return nil
		}}
		require.NoError(t, stop())
		require.Len(t, ends, 1)
		require.ErrorContains(t, ends[0], "the graceful stop took longer than the shutdown timeout")
	}
}

// A failure of the same class ahead of the end is the run's.
func TestAFailureAheadOfTheEndOfAStopIsTheRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	bad := errors.New("planted for good")
	w.onSeal = func(element.CheckpointID) error { return fault.Stopf(fault.Failed, "%w", bad) }
	ended := make(chan error, 1)
	stop := w.start(w.config(), &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) { ended <- err }})
	w.produce(10, 3)
	require.ErrorIs(t, <-ended, bad)
	require.ErrorIs(t, stop(), bad)
}
