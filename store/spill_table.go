package store

import "fmt"

// backed is the epoch of an entry whose key and value are in a block as they are; also of one that was just inserted and
// has no value yet. loaded is that of committed values which a restore brought.
const (
	backed = 0
	loaded = 1
)

// fetch brings a key into memory that was spilled. Without an entry the key is nowhere if ok, else it could not be brought:
// the store is full, or is of no use any more.
func (t *Table) fetch(h uint32, key []byte) (e *entry, r ref, ok bool) {
	value, found, ok := t.lookUp(h, key)
	if !found {
		return nil, 0, ok
	}
	if e, r = t.insert(h, key); e == nil {
		return nil, 0, false
	}
	n := uint32(len(value))
	v, ok := t.s.arena.alloc(n)
	if !ok {
		t.index.remove(h, r)
		*e = entry{valLen: absent}
		t.s.arena.release(r, entrySize+uint32(len(key)))
		return nil, 0, false
	}
	copy(t.s.arena.chunks.at(v, n), value)
	e.val, e.valLen, e.epoch = v, n, backed
	t.s.spill.loads++
	return e, r, true
}

// lookUp reads the value of a key that is not in memory. It is valid until the next look-up.
func (t *Table) lookUp(h uint32, key []byte) (value []byte, found, ok bool) {
	sp := t.s.spill
	if sp.broken.Load() != nil {
		return nil, false, false
	}
	b := t.spill.at(h)
	if !filterHas(b.filter, h) {
		return nil, false, true
	}
	if cap(sp.buf) > evictWrite {
		sp.buf = nil
	}
	block, err := readBlock(b, sp.buf)
	sp.buf = block
	for err == nil && len(block) > 0 {
		e, whole := firstSpilled(block)
		switch {
		case !whole:
			err = damaged(b, "not a sequence of entries")
		case e.hash > h:
			return nil, false, true
		case e.hash == h && string(e.key) == string(key):
			return e.value, true, true
		}
		block = block[e.size:]
	}
	if err != nil {
		sp.breakdown(err)
		return nil, false, false
	}
	return nil, false, true
}

// getSpilled is Get for a key that is not in memory.
func (t *Table) getSpilled(h uint32, key []byte) ([]byte, bool) {
	if t.s.spill.scans > 0 { // the index must stay as it is
		value, found, _ := t.lookUp(h, key)
		return append([]byte{}, value...), found
	}
	for again := true; again; again = t.s.reclaim() {
		e, _, ok := t.fetch(h, key)
		if e != nil {
			return t.s.arena.chunks.at(e.val, e.valLen), true
		}
		if ok {
			break
		}
	}
	return nil, false
}

// allSpilled yields the spilled keys that are not in memory.
func (t *Table) allSpilled(yield func(key, value []byte) bool) (more bool) {
	more = true
	var buf []byte
	var err error
	eachBucket(t.spill.dir, func(b *bucket) bool {
		if buf, err = readBlock(b, buf); err != nil {
			return false
		}
		for block := buf; len(block) > 0 && more; {
			e, ok := firstSpilled(block)
			if !ok {
				err = damaged(b, "not a sequence of entries")
				return false
			}
			block = block[e.size:]
			if found, _ := t.find(e.hash, e.key); found == nil {
				more = yield(e.key, e.value)
			}
		}
		return more
	})
	if err != nil {
		t.s.spill.breakdown(err)
		return false
	}
	return more
}

// all yields every key that has a value.
func (t *Table) all(yield func(key, value []byte) bool) bool {
	n, more := 0, true
	chunks := t.s.arena.chunks
	if t.spill != nil {
		sp := t.s.spill
		sp.scans++
		defer func() { sp.scans-- }()
	}
	t.index.all(func(r ref) bool {
		if e := chunks.entry(r); e.valLen != absent {
			n++
			more = yield(chunks.key(r, e.keyLen), chunks.at(e.val, e.valLen))
		}
		return more
	})
	if t.spill == nil || !more {
		return more
	}
	if !t.allSpilled(func(key, value []byte) bool { n++; return yield(key, value) }) {
		return false
	}
	if n != t.live {
		t.s.spill.breakdown(fmt.Errorf("%w: %d keys found, there are %d", ErrSpill, n, t.live))
		return false
	}
	return true
}
