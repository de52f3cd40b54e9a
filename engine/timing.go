package engine

import (
	"fmt"
	"time"

	"github.com/millweir/millweir/element"
)

// timerSlice is how long a task fires timers before it looks for barriers and for what waits in its input.
const timerSlice = 10 * time.Millisecond

// turns says whose turn it is in a task, timers or what waits in its input. Many timers may be due at once, and each may take
// long; a barrier that comes meanwhile must not wait for them all, nor may they wait for a stream that never stops:
//
//	no barrier is known    timers  input  timers  input ...             one slice, one batch
//	one is                 input, until the barrier is taken            timers only when nothing can be taken
//	one was taken          timers, one slice, also when the next one is known
type turns struct {
	input bool                 // timers had the last turn
	owed  bool                 // no timer has had a turn since the last cut
	cut   element.CheckpointID // what is known of it and of lower ones is decided here
}

// decided notes a checkpoint that was cut or given up here.
func (u *turns) decided(id element.CheckpointID) {
	u.cut = max(u.cut, id)
	u.owed = true
}

// barrierKnown reports that a barrier waits somewhere before the task.
func (t *task) barrierKnown() bool {
	return t.inbox.hasBarrier() || t.in != nil && element.CheckpointID(t.in.newest.Load()) > t.turns.cut
}

// work gives timers and input their turns.
func (t *task) work() (bool, error) {
	if !t.hasTimers || t.halted {
		return t.take()
	}
	if !t.turns.input && !t.barrierKnown() {
		if did, err := t.fireTimers(); did || err != nil {
			return did, err
		}
	}
	t.turns.input = false
	if did, err := t.take(); did || err != nil {
		return did, err
	}
	return t.fireTimers()
}

// repay fires the slice of timers that there is between two barriers.
func (t *task) repay() (bool, error) {
	if !t.turns.owed || !t.hasTimers || t.halted {
		return false, nil
	}
	t.turns.owed = false
	return t.fireTimers()
}

// take is one turn of the input.
func (t *task) take() (bool, error) {
	if t.in != nil {
		return t.in.take(t)
	}
	return t.takeDelivery()
}

func (t *task) timersDue(now int64) bool {
	ms, ok := t.chain.NextTimer()
	return ok && ms <= now
}

// unread is asked after the chain has said which timers there are: a state that cannot be read tells of none.
func (t *task) unread() error {
	if err := t.state.Err(); err != nil {
		return fmt.Errorf("task %s, timers: %w", t.id, err)
	}
	return nil
}

// fireTimers fires a slice of the timers that are due.
func (t *task) fireTimers() (bool, error) {
	now := time.Now()
	due := t.timersDue(now.UnixMilli())
	if err := t.unread(); err != nil {
		return true, err
	}
	if !due || t.flow.isClosed() {
		t.unclaim()
		return false, nil
	}
	if !t.outs.credit() {
		return false, nil
	}
	if !t.claimed {
		if !t.begin() {
			return false, nil
		}
		t.claimed = true
	}
	t.turns.input, t.turns.owed = true, false
	t.movedNow()
	// What comes of the timers goes through the steps behind them together, so their time shows only afterwards: the number
	// follows from the slices before.
	n, most := 1, max(1, t.timerPace.most()/int(turnTime/timerSlice))
	more, err := t.chain.FireTimers(now.UnixMilli(), func() bool {
		if n >= most || time.Since(now) >= timerSlice {
			return true
		}
		n++
		return false
	})
	if err != nil {
		return true, err
	}
	t.timerPace.note(n, time.Since(now))
	if err := t.endBatch(); err != nil {
		return true, err
	}
	t.checkLimit()
	if err := t.endAtLast(); err != nil {
		return true, err
	}
	if !more {
		t.unclaim()
	}
	return true, nil
}

// wakeAt is when the task has to look again although nobody rings. Timers that wait for room, or for the state to be written,
// are not such a reason: there is a ring when that comes.
func (t *task) wakeAt() (time.Time, bool) {
	var at time.Time
	if t.in != nil && !t.in.switchAt.IsZero() {
		at = t.in.switchAt
	}
	if t.hasTimers && !t.halted && t.unwritten == 0 && t.outs.credit() && !t.flow.isClosed() {
		if ms, ok := t.chain.NextTimer(); ok {
			if due := time.UnixMilli(ms); at.IsZero() || due.Before(at) {
				at = due
			}
		}
		if t.unread() != nil {
			return time.Now(), true // the next turn says so
		}
	}
	return at, !at.IsZero()
}

// onEnd: no record comes to the task any more: its partition has reached the end that it was given, or all its inputs have
// ended. It goes on to take part in checkpoints, for which the coordinator brings it the barriers from now on.
func (t *task) onEnd() error {
	if t.dry {
		return nil
	}
	t.dry = true
	if err := t.endAtLast(); err != nil {
		return err
	}
	t.claim()
	t.report(event{kind: evEnded, task: t.id})
	return nil
}

// endAtLast sends the end when nothing more can come of the task. As long as it has a timer something can, and whoever is
// behind it must go on waiting for its barriers: an input that has ended counts as delivered in every checkpoint, so what came
// behind the end would be in states that do not know of it, or in none.
func (t *task) endAtLast() error {
	if !t.dry || t.ended {
		return nil
	}
	if t.hasTimers {
		if _, pending := t.chain.NextTimer(); pending {
			return nil
		}
		if err := t.unread(); err != nil {
			return err
		}
	}
	if err := t.chain.Flush(); err != nil {
		return err
	}
	t.ended = true
	t.outs.end()
	return nil
}
