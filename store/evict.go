package store

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/millweir/millweir/internal/fault"
)

const (
	evictWork     = 16 << 10  // index slots that one call looks at, about; much more when the limit is exceeded by far
	evictDrain    = 4096      // garbage that one call works off
	evictWrite    = 1 << 20   // bytes that are written at once, about
	blockLimit    = 256 << 20 // no larger block is made: what does not fit stays in memory
	loadsPerBatch = 256       // after so many calls of Load there is an EndBatch,
	loadedAtOnce  = 256 << 10 // or after so many bytes
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
	began int64 // what the store held in large slots when the round began that goes on
	want  int64 // room that it is to make beside what is drained; 0: all that can be made
	cut   bool  // the last segment was not swept to its end

	compact compaction
	moved   int    // blocks, by it
	buf     []byte // of the block that was read last
	*work          // while something is evicted

	plant plant // by tests

	loads, evicted int64 // not yet in the pool
	restored       int   // calls of Load and LoadDelete
	loaded         int   // bytes, by calls of Load since the last EndBatch among them
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
	if sp.closed {
		return
	}
	held, used := s.counts()
	if len(sp.pinned) > 0 {
		s.unpin()
	}
	limit, share := p.cfg.Limit, p.share()
	if used <= limit-limit/16 || held <= share-share/16 || p.paused() {
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
	sp.began, sp.want = s.arena.large, held/16+max(0, min(excess, s.arena.large))
	for work > 0 && (s.arena.draining > 0 || s.room() < sp.want) {
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
	sp.want = 0
	if err := s.compactSpill(max(compactMin, 2*(sp.log.disk-wrote))); err != nil {
		p.failed(err)
	}
	s.counts()
}

// room is what the store can take: free slots, and the large ones that it has given back since the round began.
func (s *Store) room() int64 { return s.arena.freeBytes() + s.spill.began - s.arena.large }

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
	if sp.cut {
		sp.cut = false // the rest of the segment is next
	} else if sp.hash = last + 1; last == math.MaxUint32 {
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
	all := len(v)
	v = v[:s.enough(v)]
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
	sp.cut = len(v) < all && gone > 0
	if t.spill.entries == 0 {
		t.spill = nil // nothing could be written, or all that was there is deleted
	}
	t.index.shrink(h)
	return gone, err
}

// enough is how many of the victims make the room that is wanted still, where there are large values: a few segments have all
// of them. Of small ones a segment is little, and what is more than enough leaves chunks that can be drained.
func (s *Store) enough(v []uint64) int {
	sp := s.spill
	if sp.want == 0 || s.arena.draining > 0 || s.arena.large == 0 {
		return len(v)
	}
	need := sp.want - s.room()
	for i, slot := range v {
		if need -= s.takes(slot); need <= 0 {
			return i + 1
		}
	}
	return len(v)
}

// takes is what an entry takes in memory, about.
func (s *Store) takes(slot uint64) int64 {
	e := s.arena.chunks.entry(ref(slot))
	if e.valLen == absent {
		return int64(entrySize + e.keyLen)
	}
	return int64(entrySize+e.keyLen) + int64(e.valLen)
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
