package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/txn"
)

// inboxLimit is the number of records that may wait in front of a task.
const inboxLimit = 4

// task counts the records per key and writes each new count: engine.task with a fixed topology, and the writer of the
// sink that belongs to it.
type task struct {
	a         *attempt
	id        element.TaskID
	epoch     uint64 // of ownership, when it was taken in
	decision  snapshot.Decision
	state     *state
	position  element.Position
	moved     bool
	fresh     bool
	recovered bool // it starts on the store's word
	imported  bool // its state is a savepoint's
	origin    []snapshot.SavepointRef
	whole     bool
	fed       bool   // records may come
	given     []span // checkpoints that were given up
	known     int    // how many of given it has dealt with
	halting   bool   // its partition is about to go: it takes no records any more
	halted    bool   // and has said so
	gone      bool

	committed snapshot.TaskEntry
	root      *snapshot.RootRef

	items   []item
	waiting int // records in items
	notice  element.CheckpointID
	turning bool
	fetched int64 // next offset to fetch
	stalled bool  // the source waits for room

	// With an exchange: barriers that wait, what is left of the delivery at work, the channels behind; of a subtask its input,
	// that it was read from others, and what it is in the middle of.
	barriers []gate.Barrier
	rest     item
	working  bool
	outs     []*channel
	in       *input
	rescaled bool
	looked   bool // at the notices, and there were none
	todo     []func()
	ended    bool // no record comes any more, and those behind it know
	over     bool // the loop knows it too

	queues []heldQueue // one per barrier that was passed and not released yet; empty = direct
}

type item struct {
	recs    []inRecord
	next    int64
	barrier element.CheckpointID // not 0: the item is a barrier
	end     bool                 // the end of the partition
}

type heldQueue struct {
	after element.CheckpointID
	recs  []outRecord
}

func newTask(a *attempt, id element.TaskID, epoch uint64, d snapshot.Decision) *task {
	t := &task{a: a, id: id, epoch: epoch, decision: d, state: newState()}
	if id.Source == stageName {
		t.in = &input{t: t}
	}
	return t
}

// begin starts a task that nobody knows yet, at its start position.
func (t *task) begin(offset int64) {
	t.fresh, t.whole = true, true
	t.position = element.Position{TopicPartition: element.TopicPartition{Topic: inTopic, Partition: t.id.Partition}, TopicID: inTopicID,
		PartitionCount: int32(len(t.a.p.w.broker.in)), Offset: offset, LeaderEpoch: -1}
}

// restore gives the task the state and the position of its decision.
func (t *task) restore() error {
	d := t.decision
	switch {
	case d.Kind == snapshot.Fresh:
		return nil
	case d.Kind == snapshot.Imported:
		return t.restoreImported()
	case d.Kind != snapshot.StartEmpty && d.Kind != snapshot.Restore && d.Kind != snapshot.Recovered:
		return fmt.Errorf("task %s: decision %s", t.id, d.Kind)
	case t.in != nil:
		return t.restoreSubtask()
	}
	t.position, t.recovered = d.Positions[0], d.Kind == snapshot.Recovered
	if t.recovered && t.a.p.w.cfg.Bug == RecoveryKeepsOffset {
		t.position.Offset = max(t.position.Offset, t.a.p.facts[t.id.Partition].offset)
	}
	if t.a.p.w.cfg.Bug == NoRewind {
		t.position.Offset = max(t.position.Offset, t.a.p.reached[t.id])
	}
	return t.restoreOwn()
}

// restoreOwn gives a task the state that it had itself.
func (t *task) restoreOwn() error {
	d := t.decision
	t.whole = true
	if d.Kind != snapshot.Restore && d.Kind != snapshot.Recovered {
		return nil
	}
	root := d.Root
	t.committed, t.root = d.Entry, &root
	if k := t.a.p.kept[t.id]; k != nil && k.root == root {
		t.state = k.state
		t.a.p.w.counts.Reused++
		return nil
	}
	t.whole = false
	t.a.p.w.counts.Restored++
	t.state = newState()
	_, err := t.a.p.repo.Restore(context.Background(), t.committed, nil, func(e snapshot.Entry) error {
		t.state.base[e.Key[0]] = int64(binary.BigEndian.Uint64(e.Value))
		return nil
	})
	t.whole = err == nil
	return err
}

