package engine

import (
	"context"
	"sync"

	"github.com/millweir/millweir/element"
)

// item is what travels to a task: exactly one of a delivery, a barrier and three kinds of notice.
type item struct {
	delivery  element.Delivery
	barrier   element.CheckpointID // not 0: the item is a barrier
	committed element.CheckpointID // not 0: checkpoints up to it are committed
	halted    bool                 // no delivery follows any more
	resume    bool                 // the paused partition has drained to half the limit: fetch it again
}

// inbox is the bounded queue in front of one task. Deliveries and barriers keep their order: a barrier is put behind
// every delivery that is already in, and whatever comes later stays behind it. Barriers and commit notices do not
// count against the limit, so a full inbox never holds back a checkpoint.
//
// The feeder (one goroutine) pushes deliveries, the coordinator loop pushes barriers and notices, the task pops.
type inbox struct {
	limit int // records; one delivery may exceed it
	wake  chan struct{}

	mu       sync.Mutex
	items    []item // guarded by mu; items[head:] are waiting
	head     int    // guarded by mu
	records  int    // guarded by mu: records waiting
	barriers int    // guarded by mu: barriers waiting
	notice   element.CheckpointID
	paused   bool // guarded by mu: the feeder paused this partition
	halted   bool // guarded by mu: deliveries are dropped
	tell     bool // guarded by mu: the task has not seen the halt yet
}

func newInbox(limit int) *inbox {
	return &inbox{limit: limit, wake: make(chan struct{}, 1)}
}

func (q *inbox) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// put appends a delivery whatever the limit; full tells whether the inbox is at its limit now.
func (q *inbox) put(d element.Delivery) (full bool) {
	q.mu.Lock()
	if q.halted {
		q.mu.Unlock()
		return false
	}
	q.items = append(q.items, item{delivery: d})
	q.records += len(d.Records)
	full = q.records >= q.limit
	q.mu.Unlock()
	q.signal()
	return full
}

// barrier appends a barrier behind everything that is in.
func (q *inbox) barrier(id element.CheckpointID) {
	q.mu.Lock()
	q.items = append(q.items, item{barrier: id})
	q.barriers++
	q.mu.Unlock()
	q.signal()
}

// halt drops the deliveries that wait and all that come, for the next owner of the partition reads them. The barriers
// that wait stay.
func (q *inbox) halt() {
	q.mu.Lock()
	var barriers []item
	for _, it := range q.items[q.head:] {
		if it.barrier != 0 {
			barriers = append(barriers, it)
		}
	}
	q.items, q.head, q.records = barriers, 0, 0
	q.halted, q.tell, q.paused = true, true, false
	q.mu.Unlock()
	q.signal()
}

// hasBarrier reports that a barrier waits.
func (q *inbox) hasBarrier() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.barriers > 0
}

// commit leaves word that checkpoints up to id are committed. It overtakes what waits: the task may release frozen
// state at any moment after the commit, and the sooner the better.
func (q *inbox) commit(id element.CheckpointID) {
	q.mu.Lock()
	q.notice = max(q.notice, id)
	q.mu.Unlock()
	q.signal()
}

// full reports that the inbox holds as many records as it may.
func (q *inbox) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records >= q.limit
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

// pop takes the next item, waiting for one until ctx ends.
func (q *inbox) pop(ctx context.Context) (item, bool) {
	for {
		if it, ok := q.tryPop(); ok {
			return it, true
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return item{}, false
		}
	}
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
	if q.tell {
		q.tell = false
		return item{halted: true}, true
	}
	if q.paused && q.records <= q.limit/2 {
		q.paused = false
		return item{resume: true}, true
	}
	return item{}, false
}

func (q *inbox) tryPop() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it, ok := q.noticeLocked(); ok {
		return it, true
	}
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
	if it.barrier != 0 {
		q.barriers--
	}
	return it, true
}
