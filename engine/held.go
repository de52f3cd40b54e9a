package engine

import (
	"context"
	"fmt"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

// step is one change of what is held back behind barriers. An attempt makes them one after the other.
type step struct {
	over chan struct{} // closed when nothing of it is done any more
	err  error         // why it was not made; set before over is closed
}

// wait returns nil when the step was made. At the end of an attempt, or after an error, it is over all the same, and who went
// on as if it were made would find records held back that belong to a checkpoint before it.
func (s *step) wait(ctx context.Context) error {
	select {
	case <-s.over:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
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
	a.resuming = a.released
}

// resumed waits until no barrier is being taken back. The loop calls it.
func (a *attempt) resumed() error {
	err := a.resuming.wait(a.ctx)
	if a.ctx.Err() != nil {
		return a.ctx.Err() // and not what it has cut short
	}
	return err
}

// afterReleased runs a change of what is held back when the one before it is made; after one that was not made, none is. The
// next seal waits for the last one: a barrier may be taken back while an older checkpoint commits, and then both belong before
// that seal. The loop may wait for it, too, so it is over before a failure is reported to the loop.
func (a *attempt) afterReleased(f func() error) {
	before, s := a.released, &step{over: make(chan struct{})}
	a.released = s
	a.spawn(func() {
		if s.err = before.wait(a.ctx); s.err != nil {
			close(s.over)
			return
		}
		s.err = f()
		close(s.over)
		if s.err != nil && a.ctx.Err() == nil {
			a.report(event{kind: evFailed, err: s.err})
		}
	})
}
