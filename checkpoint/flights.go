package checkpoint

import "github.com/millweir/millweir/element"

// Several checkpoints may be in flight. Their barriers pass each task in the order of the ids, and each is persisted as
// soon as its own barriers have passed, before or after an older one. What has to do with the transaction comes strictly
// one after the other: the flush of one begins when its predecessor is complete, so its root and its commit do too.

// flight gives a checkpoint in flight, nil when the id is of none.
func (c *Coordinator) flight(id element.CheckpointID) *pending {
	for _, p := range c.flights {
		if p.id == id {
			return p
		}
	}
	return nil
}

// unpermitted is the place in flights of the oldest one without a Permit: 0, or 1 when the oldest has one.
func (c *Coordinator) unpermitted() int {
	if len(c.flights) > 0 && c.flights[0].phase.permitted() {
		return 1
	}
	return 0
}

// newest gives the one that was triggered last, nil when none is in flight.
func (c *Coordinator) newest() *pending {
	if len(c.flights) == 0 {
		return nil
	}
	return c.flights[len(c.flights)-1]
}

// older gives the next older one that covers a task, nil when there is none.
func (c *Coordinator) older(p *pending, t element.TaskID) *pending {
	var older *pending
	for _, o := range c.flights {
		if o == p {
			break
		}
		if o.by[t] != nil {
			older = o
		}
	}
	return older
}

// flush lets the oldest one have the transaction, once its barriers have passed.
func (c *Coordinator) flush() {
	if len(c.flights) == 0 {
		return
	}
	p := c.flights[0]
	if p.phase != storing || p.flushAsked {
		return
	}
	p.flushAsked, p.flushBegun = true, c.now
	p.stats.Waited = c.now - p.passed
	c.emit(Flush{ID: p.id})
}
