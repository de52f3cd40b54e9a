package gate

import (
	"slices"

	"github.com/millweir/millweir/element"
)

const (
	mostSteps    = 50_000
	mostFaults   = 10_000 // after so many moves there are no more faults and checkpoints, but the last one
	mostGathered = 4      // a task flushes when it has so much output
)

// run lets the network live until all records are through and the last checkpoint is complete.
func run(s settings) *world {
	w := newWorld(s)
	// Faults and checkpoints happen while there is life; then the tail is to be committed.
	for w.err == nil {
		if w.steps++; w.steps > mostSteps {
			w.fail("stuck", "no end after %d moves", w.steps)
			break
		}
		// Unaligned checkpoints that are given up as soon as they are triggered may be more than the tasks get done.
		w.quiet = w.quiet || w.steps > mostFaults
		if !w.quiet && w.crashes < w.Crashes && w.r.IntN(100) == 0 {
			w.crashes++
			w.seen["crash"]++
			w.restore()
			continue
		}
		if w.move() {
			continue
		}
		if w.rest() {
			break
		}
	}
	if w.err == nil {
		w.checkEnd()
	}
	return w
}

// move lets one actor make one move. It reports false when nobody can.
func (w *world) move() bool {
	n := len(w.sources) + len(w.a) + len(w.b) + 1
	first := w.r.IntN(n)
	for i := range n {
		lazy := i == 0 && w.r.IntN(6) > 0
		if w.actor((first+i)%n, lazy) {
			return true
		}
	}
	return w.actor(first, false)
}

// actor moves one actor; a slow task may let it be when lazy.
func (w *world) actor(i int, lazy bool) bool {
	if i == 0 {
		return w.moveCoordinator()
	}
	if i--; i < len(w.sources) {
		return w.moveSource(i)
	}
	i -= len(w.sources)
	ts := w.a
	if i >= len(ts) {
		i -= len(ts)
		ts = w.b
	}
	t := ts[i]
	if lazy && w.r.IntN(t.speed) > 0 {
		return false
	}
	return t.move()
}

// rest is what happens when nobody can move: a checkpoint that got stuck for want of a trigger is given up, the last one
// is triggered, or all is over.
func (w *world) rest() bool {
	if !w.idle() {
		w.fail("stuck", "nobody can move: %s", w.picture())
		return true
	}
	if w.final && len(w.inflight) == 0 && w.completed.b.ID == w.last {
		return true
	}
	for _, p := range w.inflight {
		if (w.TriggerAll || w.final) && !p.skipped && p.missing > 0 {
			w.fail("stuck", "checkpoint %d is never complete: %s", p.b.ID, w.picture())
			return true
		}
	}
	if len(w.inflight) > 0 {
		w.seen["stuck"]++
		w.abandon(w.inflight[0], true)
		return false
	}
	w.quiet, w.final = true, true
	w.trigger()
	return false
}

// idle reports that every record is through.
func (w *world) idle() bool {
	return !slices.ContainsFunc(w.sources, func(s source) bool { return !s.ended }) &&
		!slices.ContainsFunc(slices.Concat(w.a, w.b), func(t *task) bool {
			return !t.d.g.AllEnded() || len(t.d.backlog)+len(t.held) > 0 || slices.ContainsFunc(t.d.ch, func(c channel) bool { return len(c.q) > 0 })
		})
}

// moveSource sends a record, or does what the coordinator said.
func (w *world) moveSource(i int) bool {
	s := &w.sources[i]
	if len(s.inbox) > 0 && w.r.IntN(3) == 0 {
		c := s.inbox[0]
		s.inbox = s.inbox[1:]
		w.command(i, c)
		return true
	}
	if s.pos < w.length[i] {
		id := w.first[i] + int32(s.pos)
		ts, in := w.to(i)
		to := ts[element.SubtaskOf(ts[0].group(id), len(ts), groups)]
		if to.d.ch[in].recs >= w.Capacity {
			return w.serve(i)
		}
		s.pos++
		to.d.put(in, item{kind: record, rec: id})
		return true
	}
	if !s.ended && w.r.IntN(4) == 0 {
		s.ended = true
		ts, in := w.to(i)
		for _, t := range ts {
			t.d.put(in, item{kind: end})
		}
		return true
	}
	return w.serve(i) || !s.ended
}

