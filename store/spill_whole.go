package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millweir/millweir/internal/fault"
)

// spilledView is what a view has besides when a part of the state is on disk: the buckets as of the freeze. Their blocks are in the
// order of hashes, so they are sorted into runs first, in a file of its own; and so is what is in memory, which goes into
// the first run and hides what the blocks have of the same keys. From then on the owner may evict again. The runs are
// merged as often as the state is read.
type spilledView struct {
	sp      *spiller
	dirs    [][]*bucket  // by table; nil when nothing of it was spilled
	spilled bool         // something was
	files   []*spillFile // pinned, by the owner
	bytes   int64        // of the blocks
	memory  int64        // of the rest, at most

	built atomic.Bool // the blocks are not looked at any more
	// Where there is no room for the runs. Written by the build, read after it:
	unwritten bool // what is in memory stays there, and is read from there
	passes    bool // so is what is in the blocks, which stay pinned

	mu       sync.Mutex
	f        *os.File   // under mu, but for reading and writing; nil before the first run
	root     *spillRoot // of f
	released bool       // under mu
	scratch  int64      // under mu: bytes of f, in the pool's count
	runs     []run      // written by the build, read after it
}

// run is a part of the file.
type run struct{ from, to int64 }

const (
	wholeSortMin = 256 << 10
	wholeSortMax = 8 << 20
	wholeRuns    = 1024 // there are not many more, or as many as there are tables
)

// withSpilled adds the spilled part of the state to a view, if there is one.
func (s *Store) withSpilled(f *Frozen) {
	sp := s.spill
	if sp == nil {
		return
	}
	w := &spilledView{sp: sp, dirs: make([][]*bucket, len(s.tables)), bytes: sp.log.live, memory: s.arena.bytes}
	for i, t := range s.tables {
		if t.spill != nil && t.spill.entries > 0 {
			w.spilled, w.dirs[i] = true, t.spill.snapshot()
		}
	}
	// Where memory is about to be short, all is copied as well: else nothing could be evicted while there is a Frozen that may
	// be read.
	if !w.spilled && (sp.pool.used.Load() < sp.pool.cfg.Limit/4*3 || sp.pool.paused()) {
		return
	}
	w.files = sp.log.pin()
	f.view.whole = w
	s.spill.pinned = append(s.spill.pinned, f)
}

// unpin lets files go that no whole state is read from any more.
func (s *Store) unpin() {
	sp := s.spill
	sp.pinned = slices.DeleteFunc(sp.pinned, func(f *Frozen) bool {
		w := f.view.whole
		unread := f.closed.Load() && f.readers.Load() == 0
		if w.files != nil && (unread || w.built.Load() && !w.passes) {
			sp.log.unpin(w.files)
			w.files = nil
		}
		if unread {
			w.release()
		}
		return unread
	})
}

// release removes the runs.
func (w *spilledView) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released = true; w.f == nil {
		return
	}
	if err := discard(w.f); err != nil {
		w.sp.pool.log.Warn("a file of spilled state is left until the process ends", "file", w.f.Name(), "error", err)
	}
	w.f = nil
	w.sp.pool.disk.Add(-w.scratch)
}

// grown counts what was written to the file, unless that is gone.
func (w *spilledView) grown(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f != nil {
		w.scratch += n
		w.sp.pool.disk.Add(n)
	}
}

// file gives the file of the runs.
func (w *spilledView) file(create bool) (*os.File, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released {
		return nil, ErrReleased
	}
	if w.f == nil && create {
		f, root, err := w.sp.pool.create(w.sp.log.place, "whole", w.bytes+w.memory)
		if err != nil {
			return nil, err
		}
		w.f, w.root = f, root
	}
	return w.f, nil
}

// fail makes Err report why the whole state could not be read. What cannot be read back concerns the store as well.
func (f *Frozen) fail(err error) {
	if errors.Is(err, os.ErrClosed) {
		err = ErrReleased // the store was closed
	}
	switch {
	case errors.Is(err, ErrSpill):
		f.view.whole.sp.breakdown(err)
	case !errors.Is(err, ErrReleased):
		f.view.whole.sp.pool.failed(err) // to write; the next attempt may have to read all of it from memory
	}
	err = fault.Restartf(fault.Failed, "the whole state of checkpoint %d: %w", f.id, err)
	f.failed.CompareAndSwap(nil, &err)
}

// buildWhole writes the runs. It ends the time in which the owner must leave alone what was clean at the freeze, unless there is
// no room for what is in memory.
func (f *Frozen) buildWhole() {
	v, w := f.view, f.view.whole
	for t := range v.lists {
		for i := range v.lists[t].len {
			if at := v.lists[t].at(i); at.valLen == absent {
				at.prevLen = 0 // one that hides is one that counts
			}
		}
	}
	err := w.build(v)
	w.unwritten = err != nil
	if err == nil {
		v.lists = nil
		v.copied.Store(true)
		err = w.sortBlocks()
	}
	if err != nil && noRoom(err) {
		w.giveUpRuns(err)
		w.built.Store(true)
		return
	}
	v.lists, w.dirs = nil, nil
	v.copied.Store(true)
	w.built.Store(true)
	if err != nil {
		f.fail(err)
	}
}