// feed lets records come, from the task's position on.
func (t *task) feed() {
	t.fed, t.fetched = true, t.position.Offset
	if t.in != nil {
		t.ring()
		return
	}
	t.fetch()
}

// halt says that no record is to be taken any more. It overtakes the deliveries.
func (t *task) halt() {
	t.halting = true
	t.wake()
}

// drop ends the task; what it holds back is forgotten.
func (t *task) drop() {
	t.gone = true
	t.forget()
	t.items = nil
}

// forget drops what is held back.
func (t *task) forget() {
	for _, q := range t.queues {
		t.a.p.w.counts.HeldBackDropped += len(q.recs)
	}
	t.queues = nil
}

// closed reports that nothing is fetched any more.
func (t *task) closed() bool { return t.a.over || t.a.stopIn || t.gone || t.halted }

// fetch asks for more input while the inbox has room.
func (t *task) fetch() {
	a, w := t.a, t.a.p.w
	if t.closed() {
		return
	}
	from, p := t.fetched, int(t.id.Partition)
	if end, ends := w.endOf(p); ends && from >= end {
		t.items = append(t.items, item{end: true})
		t.wake()
		return
	}
	w.call(a.p, kApplyFetch, func() reply { return w.broker.fetch(a.p, p, from, 1+w.fetchSize()) }, func(r reply) {
		switch {
		case t.closed():
		case r.lost:
			t.fetch()
		case r.code != 0:
			a.end(fetchCode(r.code))
		case r.next == from:
			log := &w.broker.in[p]
			if from < int64(log.avail) {
				t.fetch()
				return
			}
			log.wait = append(log.wait, func() { w.do(a.p, 0, kReply, t.fetch) })
		default:
			t.fetched = r.next
			t.items = append(t.items, item{recs: r.recs, next: r.next})
			t.waiting += len(r.recs)
			t.wake()
			if t.waiting >= inboxLimit {
				t.stalled = true
				return
			}
			t.fetch()
		}
	})
}

func (w *world) fetchSize() int {
	if w.cfg.script != nil {
		return 1
	}
	return w.rng.IntN(4)
}

func (t *task) barrier(b gate.Barrier) {
	if t.a.p.w.x != nil {
		t.barriers = append(t.barriers, b)
	} else {
		t.items = append(t.items, item{barrier: b.ID})
	}
	t.wake()
}

func (t *task) commit(id element.CheckpointID) {
	t.notice = max(t.notice, id)
	t.wake()
}

func (t *task) wake() {
	if t.a.p.w.x != nil {
		t.ring()
		return
	}
	if t.turning || t.gone || (!t.looked && len(t.items) == 0 && t.notice == 0 && t.known == len(t.given) && t.halting == t.halted) {
		return
	}
	t.turning = true
	w := t.a.p.w
	w.do(t.a.p, t.pause(400*time.Microsecond), kTask, func() {
		t.turning = false
		if !t.a.over && !t.gone {
			t.turn()
			t.lookAgain()
			t.wake()
		}
	})
}

// turn takes one item; notices first.
func (t *task) turn() {
	if t.interrupted() {
		return
	}
	if t.halting && !t.halted {
		t.halted = t.a.p.w.cfg.Bug != LeaveReleases
		t.halting = t.halted
		t.a.report(event{kind: evHalted, task: t.id})
		return
	}
	if len(t.items) == 0 {
		return
	}
	it := t.items[0]
	t.items = t.items[1:]
	if it.barrier != 0 {
		t.onBarrier(it.barrier)
		return
	}
	t.waiting -= len(it.recs)
	if t.halted {
		return
	}
	if t.stalled && t.waiting < inboxLimit {
		t.stalled = false
		t.fetch()
	}
	t.process(it)
}

func (t *task) process(it item) {
	t.movedNow()
	for _, r := range it.recs {
		if r.skip {
			continue
		}
		n := t.state.add(r.key)
		t.write(outRecord{key: r.key, count: n, from: t.id.Partition, at: r.offset})
	}
	t.position.Offset = it.next
}

