package processor

import (
	"context"
	"errors"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/snapshot"
)

// fateTimeout bounds the question what became of the state.
const fateTimeout = 2 * time.Second

// fate is what became of the state of an application that was cancelled.
type fate int

const (
	uncertain fate = iota // given up, or not: the group does not tell, or something is on the way to it
	whole
	gone // nothing that is committed has state any more; files may be left
	anew // and somebody has worked since
)

// words say it. pending: somebody was told to end, and is not known to have, who deletes when it does.
func (f fate) words(pending bool) string {
	switch f {
	case gone:
		return "the state is given up, and the next run starts without it; cancel again, which deletes the files that are left"
	case anew:
		return "the state of before is given up, and nothing is deleted of what was done since"
	case whole:
		if pending {
			return "nothing is deleted yet"
		}
		return "nothing is deleted"
	}
	return "the state is given up, or may be; cancel again"
}

// fateNow asks the group, over a connection of its own: on another one, the answer may wait behind those that do not come. was is
// the life that was to end; anyLife where that is not known.
func fateNow(ctx context.Context, application string, cfg Config, was uint64) fate {
	ctx, cancel := context.WithTimeout(ctx, fateTimeout)
	defer cancel()
	cl, err := (&Reset{Application: application, cfg: cfg}).clientFor("command")
	if err != nil {
		return uncertain
	}
	defer cl.Close()
	now, err := reads{cl: cl, group: application}.lifeNow(ctx)
	if err != nil {
		return uncertain
	}
	return now.fate(was)
}

func (f lifeFacts) fate(was uint64) fate {
	over := was != anyLife && f.over(was)
	switch {
	case over && f.stateful:
		return anew
	case over, f.begun && f.life > 0 && !f.stateful:
		return gone
	}
	return whole
}

// forgetWithin is the time for a deletion: what follows the question what became of it fits into that of ctx.
func forgetWithin(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return forgetTimeout
	}
	left := time.Until(end)
	return min(forgetTimeout, left-min(fateTimeout, left/forgetShare))
}

// undone is how a deletion ended that has not done all: what became of the state, and why.
type undone struct {
	fate    fate
	pending bool // see words
	late    bool // the time was over
	cause   error
}

func (e *undone) Unwrap() error { return e.cause }

func (e *undone) Error() string {
	text := e.fate.words(e.pending)
	if e.late {
		text = "not done in time: " + text
		if e.fate == whole {
			text += "; cancel again"
		}
	}
	return text + ": " + e.cause.Error()
}

// keptFor gives who is in the group where that is why nothing is deleted, and the state is whole.
func keptFor(err error) *stillMembers {
	var u *undone
	var still *stillMembers
	if errors.As(err, &u) && u.fate == whole && errors.As(err, &still) {
		return still
	}
	return nil
}

// verdict says how an attempt ended, whose time was that of ctx; outer is for the question what became of the state.
func (f *forgetter) verdict(outer, ctx context.Context, err error) error {
	if err == nil || errors.Is(err, errOtherLife) {
		return err
	}
	u := &undone{fate: gone, late: errors.Is(ctx.Err(), context.DeadlineExceeded), cause: err}
	if !f.removing {
		u.fate = fateNow(outer, f.Application, f.cfg, f.was)
		if u.fate == whole && f.may {
			u.fate = uncertain
		}
	}
	if u.late || errors.Is(err, kafkasrc.ErrNotAlone) {
		u.cause = fault.Stopf(fault.NotRunning, "%w", err)
	}
	return u
}

// mine says that the newest life of what is committed was begun by this, whatever it was answered.
func (f *forgetter) mine(committed map[element.TopicPartition]kafka.Committed) bool {
	life := LifeOf(committed)
	for _, c := range committed {
		if h, err := snapshot.ParseHandle(c.Metadata); c.Found && err == nil && h.Life == life && h.Root.Name.Incarnation == f.incarnation {
			return true
		}
	}
	return false
}