// serve does what the coordinator said, if anything.
func (w *world) serve(i int) bool {
	s := &w.sources[i]
	if len(s.inbox) == 0 {
		return false
	}
	c := s.inbox[0]
	s.inbox = s.inbox[1:]
	w.command(i, c)
	return true
}

func (w *world) command(i int, c command) {
	s := &w.sources[i]
	it := item{kind: barrier, b: c.b}
	if !c.cancel && !w.quiet && w.r.IntN(100) < w.Skips {
		if p := w.find(c.b.ID); p != nil {
			p.skipped = true
		}
		if w.r.IntN(2) == 0 {
			return // the message is lost
		}
		w.declined(c.b.ID)
		c.cancel = true
	}
	if c.cancel {
		it.kind = cancel
	} else if p := w.find(c.b.ID); p != nil {
		p.pos[i] = s.pos
	}
	if !s.ended {
		ts, in := w.to(i)
		for _, t := range ts {
			t.d.put(in, it)
		}
	}
	if !c.cancel {
		w.acked(c.b.ID)
	}
}

// move lets a task do one thing: a message, an announcement, a timer, a record that was in flight, or something from an
// input. What was in flight comes before all else.
func (t *task) move() bool {
	d, r := t.d, t.w.r
	if len(d.backlog) > 0 && (t.w.Plant != RestoredLate || !t.readable()) {
		if len(t.out) >= mostGathered || !t.credit() {
			return t.flushed()
		}
		d.restored()
		return true
	}
	switch r.IntN(6) {
	case 0:
		if t.message() {
			return true
		}
	case 1:
		if len(d.told) > 0 {
			d.announce(r.IntN(len(d.told)))
			return true
		}
	case 2:
		if t.timer() {
			return true
		}
	case 3:
		if t.flushed() {
			return true
		}
	case 4:
		if r.IntN(4) == 0 && t.fire() {
			return true
		}
	}
	if t.read() || t.message() || t.flushed() || t.timer() {
		return true
	}
	if len(d.told) > 0 {
		d.announce(r.IntN(len(d.told)))
		return true
	}
	return t.finish() || t.fire()
}

func (t *task) message() bool {
	if len(t.inbox) == 0 {
		return false
	}
	c := t.inbox[0]
	t.inbox = t.inbox[1:]
	if c.cancel {
		t.d.do(t.d.g.Cancelled(Coordinator, c.b.ID))
	} else {
		t.d.do(t.d.g.Trigger(c.b))
	}
	return true
}

func (t *task) timer() bool {
	if len(t.timers) == 0 {
		return false
	}
	id := t.timers[0]
	t.timers = t.timers[1:]
	t.d.do(t.d.g.TimedOut(id))
	return true
}

func (t *task) flushed() bool {
	if len(t.out) == 0 {
		return false
	}
	t.flush()
	return true
}

func (t *task) readable() bool {
	for in := range t.d.ch {
		if t.d.readable(in) && t.credit() {
			return true
		}
	}
	return false
}

// read takes something from an input that is drawn.
func (t *task) read() bool {
	if len(t.out) >= mostGathered {
		return t.flushed()
	}
	if !t.credit() {
		return false
	}
	n := len(t.d.ch)
	first := t.w.r.IntN(n)
	for i := range n {
		if in := (first + i) % n; t.d.readable(in) {
			t.d.read(in)
			return true
		}
	}
	return false
}

// finish forwards the end, when no timer is left.
func (t *task) finish() bool {
	if t.ended || !t.d.g.AllEnded() || len(t.held) > 0 && t.w.Plant != EndBeforeTimers {
		return false
	}
	t.flush()
	t.forward(item{kind: end})
	t.ended = true
	return true
}
