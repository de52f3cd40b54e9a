package gate

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// coordinator of the model network.
type coordinator struct {
	last      element.CheckpointID // highest id used
	inflight  []*pending           // ascending
	completed *pending
	final     bool // the last one was triggered
}

// pending is a checkpoint in flight, and what it has gathered.
type pending struct {
	b       Barrier
	missing int   // answers
	skipped bool  // a source declined it, or did not hear of it
	pos     []int // per source
	// Per record, how often it is in the state of the layer.
	stateA, stateB   []uint8
	flightA, flightB [][]int32 // per task
	held             []int32   // by layer A, in the order of each key
}

func (w *world) find(id element.CheckpointID) *pending {
	for _, p := range w.inflight {
		if p.b.ID == id {
			return p
		}
	}
	return nil
}

// trigger begins a checkpoint.
func (w *world) trigger() {
	w.last++
	b := Barrier{ID: w.last}
	switch w.Kind {
	case kindUnaligned:
		b.Unaligned = true
	case kindTimeout:
		b.Timeout = true
	case kindMixed:
		n := w.r.IntN(3)
		b.Unaligned, b.Timeout = n == 0, n == 1
	}
	p := &pending{b: b, missing: len(w.sources) + len(w.a) + len(w.b), pos: make([]int, len(w.sources)), stateA: make([]uint8, len(w.recs)), stateB: make([]uint8, len(w.recs))}
	w.inflight = append(w.inflight, p)
	for i := range w.sources {
		w.sources[i].inbox = append(w.sources[i].inbox, command{b: b})
	}
	for _, t := range w.asked() {
		t.inbox = append(t.inbox, command{b: b})
	}
	w.seen["trigger"]++
}

// asked are the tasks that the coordinator triggers itself.
func (w *world) asked() []*task {
	all := w.TriggerAll || w.final
	var ts []*task
	live := func(layer func(src int) bool) bool {
		for i, s := range w.sources {
			if layer(i) && !s.ended {
				return true
			}
		}
		return false
	}
	if all || !live(func(src int) bool { return !w.direct(src) }) {
		ts = append(ts, w.a...)
	}
	if all || !slices.ContainsFunc(w.a, func(t *task) bool { return !t.ended }) && !live(w.direct) {
		ts = append(ts, w.b...)
	}
	return ts
}

// acked: one answer more.
func (w *world) acked(id element.CheckpointID) {
	if p := w.find(id); p != nil {
		p.missing--
	}
	for len(w.inflight) > 0 && w.inflight[0].missing == 0 {
		w.complete(w.inflight[0])
		w.inflight = w.inflight[1:]
	}
}

// complete commits.
func (w *world) complete(p *pending) {
	w.seen["complete"]++
	w.completed = p
	for _, t := range w.b {
		for len(t.sealed) > 0 && t.sealed[0].id <= p.b.ID {
			for _, id := range t.sealed[0].recs {
				w.committed[id]++
			}
			t.sealed = t.sealed[1:]
		}
	}
	w.checkCut(p)
}

// declined: a task has given up.
func (w *world) declined(id element.CheckpointID) {
	if p := w.find(id); p != nil {
		w.seen["declined"]++
		w.abandon(p, w.r.IntN(2) == 0)
	}
}

// abandon gives up a checkpoint, and tells the tasks or does not.
func (w *world) abandon(p *pending, tell bool) {
	i := slices.Index(w.inflight, p)
	w.inflight = slices.Delete(w.inflight, i, i+1)
	if tell {
		c := command{cancel: true, b: p.b}
		for i := range w.sources {
			w.sources[i].inbox = append(w.sources[i].inbox, c)
		}
		for _, t := range w.asked() {
			t.inbox = append(t.inbox, c)
		}
	}
	w.acked(0) // those behind it may be complete
}

// moveCoordinator triggers, gives up, or does nothing.
func (w *world) moveCoordinator() bool {
	if !w.quiet && len(w.inflight) > 0 && w.r.IntN(1000) < w.Aborts {
		w.seen["abandoned"]++
		w.abandon(w.inflight[w.r.IntN(len(w.inflight))], w.r.IntN(4) > 0)
		return true
	}
	if len(w.inflight) > 1 && w.inflight[0].skipped && w.r.IntN(4) == 0 {
		w.seen["timed out"]++ // the others wait for it
		w.abandon(w.inflight[0], w.r.IntN(2) == 0)
		return true
	}
	most := w.InFlight
	if w.Kind.oneAtATime() {
		most = 1
	}
	if w.quiet || len(w.inflight) >= most || w.r.IntN(4) > 0 {
		return false
	}
	w.trigger()
	return true
}
