package store

import (
	"hash/maphash"
	"iter"
)

// Table is one named state of a task: a map from key bytes to value bytes. Only the store's owner may call its methods.
type Table struct {
	s      *Store
	number int // place in the order of registration
	index  index
	active changeList
	live   int       // keys that have a value
	spill  *spillDir // nil until something was spilled
}

func (t *Table) hash(key []byte) uint32 {
	return uint32(maphash.Bytes(t.s.seed, key) >> 32)
}

// find gives the entry of a key, also of one without a value; nil when there is none.
func (t *Table) find(h uint32, key []byte) (*entry, ref) {
	seg := t.index.dir[h>>t.index.shift]
	slots, mask := seg.slots, seg.mask
	for i := h & mask; ; i = (i + 1) & mask {
		slot := slots[i]
		if slot == 0 {
			return nil, 0
		}
		if uint32(slot>>32) != h {
			continue
		}
		r := ref(slot)
		e := t.s.arena.chunks.entry(r)
		if int(e.keyLen) == len(key) && string(t.s.arena.chunks.key(r, e.keyLen)) == string(key) {
			return e, r
		}
	}
}

// insert makes an entry without a value. It gives nil when the store is full.
func (t *Table) insert(h uint32, key []byte) (*entry, ref) {
	n := uint32(len(key))
	r, ok := t.s.arena.alloc(entrySize + n)
	if !ok {
		return nil, 0
	}
	e := t.s.arena.chunks.entry(r)
	*e = entry{keyLen: n, valLen: absent}
	copy(t.s.arena.chunks.key(r, n), key)
	t.index.put(h, r)
	return e, r
}

// forget gives back an entry that has no value and no change in an epoch which may still be rolled back. One whose key may
// be in a block stays, so that the value there is not found, until the block is written anew.
func (t *Table) forget(r ref, e *entry) {
	h := t.hash(t.s.arena.chunks.key(r, e.keyLen))
	if t.spill != nil && t.spill.may(h) && t.s.spill.plant != plantForget {
		e.epoch = max(e.epoch, loaded)
		return
	}
	t.index.remove(h, r)
	n := e.keyLen
	*e = entry{valLen: absent} // stale garbage may still look at it
	t.s.arena.release(r, entrySize+n)
}

// Get gives the newest value of a key. The bytes are valid until the next write to the store and must not be changed.
func (t *Table) Get(key []byte) ([]byte, bool) {
	h := t.hash(key)
	e, _ := t.find(h, key)
	if t.spill != nil {
		if e == nil {
			return t.getSpilled(h, key)
		}
		if e.epoch < t.s.floor {
			e.change = 1 // used
		}
	}
	if e == nil || e.valLen == absent {
		return nil, false
	}
	return t.s.arena.chunks.at(e.val, e.valLen), true
}

// All yields every key that has a value now, committed or not, in no order. The bytes are valid until the next write to the
// store and must not be changed; the loop must not write to the table.
func (t *Table) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) { t.all(yield) }
}

// Put sets the value of a key; nil is stored as an empty value. Both are copied. A key or value beyond the store's
// limits is not stored and makes Store.Err report it.
func (t *Table) Put(key, value []byte) {
	if !t.s.fits(len(key), len(value)) {
		return
	}
	for again := true; again; again = t.s.reclaim() {
		if e, r := t.writable(key); e != nil {
			if b, ok := t.set(e, r, uint32(len(value))); ok {
				copy(b, value)
				return
			}
		}
	}
}

// Upsert gives writable bytes of exactly size for the value of a key. When the key has a value of that size, the bytes
// hold it and existed is true. Otherwise they are zero and existed is false: the key is new, or its value had another
// length and is replaced. The bytes are valid until the next call of a method of the store or one of its tables.
//
// A key beyond the limits gets bytes that are stored nowhere, a size beyond them gets nil; Store.Err reports both.
func (t *Table) Upsert(key []byte, size int) (value []byte, existed bool) {
	if !t.s.fits(len(key), size) {
		return t.s.scrap(size), false
	}
	for again := true; again; again = t.s.reclaim() {
		if e, r := t.writable(key); e != nil {
			if b, existed := t.upsert(e, r, uint32(size)); b != nil {
				return b, existed
			}
		}
	}
	return t.s.scrap(size), false
}

