package gate

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// counting counts barriers and never makes an input wait. What an input delivers behind its barrier, before the last
// barrier has come, is in the snapshot and comes again after a restore: at least once. A task with one input is exact.
type counting struct {
	g *Gate
	// high is the highest id whose barrier came through the input: no lower one comes any more.
	high  []element.CheckpointID
	count []counted // ascending
}

// counted is a checkpoint of which some inputs' barriers are missing.
type counted struct {
	id      element.CheckpointID
	got     []bool
	aborted bool // it stays, so that nothing that comes late begins it again, until a higher one is passed
}

func newCounting(g *Gate) *counting {
	return &counting{g: g, high: make([]element.CheckpointID, len(g.in))}
}

func (c *counting) announced(int, Barrier)        {}
func (c *counting) timedOut(element.CheckpointID) {}
func (c *counting) blocked(int) bool              { return false }
func (c *counting) recording(int) bool            { return false }

func (c *counting) barrier(in int, b Barrier) {
	c.reach(in, b.ID)
	if b.ID > c.g.passed && (c.find(b.ID) != nil || !c.overruled(b.ID)) {
		c.entry(b.ID).got[in] = true
	}
	c.settle()
}

// cancelled says nothing about other ids: a task that counts may abort 7 before it has passed 6 on.
func (c *counting) cancelled(_ int, id element.CheckpointID) {
	if id > c.g.passed {
		c.abort(c.entry(id))
	}
	c.settle()
}

func (c *counting) ended(int) { c.settle() }

func (c *counting) trigger(b Barrier) {
	if c.find(b.ID) == nil && !c.overruled(b.ID) {
		c.entry(b.ID)
	}
	c.settle()
}

// reach notes that the input has come to id. A lower checkpoint that it has not delivered can never be complete.
func (c *counting) reach(in int, id element.CheckpointID) {
	if id <= c.high[in] {
		return
	}
	c.high[in] = id
	for i := range c.count {
		if e := &c.count[i]; e.id < id && !e.got[in] {
			c.abort(e)
		}
	}
}

// overruled reports that an open input is past id, so that a checkpoint of that id can not begin any more.
func (c *counting) overruled(id element.CheckpointID) bool {
	for i, h := range c.high {
		if h > id && c.g.open(i) {
			return true
		}
	}
	return false
}

func (c *counting) find(id element.CheckpointID) *counted {
	for i := range c.count {
		if c.count[i].id == id {
			return &c.count[i]
		}
	}
	return nil
}

// entry gives the entry of id, which is made if need be.
func (c *counting) entry(id element.CheckpointID) *counted {
	if e := c.find(id); e != nil {
		return e
	}
	i := 0
	for i < len(c.count) && c.count[i].id < id {
		i++
	}
	c.count = slices.Insert(c.count, i, counted{id: id, got: make([]bool, len(c.g.in))})
	return &c.count[i]
}

func (c *counting) abort(e *counted) {
	if !e.aborted {
		e.aborted = true
		c.g.emit(Abort{ID: e.id})
	}
}

// settle takes the snapshots that are complete, in the order of their ids, and drops the oldest entries when there are
// too many.
func (c *counting) settle() {
	for i := 0; i < len(c.count); i++ {
		if e := c.count[i]; !e.aborted && c.complete(e) {
			c.g.passed = e.id
			c.g.emit(Snapshot{ID: e.id, Forward: Barrier{ID: e.id}})
		}
	}
	c.count = slices.DeleteFunc(c.count, func(e counted) bool { return e.id <= c.g.passed })
	for len(c.count) > maxPending {
		c.abort(&c.count[0])
		c.g.passed = c.count[0].id
		c.count = slices.Delete(c.count, 0, 1)
	}
}

// complete reports that the barrier came from all open inputs.
func (c *counting) complete(e counted) bool {
	for i, got := range e.got {
		if !got && c.g.open(i) {
			return false
		}
	}
	return true
}

func (c *counting) pending() []element.CheckpointID {
	var ids []element.CheckpointID
	for _, e := range c.count {
		if !e.aborted {
			ids = append(ids, e.id)
		}
	}
	return ids
}