// build writes the first run: what is in memory.
func (w *spilledView) build(v *view) error {
	out, err := w.writer()
	if err != nil {
		return err
	}
	for in, e := (memoryReader{v: v}), (Entry{}); in.next(&e); {
		if err := out.add(e); err != nil {
			return err
		}
	}
	return w.end(out)
}

// writer begins a run.
func (w *spilledView) writer() (*runWriter, error) {
	f, err := w.file(true)
	if err != nil {
		return nil, err
	}
	var from int64
	if n := len(w.runs); n > 0 {
		from = w.runs[n-1].to
	}
	return &runWriter{w: w, f: f, root: w.root, from: from, to: from}, nil
}

func (w *spilledView) end(out *runWriter) error {
	if err := out.flush(); err != nil {
		return err
	}
	w.runs = append(w.runs, run{out.from, out.to})
	return nil
}

// sortBlocks writes the other runs.
func (w *spilledView) sortBlocks() (err error) {
	limit := w.sp.pool.cfg.Limit
	s := blockSorter{w: w, most: int(max(wholeSortMin, min(limit/16, wholeSortMax), w.bytes/wholeRuns))}
	var buf []byte
	for t, dir := range w.dirs {
		s.table = t
		eachBucket(dir, func(b *bucket) bool {
			if buf, err = readBlock(b, buf); err != nil {
				return false
			}
			for block := buf; len(block) > 0; {
				e, ok := firstSpilled(block)
				if !ok {
					err = damaged(b, "not a sequence of entries")
					return false
				}
				block = block[e.size:]
				if err = s.add(e.key, e.value); err != nil {
					return false
				}
			}
			return true
		})
		if err == nil {
			err = s.flush()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// blockSorter gathers entries of a table and writes them in order.
type blockSorter struct {
	w      *spilledView
	most   int
	table  int
	data   []byte
	at     []sorted
	sorter keySorter
}

// sorted is where an entry is in data.
type sorted struct{ key, value, end int }

func (s *blockSorter) key(i uint32) []byte { return s.data[s.at[i].key:s.at[i].value] }

func (s *blockSorter) add(key, value []byte) error {
	if len(s.data) > 0 && len(s.data)+len(key)+len(value) > s.most {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.append(key, value)
	return nil
}

func (s *blockSorter) append(key, value []byte) {
	from := len(s.data)
	s.data = append(append(s.data, key...), value...)
	s.at = append(s.at, sorted{from, from + len(key), len(s.data)})
}

// order gives the entries in the order of their keys.
func (s *blockSorter) order() []sortKey {
	s.sorter.keys = s.sorter.keys[:0]
	if len(s.at) == 0 {
		return nil
	}
	common := s.key(0)
	for i := range s.at {
		common = sharedPrefix(common, s.key(uint32(i)))
	}
	for i := range s.at {
		s.sorter.keys = append(s.sorter.keys, sortKey{prefix: prefixAt(s.key(uint32(i)), len(common)), at: uint32(i)})
	}
	s.sorter.order(func(a, b sortKey) int { return bytes.Compare(s.key(a.at), s.key(b.at)) })
	return s.sorter.keys
}

func (s *blockSorter) entry(k sortKey) Entry {
	at := s.at[k.at]
	return Entry{Table: s.table, Key: s.data[at.key:at.value:at.value], Value: s.data[at.value:at.end:at.end]}
}

func (s *blockSorter) flush() error {
	if len(s.at) == 0 {
		return nil
	}
	out, err := s.w.writer()
	if err != nil {
		return err
	}
	for _, k := range s.order() {
		if err := out.add(s.entry(k)); err != nil {
			return err
		}
	}
	s.data, s.at = s.data[:0], s.at[:0]
	return s.w.end(out)
}

// yieldWhole merges the runs. It counts: what is not as many keys as there were at the freeze is not the state.
func (f *Frozen) yieldWhole(yield func(Entry) bool) {
	if f.failed.Load() != nil {
		return
	}
	n, more, err := f.view.whole.merge(f, yield)
	if err == nil && more && n != f.view.keys {
		err = fmt.Errorf("%w: %d keys found, there were %d", ErrSpill, n, f.view.keys)
	}
	if err != nil {
		f.fail(err)
	}
}

// merge yields what the runs hold in order, or what could not be written to one, until yield returns false, and counts.
func (w *spilledView) merge(f *Frozen, yield func(Entry) bool) (n int, more bool, err error) {
	file, err := w.file(false)
	if err != nil {
		return 0, false, err
	}
	var h runHeap
	for _, in := range w.readers(f, file) {
		ok, err := in.next()
		if err != nil {
			return 0, false, err
		}
		if ok {
			h = append(h, in)
		}
	}
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	var last Entry
	for first := true; len(h) > 0; {
		e := h[0].e
		if hidden := !first && e.Table == last.Table && bytes.Equal(e.Key, last.Key); !hidden {
			if last, first = e, false; !e.Deleted {
				if n++; !yield(e) {
					return n, false, nil
				}
			}
		}
		ok, err := h[0].next()
		if err != nil {
			return n, false, err
		}
		if !ok {
			h[0] = h[len(h)-1]
			h = h[:len(h)-1]
		}
		h.down(0)
	}
	return n, true, nil
}
