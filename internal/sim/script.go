package sim

import "time"

// script makes a run without chance: everything takes equally long, and what goes wrong comes at given steps. An
// exhaustive run goes through all of them.
type script struct {
	records int // of each partition
	first   int // of them are there at the start, the rest comes when those are committed
	events  []scriptedEvent
	next    int
	// handover: the second instance starts when the first records are committed, and the rest of them trickles in while
	// a partition moves to it.
	handover bool
	begun    bool
	interval time.Duration // of checkpoints, 0 = the short one
	// concurrent is how many checkpoints may be in flight, 0 = 1. decline is which persisting of the run fails, 0 = none; it
	// is tolerated.
	concurrent, decline, persists int

	exchange *exchange   // nil: none
	saves    *savepoints // nil: none is taken

	from, to int // the steps of the window, noted by a run in which nothing goes wrong
}

// scriptedEvent is what happens before the given step.
type scriptedEvent struct {
	step int
	who  string // the instance, "" = all
	// freeze: not 0: it stands still for so long; else it dies, with its machine.
	freeze time.Duration
	keep   float64
	// silent: the requests that are on their way are lost with the process; else they arrive all the same.
	silent bool
	// away is how long it takes until there is a process again.
	away time.Duration
}

// declines reports that this persisting is the one that fails.
func (s *script) declines() bool {
	if s == nil {
		return false
	}
	s.persists++
	return s.persists == s.decline
}

// scriptedCrash lets processes die or freeze before a step of the script. It reports that the step does not happen, or
// not yet.
func (w *world) scriptedCrash(it *work, before bool) bool {
	s := w.cfg.script
	if !before || s.next >= len(s.events) || w.steps < s.events[s.next].step {
		return false
	}
	e := s.events[s.next]
	s.next++
	w.counts.Faults++
	w.away = e.away
	for i := 0; i < len(w.procs); {
		p := w.procs[i]
		switch {
		case e.who != "" && p.name != e.who:
			i++
		case e.freeze > 0:
			w.halt(p, e.freeze, 0)
			w.wait = max(w.wait, p.pausedUntil+20*time.Millisecond)
			i++
		default:
			p.silent = e.silent
			p.die(true, e.keep)
			i = 0
		}
	}
	switch p := it.p; {
	case p == nil:
		return false
	case p.dead:
		return it.bound || (p.silent && it.kind >= kApplyInit)
	case it.bound && p.pausedUntil > w.now:
		it.at = p.pausedUntil
		w.push(*it)
		return true
	}
	return false
}

// committed goes on with the run once the first records are committed everywhere.
func (s *script) committed(w *world, offsets []committed) {
	for _, o := range offsets {
		if o.offset < int64(s.first) {
			return
		}
	}
	if !s.handover {
		for i := range w.broker.in {
			w.broker.append(i, s.records)
		}
		return
	}
	if s.begun {
		return
	}
	s.begun, s.from = true, w.steps
	w.start(instanceName(1), 0)
	s.trickle(w)
}

// trickle lets a record arrive now and then, so that there is work when a partition has to go.
func (s *script) trickle(w *world) {
	w.outside(nil, 1500*time.Microsecond, kAppend, func() {
		for i := range w.broker.in {
			w.broker.append(i, 1)
		}
		if w.broker.in[0].avail < s.records {
			s.trickle(w)
		}
	})
}

// directive is something that a scenario does at a step: the nth of a kind (0 = at each), of the process of that number
// (0 = any). do reports whether the step itself is left out.
type directive struct {
	kind   kind
	number int
	nth    int
	before bool
	do     func(*world, *work) bool
}

// direct runs the directives that wait for a step.
func (w *world) direct(it *work, before bool) bool {
	skip := false
	for i := range w.cfg.directives {
		d := &w.cfg.directives[i]
		if d.kind != it.kind || d.before != before || it.p == nil || it.p.dead || (d.number != 0 && d.number != it.p.number) {
			continue
		}
		if w.met == nil {
			w.met = make([]int, len(w.cfg.directives))
		}
		if w.met[i]++; w.met[i] == d.nth || d.nth == 0 {
			skip = d.do(w, it) || skip
		}
	}
	return skip
}

// freezeHere stops the process of a step, and starts another one in its place when twin says so.
func freezeHere(d time.Duration, twin bool) func(*world, *work) bool {
	return func(w *world, it *work) bool {
		p := it.p
		w.halt(p, d, 0)
		w.wait = max(w.wait, p.pausedUntil+20*time.Millisecond)
		if twin {
			w.start(p.name, time.Millisecond)
		}
		if it.bound && w.lastBefore {
			it.at = p.pausedUntil
			w.push(*it)
			return true
		}
		return false
	}
}

// once does something at the first step at which it is time for it.
func once(time func(*world, *work) bool, do func(*world, *work) bool) func(*world, *work) bool {
	var done *world // a directive serves many runs
	return func(w *world, it *work) bool {
		if done == w || !time(w, it) {
			return false
		}
		done = w
		return do(w, it)
	}
}

// give says that a partition is to go to an instance.
func (g *group) give(p int, instance string) {
	for _, m := range g.members {
		if m.instance == instance && g.owner[p] != nil {
			g.want[p] = m
			g.gen++
		}
	}
}

// killHere ends the process of a step.
func killHere(power bool) func(*world, *work) bool {
	return func(_ *world, it *work) bool {
		it.p.die(power, 0.5)
		return it.bound
	}
}
