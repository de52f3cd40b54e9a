package store

import (
	"hash/crc32"
	"sort"
)

// spillSome writes new blocks for the buckets of some of the victims, from a place on, and gives the place behind them. A
// victim that must stay becomes 0.
func (s *Store) spillSome(t *Table, v []uint64, from int) (to int, err error) {
	sp := s.spill
	sp.out, sp.made, sp.old, to = sp.out[:0], sp.made[:0], sp.old[:0], from
	for whole := true; to < len(v) && len(sp.out) < evictWrite && whole; {
		h := uint32(v[to] >> 32)
		b, first := t.spill.at(h), to
		last := b.last(h)
		for size := int64(0); to < len(v) && uint32(v[to]>>32) <= last && whole; to++ {
			size += s.takes(v[to])
			whole = size < evictWrite // else the others come when the bucket was split
		}
		if err := s.merge(t, b, h, v[first:to]); err != nil {
			sp.breakdown(err)
			return to, err
		}
	}
	return to, sp.write()
}

// merge adds the new block of a bucket to what is to be written: the old one with the victims, which are in order. Nothing
// is written when the old block has all of them as they are.
func (s *Store) merge(t *Table, b *bucket, h uint32, v []uint64) error {
	sp := s.spill
	c := s.arena.chunks
	size := int64(b.size)
	known := true
	for _, slot := range v {
		e := c.entry(ref(slot))
		known = known && e.valLen != absent && (e.epoch == backed || sp.plant == plantStale)
		if size += int64(e.keyLen) + 16; e.valLen != absent {
			size += int64(e.valLen)
		}
	}
	if known {
		return nil
	}
	if size > blockLimit {
		clear(v)
		return nil
	}
	block, err := readBlock(b, sp.block)
	sp.block = block
	if err != nil {
		return err
	}
	start := len(sp.out)
	sp.places = sp.places[:0]
	add := func(hash uint32, key, value []byte) {
		sp.places = append(sp.places, place{hash, len(sp.out)})
		sp.out = appendSpilled(sp.out, hash, key, value)
	}
	same := true
	addVictim := func(slot uint64) {
		r := ref(slot)
		if e := c.entry(r); e.valLen != absent {
			add(uint32(slot>>32), c.key(r, e.keyLen), c.at(e.val, e.valLen))
			same = false
		}
	}
	for len(block) > 0 {
		old, ok := firstSpilled(block)
		if !ok {
			return damaged(b, "not a sequence of entries")
		}
		block = block[old.size:]
		for len(v) > 0 && uint32(v[0]>>32) < old.hash {
			addVictim(v[0])
			v = v[1:]
		}
		replaced := false
		for i := 0; i < len(v) && uint32(v[i]>>32) == old.hash; i++ {
			e := c.entry(ref(v[i]))
			replaced = replaced || string(c.key(ref(v[i]), e.keyLen)) == string(old.key)
		}
		if replaced {
			same = false // by the victim, or by nothing when that has no value
		} else {
			add(old.hash, old.key, old.value)
		}
	}
	for _, slot := range v {
		addVictim(slot)
	}
	if same {
		sp.out = sp.out[:start]
		return nil
	}
	sp.old = append(sp.old, b)
	n := len(sp.places)
	sp.places = append(sp.places, place{at: len(sp.out)})
	sp.split(t, h&^uint32(uint64(1)<<(32-b.depth)-1), b.depth, t.spill.depthMost(n), 0, n)
	return nil
}

// split makes buckets for the entries from one place to another, as many as are needed.
func (sp *spiller) split(t *Table, prefix uint32, depth, most uint8, from, to int) {
	at, end := sp.places[from].at, sp.places[to].at
	in := sp.places[from:to]
	if end-at > blockMax && len(in) > 1 && depth < most {
		bit := uint32(1) << (31 - depth)
		m := from + sort.Search(len(in), func(i int) bool { return in[i].hash&bit != 0 })
		sp.split(t, prefix, depth+1, most, from, m)
		sp.split(t, prefix|bit, depth+1, most, m, to)
		return
	}
	b := &bucket{depth: depth, n: uint32(len(in)), size: uint32(end - at), filter: newFilter(len(in))}
	b.sum = crc32.Checksum(sp.out[at:end], castagnoli)
	for _, p := range in {
		filterSet(b.filter, p.hash)
	}
	sp.made = append(sp.made, madeBucket{table: t, prefix: prefix, at: at, b: b})
}

// write writes the blocks that were made and puts their buckets into the directories. Nothing has changed when it fails.
func (sp *spiller) write() error {
	if len(sp.made) == 0 {
		return nil
	}
	if len(sp.out) > 0 {
		file, off, err := sp.log.append(sp.out)
		if err != nil {
			return err
		}
		for _, m := range sp.made {
			m.b.file, m.b.off = file, off+int64(m.at)
		}
	}
	for _, m := range sp.made {
		x := m.table.spill
		x.put(m.prefix, m.b)
		x.entries += int64(m.b.n)
		x.memory += m.b.memory()
		sp.log.named(m.b)
	}
	x := sp.made[0].table.spill // all are of one table
	for _, b := range sp.old {
		x.entries -= int64(b.n)
		x.memory -= b.memory()
		sp.log.unnamed(b)
	}
	return nil
}
