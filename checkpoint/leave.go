package checkpoint

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
)

// Leave takes tasks out in order, because their partitions go to another member. They have halted: they take no record
// any more and pass barriers where they stand. The answer is Left, once per task, in the same call or with the checkpoint
// that covers them:
//
//   - the checkpoint in flight covers the task: it is left when that completes. What it did behind the barrier is the
//     driver's to drop, since the position that goes to the next owner is the barrier's;
//   - it joined while that one is in flight: all it did is held back, so it is left at once;
//   - none is in flight and none of the tasks has moved: nothing of theirs is uncommitted, they are left at once;
//   - none is in flight and some have moved: their outputs are in the open transaction, so a checkpoint of all tasks is
//     triggered at once, and they are left with it.
//
// Calls may overlap: a task that is leaving is answered once, one that is not here not at all. A failed checkpoint ends
// the attempt, and with it every task; no Left comes then.
func (c *Coordinator) Leave(now time.Duration, tasks []element.TaskID) []Action {
	if c.enter(now); c.dead {
		return c.leave()
	}
	var going, atOnce []element.TaskID
	moved := false
	for _, t := range tasks {
		ts := c.tasks[t]
		switch {
		case ts == nil || ts.leaving || slices.Contains(going, t) || slices.Contains(atOnce, t):
		case c.inflight == nil:
			going = append(going, t)
			moved = moved || ts.moved
		case c.inflight.by[t] == nil:
			atOnce = append(atOnce, t)
		default:
			going = append(going, t)
		}
	}
	switch {
	case c.inflight != nil:
	case moved:
		c.trigger(Revoke)
	default:
		atOnce, going = going, nil
	}
	for _, t := range going {
		c.tasks[t].leaving = true
		c.setMoved(c.tasks[t], false)
	}
	c.left(atOnce)
	return c.leave()
}

// left removes tasks and says so. What such a task reported as moved is dropped with it.
func (c *Coordinator) left(tasks []element.TaskID) {
	if len(tasks) == 0 {
		return
	}
	for _, t := range tasks {
		c.setMoved(c.tasks[t], false)
		delete(c.tasks, t)
	}
	slices.SortFunc(tasks, element.TaskID.Compare)
	c.emit(Left{Tasks: tasks})
}

// leftWith removes the tasks that were to leave with a checkpoint, which has completed. Nobody leaves with one that does
// not cover him, and there is none in flight only when nobody is leaving, so these are all that leave.
func (c *Coordinator) leftWith(p *pending) {
	var gone []element.TaskID
	for _, t := range p.tasks {
		if ts := c.tasks[t]; ts != nil && ts.leaving {
			gone = append(gone, t)
		}
	}
	c.left(gone)
}
