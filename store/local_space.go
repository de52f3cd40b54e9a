package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dgraph-io/badger/v4"
)

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

// closeDB closes the database; the writer is its only user besides Load and Stats. Closing writes what is in memory to a
// mapped file. Where that is dangerous the database is left as it is, to be built anew at the next start; its files and
// goroutines end with the process.
func (l *Local) closeDB() {
	l.dbMu.Lock()
	defer l.dbMu.Unlock()
	defer func() {
		l.db = nil
		if p := recover(); p != nil {
			l.log.Warn("closing the local copy of the state", "dir", l.dir, "panic", p)
		}
	}()
	if err := l.mayClose(); err != nil {
		marker := os.WriteFile(filepath.Join(l.dir, openingMarker), nil, 0o640) // without it the tasks' records say how far it came
		l.log.Warn("the local copy of the state is not closed, since that might end the process; it will be built anew", "dir", l.dir, "reason", err, "marked", marker == nil)
		return
	}
	if err := l.db.Close(); err != nil && !errors.Is(err, badger.ErrDBClosed) {
		l.log.Warn("closing the local copy of the state", "dir", l.dir, "error", err)
	}
}

func (l *Local) mayClose() error {
	if l.unsafe {
		return errors.New("writing to it has failed")
	}
	return l.checkSpace()
}

// noSpace says that an error is one of a full disk.
func noSpace(err error) bool {
	return errors.Is(err, errNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
