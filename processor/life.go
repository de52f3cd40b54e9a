package processor

import (
	"context"
	"errors"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/snapshot"
)

// errOtherLife ends an instance that has slept while the application was cancelled and its state deleted. It took part in
// what is over; whether something goes on is for those to say who start anew.
var errOtherLife = errors.New("the application was cancelled, and its state is deleted (or it was reset)")

// openLife comes before the group is joined: whoever was a member of it in one life knows that it was this one.
func (s *service) openLife(ctx context.Context) (err error) {
	s.committed, err = s.reads.beginLife(ctx)
	return err
}

// beginLife learns which life of the application this process belongs to, which is the one of now, and gives what is committed.
func (r *reads) beginLife(ctx context.Context) (map[element.TopicPartition]kafka.Committed, error) {
	for {
		now, err := r.lifeNow(ctx)
		if err == nil {
			r.life = now.life
			return now.committed, nil
		}
		if !kafka.IsRetriable(err) || kafka.IsUnreachable(err) { // a broker that answers says what it waits for; the others had their time
			return nil, err
		}
		if sleep(ctx, goneRetry) != nil {
			return nil, ctx.Err()
		}
	}
}

// lifeFacts is what a group says about the life of its application.
type lifeFacts struct {
	life     uint64
	begun    bool // handles of it are committed
	stateful bool // and some have state

	committed map[element.TopicPartition]kafka.Committed // that says it
}

// lifeNow reads it: what is committed says it, and where nothing is, what the last reset has left.
func (r reads) lifeNow(ctx context.Context) (lifeFacts, error) {
	committed, err := kafka.GroupOffsets(ctx, r.cl, r.group, false)
	if err == nil {
		err = refuseEnds(r.group, committed)
	}
	if err != nil {
		return lifeFacts{}, err
	}
	for _, c := range committed {
		if c.Found {
			return lifeFacts{life: LifeOf(committed), begun: true, stateful: hasState(committed), committed: committed}, nil
		}
	}
	life, err := readAfterReset(ctx, r.cl, r.group)
	return lifeFacts{life: life, committed: committed}, err
}

// over says that a process that began in a life is of the past: a later one has begun, or a reset, whose mark is not there,
// has been followed by one that does not know of it.
func (f lifeFacts) over(began uint64) bool {
	return f.life > began || f.begun && f.life < began
}

// Outlived reports that the application was cancelled, and its state deleted, since this process began.
func (r reads) Outlived(ctx context.Context) error {
	now, err := r.lifeNow(ctx)
	if err == nil && now.over(r.life) {
		err = fault.Stopf(fault.OK, "%w", errOtherLife)
	}
	return err
}

// sameLife refuses positions that are of another life than this process. A partition without any says nothing, and neither
// does one that a cancel has not come to: then the others are asked.
func (r reads) sameLife(ctx context.Context, got map[element.TopicPartition]kafka.Committed) error {
	life, unknown := LifeOf(got), false
	for _, c := range got {
		unknown = unknown || !c.Found
	}
	switch {
	case life > r.life:
		return fault.Stopf(fault.OK, "%w", errOtherLife)
	case life < r.life, unknown && life == 0:
		return r.Outlived(ctx)
	}
	return nil
}

// ofThisLife gives the metadata of a position as it is to be understood in a life: a handle of an earlier one, which a cancel
// has left that was interrupted, has no state any more.
func ofThisLife(metadata string, life uint64) string {
	h, err := snapshot.ParseHandle(metadata)
	if err != nil || h.Life >= life {
		return metadata
	}
	text, err := h.WithoutState(life).Encode()
	if err != nil {
		return metadata
	}
	return text
}

// lastLook gives the mark of what is committed behind the last checkpoint of a cancel that deletes. What comes after may be
// somebody's who was not cancelled: this one may sleep at any moment, so the group has to have had it as the same member since
// the cancel, until what is committed was read. "" says that this is not known, or that nothing is to be deleted.
func (s *service) lastLook(ctx context.Context, err error) string {
	if err != nil || !s.ops.deletes() || s.ops.unfinished() != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	stable, done := context.WithTimeout(ctx, leaveTimeout/2)
	defer done()
	committed, err := kafka.GroupOffsets(stable, s.reads.cl, s.plan.Application, true)
	if err != nil { // one that sleeps has offsets in a transaction: what was committed before is true as well
		committed, err = kafka.GroupOffsets(ctx, s.reads.cl, s.plan.Application, false)
	}
	if err != nil {
		s.log.Debug("could not read the offsets behind the last checkpoint", "error", err)
		return ""
	}
	members, _, err := describeMembers(ctx, s.reads.cl, s.plan.Application)
	if err != nil {
		s.log.Debug("could not see whether this is still a member of the group", "error", err)
		return ""
	}
	return s.ops.looked(members, markOf(committed))
}

// looked keeps a mark for the reply if the member of the time of the cancel is among those of now.
func (o *operations) looked(members []groupMember, mark string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.ContainsFunc(members, func(m groupMember) bool { return m.id == o.member }) {
		o.mark = mark
	}
	return o.mark
}

// lastMark gives what lastLook has given.
func (o *operations) lastMark() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mark
}

// settleCancel deletes the state after a cancel that keeps none, if this instance was the last one. err is how the engine
// has ended, known what lastLook has given; the error is that of the run.
func (s *service) settleCancel(ctx context.Context, err error, known string) error {
	if errors.Is(err, errOtherLife) {
		return s.outlived()
	}
	if !s.ops.deletes() {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	bounded, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if errors.Is(s.reads.Outlived(bounded), errOtherLife) {
		return s.outlived()
	}
	if err != nil || s.ops.unfinished() != nil {
		s.log.Warn("this instance deletes no checkpoints although the cancel was to: the last one is missing")
		return err
	}
	got, ferr := forget(ctx, s.plan.Application, s.cfg, s.reads.life, s.reads.life, []string{known})
	if !errors.Is(ferr, errOtherLife) {
		s.ops.keeps(ferr)
	}
	still := keptFor(ferr)
	switch {
	case still != nil:
		s.log.Info("the checkpoints stay until all instances have ended; the last one that is cancelled deletes them", "still_there", still.names)
	case errors.Is(ferr, errOtherLife): // another one was the last, and has done it
		s.log.Info("the state was given up by another instance, or by the command, which deletes the checkpoints")
	case errors.Is(ferr, errBehind):
		s.log.Info("the checkpoints stay: others have committed behind this instance, and whoever of them is cancelled last, or the command, deletes them")
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
