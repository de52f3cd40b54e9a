package snapshot

import (
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// discard gives up a checkpoint of which no commit was begun.
func (c *cluster) discard(p *proc, name element.CheckpointName) {
	rep, err := p.r.Discard(ctx, name)
	require.NoError(c.rt, err)
	c.stats.Discarded += rep.Deleted
}

// cleanFailed begins an attempt: nothing of an earlier one runs any more, and what is committed is read. A process that was
// replaced may do so too, for it does not know.
func (c *cluster) cleanFailed(p *proc) {
	if p.busy || p.merging || p.cleaning || p.idle {
		return
	}
	var facts []TaskFacts
	for _, id := range c.tasks {
		if c.owner[id] != p && (c.current[p.inst] == p || c.rng.IntN(2) == 0) {
			continue
		}
		if ref, ok := c.handle[id]; ok {
			facts = append(facts, named(c.t, p.r, id, ref))
		} else if c.rng.IntN(2) == 0 {
			facts = append(facts, named(c.t, p.r, id, RootRef{Name: nameOf(0, p.inc)})) // its start is committed
		}
		if c.owner[id] == p {
			c.give(id, p)
		}
	}
	p.busy, p.merging, p.cleaning = true, true, true
	rep, err := p.r.CleanFailed(ctx, facts, c.goneInput().Committed)
	c.count(err)
	c.stats.DeletedFailed += rep.Deleted
	p.busy, p.merging, p.cleaning = false, false, false
}
