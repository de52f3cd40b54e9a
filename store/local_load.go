package store

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/millweir/millweir/element"
)

// What Load's errors wrap, beside those of the caller's functions, of ctx and of a Local that is closed.
var (
	// ErrNoCopy: the task has no copy that could be read. Why not has been said before.
	ErrNoCopy = errors.New("no local copy")
	// ErrDamaged: what the database holds is not what was written to it.
	ErrDamaged = errors.New("the local copy is damaged")
	// ErrAbandoned: the copy's writer was stuck when it was closed. It was left, and that was said.
	ErrAbandoned = errors.New("the local copy was abandoned")
)

// loadFlush bounds how long Load waits for a flush that is writing the task.
const loadFlush = 5 * time.Second

// tally is what a task's record says of the entries as a whole. Badger verifies what it finds; only this shows that
// something is not there: a log file that was cut off or is gone, or a block that an iterator passed over. It does not
// depend on the order of the entries, so that a flush brings it forward by what it replaces and writes.
type tally struct {
	entries uint64
	sum     uint64 // of the hashes of all entries, modulo 2^64
}

func (t *tally) add(table int, key, value []byte) {
	t.entries++
	t.sum += entryHash(table, key, value)
}

func (t *tally) remove(table int, key, value []byte) {
	t.entries--
	t.sum -= entryHash(table, key, value)
}

// entryHash mixes two checksums of an entry, so that the errors of several entries do not cancel out in the sum.
func entryHash(table int, key, value []byte) uint64 {
	head := [6]byte{byte(table >> 8), byte(table), byte(len(key) >> 24), byte(len(key) >> 16), byte(len(key) >> 8), byte(len(key))}
	a := crc32.Update(crc32.Update(crc32.Update(0, castagnoli, head[:]), castagnoli, key), castagnoli, value)
	b := crc32.Update(crc32.Update(crc32.Update(0, crc32.IEEETable, head[:]), crc32.IEEETable, key), crc32.IEEETable, value)
	h := uint64(a)<<32 | uint64(b)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Load reads a task's copy as the last flush left it. accept is told first where the copy stands and which tables it
// has; then fn gets every entry, table by table, keys in order; Entry.Table indexes tables, key and value are valid
// during the call. An error of either ends it and is passed on. Only a nil error says that what fn saw is whole.
//
// While it runs, changes of the task are collected and not written.
func (l *Local) Load(ctx context.Context, task element.TaskID, accept func(at LocalVersion, tables []TableInfo) error, fn func(Entry) error) error {
	t, err := l.hold(ctx, task)
	if err != nil {
		return fmt.Errorf("task %s: %w", task, err)
	}
	defer l.letGo(t)
	l.dbMu.RLock()
	defer l.dbMu.RUnlock()
	if l.db == nil {
		return errLocalClosed
	}
	return l.load(ctx, task, t, accept, fn)
}

// hold keeps the writer away from a task's copy, once the database holds all of it.
func (l *Local) hold(ctx context.Context, task element.TaskID) (*localTask, error) {
	for tries := 0; ; tries++ {
		l.mu.Lock()
		t := l.tasks[task]
		switch {
		case t == nil || t.stale || t.loading || l.stats.Disabled:
			l.mu.Unlock()
			return nil, ErrNoCopy
		case t.clean:
			t.reading++
			l.mu.Unlock()
			return t, nil
		}
		l.mu.Unlock()
		if tries > 2 {
			return nil, fmt.Errorf("%w: it is being written all the time", ErrNoCopy)
		}
		bounded, cancel := context.WithTimeout(ctx, loadFlush)
		err := l.Flush(bounded)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, fmt.Errorf("%w: it is being written: %w", ErrNoCopy, err)
		}
	}
}

// letGo gives a copy back to the writer.
func (l *Local) letGo(t *localTask) {
	l.mu.Lock()
	if t.reading--; t.reading == 0 && t.dropped {
		l.dead = append(l.dead, t.number)
	}
	l.mu.Unlock()
	l.kick()
}

// load does the reading. A disk that fails under a mapped file shows as a fault of memory; it must not end the process.
func (l *Local) load(ctx context.Context, task element.TaskID, t *localTask, accept func(LocalVersion, []TableInfo) error, fn func(Entry) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("task %s: %w: panic: %v", task, ErrDamaged, p)
			if isFault(p) {
				err = fmt.Errorf("task %s: %w: a file of it is cut off, or its disk cannot be read: %v", task, ErrDamaged, p)
				l.setAside(err)
			}
		}
	}()
	return l.db.View(func(txn *badger.Txn) error {
		r, err := readRecord(txn, task)
		switch {
		case err != nil:
			return fmt.Errorf("task %s: record: %w: %w", task, ErrDamaged, err)
		case r.state != stateApplied || r.at != t.durable || r.number != t.number:
			return fmt.Errorf("task %s: %w: its record is another one than before", task, ErrDamaged)
		}
		if accept != nil {
			if err := accept(r.at, r.tables); err != nil {
				return err
			}
		}
		return readEntries(ctx, txn, task, &r, fn)
	})
}

func readRecord(txn *badger.Txn, task element.TaskID) (r taskRecord, err error) {
	item, err := txn.Get(taskKey(task))
	if err != nil {
		return r, err
	}
	err = item.Value(func(v []byte) (err error) { r, err = decodeTaskRecord(v); return err })
	return r, err
}

// readEntries gives the entries of a copy and compares them with its record.
func readEntries(ctx context.Context, txn *badger.Txn, task element.TaskID, r *taskRecord, fn func(Entry) error) error {
	it := txn.NewIterator(badger.IteratorOptions{Prefix: dataPrefix(r.number)}) // values lie beside the keys
	defer it.Close()
	var got tally
	var e Entry
	var failed error
	value := func(v []byte) error {
		e.Value = v
		got.add(e.Table, e.Key, v)
		failed = fn(e)
		return failed
	}
	for it.Rewind(); it.Valid(); it.Next() {
		if got.entries&1023 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		k := it.Item().Key()
		if len(k) < dataKeyHead || int(beUint16(k[5:])) >= len(r.tables) {
			return fmt.Errorf("task %s: %w: an entry of a table that its record does not know", task, ErrDamaged)
		}
		e.Table, e.Key = int(beUint16(k[5:])), k[dataKeyHead:]
		if err := it.Item().Value(value); failed != nil {
			return failed
		} else if err != nil {
			return fmt.Errorf("task %s: %w: %w", task, ErrDamaged, err)
		}
	}
	if got != r.tally {
		return fmt.Errorf("task %s: %w: %d entries with checksum %016x, its record says %d with %016x", task, ErrDamaged,
			got.entries, got.sum, r.tally.entries, r.tally.sum)
	}
	return nil
}

var errStopped = errors.New("no more entries wanted")

// Iterate reads a task's copy as Load does, until fn returns false.
func (l *Local) Iterate(task element.TaskID, fn func(table TableInfo, key, value []byte) bool) error {
	var tables []TableInfo
	err := l.Load(context.Background(), task, func(_ LocalVersion, of []TableInfo) error {
		tables = of
		return nil
	}, func(e Entry) error {
		if !fn(tables[e.Table], e.Key, e.Value) {
			return errStopped
		}
		return nil
	})
	if err == errStopped {
		return nil
	}
	return err
}
