package store

import (
	"hash/crc32"
	"math"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/millweir/millweir/internal/fault"
)

const (
	evictWork     = 16 << 10  // index slots that one call looks at, about; much more when the limit is exceeded by far
	evictDrain    = 4096      // garbage that one call works off
	evictWrite    = 1 << 20   // bytes that are written at once, about
	blockLimit    = 256 << 20 // no larger block is made: what does not fit stays in memory
	loadsPerBatch = 256       // after so many calls of Load there is an EndBatch
	compactMin    = 1 << 20   // bytes that one call moves out of files that are mostly superseded, at least
)

// spiller is a store's part of a Spill. It belongs to the store's owner, but for broken.
type spiller struct {
	pool    *Spill
	log     spillLog
	counted int64 // of what the store holds, in the pool
	scans   int   // loops over a table that run: nothing is brought into memory meanwhile
	pinned  []*Frozen
	broken  atomic.Pointer[error] // for good
	closed  bool

	// The sweep: the next part of the index to look at.
	table int
	hash  uint32
	gone  int64  // keys evicted since it began at the first table
	vain  int    // times that it went round without
	stuck uint32 // after two such rounds: nothing changes before the floor does, or the store holds more than
	most  int64

	compact compaction
	moved   int    // blocks, by it
	buf     []byte // of the block that was read last
	*work          // while something is evicted

	plant plant // by tests

	loads, evicted int64 // not yet in the pool
	restored       int   // calls of Load and LoadDelete
}

// work is what evicting needs. Stores borrow it from the pool.
type work struct {
	block   []byte
	out     []byte // blocks to be written
	places  []place
	made    []madeBucket
	old     []*bucket
	victims []uint64 // index slots
}

// plant is a fault that only tests plant: the model must find it.
type plant int

const (
	noPlant       plant = iota
	plantForget         // a committed deletion forgets what is on disk
	plantDirty          // an entry is evicted although a change refers to it
	plantStale          // an entry that was changed is taken for one that a block has
	plantUnmasked       // the reader of the whole state does not know of deletions
)

// place is where an entry begins in out.
type place struct {
	hash uint32
	at   int
}

type madeBucket struct {
	table  *Table
	prefix uint32
	at     int // of its block in out
	b      *bucket
}

func newSpiller(p *Spill, place uint32) *spiller {
	p.stores.Add(1)
	return &spiller{pool: p, log: spillLog{pool: p, place: place}}
}

// EndBatch says that no bytes that the tables gave out are in use any more: a store that holds more than its share of the
// memory writes some of what was not used lately to disk. It gives Err.
func (s *Store) EndBatch() error {
	if s.spill != nil {
		s.relieve()
	}
	return s.Err()
}

// Close gives up the store: what it had on disk is removed. Readers of its Frozens should have ended.
func (s *Store) Close() {
	sp := s.spill
	if sp == nil || sp.closed {
		return
	}
	sp.closed = true
	var n int64
	for _, t := range s.tables {
		if t.spill != nil {
			n += t.spill.entries
		}
	}
	for _, f := range slices.Concat(s.frozen, s.lingering, sp.pinned) {
		f.closed.Store(true)
		if f.view != nil && f.view.whole != nil {
			f.view.whole.release()
		}
	}
	sp.tell()
	sp.log.close(n)
	sp.pool.used.Add(-sp.counted)
	sp.pool.stores.Add(-1)
	err := error(fault.Restartf(fault.Failed, "the state is closed"))
	sp.broken.CompareAndSwap(nil, &err)
}

// breakdown notes that spilled state cannot be read. The store is of no use any more.
func (sp *spiller) breakdown(err error) {
	err = fault.Restartf(fault.Failed, "%w", err)
	sp.broken.CompareAndSwap(nil, &err)
}

// tell adds to the pool's counts of what was done.
func (sp *spiller) tell() {
	sp.pool.loads.Add(sp.loads)
	sp.pool.evicted.Add(sp.evicted)
	sp.loads, sp.evicted = 0, 0
}

// relieve makes room when all stores together hold more than they may, and this one more than its share.
func (s *Store) relieve() {
	sp := s.spill
	p := sp.pool
	held, used := s.counts()
	if len(sp.pinned) > 0 {
		s.unpin()
	}
	limit, share := p.cfg.Limit, p.share()
	if used <= limit-limit/16 || held <= share-share/16 || sp.closed || p.paused() {
		return
	}
	if s.seen() || sp.broken.Load() != nil {
		return
	}
	s.drain(evictDrain)
	floor := s.floorOfChanges()
	if sp.stuck == floor && held <= sp.most {
		return
	}
	excess := min(used-limit, held-share)
	if excess > 0 && s.arena.draining == 0 {
		s.arena.drainSparse(max(excess, held/32))
	}
	work := evictWork
	if excess > limit/8 {
		work *= 16
	}
	wrote := sp.log.disk
	for work > 0 && (s.arena.draining > 0 || s.arena.freeBytes() < held/16) {
		looked, err := s.sweep(floor)
		if err != nil {
			p.failed(err)
			sp.vain = 0
			break
		}
		if work -= looked; sp.vain >= 2 {
			sp.vain, sp.stuck, sp.most = 0, floor, held+held/16
			break
		}
	}
	if err := s.compactSpill(max(compactMin, 2*(sp.log.disk-wrote))); err != nil {
		p.failed(err)
	}
	s.counts()
}

