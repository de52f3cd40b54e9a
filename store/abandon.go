package store

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// noEpoch is an epoch that no entry carries.
const noEpoch = ^uint32(0)

// Abandon gives up the checkpoint id and all later ones: their changes belong to the active ones again, so the next
// Freeze holds them, one change per key, with the newest value. No value changes, and Rollback goes back to the last
// Commit as before. Frozens of earlier checkpoints stay as they are. It costs one step per change that is given up or
// active.
//
// The Frozens are closed. Their readers may still run: what they see stays as it is until they end. They should end
// soon, because until then nothing is recycled.
func (s *Store) Abandon(id element.CheckpointID) {
	from := 0
	for from < len(s.frozen) && s.frozen[from].id < id {
		from++
	}
	given := slices.Clone(s.frozen[from:])
	if len(given) == 0 {
		return
	}
	clear(s.frozen[from:])
	s.frozen = s.frozen[:from]
	s.close(given)
	// Changes whose values nobody else can see get an epoch of their own, the others the one before it.
	own := s.epoch + 2
	givenEpoch, activeEpoch := own, own
	if len(s.lingering) > 0 {
		givenEpoch = own - 1
		if s.carried != noEpoch {
			activeEpoch = own - 1 // an earlier Abandon may have left some
		}
	}
	s.carried, s.epoch, s.floor = own-1, own, own-1
	for i, t := range s.tables {
		var merged changeList
		for _, f := range given {
			if i < len(f.lists) {
				s.carry(t, &merged, &f.lists[i], givenEpoch)
				s.giveBack(f.lists[i], f.readers.Load() == 0)
			}
		}
		s.carry(t, &merged, &t.active, activeEpoch)
		s.giveBack(t.active, true)
		merged.count()
		t.active = merged
	}
	s.discardScraps()
}

// carry takes the changes of a list, which is newer than what is merged, over into the merged one. Values between are
// scraps. A change whose value a reader may see gets the carried epoch: its slot must not be written in place.
func (s *Store) carry(t *Table, merged, l *changeList, epoch uint32) {
	for i := range l.len {
		c := l.at(i)
		e := s.arena.chunks.entry(c.entry)
		if e.epoch == s.epoch || e.epoch == s.carried {
			to := merged.at(e.change)
			s.scrapSlot(to.val, to.valLen)
			to.val, to.valLen = c.val, c.valLen
		} else {
			e.change = merged.add(&s.pool, *c)
		}
		// A key without a value has no slot to protect, and its epoch is what lets its entry go one day.
		to := epoch
		if c.valLen == absent {
			to = s.epoch
		}
		t.setHead(e, c.entry, e.val, e.valLen, to)
	}
}

// giveBack takes back the blocks of a list that was merged, unless a reader still needs them: then they go to the
// collector after it.
func (s *Store) giveBack(l changeList, unread bool) {
	if !unread {
		s.pool.total -= len(l.blocks)
		return
	}
	for _, b := range l.blocks {
		s.pool.releaseBlock(b)
	}
	s.pool.releaseList(l.blocks)
}

// renew gives a carried change a new value in a new slot, since a reader may still see the one it has. It is the first
// write to the key since the Abandon.
func (t *Table) renew(e *entry, r, v ref, n uint32) {
	s := t.s
	c := t.active.at(e.change)
	if e.valLen != absent {
		t.active.bytes -= int64(e.valLen)
	}
	if n != absent {
		t.active.bytes += int64(n)
	} else if c.prevLen == absent {
		t.active.noops++
	}
	s.scrapSlot(e.val, e.valLen)
	t.setHead(e, r, v, n, s.epoch)
	c.val, c.valLen = v, n
}

// scrapSlot gives back a slot that no version needs any more, later if a reader of a closed Frozen may see it.
func (s *Store) scrapSlot(r ref, n uint32) {
	if n == absent || n == 0 {
		return
	}
	if s.close(nil); len(s.lingering) == 0 {
		s.arena.release(r, n)
		return
	}
	s.scraps.add(&s.pool, change{val: r, valLen: n})
}

// discardScraps hands the scraps to the garbage. Their changes say that there was a value before, so no entry is touched.
func (s *Store) discardScraps() {
	if s.scraps.len == 0 {
		return
	}
	s.garbage.push(garbage{list: s.scraps, dropped: true, gates: s.gates()})
	s.scraps = s.pool.list()
}

// close closes Frozens, and looks which closed ones are still being read. One that is not can never be read again.
func (s *Store) close(fs []*Frozen) {
	for _, f := range fs {
		f.closed.Store(true)
	}
	s.forgetViews()
	if s.lingering = append(s.lingering, fs...); len(s.lingering) == 0 {
		return
	}
	s.lingering = slices.DeleteFunc(s.lingering, func(f *Frozen) bool { return f.readers.Load() == 0 })
	if s.spill != nil && len(s.spill.pinned) > 0 {
		s.unpin()
	}
}

// gates gives the closed Frozens that hold up the recycling of garbage which comes up now.
func (s *Store) gates() []*Frozen {
	s.close(nil)
	return slices.Clone(s.lingering)
}
