package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

const (
	// LocalDirName is the directory of the copy in the one that OpenLocal is given.
	LocalDirName  = "local-state"
	openingMarker = "opening"
	localLock     = "lock" // beside the database, so that it stays when that is removed

	memTableSize = 16 << 20
	closeGrace   = 4 * time.Second
	// Larger entries would go to the value log or exceed a transaction; a task that has one goes without a copy.
	localMaxValue = 1 << 19
	localMaxKey   = 32 << 10
)

// OpenLocal opens or creates the local copy in a directory and starts its writer. The error is about the
// configuration only: a copy that cannot be opened is made anew, and when that fails, too, what is returned is disabled
// and has said so.
func OpenLocal(cfg LocalConfig) (*Local, error) { return openListing(cfg, os.ReadDir) }

// openListing is OpenLocal with a way to read directories.
func openListing(cfg LocalConfig, list func(dir string) ([]os.DirEntry, error)) (*Local, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	l := &Local{
		cfg: cfg, log: cfg.Logger, tasks: make(map[element.TaskID]*localTask), nextNumber: 1,
		room: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}), freeAt: freeBytes, list: list,
	}
	l.open()
	return l, nil
}

// open opens the copy in the directory and starts its writer, or disables it.
func (l *Local) open() {
	l.dir = filepath.Join(l.cfg.Dir, LocalDirName)
	if err := l.openIn(l.dir); err != nil {
		l.disable(fmt.Errorf("%s: %w", l.dir, err))
		l.stop = func() {}
		close(l.done)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.run(ctx)
}

// openIn opens the copy in one directory. One that is damaged is removed and made anew. What another process works on
// looks damaged at times, so nothing is looked at before the directory is locked.
func (l *Local) openIn(dir string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // as in run
	if err := vfs.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := l.checkSpace(); err != nil {
		return err
	}
	if l.lock, err = lockFile(filepath.Join(dir, localLock), false); err != nil {
		return fmt.Errorf("the directory is in use, or cannot be used: %w", err)
	}
	defer func() {
		if err != nil {
			l.unlock()
		}
	}()
	db, damage, err := l.tryOpen(dir)
	if err != nil {
		return err
	}
	if damage != nil {
		if err := os.RemoveAll(filepath.Join(dir, "db")); err != nil {
			return fmt.Errorf("it is damaged (%w) and cannot be removed: %w", damage, err)
		}
		l.log.Warn("the local copy of the state is damaged and will be built anew", "dir", dir, "error", damage)
		if db, damage, err = l.tryOpen(dir); err != nil || damage != nil {
			return errors.Join(err, damage)
		}
	}
	l.db = db
	if err = l.prepare(db); err != nil { // what damage there was is dropped: it could not be written
		l.unsafe.Store(true)
		l.closeDB()
		return err
	}
	return nil
}

// prepare readies a database that was opened.
func (l *Local) prepare(db *badger.DB) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := l.read(db); err != nil {
		return err
	}
	db.SetDiscardTs(db.MaxVersion())
	return l.checkSizes()
}

// tryOpen opens the database. Badger ends the process on some kinds of damage; a marker that is there only while it
// opens, or since the copy was abandoned, shows that this happened last time, and the damaged copy goes before it is tried
// again.
func (l *Local) tryOpen(dir string) (db *badger.DB, damage, err error) {
	marker := filepath.Join(dir, openingMarker)
	if _, err := os.Lstat(marker); err == nil { // whatever it is
		l.log.Warn("the process ended while it opened the local copy of the state, or abandoned it; it will be built anew", "dir", dir)
		if err := removeUnlocked(filepath.Join(dir, "db")); err != nil {
			return nil, nil, err
		}
		if err := os.RemoveAll(marker); err != nil {
			return nil, nil, err
		}
	}
	if err := mark(marker); err != nil {
		return nil, nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			db, damage = nil, fmt.Errorf("panic: %v", p)
		}
		if rerr := os.Remove(marker); rerr != nil && err == nil {
			if err = rerr; db != nil { // it could not be written at all
				l.unsafe.Store(true)
				l.db = db
				l.closeDB()
				db = nil
			}
		}
	}()
	opt := l.badgerOptions(filepath.Join(dir, "db"))
	if damage, err := l.verifyFiles(opt.Dir); damage != nil || err != nil {
		return nil, damage, err
	}
	if err := verifyTables(opt.Dir, opt); err != nil {
		return nil, err, nil
	}
	db, oerr := badger.OpenManaged(opt)
	switch {
	case oerr == nil:
		return db, nil, nil
	case strings.Contains(oerr.Error(), "Another process is using this Badger database"):
		return nil, nil, oerr // it is not ours to remove
	default:
		return nil, oerr, nil
	}
}

// mark makes a marker. Whatever has its name marks as well: it is not opened, written or waited for.
func mark(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return f.Close()
}

// badgerOptions keeps the database small: one for all tasks, about 32 MB of memory.
func (l *Local) badgerOptions(dir string) badger.Options {
	o := badger.DefaultOptions(dir)
	o.MemTableSize = l.cfg.memTable
	o.ValueThreshold = min(o.ValueThreshold, l.cfg.memTable/10) // all values lie beside their keys
	o.NumMemtables = 2
	o.NumLevelZeroTables = 3
	o.NumLevelZeroTablesStall = 6
	o.NumCompactors = 2
	o.NumGoroutines = 2
	o.Compression, o.BlockCacheSize = options.None, 0 // blocks are used where they are mapped
	o.ValueLogFileSize = 16 << 20
	o.DetectConflicts = false
	o.MetricsEnabled = false
	o.NumVersionsToKeep = 1
	o.ChecksumVerificationMode = options.OnBlockRead // verifyTables has read them
	o.Logger = newBadgerLog(l.log, &l.abandoned)
	return o
}

