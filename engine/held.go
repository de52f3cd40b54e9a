package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// step is one change of what is held back behind barriers. An attempt makes them one after the other.
type step struct {
	over chan struct{} // closed when nothing of it is done any more
	done bool          // it was made; set before over is closed
}

func newStep() *step { return &step{over: make(chan struct{})} }

// errNotReleased follows the error of the step, or the end of the attempt.
var errNotReleased = errors.New("what was held back before has not been released")

// wait returns nil when the step was made. At the end of an attempt, or after an error, it is over all the same, and who went
// on as if it were made would find records held back that belong to a checkpoint before it.
func (s *step) wait(ctx context.Context) error {
	select {
	case <-s.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !s.done {
		return errNotReleased
	}
	return nil
}

// release lets the output flow that was held back behind a barrier. It may block while the client's buffers are full,
// so the loop does not wait for it; the next seal does.
func (a *attempt) release(id element.CheckpointID) {
	sink := a.sink
	a.afterReleased(func() error {
		failpoint.Hit(failpoint.ReleaseBefore)
		if err := sink.Release(id); err != nil {
			return fmt.Errorf("release the output held back behind checkpoint %d: %w", id, err)
		}
		failpoint.Hit(failpoint.ReleaseAfter)
		return nil
	})
}

// resume takes barriers back whose checkpoints were given up: what is held back behind them follows what lies before them.
// The flush of the oldest of them may run, or be about to: it finds the barriers in place, and is waited for.
func (a *attempt) resume(ids span, sealing []<-chan struct{}) {
	sink, ctx := a.sink, a.ctx
	a.afterReleased(func() error {
		for _, done := range sealing {
			select {
			case <-done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := sink.Resume(ctx, ids.first, ids.last); err != nil {
			return fmt.Errorf("take back the barriers of checkpoints %d to %d: %w", ids.first, ids.last, err)
		}
		return nil
	})
	a.resuming = a.released.over
}

// afterReleased runs a change of what is held back when the one before it is made; after one that was not made, none is. The
// next seal waits for the last one: a barrier may be taken back while an older checkpoint commits, and then both belong before
// that seal.
func (a *attempt) afterReleased(f func() error) {
	before, s := a.released, newStep()
	a.released = s
	a.spawn(func() {
		defer close(s.over)
		if before.wait(a.ctx) != nil {
			return
		}
		err := f()
		if err != nil && a.ctx.Err() == nil {
			a.report(event{kind: evFailed, err: err})
		}
		s.done = err == nil
	})
}
