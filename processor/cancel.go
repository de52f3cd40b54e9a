package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millweir/millweir/internal/fault"
)

// errNobody says that a command finds nobody to obey it.
var errNobody = errors.New("its group has no members")

// Cancel ends all instances of the application, as SendAll does with CancelCommand. With DeleteOnCancellation and without a
// savepoint it deletes the state as soon as nobody is in the group any more; before that nothing is deleted. An instance that
// does not answer counts as ended when its session is over: it cannot commit then, and ends when it wakes up. Where no
// instance runs, what another cancel has left is done.
func Cancel(ctx context.Context, application string, cfg Config, cmd Send) (Outcome, error) {
	cmd.Command = CancelCommand
	cfg = cfg.withDefaults()
	out, err := sendAll(ctx, application, cfg, cmd)
	if cmd.Savepoint || cfg.Retention != DeleteOnCancellation || cfg.DisabledCheckpoints || err != nil && !errors.Is(err, errNobody) {
		return out, err
	}
	if err != nil {
		out = Outcome{Replies: []Reply{}, Problems: []string{}}
	}
	for _, r := range out.Replies {
		if r.Error != "" {
			out.Problems = append(out.Problems, "nothing is deleted, since an instance failed: cancel again when it has ended")
			return out, nil
		}
	}
	got, err := forget(ctx, application, cfg, anyLife)
	switch {
	case ctx.Err() != nil:
		return out, ctx.Err()
	case err != nil && fault.CodeOf(err) == fault.NotRunning:
		out.Problems = append(out.Problems, fmt.Sprintf("%v: end it, or wait until its group.session-timeout is over, and cancel again", err))
		return out, nil
	case err != nil:
		return out, err
	}
	// Nobody who was there can go on any more, whether it has replied or not.
	out.Notes, out.Problems, out.Deleted = out.Problems, []string{}, &got
	return out, nil
}

func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }
