package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/dgraph-io/badger/v4"

	"github.com/millweir/millweir/internal/vfs"
)

// errLocked says that another process has a lock, or this one.
var errLocked = errors.New("another process has it")

// errNoSpace is what lack of space wraps.
var errNoSpace = errors.New("no space left")

// checkSpace fails when the disk is so full that writing to mapped files becomes dangerous: the kernel ends the process
// then, and Badger writes in goroutines of its own, where nobody can prevent it. It is asked before whatever makes Badger
// write: opening, each slice of a flush, and closing.
func (l *Local) checkSpace() error {
	if l.cfg.MinFreeBytes < 0 {
		return nil
	}
	if free, ok := l.freeAt(l.dir); ok && free < l.cfg.MinFreeBytes {
		return fmt.Errorf("%w in %s: %d bytes free, %d wanted", errNoSpace, l.dir, free, l.cfg.MinFreeBytes)
	}
	return nil
}

// checkWritable is checkSpace, and fails when no file can be made beside those of the database: no inode is left, the file
// system is read only, or the directory is gone. Badger tries for ever to make the file that it needs, also when it closes.
// It fails, too, when a file of the database was cut off.
func (l *Local) checkWritable() error {
	if err := l.checkSpace(); err != nil {
		return err
	}
	if err := l.probe(); err != nil {
		return err
	}
	return l.checkSizes()
}

// probe makes a file beside those of the database, and removes it.
func (l *Local) probe() error {
	probe := filepath.Join(l.dir, "db", "probe")
	f, err := vfs.CreateNew(probe, 0o640)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(probe))
}

// closeDB closes the database; the writer is its only user besides Load and Stats. Closing writes what is in memory to a
// mapped file. Where that is dangerous, or would not end, the database is left as it is, to be built anew at the next start;
// its files, goroutines and locks end with the process.
func (l *Local) closeDB() {
	l.dbMu.Lock()
	defer l.dbMu.Unlock()
	defer func() {
		l.db = nil
		if p := recover(); p != nil {
			l.log.Warn("closing the local copy of the state", "dir", l.dir, "panic", p)
			l.keepLock()
		}
	}()
	if err := l.mayClose(); err != nil {
		l.keepLock()
		if l.abandoned.Swap(true) {
			return // that was said, and the copy is marked
		}
		marker := mark(filepath.Join(l.dir, openingMarker)) // without it the tasks' records say how far it came
		l.log.Warn("the local copy of the state is not closed, since that might not end, or end the process; it will be built anew", "dir", l.dir, "reason", err, "marked", marker == nil)
		return
	}
	if err := l.db.Close(); err != nil && !errors.Is(err, badger.ErrDBClosed) {
		l.log.Warn("closing the local copy of the state", "dir", l.dir, "error", err)
	}
	l.unlock()
}

func (l *Local) mayClose() error {
	if l.abandoned.Load() {
		return ErrAbandoned
	}
	if l.unsafe.Load() {
		return errors.New("writing to it has failed, or a file of it is cut off")
	}
	return l.checkWritable()
}

// unlock lets others have the directory.
func (l *Local) unlock() {
	if l.lock != nil {
		_ = l.lock.Close()
		l.lock = nil
	}
}

// abandonedLocks are those of databases that were not closed: Badger's goroutines still write to them.
var abandonedLocks struct {
	sync.Mutex
	files []*os.File
}

// keepLock keeps the directory locked until the process ends.
func (l *Local) keepLock() {
	if l.lock == nil {
		return
	}
	abandonedLocks.Lock()
	defer abandonedLocks.Unlock()
	abandonedLocks.files = append(abandonedLocks.files, l.lock) // a file that nobody names would be closed
	l.lock = nil
}

// noSpace says that an error is one of a full disk.
func noSpace(err error) bool {
	return errors.Is(err, errNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