// upsert is Upsert for an entry; nil bytes mean that the store is full.
func (t *Table) upsert(e *entry, r ref, n uint32) (value []byte, existed bool) {
	if e.valLen != n {
		b, ok := t.set(e, r, n)
		if !ok {
			return nil, false
		}
		clear(b)
		return b, false
	}
	old := t.s.arena.chunks.at(e.val, n)
	if e.epoch == t.s.epoch {
		return old, true
	}
	b, ok := t.set(e, r, n)
	if !ok {
		return nil, false
	}
	copy(b, old)
	return b, true
}

// Delete takes the value of a key away.
func (t *Table) Delete(key []byte) {
	h := t.hash(key)
	e, r := t.find(h, key)
	for again := e == nil && t.spill != nil; again; again = t.s.reclaim() {
		var ok bool
		if e, r, ok = t.fetch(h, key); e != nil || ok {
			break
		}
	}
	if e == nil || e.valLen == absent {
		return
	}
	t.live--
	if e.epoch != t.s.epoch {
		t.record(e, r, 0, absent)
		return
	}
	c := t.active.at(e.change)
	t.s.arena.release(e.val, e.valLen)
	t.active.bytes -= int64(e.valLen)
	t.s.setValue(e, 0, absent)
	c.val, c.valLen = 0, absent
	if c.prevLen == absent {
		t.active.noops++
	}
}

// writable gives the entry of a key, made when there is none.
func (t *Table) writable(key []byte) (*entry, ref) {
	h := t.hash(key)
	if e, r := t.find(h, key); e != nil {
		return e, r
	}
	if t.spill != nil {
		if e, r, ok := t.fetch(h, key); e != nil || !ok {
			return e, r
		}
	}
	return t.insert(h, key)
}

// set gives the entry a value of n bytes in the active epoch and returns them, with undefined content: in place when the
// epoch already owns a slot of that size, in a new slot otherwise. It reports false when the store is full.
func (t *Table) set(e *entry, r ref, n uint32) ([]byte, bool) {
	a := &t.s.arena
	if e.epoch == t.s.epoch && e.valLen != absent && sameSlot(e.valLen, n) {
		c := t.active.at(e.change)
		t.active.bytes += int64(n) - int64(e.valLen)
		t.s.setValue(e, e.val, n)
		c.valLen = n
		return a.chunks.at(e.val, n), true
	}
	v, ok := a.alloc(n)
	if !ok {
		if e.valLen == absent && e.epoch == backed {
			t.forget(r, e) // just inserted
		}
		return nil, false
	}
	was := e.valLen
	if was == absent {
		t.live++
	}
	if e.epoch != t.s.epoch {
		t.record(e, r, v, n)
		return a.chunks.at(v, n), true
	}
	c := t.active.at(e.change)
	if was != absent {
		a.release(e.val, was)
		t.active.bytes -= int64(was)
	} else if c.prevLen == absent {
		t.active.noops--
	}
	t.active.bytes += int64(n)
	t.s.setValue(e, v, n)
	c.val, c.valLen = v, n
	return a.chunks.at(v, n), true
}

// record makes v the entry's value and appends the change to the active epoch, of which it is the first for this key.
func (t *Table) record(e *entry, r ref, v ref, n uint32) {
	if e.epoch == t.s.carried {
		t.renew(e, r, v, n)
	} else {
		t.active.bytes += int64(e.keyLen) + changeOverhead
		if n != absent {
			t.active.bytes += int64(n)
		}
		e.change = t.active.add(&t.s.pool, change{
			entry: r, keyLen: e.keyLen, val: v, valLen: n, prev: e.val, prevLen: e.valLen})
		if len(t.s.views) == 0 {
			e.val, e.valLen, e.epoch = v, n, t.s.epoch
		} else {
			t.setHead(e, r, v, n, t.s.epoch)
		}
	}
	// Only now: the garbage may hold the deletion of this very key, which must find that the key is in use again.
	t.s.drain(drainPerChange)
}
