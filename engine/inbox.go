package engine

import (
	"slices"
	"sync"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
)

// item is what travels to a task: exactly one of a delivery, a barrier, the end and the kinds of notice.
type item struct {
	delivery  element.Delivery
	size      int64                // of the delivery
	barrier   gate.Barrier         // ID not 0: the item is a barrier
	end       bool                 // nothing follows: the partition has reached the end that it was given
	committed element.CheckpointID // not 0: checkpoints up to it are committed
	abandoned span                 // not empty: these checkpoints were given up, what was frozen for them belongs to the next one
	written   element.CheckpointID // not 0: the state of checkpoints up to it is written
	halted    bool                 // no delivery follows any more
	resume    bool                 // the paused partition has drained to half the limit: fetch it again
}

// maxInboxBytes bounds what waits where records are large: an inbox full of small ones has a tenth of it.
const maxInboxBytes = 16 << 20

// inbox is the bounded queue in front of one task. Deliveries and barriers keep their order: a barrier is put behind
// every delivery that is already in, and whatever comes later stays behind it. Barriers and commit notices do not
// count against the limit, so a full inbox never holds back a checkpoint.
//
// The feeder (one goroutine) pushes deliveries, the coordinator loop pushes barriers and notices, the task pops.
type inbox struct {
	limit int // records; one delivery may exceed it, and maxInboxBytes
	bell  *doorbell

	mu       sync.Mutex
	items    []item               // guarded by mu; items[head:] are waiting
	head     int                  // guarded by mu
	records  int                  // guarded by mu: records waiting
	bytes    int64                // guarded by mu: their estimated size
	barriers int                  // guarded by mu: barriers waiting
	notice   element.CheckpointID // guarded by mu: checkpoints up to it are committed
	stored   element.CheckpointID // guarded by mu: the state of checkpoints up to it is written, if not 0
	givenUp  []span               // guarded by mu: these checkpoints are given up, and none between them
	paused   bool                 // guarded by mu: the feeder paused this partition
	halted   bool                 // guarded by mu: deliveries are dropped
	tell     bool                 // guarded by mu: the task has not seen the halt yet
}

func newInbox(limit int) *inbox { return &inbox{limit: limit, bell: newDoorbell()} }

func (q *inbox) signal() { q.bell.ring() }

// put appends a delivery whatever the limit; full tells whether the inbox is at its limit now.
func (q *inbox) put(d element.Delivery) (full bool) {
	size := sizeOf(d.Records)
	q.mu.Lock()
	if q.halted {
		q.mu.Unlock()
		return false
	}
	q.items, q.head = queued(q.items, q.head, item{delivery: d, size: size})
	q.records += len(d.Records)
	q.bytes += size
	full = q.fullLocked()
	q.mu.Unlock()
	q.signal()
	return full
}

// barrier appends a barrier behind everything that is in.
func (q *inbox) barrier(b gate.Barrier) {
	q.mu.Lock()
	q.items, q.head = queued(q.items, q.head, item{barrier: b})
	q.barriers++
	q.mu.Unlock()
	q.signal()
}

// end says that nothing follows the deliveries that are in. Like them it is dropped behind a halt.
func (q *inbox) end() {
	q.mu.Lock()
	if q.halted {
		q.mu.Unlock()
		return
	}
	q.items, q.head = queued(q.items, q.head, item{end: true})
	q.mu.Unlock()
	q.signal()
}

// hasBarrier reports that a barrier waits.
func (q *inbox) hasBarrier() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.barriers > 0
}

// popBarrier takes the oldest barrier out, past the deliveries ahead of it.
func (q *inbox) popBarrier() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.barriers == 0 {
		return item{}, false
	}
	for i := q.head; ; i++ {
		if it := q.items[i]; it.barrier.ID != 0 {
			q.items = slices.Delete(q.items, i, i+1) // leaves nothing reachable behind the last
			if q.head == len(q.items) {
				q.items, q.head = q.items[:0], 0
			}
			q.barriers--
			return it, true
		}
	}
}

// halt drops the deliveries that wait and all that come, for the next owner of the partition reads them. The barriers
// that wait stay.
func (q *inbox) halt() {
	q.mu.Lock()
	var barriers []item
	for _, it := range q.items[q.head:] {
		if it.barrier.ID != 0 {
			barriers = append(barriers, it)
		}
	}
	q.items, q.head, q.records, q.bytes = barriers, 0, 0, 0
	q.halted, q.tell, q.paused = true, true, false
	q.mu.Unlock()
	q.signal()
}

// commit leaves word that checkpoints up to id are committed. It overtakes what waits: the task may release frozen
// state at any moment after the commit, and the sooner the better.
func (q *inbox) commit(id element.CheckpointID) {
	q.mu.Lock()
	q.notice = max(q.notice, id)
	q.mu.Unlock()
	q.signal()
}

// written leaves word that the state of checkpoints up to id is written.
func (q *inbox) written(id element.CheckpointID) {
	q.mu.Lock()
	q.stored = max(q.stored, id)
	q.mu.Unlock()
	q.signal()
}

// abandon leaves word that checkpoints were given up before their commit, and takes back those of their barriers that
// wait. Like commit it overtakes.
func (q *inbox) abandon(ids span) {
	q.mu.Lock()
	q.givenUp = remember(q.givenUp, ids)
	kept := q.items[:q.head]
	for _, it := range q.items[q.head:] {
		if it.barrier.ID != 0 && ids.has(it.barrier.ID) {
			q.barriers--
			continue
		}
		kept = append(kept, it)
	}
	clear(q.items[len(kept):])
	if q.items = kept; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	q.mu.Unlock()
	q.signal()
}

// span is a range of checkpoint ids, both ends in it; the zero value is empty.
type span struct{ first, last element.CheckpointID }

func (s span) empty() bool { return s.last == 0 }

func (s span) has(id element.CheckpointID) bool { return s.first <= id && id <= s.last }

// meets reports that no id lies between the two.
func (s span) meets(o span) bool { return o.first <= s.last+1 && s.first <= o.last+1 }

// with gives the span from the first of both to the last.
func (s span) with(o span) span {
	return span{min(s.first, o.first), max(s.last, o.last)}
}

// remember adds a span: to the last one where no id lies between them.
func remember(spans []span, ids span) []span {
	if n := len(spans); n > 0 && spans[n-1].meets(ids) {
		spans[n-1] = spans[n-1].with(ids)
		return spans
	}
	return append(spans, ids)
}

// full reports that the inbox holds as much as it may.
func (q *inbox) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fullLocked()
}

func (q *inbox) fullLocked() bool { return q.records >= q.limit || q.bytes >= maxInboxBytes }

// sizeOf gives the bytes that records hold, about.
func sizeOf(records []element.Record) (n int64) {
	for i := range records {
		n += int64(records[i].Size())
	}
	return n
}

// empty reports that no delivery waits.
func (q *inbox) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records == 0
}

// setPaused notes that the feeder paused the partition; tryPop clears it with a resume item.
func (q *inbox) setPaused() {
	q.mu.Lock()
	q.paused = !q.halted
	q.mu.Unlock()
	q.signal()
}

// tryPopNotice takes a notice, if one is there, and never a delivery or a barrier.
func (q *inbox) tryPopNotice() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.noticeLocked()
}

func (q *inbox) noticeLocked() (item, bool) {
	if q.notice != 0 {
		it := item{committed: q.notice}
		q.notice = 0
		return it, true
	}
	if len(q.givenUp) > 0 { // behind the notice of a commit: what is given up was frozen after that
		it := item{abandoned: q.givenUp[0]}
		q.givenUp = q.givenUp[1:]
		return it, true
	}
	if q.stored != 0 {
		it := item{written: q.stored}
		q.stored = 0
		return it, true
	}
	if q.tell {
		q.tell = false
		return item{halted: true}, true
	}
	if q.paused && q.records <= q.limit/2 && q.bytes <= maxInboxBytes/2 {
		q.paused = false
		return item{resume: true}, true
	}
	return item{}, false
}

// tryPop takes what stands first in order; the caller has taken the notices.
func (q *inbox) tryPop() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) {
		return item{}, false
	}
	it := q.items[q.head]
	q.items[q.head] = item{} // the slab of records must not stay reachable
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	q.records -= len(it.delivery.Records)
	q.bytes -= it.size
	if it.barrier.ID != 0 {
		q.barriers--
	}
	return it, true
}
