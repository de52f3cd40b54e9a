package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/millweir/millweir/internal/vfs"
)

const (
	// discardFile is made by Badger when it opens; that it cannot be made, or opened, ends the process.
	discardFile = "DISCARD"
	discardSize = 1 << 20 // or twice, four times as large; it is 0 until Badger has opened it
	// spareFiles is how many files must be free to be opened beside those that are there.
	spareFiles = 32
	// cutLooks is how often, with cutPause between, a table is looked at that has become empty: Badger empties a file
	// before it removes it.
	cutLooks = 250
	cutPause = 20 * time.Millisecond
)

// errCut is what a file that has become shorter wraps.
var errCut = errors.New("the file is cut off")

// isFault says that a panic is a fault at an address: a mapped file is shorter than it was, or its disk cannot be read.
func isFault(p any) bool {
	err, ok := p.(runtime.Error)
	if !ok {
		return false
	}
	_, ok = err.(interface{ Addr() uintptr })
	return ok
}

// setAside ends the copy from a reader: the writer does not write again, and the next start builds it anew.
func (l *Local) setAside(err error) {
	l.unsafe.Store(true)
	l.disable(err)
	l.kick()
}

// verifyFiles opens and reads what is in the directory of a database that is not open, as Badger is about to do: the process
// ends when Badger cannot read the directory, or cannot make the file that it keeps statistics in, and most of what it reads
// it reads as memory. Damage is what a new database cures; an error is what it would meet, too.
func (l *Local) verifyFiles(dir string) (damage, err error) {
	var held []*os.File
	defer func() {
		for _, f := range held {
			_ = f.Close()
		}
	}()
	if err := vfs.MkdirAll(dir, 0o700); errors.As(err, new(*vfs.NotDirError)) {
		return err, nil // the directory around it is there
	} else if err != nil {
		return nil, err
	}
	entries, err := l.list(dir)
	if err != nil {
		return damageOr(fmt.Errorf("read %s: %w", dir, err))
	}
	for _, e := range entries {
		f, err := vfs.OpenFile(filepath.Join(dir, e.Name()), os.O_RDWR, 0)
		if err != nil {
			return damageOr(err)
		}
		held = append(held, f)
		if e.Name() == discardFile {
			if info, err := f.Stat(); err != nil {
				return damageOr(err)
			} else if info.Size()%discardSize != 0 {
				return fmt.Errorf("%s: %w", e.Name(), errCut), nil
			}
		}
		if filepath.Ext(e.Name()) == ".sst" { // verifyTables reads it
			continue
		}
		if _, err := io.Copy(io.Discard, f); err != nil {
			return damageOr(err)
		}
	}
	for range spareFiles {
		f, err := os.Open(dir)
		if err != nil {
			return damageOr(err)
		}
		held = append(held, f)
	}
	f, err := os.OpenFile(filepath.Join(dir, discardFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	held = append(held, f)
	return nil, l.probe()
}

// damageOr tells damage from what is no matter of the database: too many open files, no memory.
func damageOr(cause error) (damage, err error) {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(cause, e) {
			return nil, cause
		}
	}
	return cause, nil
}

// checkSizes fails when a mapped file has become shorter than it was when it was last looked at: who reads or writes its end
// ends the process, and Badger does so in goroutines of its own. What happens between a look and a write is not prevented.
func (l *Local) checkSizes() error {
	dir := filepath.Join(l.dir, "db")
	entries, err := l.list(dir)
	if err != nil {
		return err
	}
	sizes := make(map[string]int64, len(entries))
	for _, name := range mappedFiles(entries) {
		size, err := sizeOf(filepath.Join(dir, name), l.sizes[name])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		sizes[name] = size
	}
	l.sizes = sizes
	return nil
}

// mappedFiles picks the files that Badger reads or writes as memory: the tables, the statistics, and of the logs the newest.
// The older ones are written to tables, from what is in memory, and removed.
func mappedFiles(entries []os.DirEntry) (names []string) {
	log := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case filepath.Ext(name) == ".sst", name == discardFile:
			names = append(names, name)
		case filepath.Ext(name) == ".mem":
			if len(name) > len(log) || len(name) == len(log) && name > log {
				log = name
			}
		}
	}
	if log != "" {
		names = append(names, log)
	}
	return names
}

// sizeOf gives the size of a file, which must not be less than before unless it is a table that is being removed.
func sizeOf(name string, before int64) (int64, error) {
	for n := 0; ; n++ {
		info, err := os.Stat(name)
		if err != nil {
			return 0, err
		}
		if info.Size() >= before {
			return info.Size(), nil
		}
		if n == cutLooks || info.Size() > 0 || filepath.Ext(name) != ".sst" {
			return 0, fmt.Errorf("%w: %s has %d bytes and had %d", errCut, filepath.Base(name), info.Size(), before)
		}
		time.Sleep(cutPause)
	}
}
