package snapshot

import "github.com/millweir/millweir/element"

// stalled lets a cleaner run that is stopped for long, somewhere in its listings or between two of its reads, and again
// after that. While it stands still tasks move, and those they leave are cleaned up after.
func (c *cluster) stalled(p *proc) {
	if c.stallIn > 0 || c.quiet || c.depth > 1 {
		return
	}
	c.stallIn = 1 + c.rng.IntN(12)
	switch c.rng.IntN(6) {
	case 0:
		c.cleanGone(p)
	case 1:
		c.cleanIdle(p)
	case 2:
		c.cleanFailed(p)
	default:
		c.clean(p)
	}
	c.stallIn = 0
}

// stall lets the others go on for long.
func (c *cluster) stall() {
	c.depth++
	c.stats.Stalls++
	for range 1 + c.rng.IntN(3) {
		if c.rng.IntN(4) > 0 {
			c.leave(pick(c, []string{"a", "b", "c"}))
		} else {
			c.step()
		}
	}
	c.depth--
	c.check()
	c.stallIn = 1 + c.rng.IntN(12)
}

// leave gives all tasks of an instance to another one, perhaps one that has not been there, which commits them. Then nothing
// needs the roots of the first any more, and they go: it is dead, or stands by.
func (c *cluster) leave(inst string) {
	var left []element.TaskID
	for _, id := range c.tasks {
		if p := c.owner[id]; p != nil && p.inst == inst {
			left = append(left, id)
		}
	}
	old, heir := c.current[inst], pick(c, []string{"a", "b", "c"})
	if heir == inst || len(left) == 0 {
		return
	}
	if c.current[heir] == nil {
		c.start(heir)
	}
	p := c.current[heir]
	if p.busy || p.idle {
		return
	}
	for _, id := range left {
		c.give(id, p)
	}
	dies := c.rng.IntN(2) == 0
	if dies {
		c.current[inst], c.member[inst] = nil, false
	}
	for range modelRetain + c.rng.IntN(2) {
		c.checkpoint(p, true, true)
	}
	if c.rng.IntN(2) == 0 {
		c.merge(p)
	}
	if dies {
		c.cleanGone(p)
	} else {
		c.cleanIdle(old)
	}
}
