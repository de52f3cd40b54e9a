package store

import (
	"bytes"
	"errors"
	"os"
)

const (
	passMax   = 64 << 20 // memory of a pass
	passEntry = 48       // of an entry, beside its bytes
)

// noRoom says that something could not be written. What was to be written can be read all the same.
func noRoom(err error) bool {
	return !errors.Is(err, ErrSpill) && !errors.Is(err, ErrReleased) && !errors.Is(err, os.ErrClosed)
}

// giveUpRuns lets the whole state be read without them: a full disk costs time, and memory while it lasts, but no attempt. The
// first run, of what is in memory, stays if it could be written.
func (w *spilledView) giveUpRuns(err error) {
	w.sp.pool.failed(err)
	w.passes = w.spilled
	if w.unwritten {
		w.runs = nil
	} else {
		w.runs = w.runs[:1]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return
	}
	var size int64
	if len(w.runs) > 0 {
		size = w.runs[0].to
	}
	if w.f.Truncate(size) == nil {
		w.sp.pool.disk.Add(size - w.scratch)
		w.scratch = size
	}
}

// readers gives what is to be merged; file may be nil when there is no run.
func (w *spilledView) readers(f *Frozen, file *os.File) []*cursor {
	var out []*cursor
	add := func(fill func(*Entry) (bool, error)) { out = append(out, &cursor{rank: len(out), fill: fill}) }
	if w.unwritten {
		in := &memoryReader{v: f.view}
		add(func(e *Entry) (bool, error) { return in.next(e), nil })
	}
	for _, r := range w.runs {
		add((&runReader{f: file, at: r.from, to: r.to}).next)
	}
	if w.passes {
		most := max(wholeSortMin, min(w.sp.pool.cfg.Limit/4, passMax))
		add((&passReader{f: f, w: w, most: int(most), s: blockSorter{table: -1}}).next)
	}
	return out
}

// memoryReader reads what a scan found, in order, keys without a value included.
type memoryReader struct {
	v      *view
	table  int // of the next list
	keys   []sortKey
	last   ref
	sorter keySorter
}

// next reads an entry into e; it reports false at the end.
func (r *memoryReader) next(e *Entry) bool {
	for {
		for len(r.keys) == 0 {
			if r.table == len(r.v.lists) {
				return false
			}
			r.keys, r.last = r.sorter.sort(r.v.at, &r.v.lists[r.table]), 0
			r.table++
		}
		at := r.v.lists[r.table-1].at(r.keys[0].at)
		r.keys = r.keys[1:]
		if at.entry == r.last {
			continue // seen by the scan, and saved before the scan was over
		}
		r.last = at.entry
		*e = entryOf(r.v.at, r.table-1, at)
		return true
	}
}

// passReader reads the blocks in order where there is no place to sort them: each pass over the blocks of a table gathers the
// keys that come next, as many as memory may hold. The memory of a pass is its own, so that entries stay as they are.
type passReader struct {
	f    *Frozen
	w    *spilledView
	most int
	s    blockSorter
	keys []sortKey
	more bool   // of the table, behind low
	low  []byte // the last key of the pass before; nil: none
	high []byte // of this pass, when there is more; else nil
	buf  []byte
}

// next reads an entry into e; it reports false at the end.
func (r *passReader) next(e *Entry) (bool, error) {
	for len(r.keys) == 0 {
		if !r.more {
			if r.s.table+1 == len(r.w.dirs) {
				return false, nil
			}
			r.s.table, r.low = r.s.table+1, nil
		}
		if err := r.pass(); err != nil {
			return false, err
		}
	}
	*e = r.s.entry(r.keys[0])
	r.keys = r.keys[1:]
	return true, nil
}

func (r *passReader) pass() (err error) {
	r.s.data, r.s.at, r.high, r.more = nil, nil, nil, false
	eachBucket(r.w.dirs[r.s.table], func(b *bucket) bool {
		if r.f.closed.Load() {
			err = ErrReleased
			return false
		}
		if r.buf, err = readBlock(b, r.buf); err != nil {
			return false
		}
		for block := r.buf; len(block) > 0; {
			e, ok := firstSpilled(block)
			if !ok {
				err = damaged(b, "not a sequence of entries")
				return false
			}
			block = block[e.size:]
			r.take(e.key, e.value)
		}
		return true
	})
	if r.keys = r.s.order(); len(r.keys) > 0 {
		r.low = append([]byte{}, r.s.entry(r.keys[len(r.keys)-1]).Key...)
	}
	return err
}

// take gathers an entry, if it belongs to the pass, and keeps the first half when there is too much.
func (r *passReader) take(key, value []byte) {
	if r.low != nil && bytes.Compare(key, r.low) <= 0 {
		return
	}
	if r.high != nil && bytes.Compare(key, r.high) > 0 {
		return
	}
	r.s.append(key, value)
	if len(r.s.at) < 2 || len(r.s.data)+passEntry*len(r.s.at) <= r.most {
		return
	}
	keys := r.s.order()
	half := blockSorter{table: r.s.table}
	for _, k := range keys[:len(keys)/2] {
		e := r.s.entry(k)
		half.append(e.Key, e.Value)
	}
	r.s.data, r.s.at, r.more = half.data, half.at, true
	r.high = append([]byte{}, r.s.key(uint32(len(half.at)-1))...) // not nil where it is the empty key: that is no bound
}