// counts brings the pool's counts up to date, and gives what this store and all together hold.
func (s *Store) counts() (held, used int64) {
	sp := s.spill
	held = s.Bytes()
	if used = sp.pool.used.Load(); held != sp.counted {
		used = sp.pool.used.Add(held - sp.counted)
		sp.counted = held
	}
	if sp.loads > 0 || sp.evicted > 0 {
		sp.tell()
	}
	return held, used
}

// floorOfChanges is the lowest epoch that an entry may have which a change refers to that can still be rolled back, read or
// recycled. Entries of lower epochs are clean: nothing but the index names them.
func (s *Store) floorOfChanges() uint32 {
	q := &s.garbage
	for _, g := range q.items[q.head:] {
		if g.table != nil { // else scraps, which name no entry
			return g.floor
		}
	}
	if len(s.frozen) > 0 {
		return s.frozen[0].floor
	}
	return s.floor
}

// seen says that the reader of a whole state may look at entries that are clean.
func (s *Store) seen() bool {
	s.close(nil)
	if len(s.views) > 0 {
		return true
	}
	sees := func(f *Frozen) bool { return f.view != nil && !f.view.copied.Load() }
	return slices.ContainsFunc(s.frozen, sees) || slices.ContainsFunc(s.lingering, sees)
}

// sweep evicts from the next segment of the index what is clean and was not used since it came by last. It gives what that
// was in work.
func (s *Store) sweep(floor uint32) (looked int, err error) {
	sp := s.spill
	if sp.table >= len(s.tables) {
		sp.table, sp.hash = 0, 0
		if sp.vain++; sp.gone > 0 {
			sp.vain = 0
		}
		sp.gone = 0
	}
	if len(s.tables) == 0 {
		return math.MaxInt32, nil
	}
	t := s.tables[sp.table]
	h := sp.hash
	g := t.index.dir[h>>t.index.shift]
	last := h | uint32(uint64(1)<<(32-g.depth)-1)
	if g.used > 0 {
		var n int
		n, err = s.evict(t, g, floor)
		sp.gone += int64(n)
		looked = 8 * n
	}
	if sp.hash = last + 1; last == math.MaxUint32 {
		sp.table, sp.hash = sp.table+1, 0
	}
	return looked + len(g.slots), err
}

// evict writes the clean entries of a segment that were not used lately and takes them out of memory.
func (s *Store) evict(t *Table, g *segment, floor uint32) (gone int, err error) {
	sp := s.spill
	sp.work = sp.pool.works.Get().(*work)
	defer sp.giveBack()
	v := sp.victims[:0]
	for _, slot := range g.slots {
		if slot == 0 {
			continue
		}
		e := s.arena.chunks.entry(ref(slot))
		if e.epoch >= floor && sp.plant != plantDirty {
			continue
		}
		if e.change != 0 && e.valLen != absent && !s.arena.drains(ref(slot)) && !s.arena.drains(e.val) {
			e.change = 0 // used since: a second chance
			continue
		}
		v = append(v, slot)
	}
	sp.victims = v
	if len(v) == 0 {
		return 0, nil
	}
	slices.Sort(v)
	h := uint32(v[0] >> 32)
	if t.spill == nil {
		t.spill = newSpillDir()
	}
	for from := 0; from < len(v) && err == nil; {
		var to int
		if to, err = s.spillSome(t, v, from); err == nil {
			for _, slot := range v[from:to] {
				if slot != 0 {
					s.evictEntry(t, slot)
					gone++
				}
			}
		}
		from = to
	}
	sp.evicted += int64(gone)
	if t.spill.entries == 0 {
		t.spill = nil // nothing could be written, or all that was there is deleted
	}
	t.index.shrink(h)
	return gone, err
}

// giveBack returns what evicting needed.
func (sp *spiller) giveBack() {
	if w := sp.work; cap(w.out)+cap(w.block) <= 4*evictWrite {
		sp.pool.works.Put(w)
	}
	sp.work = nil
}

// evictEntry takes an entry out of memory.
func (s *Store) evictEntry(t *Table, slot uint64) {
	r := ref(slot)
	e := s.arena.chunks.entry(r)
	t.index.remove(uint32(slot>>32), r)
	if e.valLen != absent {
		s.arena.release(e.val, e.valLen)
	}
	n := e.keyLen
	*e = entry{valLen: absent}
	s.arena.release(r, entrySize+n)
}

// spillSome writes new blocks for the buckets of some of the victims, from a place on, and gives the place behind them. A
// victim that must stay becomes 0.
func (s *Store) spillSome(t *Table, v []uint64, from int) (to int, err error) {
	sp := s.spill
	sp.out, sp.made, sp.old = sp.out[:0], sp.made[:0], sp.old[:0]
	for to = from; to < len(v) && len(sp.out) < evictWrite; {
		h := uint32(v[to] >> 32)
		b, first := t.spill.at(h), to
		last := b.last(h)
		for to < len(v) && uint32(v[to]>>32) <= last {
			to++
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