// read learns what the database holds, and clears what does not belong: another owner's data, and data that no task's
// record names.
func (l *Local) read(db *badger.DB) error {
	want := encodeMeta(l.cfg.Cluster, l.cfg.Application)
	var same bool
	err := db.View(func(txn *badger.Txn) error {
		item, err := txn.Get([]byte{prefixMeta})
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			same = string(v) == string(want)
			return nil
		})
	})
	if err == nil && same {
		if err = l.readTasks(db); err == nil {
			return nil
		}
	}
	l.tasks, l.dead, l.nextNumber = make(map[element.TaskID]*localTask), nil, 1
	if tables, _ := db.Size(); err != nil || tables > 0 || db.MaxVersion() > 0 {
		l.log.Warn("the local copy of the state is of another application, cluster or format and is dropped",
			"dir", l.dir, "error", err)
	}
	if err := db.DropAll(); err != nil {
		return err
	}
	txn := db.NewTransactionAt(db.MaxVersion(), true)
	defer txn.Discard()
	if err := txn.Set([]byte{prefixMeta}, want); err != nil {
		return err
	}
	if err := txn.CommitAt(db.MaxVersion()+1, nil); err != nil {
		return err
	}
	return db.Sync()
}

// readTasks reads the tasks' records. A task whose last flush did not end has no copy.
func (l *Local) readTasks(db *badger.DB) error {
	known := make(map[uint32]bool)
	return db.View(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixTask}})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			id, err := parseTaskKey(it.Item().Key())
			if err != nil {
				return err
			}
			var r taskRecord
			if err := it.Item().Value(func(v []byte) (err error) { r, err = decodeTaskRecord(v); return err }); err != nil {
				return fmt.Errorf("record of task %s: %w", id, err)
			}
			known[r.number] = true
			l.nextNumber = max(l.nextNumber, r.number+1)
			t := &localTask{number: r.number, at: r.at, durable: r.at, tally: r.tally, tables: r.tables, pending: newPending()}
			t.clean = r.state == stateApplied
			t.stale = !t.clean
			if t.stale {
				l.log.Info("the local copy of a task's state was being written when the process ended; it will be built anew",
					"task", id.String(), "checkpoint", r.at.Name.String())
			}
			l.tasks[id] = t
		}
		return l.findOrphans(txn, known)
	})
}

// findOrphans notes the numbers of data that no record names: a reset ended between the two.
func (l *Local) findOrphans(txn *badger.Txn, known map[uint32]bool) error {
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixData}})
	defer it.Close()
	for seek := dataPrefix(0); ; {
		it.Seek(seek)
		if !it.Valid() {
			return nil
		}
		k := it.Item().Key()
		if len(k) < dataKeyHead {
			return fmt.Errorf("data key: %w", errRecord)
		}
		n := beUint32(k[1:])
		if !known[n] {
			l.dead = append(l.dead, n)
			l.nextNumber = max(l.nextNumber, n+1)
		}
		if n == 1<<32-1 {
			return nil
		}
		seek = dataPrefix(n + 1)
	}
}

// Close writes what is pending, within CloseTimeout, and closes the database.
func (l *Local) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), l.cfg.CloseTimeout)
	defer cancel()
	return l.CloseWithin(ctx)
}

// CloseWithin writes what is pending until ctx ends, and closes the database. When the time is over the copy is left as
// it is: the tasks that were being written will be built anew. When a write, or closing the database, does not come back
// within some seconds more, the copy is abandoned: the error is ErrAbandoned then, and has been said.
func (l *Local) CloseWithin(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	left := errors.Is(l.why, ErrAbandoned)
	l.mu.Unlock()
	if left {
		return fmt.Errorf("%s: %w", l.dir, ErrAbandoned)
	}
	var err error
	if ctx.Err() == nil { // else the writer must not begin
		l.kick()
		select {
		case <-l.done:
		case <-ctx.Done():
			err = fmt.Errorf("local copy of the state in %s: not written in time", l.dir)
		}
	}
	l.stop()
	grace := time.NewTimer(l.cfg.grace)
	defer grace.Stop()
	select {
	case <-l.done: // at most one slice of a flush and the closing of the database
		return err
	case <-grace.C:
		return l.leave()
	}
}

// leave abandons the copy while its writer waits for a disk that does not answer, or for Badger, which waits for ever for
// room when it cannot write its tables. Nobody waits for the writer from here on: it ends with the process, and so does the
// lock of the directory. The disk may not answer to the marker either; without it the tasks' records say how far they came.
func (l *Local) leave() error {
	l.abandoned.Store(true)
	l.mu.Lock()
	l.stats.Disabled, l.why = true, ErrAbandoned
	l.mu.Unlock()
	result := make(chan error, 1)
	go func() { result <- mark(filepath.Join(l.dir, openingMarker)) }()
	timer := time.NewTimer(l.cfg.grace / 4)
	defer timer.Stop()
	marked := false
	select {
	case err := <-result:
		marked = err == nil
	case <-timer.C:
	}
	l.log.Warn("the local copy of the state is abandoned, since a write to it does not come back; it will be built anew at the next start", "dir", l.dir, "marked", marked)
	return fmt.Errorf("%s: %w", l.dir, ErrAbandoned)
}