// onBarrier is the synchronous part of a checkpoint.
func (t *task) onBarrier(id element.CheckpointID) {
	for _, s := range t.given {
		if s.first <= id && id <= s.last {
			return // it means nothing any more
		}
	}
	t.take(gate.Barrier{ID: id})
}

// write hands a record to the transaction, or holds it back.
func (t *task) write(r outRecord) {
	if n := len(t.queues); n > 0 {
		t.queues[n-1].recs = append(t.queues[n-1].recs, r)
		return
	}
	t.a.p.mgr.produce(t.a, r)
}

// drain produces what was held back behind a barrier.
func (t *task) drain(id element.CheckpointID) {
	if len(t.queues) == 0 || t.queues[0].after != id {
		return
	}
	q := t.queues[0]
	t.queues = t.queues[1:]
	for _, r := range q.recs {
		t.a.p.mgr.produce(t.a, r)
	}
}

// produce begins the transaction when none is open, and hands the record over.
func (m *manager) produce(a *attempt, r outRecord) {
	if m.p.w.plain {
		if err := m.failure(); err != nil {
			a.report(event{kind: evFailed, err: err})
			return
		}
		m.clients[0].produce(int(r.key)%markerPartition, r)
		return
	}
	if s := m.machine.State(m.machine.Current()); s != txn.Open {
		if m.busy || s == txn.Sealed {
			m.p.w.violation("driver", "a record is produced while the transaction is %v", s)
			return
		}
		failed := false
		m.drive(txn.Event{Kind: txn.EvProduce}, job{}, func(err error) {
			if failed = err != nil; failed {
				a.report(event{kind: evFailed, err: err})
			}
		})
		if failed {
			return
		}
	}
	m.clients[m.machine.Current()].produce(int(r.key)%markerPartition, r)
}

// state is the keyed state of one task: what is committed, what is frozen by checkpoints, what has changed since.
type state struct {
	base   map[byte]int64
	frozen []*frozen
	active map[byte]int64
}

// frozen is what changed up to a barrier.
type frozen struct {
	id   element.CheckpointID
	vals map[byte]int64
	full map[byte]int64 // the whole state, where that was asked for
}

func newState() *state { return &state{base: map[byte]int64{}, active: map[byte]int64{}} }

func (s *state) add(key byte) int64 {
	n, ok := s.active[key]
	for i := len(s.frozen) - 1; i >= 0 && !ok; i-- {
		n, ok = s.frozen[i].vals[key]
	}
	if !ok {
		n = s.base[key]
	}
	s.active[key] = n + 1
	return n + 1
}

func (s *state) freeze(id element.CheckpointID, whole bool) *frozen {
	f := &frozen{id: id, vals: s.active}
	if whole {
		f.full = maps.Clone(s.base)
		for _, o := range s.frozen {
			maps.Copy(f.full, o.vals)
		}
		maps.Copy(f.full, s.active)
	}
	s.frozen = append(s.frozen, f)
	s.active = map[byte]int64{}
	return f
}

func (s *state) commit(id element.CheckpointID) {
	for len(s.frozen) > 0 && s.frozen[0].id <= id {
		for k, v := range s.frozen[0].vals {
			s.base[k] = v
		}
		s.frozen = s.frozen[1:]
	}
}

func (s *state) rollback() { s.frozen, s.active = nil, map[byte]int64{} }

// sorted gives values as a run has them.
func sorted(vals map[byte]int64) iter.Seq[snapshot.Entry] {
	return func(yield func(snapshot.Entry) bool) {
		var keys []byte
		for k := range vals {
			keys = append(keys, k)
		}
		sortBytes(keys)
		for _, k := range keys {
			if !yield(snapshot.Entry{Key: []byte{k}, Value: binary.BigEndian.AppendUint64(nil, uint64(vals[k]))}) {
				return
			}
		}
	}
}

// leak is the planted bug: what the task has changed since the barrier gets into the frozen state.
func (f *frozen) leak(s *state) {
	for k, v := range s.active {
		f.vals[k] = v
	}
}
