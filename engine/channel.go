package engine

import (
	"sync"
	"sync/atomic"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/topology"
)

// passage is what travels through a channel: exactly one of a parcel, a barrier, a cancel barrier and the end.
type passage struct {
	parcel  topology.Parcel
	barrier gate.Barrier         // ID not 0: the item is a barrier
	cancel  element.CheckpointID // not 0: the checkpoint was given up by a task before
	end     bool                 // nothing follows but barriers that the coordinator sends itself
}

// channel carries parcels from one task to one subtask of an exchange, in order. It is bounded by credit: the sender
// looks for room between two batches of its input, and what one batch makes is taken whole, so nobody ever waits in the
// middle of a batch and a barrier is never stuck behind a full channel. The sender's task pushes, the receiver's pops.
//
// For an unaligned checkpoint the receiver captures what lies ahead of the barrier. When the barrier is not there yet, it
// lies behind everything that is in the channel and that comes until it does; so the channel records from then on:
//
//	receiver                               sender
//	capture(7): [a b], barrier 7 not here
//	                                       push(c)        recorded
//	pop a, processes it as part of 8
//	                                       pushBarrier(7) the recording ends
//	                                       push(d)        not recorded
//	recorded(7): [c]
//
// In flight at 7 are a, b and c, whatever the receiver has processed meanwhile.
type channel struct {
	limit    int            // records; one batch may exceed it, and maxChannelBytes
	receiver *doorbell      // rung when something comes
	sender   *doorbell      // rung when there is room again
	news     *atomic.Bool   // of the receiver: a barrier that may overtake has come in one of its channels
	newest   *atomic.Uint64 // of the receiver: the highest id of a barrier that has come in one of its channels
	behind   *atomic.Bool   // of the receiver: it has as much to take again as a channel takes, so there is no credit
	feedback bool           // its receiver lies before its sender: there is no credit, or both could wait for each other

	sent  int64 // records, counted by the sender's task
	taken int64 // records, counted by the receiver's

	mu       sync.Mutex
	items    []passage            // guarded by mu; items[head:] wait
	head     int                  // guarded by mu
	records  int                  // guarded by mu: records that wait
	bytes    int64                // guarded by mu: their estimated size
	announce []gate.Barrier       // guarded by mu: barriers that came and that the receiver was not told of
	recordAt element.CheckpointID // guarded by mu: not 0: what comes is recorded until this barrier does
	tape     []topology.Parcel    // guarded by mu: what was recorded
}

// queued appends to a queue of which items[head:] wait. The places of what has passed are used again before it grows: a queue
// that is never empty would keep them all. At least half is free then, so a move costs no more than the appends up to the next.
func queued[T any](items []T, head int, it T) ([]T, int) {
	if len(items) == cap(items) && head > len(items)/2 {
		n := copy(items, items[head:])
		clear(items[n:])
		items, head = items[:n], 0
	}
	return append(items, it), head
}

// doorbell wakes a task that waits. It keeps one ring.
type doorbell struct{ c chan struct{} }

func newDoorbell() *doorbell { return &doorbell{c: make(chan struct{}, 1)} }

func (d *doorbell) ring() {
	select {
	case d.c <- struct{}{}:
	default:
	}
}

// push appends a parcel whatever the limit.
func (c *channel) push(p topology.Parcel) {
	n, size := p.Len(), int64(p.Size())
	c.sent += int64(n)
	c.mu.Lock()
	c.items, c.head = queued(c.items, c.head, passage{parcel: p})
	c.records += n
	c.bytes += size
	if c.recordAt != 0 {
		p.Keep()
		c.tape = append(c.tape, p)
	}
	c.mu.Unlock()
	c.receiver.ring()
}

// pushBarrier appends a barrier. One that may overtake is announced: the receiver looks at it before its turn.
func (c *channel) pushBarrier(b gate.Barrier) {
	c.mu.Lock()
	c.items, c.head = queued(c.items, c.head, passage{barrier: b})
	for old := c.newest.Load(); uint64(b.ID) > old && !c.newest.CompareAndSwap(old, uint64(b.ID)); old = c.newest.Load() {
	}
	if c.recordAt != 0 && b.ID >= c.recordAt {
		c.recordAt = 0
	}
	if b.Unaligned || b.Timeout {
		c.announce = append(c.announce, b)
		c.news.Store(true)
	}
	c.mu.Unlock()
	c.receiver.ring()
}

// pushCancel says that the sender's task, or one before it, has given a checkpoint up.
func (c *channel) pushCancel(id element.CheckpointID) {
	c.mu.Lock()
	c.items, c.head = queued(c.items, c.head, passage{cancel: id})
	if c.recordAt == id {
		c.recordAt = 0
	}
	c.mu.Unlock()
	c.receiver.ring()
}

// pushEnd says that nothing follows. A recording is complete then.
func (c *channel) pushEnd() {
	c.mu.Lock()
	c.items, c.head = queued(c.items, c.head, passage{end: true})
	c.recordAt = 0
	c.mu.Unlock()
	c.receiver.ring()
}

// credit reports whether the sender may begin a batch.
func (c *channel) credit() bool {
	if c.feedback {
		return true
	}
	if c.behind.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roomLocked()
}

// maxChannelBytes bounds what is on the way where records are large: a channel full of small ones has a tenth of it.
const maxChannelBytes = 4 << 20

func (c *channel) roomLocked() bool { return c.records < c.limit && c.bytes < maxChannelBytes }

// pop takes the next passage; a parcel only when data is allowed.
func (c *channel) pop(data bool) (p passage, ok bool) {
	c.mu.Lock()
	if c.head == len(c.items) || (!data && c.items[c.head].parcel != nil) {
		c.mu.Unlock()
		return passage{}, false
	}
	p = c.items[c.head]
	c.items[c.head] = passage{}
	c.head++
	if c.head == len(c.items) {
		c.items, c.head = c.items[:0], 0
	}
	room := false
	if p.parcel != nil {
		c.taken += int64(p.parcel.Len())
		full := !c.roomLocked()
		c.records -= p.parcel.Len()
		c.bytes -= int64(p.parcel.Size())
		room = full && c.roomLocked()
	}
	c.mu.Unlock()
	if room {
		c.sender.ring()
	}
	return p, true
}

// announced gives the barriers that have come since the last call and may overtake.
func (c *channel) announced() []gate.Barrier {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.announce
	c.announce = nil
	return out
}

// capture gives the parcels ahead of barrier id. When it is not there, these are all, and what comes until it does is
// recorded. The parcels stay in the channel. A recording of an older checkpoint is over.
func (c *channel) capture(id element.CheckpointID) []topology.Parcel {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []topology.Parcel
	c.tape, c.recordAt = nil, id
	for _, it := range c.items[c.head:] {
		if it.parcel != nil {
			it.parcel.Keep()
			out = append(out, it.parcel)
		}
		if it.end || it.barrier.ID >= id {
			c.recordAt = 0
			break
		}
	}
	return out
}

// recorded gives what came since capture(id) and ends the recording.
func (c *channel) recorded() []topology.Parcel {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.tape
	c.tape, c.recordAt = nil, 0
	return out
}

// waiting gives how many records lie in the channel.
func (c *channel) waiting() int {
	records, _ := c.load()
	return records
}

// load gives how many records lie in the channel, and their estimated size.
func (c *channel) load() (records int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records, c.bytes
}
