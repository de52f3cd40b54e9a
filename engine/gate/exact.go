package gate

import (
	"cmp"
	"slices"

	"github.com/millweir/millweir/element"
)

// exact treats barriers so that a snapshot holds every record before them and none behind: by setting inputs aside
// (aligned), or by capturing what is in flight (unaligned). One checkpoint runs at a time; later barriers wait in the
// channels.
type exact struct {
	g     *Gate
	rules *table
	phase phase
	cur   Barrier // the running one, while not idle
	timer bool    // StartTimer was given for cur
	aside int     // how many inputs are blocked for cur
	at    []mark  // per input, about cur
	// triggered are aligned checkpoints that the coordinator asked for, or cancelled, while inputs were open, ascending
	// and all above g.passed.
	triggered []Barrier
	// refused are those of them that are cancelled.
	refused []element.CheckpointID
}

// mark is how far the barrier of the running checkpoint has come on an input.
type mark uint8

const (
	awaited mark = iota
	queued       // it lies in the channel, behind data
	come         // it was popped, or taken out of the channel
)

func newExact(g *Gate) *exact {
	return &exact{g: g, rules: &transitions, at: make([]mark, len(g.in))}
}

// feed looks up and takes the step.
func (x *exact) feed(ev event, in int, b Barrier) {
	c := x.rules[x.phase][ev]
	var s step
	switch {
	case x.phase != idle && b.ID == x.cur.ID:
		s = c.same
	case b.ID > x.g.passed && (x.phase == idle || b.ID > x.cur.ID):
		s = c.newer
	}
	if s != nil {
		s(x, in, b)
	}
}

func (x *exact) announced(in int, b Barrier) {
	if (b.Unaligned || b.Timeout) && !slices.Contains(x.refused, b.ID) {
		x.feed(evAnnounced, in, b)
	}
}

func (x *exact) barrier(in int, b Barrier) {
	if slices.Contains(x.refused, b.ID) {
		x.feed(evCancelled, in, b) // the cancel has overtaken it
		return
	}
	x.feed(evBarrier, in, b)
}

func (x *exact) cancelled(in int, id element.CheckpointID) {
	if in != Coordinator || x.phase != idle && x.cur.ID == id {
		x.feed(evCancelled, in, Barrier{ID: id})
		return
	}
	// The coordinator's word overtakes the channels: it says nothing about lower ids, and what is sent on because of it
	// must not overtake their barriers. So it waits until the id has its turn.
	if id > x.g.passed && !slices.Contains(x.refused, id) {
		x.refused = append(x.refused, id)
		x.enqueue(Barrier{ID: id})
	}
}

func (x *exact) timedOut(id element.CheckpointID) { x.feed(evTimedOut, Coordinator, Barrier{ID: id}) }

func (x *exact) ended(in int) {
	switch x.phase {
	case aligning:
		x.settle()
	case recording:
		x.closed(in, false)
	}
	x.drain()
}

// trigger begins at once what may be unaligned, and keeps the others: several may be under way, and the one that runs
// is not overruled by a message that has no place in the order of the channels.
func (x *exact) trigger(b Barrier) {
	if x.phase != idle && b.ID <= x.cur.ID || slices.Contains(x.refused, b.ID) {
		return
	}
	if b.Unaligned || b.Timeout {
		x.start(b)
		x.settle()
		return
	}
	x.enqueue(b)
}

// enqueue keeps what comes from the coordinator until it has its turn.
func (x *exact) enqueue(b Barrier) {
	i, found := slices.BinarySearchFunc(x.triggered, b, func(a, b Barrier) int { return cmp.Compare(a.ID, b.ID) })
	if !found {
		x.triggered = slices.Insert(x.triggered, i, b)
	}
	if len(x.triggered) > maxPending {
		x.refuse(Coordinator, x.triggered[0])
	}
	x.drain()
}

// drain does what only the end of the inputs was missing for.
func (x *exact) drain() {
	for x.phase == idle && len(x.triggered) > 0 && x.g.AllEnded() {
		b := x.triggered[0]
		if slices.Contains(x.refused, b.ID) {
			x.decide(b)
			continue
		}
		x.start(b)
		x.settle()
	}
}

// start begins b and gives up what was running.
func (x *exact) start(b Barrier) {
	x.giveUp()
	x.cur, x.phase, x.timer = b, aligning, false
}

// expect: the barrier lies in the channel.
func (x *exact) expect(in int, b Barrier) {
	if x.at[in] == awaited {
		x.at[in] = queued
	}
	x.flags(b)
	x.settle()
}

