package gate

import (
	"fmt"
	"math/rand/v2"

	"github.com/millweir/millweir/element"
)

// The model network: sources -> layer A, keyed -> layer B, keyed by something else, with a sink. Every task of B hears
// every task of A, every task of A every source; the last source may send to B instead, past A. Bounded channels, one
// actor moves at a time, which one is drawn.

// groups is the max parallelism.
const groups = 8

// settings of one run. All that is random beyond them comes from the seed.
type settings struct {
	Seed      uint64
	Kind      kind
	Sources   int // 1..5, the inputs of A
	PerSource int // most records of a source
	Keys      int
	Capacity  int // records in a channel
	Parallel  int // most subtasks of a layer, 1..5
	Fixed     bool
	InFlight  int // checkpoints at a time
	Crashes   int // at most
	Aborts    int // of 1000 moves of the coordinator
	Skips     int // of 100 triggers at a source: it declines, or does not hear
	Feedback  bool
	// Direct: the last source sends to layer B, past A.
	Direct bool
	// Timers: layer A keeps the output of some keys back until a timer fires, which may be behind the ends of its inputs.
	Timers bool
	// TriggerAll: the coordinator triggers every task, not only those it knows to have no sender any more.
	TriggerAll bool
	Plant      plant
	// Blind: completed checkpoints are not looked into, so that only what comes of them counts.
	Blind bool
}

// kind is what barriers a run has.
type kind uint8

const (
	kindAligned kind = iota
	kindUnaligned
	kindTimeout
	kindMixed
	kindCounting
	numKinds
)

var kindNames = [...]string{"aligned", "unaligned", "timeout", "mixed", "counting"}

func (k kind) String() string { return kindNames[k] }

func (k kind) mode() Mode {
	switch k {
	case kindAligned:
		return Aligned
	case kindCounting:
		return Counting
	}
	return Unaligned
}

// oneAtATime: unaligned checkpoints do not overlap.
func (k kind) oneAtATime() bool { return k.mode() == Unaligned }

// draw makes the settings of a seed.
func draw(seed uint64) settings {
	r := rand.New(rand.NewPCG(seed, 1))
	s := settings{
		Seed: seed, Kind: kind(r.IntN(int(numKinds))), Sources: 1 + r.IntN(5), PerSource: r.IntN(25), Keys: 1 + r.IntN(8), Capacity: 1 + r.IntN(4),
		Parallel: 1 + r.IntN(5), Fixed: r.IntN(8) == 0, InFlight: 1 + max(r.IntN(3), r.IntN(3)), Crashes: r.IntN(5), Aborts: r.IntN(2) * r.IntN(200), Skips: min(r.IntN(3), 1) * r.IntN(40),
		Feedback: r.IntN(4) == 0, TriggerAll: r.IntN(2) == 0,
	}
	s.Timers = r.IntN(3) == 0
	if s.Direct = s.Sources > 1 && r.IntN(3) == 0; s.Direct {
		s.Parallel = min(s.Parallel, 4) // so that B has 5 inputs at most
	}
	if s.Kind == kindCounting && r.IntN(3) == 0 {
		s.Sources, s.Parallel, s.Direct = 1, 1, false // every task has one input
	}
	return s
}

// rec is one input record. prev is the record before it on the same way, -1 for none.
type rec struct {
	src, seq       int
	groupA, groupB int
	prevA, prevB   int32
}

// world is one run.
type world struct {
	settings
	r       *rand.Rand
	recs    []rec
	first   []int32 // per source, its first record
	length  []int   // per source
	sources []source
	a, b    []*task
	coordinator
	committed []uint8
	crashes   int
	steps     int
	quiet     bool   // no more faults: the run is to end
	by        string // which check found err
	err       error
	seen      map[string]int
}

type source struct {
	pos   int
	ended bool
	inbox []command
}

// command is a message of the coordinator.
type command struct {
	cancel bool
	b      Barrier
}

// task is one subtask of A or B.
type task struct {
	w      *world
	layer  int
	index  int
	speed  int
	d      *driver
	state  []uint8 // per record, how often it is in the state
	out    []int32 // gathered output
	held   []int32 // what timers will emit, in this order; part of the state
	ended  bool    // the end was forwarded
	inbox  []command
	timers []element.CheckpointID
	history
	late   element.CheckpointID // planted: the snapshot to be frozen late
	open   []int32              // the sink: output behind the last barrier
	sealed []sealed
}

type sealed struct {
	id   element.CheckpointID
	recs []int32
}

