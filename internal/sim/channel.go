package sim

import (
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
)

// passage is what travels through a channel: one of a parcel, a barrier, a cancel barrier and the end mark.
type passage struct {
	parcel  parcel
	barrier gate.Barrier
	cancel  element.CheckpointID
	end     bool
}

// channel mirrors engine.channel: from one task to one subtask, in order, bounded by credit.
type channel struct {
	limit    int
	from, to *task

	items    []passage
	records  int
	announce []gate.Barrier
	recordAt element.CheckpointID // not 0: what comes is recorded until this barrier does
	tape     []parcel
}

func (c *channel) push(p parcel) {
	c.items = append(c.items, passage{parcel: p})
	c.records += len(p)
	if c.recordAt != 0 {
		c.tape = append(c.tape, p)
	}
	c.to.ring()
}

func (c *channel) pushBarrier(b gate.Barrier) {
	c.items = append(c.items, passage{barrier: b})
	if c.recordAt != 0 && b.ID >= c.recordAt && c.to.a.p.w.cfg.Bug != RecordingNotClosed {
		c.recordAt = 0
	}
	if b.Unaligned || b.Timeout {
		c.announce = append(c.announce, b)
		c.to.in.news = true
	}
	c.to.ring()
}

// pushCancel says that the sender has given a checkpoint up.
func (c *channel) pushCancel(id element.CheckpointID) {
	c.items = append(c.items, passage{cancel: id})
	if c.recordAt == id {
		c.recordAt = 0
	}
	c.to.ring()
}

// pushEnd says that no record follows. A recording is complete then.
func (c *channel) pushEnd() {
	c.items = append(c.items, passage{end: true})
	c.recordAt = 0
	c.to.ring()
}

// credit reports whether the sender may begin a batch.
func (c *channel) credit() bool { return !c.to.in.behind && c.records < c.limit }

func (c *channel) pop() (passage, bool) {
	if len(c.items) == 0 {
		return passage{}, false
	}
	p := c.items[0]
	c.items = c.items[1:]
	full := c.records >= c.limit
	c.records -= len(p.parcel)
	if full && c.records < c.limit {
		c.from.ring()
	}
	return p, true
}

func (c *channel) announced() []gate.Barrier {
	out := c.announce
	c.announce = nil
	return out
}

// capture gives the parcels ahead of barrier id. When it is not there, what comes until it does is recorded.
func (c *channel) capture(id element.CheckpointID) []parcel {
	var out []parcel
	c.tape, c.recordAt = nil, id
	for _, it := range c.items {
		if it.parcel != nil {
			out = append(out, it.parcel)
		}
		if it.end || it.barrier.ID >= id {
			c.recordAt = 0
			break
		}
	}
	return out
}

// recorded gives what came since capture, and ends the recording.
func (c *channel) recorded() []parcel {
	out := c.tape
	c.tape, c.recordAt = nil, 0
	return out
}
