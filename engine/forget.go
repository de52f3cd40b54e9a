package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Forget says that the stop which follows is a cancel that keeps no state: behind the last checkpoint the positions are
// committed once more, now with the word that no state belongs to them. It is called before the context of Run ends.
func (r *Runner) Forget() { r.forget.Store(true) }

// Forgotten reports, after Run, that this has been committed: nothing needs the checkpoints of this instance any more. It is
// false when it could not be done; then everything is as after any other stop.
func (r *Runner) Forgotten() bool { return r.forgotten.Load() }

// commitForgotten does it. The attempt is over: no task runs and no transaction is open, so what is committed here are the
// positions of the last checkpoint. Whoever starts next finds them and begins without state. The files go only after this:
//
//	commit "no state"        crash here: the files are orphans, nobody asks for them
//	delete the files
//
// The other way round a crash would leave positions that name a checkpoint which is gone.
func (a *attempt) commitForgotten(ctx context.Context) error {
	c := checkpoint.Commit{Name: element.CheckpointName{ID: a.lastID + 1, Incarnation: a.r.cfg.Incarnation}}
	for _, id := range a.order {
		t := a.tasks[id]
		if t.exchange {
			continue
		}
		pos := t.position
		if len(t.committed.Positions) > 0 {
			pos = t.committed.Positions[0]
		} else if t.root == nil && t.moved {
			return fmt.Errorf("task %s has processed records that no checkpoint covers", id)
		}
		h := a.newHandle(pos)
		h.Root.Name = c.Name
		text, err := h.Encode()
		if err != nil {
			return fault.Stopf(fault.Failed, "handle of the last position of %s: %w", pos.TopicPartition, err)
		}
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Epoch: t.epoch, Position: pos, Metadata: text})
	}
	if len(c.Offsets) == 0 {
		return errors.New("no partition is assigned")
	}
	if err := a.r.ports.Committer.CommitInitial(ctx, c); err != nil {
		return fmt.Errorf("commit that no state belongs to the last positions: %w", err)
	}
	a.lastID++
	a.r.forgotten.Store(true)
	return nil
}
