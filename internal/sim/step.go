package sim

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
)

// In an application with an exchange the tasks wait for each other and for room, so each wakes the other, and a turn is cut
// where the loop or another task may come in between: behind the look at the notices, and between the parts of a snapshot.

// ring wakes a task. It keeps one ring.
func (t *task) ring() {
	if t.turning || t.gone || t.a.over {
		return
	}
	t.turning = true
	w := t.a.p.w
	most := 400 * time.Microsecond
	if t.in != nil {
		most = w.x.slow
	}
	w.do(t.a.p, t.pause(most), kTask, func() {
		t.turning = false
		if !t.a.over && !t.gone && t.step() {
			t.ring()
		}
	})
}

// step does one thing, the most urgent, and says whether there was any.
func (t *task) step() bool {
	w := t.a.p.w
	switch {
	case len(t.todo) > 0:
	case t.interrupted():
	default:
		if !t.act() {
			return false
		}
	}
	for len(t.todo) > 0 {
		f := t.todo[0]
		t.todo = t.todo[1:]
		f()
		if w.chance(25) {
			break
		}
	}
	return true
}

// interrupted serves a notice, or looks whether there is one and is interrupted then. It reports that nothing else is done.
func (t *task) interrupted() bool {
	w := t.a.p.w
	switch {
	case t.looked:
		t.looked = false
	case t.noticed():
		return true
	case w.tolerable != 0 && !w.healed && w.chance(12):
		t.looked = true
		return true
	}
	return false
}

// lookAgain lets a task that has nothing to do look at the notices, and then, somewhat later, for something else.
func (t *task) lookAgain() {
	w := t.a.p.w
	if w.tolerable != 0 && !w.healed && !t.looked && len(t.items) == 0 && t.notice == 0 && t.known == len(t.given) && t.halting == t.halted {
		t.looked = w.chance(30)
	}
}

// pause is how long it is until a task goes on: now and then longer, when it has looked at the notices.
func (t *task) pause(most time.Duration) time.Duration {
	w := t.a.p.w
	switch {
	case w.cfg.script != nil && t.in != nil:
		return w.x.slow // so that something is on the way, without chance
	case t.looked && w.chance(30):
		most *= 20
	}
	return w.lag(most)
}

// noticed serves what is not in order with records.
func (t *task) noticed() bool {
	switch {
	case t.notice != 0:
		t.state.commit(t.notice)
		t.notice = 0
	case t.known < len(t.given):
		s := t.given[t.known]
		t.known++
		t.state.takeBack(s, t.a.p.w.cfg.Bug)
		if t.in != nil {
			t.in.abandoned(s)
		}
	default:
		return false
	}
	return true
}

func (t *task) act() bool {
	if t.in != nil {
		return t.in.urgent() || t.takeTrigger() || t.in.take()
	}
	return t.takeDelivery()
}

// takeTrigger is where a subtask whose inputs have all ended takes its part in a checkpoint.
func (t *task) takeTrigger() bool {
	if len(t.barriers) == 0 {
		return false
	}
	b := t.barriers[0]
	t.barriers = t.barriers[1:]
	t.a.p.w.counts.TriggeredBehindEnds++
	t.in.perform(t.in.gate.Trigger(b))
	return true
}

// end: the task goes on to take part in checkpoints.
func (t *task) end() {
	t.ended = true
	for _, c := range t.outs {
		c.pushEnd()
	}
	t.a.p.w.counts.EndedTasks++
	t.a.report(event{kind: evEnded, task: t.id})
}

// sliceRecords is how many records of a delivery a task processes before it looks for barriers and for room again.
const sliceRecords = 2

// takeDelivery is the turn of a source's task with an exchange behind it. Barriers do not wait for what is only fetched.
func (t *task) takeDelivery() bool {
	if len(t.barriers) > 0 {
		b := t.barriers[0]
		t.barriers = t.barriers[1:]
		t.take(b)
		return true
	}
	if slices.ContainsFunc(t.outs, func(c *channel) bool { return !c.credit() }) {
		return false
	}
	if !t.working {
		if len(t.items) == 0 {
			return false
		}
		if t.items[0].end {
			t.items = t.items[1:]
			t.end()
			return true
		}
		t.rest, t.working = t.items[0], true
		t.items = t.items[1:]
		t.waiting -= len(t.rest.recs)
		if t.stalled && t.waiting < inboxLimit {
			t.stalled = false
			t.fetch()
		}
	}
	part := t.rest
	if len(part.recs) > sliceRecords {
		part.recs = part.recs[:sliceRecords]
		part.next = part.recs[sliceRecords-1].offset + 1
		t.rest.recs = t.rest.recs[sliceRecords:]
	} else {
		t.rest, t.working = item{}, false
	}
	t.movedNow()
	t.send(part.recs)
	t.position.Offset = part.next
	return true
}

// send puts records on their way.
func (t *task) send(recs []inRecord) {
	x := t.a.p.w.x
	to := make([]parcel, len(t.outs))
	for _, r := range recs {
		if r.skip {
			continue
		}
		key := exchangeKey(r.key)
		i := element.SubtaskOf(x.group(key), len(t.outs), x.groups)
		to[i] = append(to[i], sent{key: key, from: byte(t.id.Partition), at: r.offset})
	}
	for i, p := range to {
		if len(p) > 0 {
			t.outs[i].push(p)
		}
	}
}

// take is what a task does with a barrier that the coordinator has brought.
func (t *task) take(b gate.Barrier) {
	if t.hear(b.ID) {
		t.giveUp(b.ID)
		return
	}
	t.a.report(event{kind: evBarrier, id: b.ID, task: t.id, ack: t.cut(b.ID, b)})
}

// hear looks at the notices before a cut, and says whether the checkpoint itself has been given up.
func (t *task) hear(id element.CheckpointID) bool {
	if t.a.p.w.cfg.Bug == FrozenUnaware {
		return false
	}
	for t.noticed() {
	}
	over := slices.ContainsFunc(t.given[:t.known], func(s span) bool { return s.first <= id && id <= s.last })
	if over {
		t.a.p.w.counts.GivenUpLate++
	}
	return over
}

// giveUp passes on that a checkpoint comes to nothing here.
func (t *task) giveUp(id element.CheckpointID) {
	for _, c := range t.outs {
		if !t.ended {
			c.pushCancel(id)
		}
	}
	t.a.report(event{kind: evDeclined, id: id, task: t.id, err: fault.Restartf(fault.Failed, "it did not come about")})
}

// cut is the synchronous part of a checkpoint.
func (t *task) cut(id element.CheckpointID, forward gate.Barrier) taskAck {
	p := t.a.flight(id)
	f := t.state.freeze(id, p != nil && (p.saves || p.whole[t.id]))
	if !t.a.takenBack(id) && !t.a.p.w.plain {
		t.queues = append(t.queues, heldQueue{after: id})
	}
	for _, c := range t.outs {
		c.pushBarrier(forward)
	}
	ack := taskAck{position: t.position, frozen: f, moved: t.moved}
	t.moved = false
	return ack
}

// movedNow reports the first change since the last barrier.
func (t *task) movedNow() {
	if !t.moved {
		t.moved = true
		t.a.report(event{kind: evMoved, task: t.id})
	}
}