// deliver: the barrier was popped.
func (x *exact) deliver(in int, b Barrier) {
	if x.at[in] == come {
		return
	}
	x.at[in] = come
	x.flags(b)
	if !x.cur.Unaligned && !x.complete() {
		x.aside++
		x.g.emit(Block{Input: in, ID: b.ID})
	}
	x.settle()
}

// flags takes up what a barrier says: one upstream task that has switched is enough.
func (x *exact) flags(b Barrier) {
	x.cur.Unaligned = x.cur.Unaligned || b.Unaligned
	x.cur.Timeout = x.cur.Timeout || b.Timeout
}

// complete reports that the barrier was popped from all open inputs.
func (x *exact) complete() bool {
	for i, m := range x.at {
		if m != come && x.g.open(i) {
			return false
		}
	}
	return true
}

// settle takes the snapshot when it is time for it.
func (x *exact) settle() {
	switch {
	case x.cur.Unaligned:
		x.relax(Coordinator, x.cur)
	case x.complete():
		id := x.cur.ID
		x.pass(id)
		x.g.emit(Snapshot{ID: id, Forward: x.cur})
		x.unblock()
		x.finish()
	case x.cur.Timeout && !x.timer:
		x.timer = true
		x.g.emit(StartTimer{ID: x.cur.ID})
	}
}

// relax takes the unaligned snapshot: barriers that lie in channels overtake, inputs without a barrier are recorded.
// An input whose barrier was popped has nothing in flight: what lies in its channel is behind the barrier.
func (x *exact) relax(_ int, _ Barrier) {
	if !x.cur.Unaligned && !x.cur.Timeout {
		return
	}
	s := Snapshot{ID: x.cur.ID, Unaligned: true, Forward: Barrier{ID: x.cur.ID, Unaligned: true}}
	for i := range x.at {
		switch {
		case !x.g.open(i) || x.at[i] == come:
		case x.at[i] == queued:
			s.Overtake = append(s.Overtake, i)
			x.at[i] = come
		default:
			s.Record = append(s.Record, i)
		}
	}
	x.pass(x.cur.ID)
	x.g.emit(s)
	x.unblock()
	x.phase = recording
	x.captured()
}

// closeQueued: the barrier of a recorded input lies in its channel.
func (x *exact) closeQueued(in int, _ Barrier) { x.closed(in, true) }

// closePopped: the barrier of a recorded input was popped.
func (x *exact) closePopped(in int, _ Barrier) { x.closed(in, false) }

func (x *exact) closed(in int, overtake bool) {
	if x.at[in] == come {
		return
	}
	x.at[in] = come
	x.g.emit(CloseRecording{Input: in, ID: x.cur.ID, Overtake: overtake})
	x.captured()
}

// captured ends the recording when all barriers have come.
func (x *exact) captured() {
	if x.complete() {
		x.g.emit(Captured{ID: x.cur.ID})
		x.finish()
	}
}

// cancel: the running checkpoint is called off.
func (x *exact) cancel(_ int, _ Barrier) { x.giveUp() }

// refuse: a checkpoint that has not begun here is called off. On the channel that says so nothing lower can follow, so
// what is running will never be complete.
func (x *exact) refuse(_ int, b Barrier) {
	if x.phase != idle && x.cur.ID <= b.ID {
		x.giveUp()
	}
	if b.ID > x.g.passed {
		x.decide(b)
	}
}

// decide aborts what has not begun.
func (x *exact) decide(b Barrier) {
	x.pass(b.ID)
	x.g.emit(Abort{ID: b.ID})
}

// giveUp aborts the running checkpoint, if there is one.
func (x *exact) giveUp() {
	if x.phase == idle {
		return
	}
	x.pass(x.cur.ID)
	x.g.emit(Abort{ID: x.cur.ID})
	x.unblock()
	x.finish()
}

// pass decides id and all below it.
func (x *exact) pass(id element.CheckpointID) {
	x.g.passed = max(x.g.passed, id)
	for len(x.triggered) > 0 && x.triggered[0].ID <= id {
		if t := x.triggered[0]; t.ID < id {
			x.g.emit(Abort{ID: t.ID})
		}
		x.triggered = x.triggered[1:]
	}
	x.refused = slices.DeleteFunc(x.refused, func(r element.CheckpointID) bool { return r <= id })
}

func (x *exact) finish() {
	x.phase, x.cur = idle, Barrier{}
	clear(x.at)
}

func (x *exact) unblock() {
	if x.aside > 0 {
		x.aside = 0
		x.g.emit(Unblock{})
	}
}

func (x *exact) blocked(in int) bool { return x.phase == aligning && x.at[in] == come }

func (x *exact) recording(in int) bool { return x.phase == recording && x.at[in] != come }

func (x *exact) pending() []element.CheckpointID {
	if x.phase == idle {
		return nil
	}
	return []element.CheckpointID{x.cur.ID}
}
