package store

import (
	"errors"
	"iter"
	"sync/atomic"

	"github.com/millweir/millweir/element"
)

// ErrReleased is what Frozen.Err reports when a Frozen was read after Commit, Rollback or Abandon had closed it.
var ErrReleased = errors.New("frozen state read after it was committed, given up or rolled back")

// Entry is one change of a Frozen. Key and Value alias the store's memory and must not be changed.
type Entry struct {
	Table   int // number of the table, see Frozen.Tables
	Key     []byte
	Value   []byte // nil when Deleted
	Deleted bool
}

// Frozen holds the changes of one epoch with the values they had at the freeze. One other goroutine may read it while
// the store's owner goes on writing. Everything it yields is valid until the store commits, gives up or rolls back the
// checkpoint, and an iteration that is still running then is safe to its end: its memory is recycled only afterwards.
type Frozen struct {
	id     element.CheckpointID
	epoch  uint32
	floor  uint32 // no entry with a change in the lists has a lower epoch
	infos  []TableInfo
	chunks chunks
	lists  []changeList
	len    int
	bytes  int64
	err    error
	view   *view                 // by FreezeFull
	failed atomic.Pointer[error] // of Full

	readers atomic.Int32
	closed  atomic.Bool
	misused atomic.Bool
	notFull atomic.Bool
}

// ID is the checkpoint that the Frozen was made for.
func (f *Frozen) ID() element.CheckpointID { return f.id }

// Len is the number of entries that Sorted yields.
func (f *Frozen) Len() int { return f.len }

// Bytes is the size of the changes: keys, values and 32 bytes each.
func (f *Frozen) Bytes() int64 { return f.bytes }

// Tables lists the tables that existed at the freeze, in the order of registration. The result must not be changed.
func (f *Frozen) Tables() []TableInfo { return f.infos }

// Err reports a write that the store could not take before the freeze, or that the Frozen was read after it was closed
// (ErrReleased): what was read is then not complete. Ask it after reading and before anything is built on it.
func (f *Frozen) Err() error {
	if f.err != nil {
		return f.err
	}
	if err := f.failed.Load(); err != nil {
		return *err
	}
	if f.notFull.Load() {
		return ErrNotFull
	}
	if f.misused.Load() {
		return ErrReleased
	}
	return nil
}

// Entries yields the changes in no particular order within a table. It is cheaper than Sorted.
func (f *Frozen) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if !f.enter() {
			return
		}
		defer f.readers.Add(-1)
		for t := range f.lists {
			l := &f.lists[t]
			for i := range l.len {
				if c := l.at(i); !c.noop() && !yield(entryOf(f.chunks, t, c)) {
					return
				}
			}
		}
	}
}

// Sorted yields the changes by table number, then key bytes. Each key comes once per table.
func (f *Frozen) Sorted() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if !f.enter() {
			return
		}
		defer f.readers.Add(-1)
		var sorter keySorter
		for t := range f.lists {
			l := &f.lists[t]
			for _, k := range sorter.sort(f.chunks, l) {
				if !yield(entryOf(f.chunks, t, l.at(k.at))) {
					return
				}
			}
		}
	}
}

// enter registers a reader, unless the Frozen is closed. The order of the two atomics matters: the owner closes first
// and looks for readers afterwards.
func (f *Frozen) enter() bool {
	f.readers.Add(1)
	if f.closed.Load() {
		f.readers.Add(-1)
		f.misused.Store(true)
		return false
	}
	return true
}

func entryOf(at chunks, table int, c *change) Entry {
	e := Entry{Table: table, Key: at.key(c.entry, c.keyLen)}
	if c.valLen == absent {
		e.Deleted = true
	} else {
		e.Value = at.at(c.val, c.valLen)
	}
	return e
}
