package processor

import (
	"context"
	"errors"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// errOtherLife ends an instance that has slept while the application was cancelled and its state deleted. It took part in
// what is over; whether something goes on is for those to say who start anew.
var errOtherLife = errors.New("the application was cancelled, and its state is deleted")

// openLife comes before the group is joined: whoever was a member of it in one life knows that it was this one.
func (s *service) openLife(ctx context.Context) error { return s.reads.beginLife(ctx) }

// beginLife learns which life of the application this process belongs to, which is the one of now.
func (r *reads) beginLife(ctx context.Context) error {
	for {
		committed, err := groupOffsets(ctx, r.cl, r.group, false)
		if err == nil {
			r.life = lifeOf(committed)
			return nil
		}
		if !kafka.IsRetriable(err) || kafka.IsUnreachable(err) { // a broker that answers says what it waits for; the others had their time
			return err
		}
		if sleep(ctx, goneRetry) != nil {
			return ctx.Err()
		}
	}
}

// Outlived reports that the application was cancelled, and its state deleted, since this process began.
func (r reads) Outlived(ctx context.Context) error {
	all, err := groupOffsets(ctx, r.cl, r.group, false)
	if err != nil {
		return err
	}
	return r.sameLife(ctx, all)
}

// sameLife refuses positions that are of a later life. A partition without any says nothing, so the others are asked.
func (r reads) sameLife(ctx context.Context, got map[element.TopicPartition]kafka.Committed) error {
	life, unknown := lifeOf(got), false
	for _, c := range got {
		unknown = unknown || !c.Found
	}
	if unknown && life == 0 {
		all, err := groupOffsets(ctx, r.cl, r.group, false)
		if err != nil {
			return err
		}
		life = lifeOf(all)
	}
	if life > r.life {
		return fault.Stopf(fault.OK, "%w", errOtherLife)
	}
	return nil
}

// settleCancel deletes the state after a cancel that keeps none, if this instance was the last one. err is how the engine
// has ended; the error is that of the run.
func (s *service) settleCancel(ctx context.Context, err error) error {
	if errors.Is(err, errOtherLife) {
		return s.outlived()
	}
	if !s.ops.deletes() {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	bounded, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	now := reads{cl: s.reads.cl, group: s.reads.group}
	if now.beginLife(bounded) == nil && now.life > s.reads.life {
		return s.outlived()
	}
	if err != nil || s.ops.unfinished() != nil {
		s.log.Warn("the checkpoints are kept although the cancel was to delete them: the last one is missing")
		return err
	}
	got, ferr := forget(ctx, s.plan.Application, s.cfg, s.reads.life)
	var still *stillMembers
	switch {
	case errors.As(ferr, &still):
		s.log.Info("the checkpoints stay until all instances have ended; the last one that is cancelled deletes them", "still_there", still.names)
	case errors.Is(ferr, errOtherLife): // another one was the last, and has done it
		s.log.Info("checkpoints deleted by another instance, or by the command")
	case ferr != nil:
		s.log.Warn("not all checkpoints were deleted with the cancel: another cancel does the rest", "error", ferr)
	default:
		s.log.Info("checkpoints deleted (checkpointing.retention: delete-on-cancellation): the next run starts without state at the committed offsets", "files", got.Files, "bytes", got.Bytes)
	}
	return nil
}

// outlived ends an instance that has nothing to end any more.
func (s *service) outlived() error {
	s.log.Warn("ended: "+errOtherLife.Error(), "instance", s.instance)
	s.ops.pardon()
	if s.cfg.Outlived != nil {
		s.cfg.Outlived()
	}
	return nil
}

// deletes reports that the instance was cancelled, and the state is to go.
func (o *operations) deletes() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.deleting
}

// unfinished gives why the last checkpoint is missing.
func (o *operations) unfinished() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.incomplete
}

// lacks notes why the last checkpoint is missing.
func (o *operations) lacks(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.incomplete = cause
}

// pardon says that no last checkpoint was needed.
func (o *operations) pardon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.incomplete = nil
}
