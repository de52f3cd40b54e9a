package sim

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
)

// input mirrors engine.input: what comes to a subtask of the exchange. The gate is the real one.
type input struct {
	t        *task
	channels []*channel
	gate     *gate.Gate
	news     bool // a barrier that may overtake has come in one of the channels
	next     int  // the channel that is looked at first

	replay []parcel // what was in flight when the state was taken, and what is left of a parcel that is too long
	behind bool     // replay has as many records as a channel may have: senders wait

	current  gate.Barrier
	switchAt time.Duration // when the alignment is given up; 0: not to be

	open *cutOff

	counted element.CheckpointID // of a planted bug
}

// cutOff is an unaligned checkpoint of a subtask between its cut and the last barrier.
type cutOff struct {
	id  element.CheckpointID
	ack taskAck
}

// urgent serves barriers that may overtake, and the end of the patience with an alignment.
func (in *input) urgent() bool {
	w := in.t.a.p.w
	if w.cfg.Bug == EndForestalled && in.forestall() {
		return true
	}
	if in.news {
		in.news = false
		for i, c := range in.channels {
			for _, b := range c.announced() {
				in.t.todo = append(in.t.todo, func() {
					in.firstBarrier(b)
					in.perform(in.gate.Announced(i, b))
				})
			}
		}
		return true
	}
	if in.switchAt != 0 && w.now >= in.switchAt {
		in.switchAt = 0
		w.counts.Switched++
		in.perform(in.gate.TimedOut(in.current.ID))
		return true
	}
	return false
}

// take is one passage, or something of what was in flight.
func (in *input) take() bool {
	late := in.t.a.p.w.cfg.Bug == ReplayLate
	if len(in.replay) > 0 && !late {
		in.takeReplay()
		return true
	}
	for k := range in.channels {
		i := (in.next + k) % len(in.channels)
		if in.gate.Blocked(i) {
			continue
		}
		p, ok := in.channels[i].pop()
		if !ok {
			continue
		}
		in.next = i + 1
		switch {
		case p.parcel != nil:
			in.receive(p.parcel)
		case p.barrier.ID != 0:
			in.firstBarrier(p.barrier)
			in.barrier(i, p.barrier)
		case p.end:
			in.ended(i)
		default:
			in.perform(in.gate.Cancelled(i, p.cancel))
		}
		return true
	}
	if len(in.replay) > 0 {
		in.takeReplay()
		return true
	}
	return false
}

// ended: an input has brought all that it will, and perhaps it was the last one.
func (in *input) ended(i int) {
	in.perform(in.gate.Ended(i))
	in.t.todo = append(in.t.todo, func() {
		if in.gate.AllEnded() && !in.t.ended {
			in.t.end()
		}
	})
}

// forestall takes an end for what it is before the records ahead of it: a planted bug.
func (in *input) forestall() bool {
	for i, c := range in.channels {
		for k, p := range c.items {
			if p.end && k > 0 && !in.gate.Blocked(i) {
				c.items = slices.Delete(c.items, k, k+1)
				in.ended(i)
				return true
			}
		}
	}
	return false
}

func (in *input) takeReplay() {
	p := in.replay[0]
	in.replay = in.replay[1:]
	in.receive(p)
	if in.behind && in.toReplay() < in.channels[0].limit {
		in.behind = false
		for _, c := range in.channels {
			c.from.ring()
		}
	}
}

// receive counts. A parcel that is too long for one turn is cut into pieces.
func (in *input) receive(p parcel) {
	t, w := in.t, in.t.a.p.w
	if len(p) > 1 && w.chance(30) {
		most := 1 + w.rng.IntN(len(p)-1)
		in.replay = append([]parcel{p[most:]}, in.replay...)
		p = p[:most]
	}
	t.movedNow()
	for _, s := range p {
		t.write(outRecord{key: s.key, count: t.state.add(s.key), from: int32(s.from), at: s.at})
	}
}

