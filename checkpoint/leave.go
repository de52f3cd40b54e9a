package checkpoint

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
)

// Leave takes tasks out in order, because their partitions go to another member. They have halted: they take no record
// any more and pass barriers where they stand. The answer is Left, once per task, in the same call or with the checkpoint
// that the task leaves with:
//
//   - the newest in flight covers the task: it is left when that completes. What it did behind that barrier is the
//     driver's to drop, since the position that goes to the next owner is the barrier's;
//   - it joined while the newest was in flight: all it did is held back, so it is left at once;
//   - none is in flight and none of the tasks has moved: nothing of theirs is uncommitted, they are left at once;
//   - none is in flight and some have moved: their outputs are in the open transaction, so a checkpoint of all tasks is
//     triggered at once, and they are left with it.
//
// Calls may overlap: a task that is leaving is answered once, one that is not here not at all. A failed checkpoint that
// is not tolerated ends the attempt, and with it every task; no Left comes then.
//
// With several in flight, n the oldest and m the newest of those that cover the task:
//
//   - It leaves with m and no sooner. m's root names it and m's commit has its position; were it left with n, the next
//     owner would begin at n's barrier, and then m would commit over that. What it did between the barriers of n and m is
//     committed with m, and S is m's.
//   - Checkpoints that are triggered later do not cover it, or it would never come to leave. So m is the last one that
//     names it, and the ones behind m may complete or not: it is gone by then.
//   - n completes: nothing changes for the task. Its output up to the next barrier is released as that of any other.
//   - m is abandoned and n is still in flight: it leaves with n, as if m had never been triggered. What it did behind n's
//     barrier is dropped. If it joined after n was triggered, all it did is held back behind n: it is left at once.
//   - All that cover it are abandoned and none is in flight: what it did before the barriers, and what it did behind the
//     last one until it halted, is in the open transaction now. If it has moved, a checkpoint for it is triggered at
//     once, which covers it; if that fails too, the next try waits for the interval.
func (c *Coordinator) Leave(now time.Duration, tasks []element.TaskID) []Action {
	if c.enter(now); c.dead {
		return c.leave()
	}
	newest := c.newest()
	var open, atOnce []element.TaskID
	for _, t := range tasks {
		ts := c.tasks[t]
		switch {
		case ts == nil || ts.leaving || slices.Contains(atOnce, t):
		case newest == nil:
			ts.leaving = true
			open = append(open, t)
		case newest.by[t] == nil:
			atOnce = append(atOnce, t)
		default:
			ts.leaving, ts.with, ts.behind = true, newest.id, ts.moved
			c.setMoved(ts, false)
		}
	}
	if waiting, none := c.leaveOpen(open); waiting {
		c.trigger(Revoke)
	} else {
		atOnce = append(atOnce, none...)
	}
	c.left(atOnce)
	return c.leave()
}

// leaveOpen is for tasks that leave while none is in flight. If one of them has moved they wait for the next checkpoint;
// if not, it gives them back: they can go at once.
func (c *Coordinator) leaveOpen(tasks []element.TaskID) (waiting bool, atOnce []element.TaskID) {
	moved := func(t element.TaskID) bool { return c.tasks[t].moved }
	if !slices.ContainsFunc(tasks, moved) {
		return false, tasks
	}
	c.waits += len(tasks)
	return true, nil
}

// leaveAgain is for tasks that were to leave with checkpoints which were abandoned. It reports that some wait for the next
// one.
func (c *Coordinator) leaveAgain() (waiting bool) {
	newest := c.newest()
	var open, atOnce []element.TaskID
	for t, ts := range c.tasks {
		switch {
		case !ts.staysOut() || c.flight(ts.with) != nil:
		case newest == nil:
			ts.with = 0
			c.setMoved(ts, ts.behind)
			ts.behind = false
			open = append(open, t)
		case newest.by[t] == nil:
			atOnce = append(atOnce, t)
		default:
			ts.with = newest.id
		}
	}
	waiting, none := c.leaveOpen(open)
	c.left(append(atOnce, none...))
	return waiting
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

// leftWith removes the tasks that were to leave with a checkpoint, which has completed.
func (c *Coordinator) leftWith(p *pending) {
	var gone []element.TaskID
	for _, t := range p.tasks {
		if ts := c.tasks[t]; ts != nil && ts.leaving && ts.with == p.id {
			gone = append(gone, t)
		}
	}
	c.left(gone)
}