func newWorld(s settings) *world {
	w := &world{settings: s, r: rand.New(rand.NewPCG(s.Seed, 2)), seen: map[string]int{}}
	var key [8]int
	for k := range key {
		key[k] = element.KeyGroup([]byte{byte(k)}, groups)
	}
	for src := range s.Sources {
		w.first = append(w.first, int32(len(w.recs)))
		n := 0
		if s.PerSource > 0 {
			n = w.r.IntN(s.PerSource + 1)
		}
		w.length = append(w.length, n)
		lastA, lastB := map[int]int32{}, map[[2]int]int32{}
		for seq := range n {
			a, b := w.r.IntN(s.Keys), w.r.IntN(s.Keys)
			r := rec{src: src, seq: seq, groupA: key[a], groupB: key[b], prevA: -1, prevB: -1}
			if p, ok := lastA[a]; ok {
				r.prevA = p
			}
			if p, ok := lastB[[2]int{a, b}]; ok {
				r.prevB = p
			}
			lastA[a], lastB[[2]int{a, b}] = int32(len(w.recs)), int32(len(w.recs))
			w.recs = append(w.recs, r)
		}
	}
	w.committed = make([]uint8, len(w.recs))
	w.completed = &pending{pos: make([]int, s.Sources), stateA: make([]uint8, len(w.recs)), stateB: make([]uint8, len(w.recs))}
	w.restore()
	return w
}

func (w *world) fail(by, format string, args ...any) {
	if w.err == nil {
		w.by, w.err = by, fmt.Errorf(format, args...)
	}
}

// restore starts all anew from the last completed checkpoint, at another parallelism.
func (w *world) restore() {
	from := w.completed
	w.inflight = nil
	w.sources = make([]source, w.Sources)
	for i := range w.sources {
		w.sources[i].pos = from.pos[i]
	}
	width := func() int {
		if w.Fixed {
			return w.Parallel
		}
		return 1 + w.r.IntN(w.Parallel)
	}
	inputs, pa, pb := w.Sources, width(), width()
	inputsB := pa
	if w.Direct {
		inputs, inputsB = inputs-1, inputsB+1
	}
	var opts []Option
	if w.Feedback {
		opts = append(opts, Feedback(inputs))
		inputs++
	}
	opts = append(opts, After(w.last))
	w.a, w.b = w.layerOf(0, pa, inputs, opts), w.layerOf(1, pb, inputsB, []Option{After(w.last)})
	for id, n := range from.stateA {
		w.a[element.SubtaskOf(w.recs[id].groupA, pa, groups)].state[id] += n
	}
	for id, n := range from.stateB {
		w.b[element.SubtaskOf(w.recs[id].groupB, pb, groups)].state[id] += n
	}
	w.restoreHeld(from.held)
	w.reroute(w.a, from.flightA, func(r rec) int { return r.groupA })
	w.reroute(w.b, from.flightB, func(r rec) int { return r.groupB })
}

func (w *world) layerOf(layer, n, inputs int, opts []Option) []*task {
	var ts []*task
	for i := range n {
		t := &task{w: w, layer: layer, index: i, speed: 1 + w.r.IntN(6), state: make([]uint8, len(w.recs)), history: history{ends: map[element.CheckpointID]bool{}}}
		t.d = newDriver(t, New(inputs, w.Kind.mode(), opts...), w.Plant)
		ts = append(ts, t)
	}
	return ts
}

// reroute gives what was in flight to the subtasks that own it now.
func (w *world) reroute(ts []*task, flight [][]int32, group func(rec) int) {
	for old, ids := range flight {
		for _, id := range ids {
			to := element.SubtaskOf(group(w.recs[id]), len(ts), groups)
			if w.Plant == RestoredByTask {
				to = old % len(ts)
			}
			d := ts[to].d
			switch w.Plant {
			case RestoredTwice:
				d.backlog = append(d.backlog, id, id)
			default:
				d.backlog = append(d.backlog, id)
			}
			w.seen["restored"]++
		}
	}
}

// to gives the tasks that a source sends to, and which input of theirs it is.
func (w *world) to(src int) ([]*task, int) {
	if w.direct(src) {
		return w.b, len(w.a)
	}
	return w.a, src
}

func (w *world) direct(src int) bool { return w.Direct && src == w.Sources-1 }

// group gives the key group of a record in the layer.
func (t *task) group(id int32) int {
	if t.layer == 0 {
		return t.w.recs[id].groupA
	}
	return t.w.recs[id].groupB
}

// next are the tasks that the task sends to.
func (t *task) next() []*task {
	if t.layer == 0 {
		return t.w.b
	}
	return nil
}

// credit reports that there is room for the output of a record.
func (t *task) credit() bool {
	for _, n := range t.next() {
		if n.d.ch[t.index].recs >= t.w.Capacity {
			return false
		}
	}
	return true
}

func (t *task) flush() {
	for _, id := range t.out {
		if t.layer == 0 {
			to := element.SubtaskOf(t.w.recs[id].groupB, len(t.w.b), groups)
			t.w.b[to].d.put(t.index, item{kind: record, rec: id})
		} else {
			t.open = append(t.open, id)
		}
	}
	t.out = t.out[:0]
}

func (t *task) forward(it item) {
	if t.ended {
		return
	}
	for _, n := range t.next() {
		n.d.put(t.index, it)
	}
}

// exactly reports that the run must not show a record twice.
func (w *world) exactly() bool { return w.Kind != kindCounting || w.Sources == 1 && w.Parallel == 1 }

