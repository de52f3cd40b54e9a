package store

import (
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millweir/millweir/element"
)

// ErrNotFull is what Frozen.Err reports when Full was read of a Frozen that FreezeFull did not make.
var ErrNotFull = errors.New("the whole state was read of a frozen state that has its changes only")

// FreezeFull is Freeze for a checkpoint that holds the whole state: Frozen.Full yields every key besides. Its cost
// depends on the number of tables only. Until the first Full has looked at all keys, or the Frozen is closed, each first
// write to a key in an epoch costs some 50 ns more and nothing is recycled, so it should be begun soon. A part of the
// index that gains or loses keys is copied once.
func (s *Store) FreezeFull(id element.CheckpointID) *Frozen {
	f := s.Freeze(id)
	v := &view{epoch: f.epoch, dirs: make([][]*segment, len(s.tables)), saved: make([]changeList, len(s.tables))}
	for i, t := range s.tables {
		v.dirs[i] = t.index.snapshot()
		v.keys += t.live
	}
	f.view = v
	s.withSpilled(f)
	s.views = append(s.views, f)
	return f
}

// view is the whole state at a freeze, while the owner goes on. The index is a snapshot of its segments. The heads of the
// entries are the owner's, read by the scan with atomic operations: one whose epoch is not newer than the freeze shows
// the value at the freeze. Before the owner makes a head newer it saves that value, until the scan is over:
//
//	owner: save (entry, value); head.epoch = new;     head.val, head.valLen = …
//	scan:  head.epoch old?      read val, valLen;     head.epoch still old? then they are those of the freeze
//
// So a key that the scan leaves out is among the saved ones; one that is in both has the same value in both. Nothing is
// recycled before the scan is over, so each entry of the snapshot is still the same key's.
type view struct {
	epoch uint32
	keys  int          // that have a value
	whole *spilledView // nil when all of it is in memory

	scan sync.Once
	dirs [][]*segment // by table; the scan's

	mu    sync.Mutex
	saved []changeList // under mu: by table, heads that became newer
	pool  changePool   // under mu
	over  bool         // under mu: the scan has ended
	at    chunks       // under mu: of the store, when something was last saved; keys may have come from disk since the freeze

	lists  []changeList // written by the scan, read after it
	copied atomic.Bool  // nothing in the store's memory is looked at any more
}

// Full yields every key that had a value at the freeze, by table number, then key bytes, each once. It may be called by
// another goroutine, as Sorted, and more than once. The first call looks at every key before it yields one, and holds 24
// bytes per key until the Frozen is forgotten, and up to 32 more per key of a table while that is being sorted.
func (f *Frozen) Full() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if f.view == nil {
			f.notFull.Store(true)
			return
		}
		if !f.enter() {
			return
		}
		defer f.readers.Add(-1)
		f.view.scan.Do(func() {
			f.view.run(f.chunks)
			if f.view.whole != nil {
				f.buildWhole()
			}
		})
		if f.view.whole != nil {
			f.yieldWhole(yield)
			return
		}
		var sorter keySorter
		for t := range f.view.lists {
			l, last := &f.view.lists[t], ref(0)
			for _, k := range sorter.sort(f.view.at, l) {
				c := l.at(k.at)
				if c.entry == last {
					continue // seen by the scan, and saved before the scan was over
				}
				if last = c.entry; c.valLen != absent && !yield(entryOf(f.view.at, t, c)) {
					return
				}
			}
		}
	}
}

// FullLen is the number of entries that Full yields; 0 if FreezeFull did not make it.
func (f *Frozen) FullLen() int {
	if f.view == nil {
		return 0
	}
	return f.view.keys
}

// run reads all heads. Where keys are on disk, those in memory that have no value count, too: they hide what is there.
func (v *view) run(c chunks) {
	pool := changePool{}
	v.lists = make([]changeList, len(v.dirs))
	for t, dir := range v.dirs {
		l := &v.lists[t]
		snapshot := index{dir: dir}
		snapshot.all(func(r ref) bool {
			if at, ok := v.head(c, r); ok {
				l.add(&pool, at)
			}
			return true
		})
	}
	v.dirs = nil
	v.mu.Lock()
	saved := v.saved
	if v.saved, v.over = nil, true; v.at == nil {
		v.at = c
	}
	v.mu.Unlock()
	for t := range saved {
		for i := range saved[t].len {
			v.lists[t].add(&pool, *saved[t].at(i))
		}
	}
}

// head reads the value that an entry had at the freeze, if it had one and has no newer one.
func (v *view) head(c chunks, r ref) (change, bool) {
	e := c.entry(r)
	if atomic.LoadUint32(&e.epoch) > v.epoch {
		return change{}, false
	}
	val, n := atomic.LoadUint32((*uint32)(&e.val)), atomic.LoadUint32(&e.valLen)
	if n == absent && (v.whole == nil || v.whole.sp.plant == plantUnmasked) || atomic.LoadUint32(&e.epoch) > v.epoch {
		return change{}, false
	}
	return change{entry: r, keyLen: e.keyLen, val: ref(val), valLen: n}, true
}

// save keeps what a head shows, before it becomes newer, and says that the view still needs that.
func (v *view) save(c chunks, table int, r ref, e *entry) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over && table < len(v.saved) && e.epoch <= v.epoch && (e.valLen != absent || v.whole != nil) {
		v.saved[table].add(&v.pool, change{entry: r, keyLen: e.keyLen, val: e.val, valLen: e.valLen})
		v.at = c
	}
	return !v.done()
}

// done says, under mu, that nothing has to be kept for the scan any more.
func (v *view) done() bool { return v.over && (v.whole == nil || v.copied.Load()) }

// setHead gives an entry a value and an epoch that is newer than the one it has.
func (t *Table) setHead(e *entry, r ref, v ref, n, epoch uint32) {
	s := t.s
	if len(s.views) > 0 {
		s.views = slices.DeleteFunc(s.views, func(f *Frozen) bool { return !f.view.save(s.arena.chunks, t.number, r, e) })
	}
	if len(s.views) == 0 {
		e.val, e.valLen, e.epoch = v, n, epoch
		return
	}
	atomic.StoreUint32(&e.epoch, epoch)
	s.setValue(e, v, n)
}

// setValue gives an entry another value in its epoch.
func (s *Store) setValue(e *entry, v ref, n uint32) {
	if len(s.views) == 0 {
		e.val, e.valLen = v, n
		return
	}
	atomic.StoreUint32((*uint32)(&e.val), uint32(v))
	atomic.StoreUint32(&e.valLen, n)
}

// forgetViews drops the views that nobody can scan any more.
func (s *Store) forgetViews() {
	s.views = slices.DeleteFunc(s.views, func(f *Frozen) bool {
		if f.closed.Load() && f.readers.Load() == 0 {
			return true
		}
		f.view.mu.Lock()
		defer f.view.mu.Unlock()
		return f.view.done()
	})
}
