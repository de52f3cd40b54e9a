package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/fault"
)

// errNobody says that a command finds nobody to obey it.
var errNobody = errors.New("its group has no members")

// forgetShare is the part of a cancel's time that is left to the deletion when somebody does not reply.
const forgetShare = 4

// Cancel ends all instances of the application, as SendAll does with CancelCommand. Where they have DeleteOnCancellation, and
// without a savepoint, it deletes the state as soon as nobody is in the group any more; before that nothing is deleted. An instance that
// does not answer counts as ended when its session is over: it cannot commit then, and ends when it wakes up. Where no
// instance runs, what another cancel has left is done, if cfg says DeleteOnCancellation.
func Cancel(ctx context.Context, application string, cfg Config, cmd Send) (Outcome, error) {
	cmd.Command = CancelCommand
	if err := (admin.Cancel{Savepoint: cmd.Savepoint, Dir: cmd.Dir}).Check(); err != nil {
		return Outcome{}, err
	}
	cfg = cfg.withDefaults()
	all := cmd.Timeout
	bounded, cancel := context.WithTimeout(ctx, all)
	defer cancel()
	if cfg.cancelDeletes(cmd) { // who does not reply does not take the time for a look
		cmd.Timeout -= min(forgetTimeout, all/forgetShare)
	}
	out, err := sendAll(ctx, application, cfg, cmd)
	if errors.Is(err, errMaybeGiven) && cfg.cancelDeletes(cmd) {
		err = fmt.Errorf("%w; %s", err, fateNow(bounded, application, cfg, out.life).words(true))
	}
	if cmd.Savepoint || cfg.DisabledCheckpoints || err != nil && (cfg.Retention != DeleteOnCancellation || !errors.Is(err, errNobody)) {
		return out, err
	}
	if err != nil {
		out.Replies, out.Problems = []Reply{}, []string{}
	}
	if !out.settleRetention(cfg.Retention) {
		return out, nil
	}
	if slices.ContainsFunc(out.Replies, func(r Reply) bool { return r.Error != "" }) {
		now := fateNow(bounded, application, cfg, out.life)
		text := now.words(out.pending)
		if now == whole {
			text += ", since an instance failed: cancel again when it has ended"
		}
		out.Problems = append(out.Problems, text)
		return out, ctx.Err()
	}
	got, err := forget(bounded, application, cfg, anyLife, out.life, out.known)
	var u *undone
	if errors.As(err, &u) {
		u.pending = out.pending
	}
	switch {
	case ctx.Err() != nil:
		return out, ctx.Err()
	case keptFor(err) != nil:
		out.Problems = append(out.Problems, fmt.Sprintf("%v: end it, or wait until its group.session-timeout is over, and cancel again", err))
		return out, nil
	case err != nil && fault.CodeOf(err) == fault.NotRunning:
		out.Problems = append(out.Problems, err.Error())
		return out, nil
	case err != nil:
		return out, err
	}
	// Nobody who was there can go on any more, whether it has replied or not.
	for _, p := range out.Problems {
		out.Notes = append(out.Notes, p+": when it wakes up, it ends")
	}
	out.Problems, out.Deleted = []string{}, &got
	return out, nil
}

// cancelDeletes says that a cancel is to delete the state as far as the file goes.
func (c Config) cancelDeletes(cmd Send) bool {
	return cmd.Command == CancelCommand && !cmd.Savepoint && !c.DisabledCheckpoints && c.Retention == DeleteOnCancellation
}

// settleRetention reports that the checkpoints are to go. That is a property of the work that was ended, so the instances say it,
// all of them; the file counts where none has. What differs is told.
func (o *Outcome) settleRetention(file Retention) bool {
	by := map[Retention][]string{}
	for _, r := range o.Replies {
		if r.Retention != "" {
			by[Retention(r.Retention)] = append(by[Retention(r.Retention)], r.Instance)
		}
	}
	keep, drop := by[RetainOnCancellation], by[DeleteOnCancellation]
	const setting = "checkpointing.retention: "
	switch {
	case len(keep) > 0 && len(drop) > 0:
		o.Problems = append(o.Problems, fmt.Sprintf("%s %s, %s %s: the checkpoints are kept, unless the last one to end was one that deletes; give all instances the same",
			have(keep), setting+string(RetainOnCancellation), have(drop), DeleteOnCancellation))
	case len(keep) > 0 && file == DeleteOnCancellation:
		o.Problems = append(o.Problems, fmt.Sprintf("this command deletes nothing: %s %s, whatever the file says now (%s): to delete the checkpoints all the same, cancel again",
			have(keep), setting+string(RetainOnCancellation), file))
	case len(drop) > 0 && file != DeleteOnCancellation:
		o.Notes = append(o.Notes, fmt.Sprintf("%s %s, which counts, whatever the file says now (%s)", have(drop), setting+string(DeleteOnCancellation), file))
	}
	if len(keep)+len(drop) == 0 {
		return file == DeleteOnCancellation
	}
	return len(keep) == 0
}

// have begins a sentence about instances.
func have(names []string) string {
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " and " + names[n] + " have"
	}
	return names[0] + " has"
}

// cancel ends the service for good, as an operator's wish: after a last checkpoint, as a signal would. deleteState says
// that its checkpoints are to go then.
func (s *service) cancel(_ context.Context, deleteState bool) {
	member, r := "", s.runner.Load()
	if r != nil {
		member = s.group.Member()
	}
	s.ops.mu.Lock()
	first := !s.ops.cancelled
	if first {
		s.ops.member = member
	}
	s.ops.cancelled, s.ops.deleting = true, s.ops.deleting || first && deleteState && !s.cfg.DisabledCheckpoints
	s.ops.mu.Unlock()
	if !first {
		return
	}
	switch {
	case s.cfg.DisabledCheckpoints:
		s.log.Info("cancelled: committing the offsets a last time")
	case r != nil && r.Halted():
		s.log.Info("cancelled: the last checkpoint and the savepoint are taken")
	default:
		s.log.Info("cancelled: taking a last checkpoint", "delete_checkpoints", deleteState)
	}
	if s.cfg.Stopping != nil {
		s.cfg.Stopping()
	}
	s.ops.quit()
}

// keeps notes why the state is not deleted.
func (o *operations) keeps(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = err
}

// whyKept tells who cancels this instance by itself why the checkpoints stay. That others are to be cancelled yet is no error.
func (o *operations) whyKept() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	still, stay := keptFor(o.kept), "the checkpoints stay"
	var u *undone
	switch {
	case o.kept == nil:
		return "", nil
	case still != nil && !still.has(o.s.instance):
		return fmt.Sprintf("the group still has %s: the last one that is cancelled deletes them", strings.Join(still.names, ", ")), nil
	}
	if errors.As(o.kept, &u) && u.fate != whole {
		stay = "not all checkpoints are deleted"
	}
	return "", fault.Stopf(fault.NotRunning, "the instance has ended after a last checkpoint, and %s: cancel again, with the service file: %s", stay, o.kept.Error())
}