func (in *input) fallBehind() { in.behind = in.toReplay() >= in.channels[0].limit }

func (in *input) toReplay() (records int) {
	for _, p := range in.replay {
		records += len(p)
	}
	return records
}

// barrier hands one to the gate. The planted bug takes the first of a checkpoint for that of all inputs.
func (in *input) barrier(i int, b gate.Barrier) {
	if in.t.a.p.w.cfg.Bug != CountFirst {
		in.perform(in.gate.Barrier(i, b))
		return
	}
	if b.ID <= in.counted {
		return
	}
	in.counted = b.ID
	for k := range in.channels {
		in.perform(in.gate.Barrier(k, b))
	}
}

func (in *input) firstBarrier(b gate.Barrier) {
	if in.current.ID < b.ID {
		in.current, in.switchAt = b, 0
	}
}

// perform has the gate's actions done before anything else.
func (in *input) perform(actions []gate.Action) {
	var todo []func()
	for _, act := range actions {
		todo = append(todo, func() { in.do(act) })
	}
	in.t.todo = append(todo, in.t.todo...)
}

func (in *input) do(act gate.Action) {
	w := in.t.a.p.w
	if w.cfg.Trace {
		w.tracef(in.t.a.p, "  gate of %v: %v", in.t.id, act)
	}
	switch act := act.(type) {
	case gate.StartTimer:
		in.switchAt = w.now + w.x.timeout
		w.do(in.t.a.p, w.x.timeout, kTick, in.t.ring)
	case gate.Snapshot:
		in.snapshot(act)
	case gate.CloseRecording:
		if in.isOpen(act.ID) {
			in.open.add(in.channels[act.Input].recorded())
		}
	case gate.Captured:
		if in.isOpen(act.ID) {
			w.counts.InFlight += len(in.open.ack.inflight)
			in.t.a.report(event{kind: evBarrier, id: act.ID, task: in.t.id, ack: in.open.ack})
			in.open = nil
		}
	case gate.Abort:
		in.abort(act.ID)
	}
}

// snapshot cuts the state, and captures what is in flight before the barrier when it is unaligned. Senders, and the loop,
// may do something between any two parts of it.
func (in *input) snapshot(act gate.Snapshot) {
	t, w := in.t, in.t.a.p.w
	over := false
	todo := []func(){func() {
		if over = t.hear(act.ID); over {
			in.abort(act.ID)
		}
		in.switchAt = 0
	}, func() {
		if over {
			return
		}
		ack := t.cut(act.ID, act.Forward)
		if !act.Unaligned {
			t.a.report(event{kind: evBarrier, id: act.ID, task: t.id, ack: ack})
			return
		}
		w.counts.Unaligned++
		in.open = &cutOff{id: act.ID, ack: ack}
		if w.cfg.Bug != ReplayUncaptured {
			in.open.add(in.replay)
		}
	}}
	for _, i := range slices.Concat(act.Overtake, act.Record) {
		todo = append(todo, func() {
			if !over {
				in.open.add(in.channels[i].capture(act.ID))
			}
		})
	}
	t.todo = append(todo, t.todo...)
}

func (c *cutOff) add(ps []parcel) { c.ack.inflight = append(c.ack.inflight, ps...) }

// abort gives a checkpoint up: what was captured for it is dropped.
func (in *input) abort(id element.CheckpointID) {
	in.switchAt = 0
	in.t.a.p.w.counts.GateAborts++
	if in.isOpen(id) {
		in.open = nil
		for _, c := range in.channels {
			c.recorded()
		}
	}
	in.t.giveUp(id)
}

func (in *input) isOpen(id element.CheckpointID) bool { return in.open != nil && in.open.id == id }

// abandoned: the coordinator has given checkpoints up.
func (in *input) abandoned(s span) {
	for id := s.first; id <= s.last; id++ {
		in.perform(in.gate.Cancelled(gate.Coordinator, id))
	}
}
