package store

// drainPerChange is the number of garbage changes that one new change works off. More than one, so that the queue
// shrinks faster than it can be refilled.
const drainPerChange = 2

// garbage is a change list of an epoch that ended: committed, so the values before it are free, or dropped, so its own
// values are free. It is worked off bit by bit by later changes: neither Commit nor Rollback walks it for this.
type garbage struct {
	table   *Table
	list    changeList
	next    uint32
	epoch   uint32 // entries without a value that carry this epoch go, too
	floor   uint32 // no entry with a change in the list had a lower epoch when the list became garbage
	dropped bool
	gates   []*Frozen // nothing is recycled while one of these is being read
}

type garbageQueue struct {
	items []garbage
	head  int
}

func (q *garbageQueue) push(g garbage) {
	if q.head > 0 && q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 64 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, g)
}

func (q *garbageQueue) empty() bool { return q.head == len(q.items) }

// drain works off up to n changes, unless a scan may look at what they would free.
func (s *Store) drain(n int) {
	if len(s.views) > 0 {
		return
	}
	q := &s.garbage
	for n > 0 && q.head < len(q.items) {
		g := &q.items[q.head]
		if g.next == 0 && g.blocked() {
			return
		}
		for ; n > 0 && g.next < g.list.len; n-- {
			s.recycle(g, g.list.at(g.next))
			g.next++
			if g.next&changeBlockMask == 0 || g.next == g.list.len {
				s.pool.releaseBlock(g.list.blocks[(g.next-1)>>changeBlockShift])
			}
		}
		if g.next < g.list.len {
			return
		}
		s.pool.releaseList(g.list.blocks)
		*g = garbage{}
		q.head++
	}
}

func (g *garbage) blocked() bool {
	for _, f := range g.gates {
		if f.readers.Load() != 0 {
			return true
		}
	}
	g.gates = nil
	return false
}

func (s *Store) recycle(g *garbage, c *change) {
	last := c.valLen // what the epoch left the key with
	if g.dropped {
		last = c.prevLen
		if c.valLen != absent {
			s.arena.release(c.val, c.valLen)
		}
	} else if c.prevLen != absent {
		s.arena.release(c.prev, c.prevLen)
	}
	if last != absent {
		return // the common case does not touch the entry
	}
	if e := s.arena.chunks.entry(c.entry); e.valLen == absent && e.epoch == g.epoch {
		g.table.forget(c.entry, e)
	}
}