func (t *task) process(_ *driver, id int32) {
	w, r := t.w, t.w.recs[id]
	width, prev := len(w.a), r.prevA
	if t.layer == 1 {
		width, prev = len(w.b), r.prevB
	}
	if element.SubtaskOf(t.group(id), width, groups) != t.index {
		w.fail("key", "record %d came to subtask %d of layer %d, which does not own its key", id, t.index, t.layer)
	}
	if w.exactly() {
		if t.state[id] > 0 {
			w.fail("twice", "record %d is processed twice by layer %d", id, t.layer)
		}
		if prev >= 0 && t.state[prev] == 0 {
			w.fail("order", "record %d is processed by layer %d before %d, which its source sent first on the same way", id, t.layer, prev)
		}
	}
	t.state[id]++
	if t.holds(id) {
		t.held = append(t.held, id)
	} else {
		t.out = append(t.out, id)
	}
	if t.late != 0 {
		t.freeze(t.late)
		t.late = 0
	}
}

func (t *task) snapshot(_ *driver, s Snapshot) {
	for _, in := range s.Overtake {
		// A flush may go over the capacity by what was gathered.
		if n := t.d.ch[in].recs; n >= t.w.Capacity+mostGathered {
			t.w.fail("bound", "%d records lie in a channel of capacity %d", n, t.w.Capacity)
		}
	}
	if t.w.Plant != ForwardFirst {
		t.flush()
	}
	if t.w.Plant == FreezeLate {
		t.late = s.ID
	} else {
		t.freeze(s.ID)
	}
	if t.layer == 1 {
		t.sealed = append(t.sealed, sealed{s.ID, t.open})
		t.open = nil
	}
	if t.d.g.AllEnded() && len(t.held) > 0 {
		t.w.seen["barrier behind the ends"]++
	}
	t.forward(item{kind: barrier, b: s.Forward})
	if !s.Unaligned {
		t.w.acked(s.ID)
	}
}

func (t *task) freeze(id element.CheckpointID) {
	p := t.w.find(id)
	if p == nil {
		return
	}
	sum := p.stateA
	if t.layer == 1 {
		sum = p.stateB
	}
	for i, n := range t.state {
		sum[i] += n
	}
	p.held = append(p.held, t.held...)
}

func (t *task) captured(_ *driver, id element.CheckpointID, flight []inFlight) {
	p := t.w.find(id)
	if p == nil {
		return
	}
	var ids []int32
	for _, f := range flight {
		ids = append(ids, f.rec)
	}
	t.w.seen["in flight"] += len(ids)
	if t.layer == 0 {
		p.flightA = append(p.flightA, ids)
	} else {
		p.flightB = append(p.flightB, ids)
	}
	t.w.acked(id)
}

func (t *task) aborted(_ *driver, id element.CheckpointID) {
	t.w.seen["abort"]++
	t.forward(item{kind: cancel, b: Barrier{ID: id}})
	t.w.declined(id)
}

func (t *task) startTimer(_ *driver, id element.CheckpointID) { t.timers = append(t.timers, id) }

// action checks what the gate promises of its actions (I1, I2, I6).
func (t *task) action(d *driver, a Action) {
	w := t.w
	switch a := a.(type) {
	case Block:
		w.seen["block"]++
		if w.Kind == kindCounting || d.blocked[a.Input] {
			w.fail("actions", "%v of an input that must not be blocked", a)
		}
	case Snapshot:
		w.seen["snapshot"]++
		if s := &t.history; a.ID <= s.snapshot || a.ID <= s.aborted && w.Kind != kindCounting || s.ends[a.ID] {
			w.fail("actions", "%v after %d was snapshotted and %d aborted", a, s.snapshot, s.aborted)
		}
		t.history.snapshot, t.history.open = a.ID, a.Unaligned
		if a.Unaligned {
			w.seen["snapshot unaligned"]++
		}
	case CloseRecording:
		w.seen["close recording"]++
		if a.Overtake {
			w.seen["close recording, overtake"]++
		}
		if !d.recording[a.Input] && w.Plant == noPlant {
			w.fail("actions", "%v, which is not recorded", a)
		}
	case Captured:
		if s := &t.history; !s.open || a.ID != s.snapshot {
			w.fail("actions", "%v after snapshot %d", a, s.snapshot)
		}
		t.history.open = false
	case Abort:
		s := &t.history
		if s.ends[a.ID] || a.ID < s.snapshot || a.ID == s.snapshot && !s.open || a.ID <= s.aborted && w.Kind != kindCounting {
			w.fail("actions", "%v after %d was snapshotted and %d aborted", a, s.snapshot, s.aborted)
		}
		s.open = s.open && a.ID != s.snapshot
		s.aborted = max(s.aborted, a.ID)
		s.ends[a.ID] = true
	}
}

// history is what a gate has said.
type history struct {
	snapshot, aborted element.CheckpointID // highest
	open              bool                 // the snapshot waits for Captured
	ends              map[element.CheckpointID]bool
}
