package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
)

const (
	spillFileMin = 8 << 20
	spillFileMax = 1 << 30
	spillFiles   = 32 // about so many that a store has, when they are not the smallest or the largest
)

// spillLog is the files that hold the blocks of one store. They are written at the end only. A file goes when no bucket
// names a block in it and no snapshot may read it. Only its owner calls it, but for read.
type spillLog struct {
	pool  *Spill
	place uint32       // of the directory among the pool's
	files []*spillFile // the last one is being written
	disk  int64        // sum of their sizes
	live  int64        // of blocks that are named
}

type spillFile struct {
	f    *os.File
	root *spillRoot
	size int64
	live int64
	pins int // snapshots that may read it
}

// append writes blocks behind each other. Nothing has happened when it fails.
func (l *spillLog) append(b []byte) (*spillFile, int64, error) {
	var errs []error
	for range l.pool.roots {
		t, err := l.tail(int64(len(b)))
		if err != nil {
			errs = append(errs, err)
			break
		}
		if _, err := t.f.WriteAt(b, t.size); err != nil {
			l.pool.leave(t.root, err)
			errs = append(errs, err)
			continue // with another directory
		}
		off := t.size
		t.size += int64(len(b))
		l.disk += int64(len(b))
		l.pool.disk.Add(int64(len(b)))
		return t, off, nil
	}
	return nil, 0, errors.Join(errs...)
}

// tail gives the file to write to.
func (l *spillLog) tail(n int64) (*spillFile, error) {
	most := max(l.pool.least, min(l.disk/spillFiles, spillFileMax))
	if k := len(l.files); k > 0 {
		if t := l.files[k-1]; (t.size == 0 || t.size+n <= most) && l.pool.usable(t.root) {
			return t, nil
		}
	}
	f, root, err := l.pool.create(l.place, "state", 0)
	if err != nil {
		return nil, err
	}
	l.files = append(l.files, &spillFile{f: f, root: root})
	l.tidy()
	return l.files[len(l.files)-1], nil
}

// named and unnamed count a block of a bucket that came into a directory or left it.
func (l *spillLog) named(b *bucket)   { l.count(b, int64(b.size), int64(b.n)) }
func (l *spillLog) unnamed(b *bucket) { l.count(b, -int64(b.size), -int64(b.n)) }

func (l *spillLog) count(b *bucket, size, n int64) {
	if b.n == 0 {
		return
	}
	b.file.live += size
	l.live += size
	l.pool.live.Add(size)
	l.pool.entries.Add(n)
}

// tidy removes the files that nothing needs any more, but for the last.
func (l *spillLog) tidy() {
	last := len(l.files) - 1
	l.files = slices.DeleteFunc(l.files, func(f *spillFile) bool {
		if f == l.files[last] || f.live > 0 || f.pins > 0 {
			return false
		}
		l.remove(f)
		return true
	})
}

func (l *spillLog) remove(f *spillFile) {
	l.disk -= f.size
	l.pool.disk.Add(-f.size)
	if err := discard(f.f); err != nil {
		l.pool.log.Warn("a file of spilled state is left until the process ends", "file", f.f.Name(), "error", err)
	}
}

// discard closes and removes a file, which may have been removed with its directory.
func discard(f *os.File) error {
	err := os.Remove(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(f.Close(), err)
}

// worst gives the file to move blocks out of, if there is so much in the files that is superseded that it is worth it.
func (l *spillLog) worst() *spillFile {
	if l.disk <= 2*l.live+2*l.pool.least {
		return nil
	}
	var w *spillFile
	for _, f := range l.files[:len(l.files)-1] {
		if f.live > 0 && f.pins == 0 && f.live < f.size*3/4 && (w == nil || f.live*w.size < w.live*f.size) {
			w = f
		}
	}
	return w
}

// pin gives the files as they are, which stay until unpin.
func (l *spillLog) pin() []*spillFile {
	for _, f := range l.files {
		f.pins++
	}
	return slices.Clone(l.files)
}

func (l *spillLog) unpin(files []*spillFile) {
	for _, f := range files {
		f.pins--
	}
	if len(l.files) > 0 {
		l.tidy()
	}
}

// close removes all files. A reader that is late gets os.ErrClosed.
func (l *spillLog) close(entries int64) {
	for _, f := range l.files {
		l.remove(f)
	}
	l.pool.live.Add(-l.live)
	l.pool.entries.Add(-entries)
	l.files, l.live = nil, 0
}

// readBlock reads and verifies a bucket's block into buf, which it may replace. It may be called from any goroutine.
func readBlock(b *bucket, buf []byte) ([]byte, error) {
	if b.n == 0 {
		return buf[:0], nil
	}
	buf = slices.Grow(buf[:0], int(b.size))[:b.size]
	if n, err := b.file.f.ReadAt(buf, b.off); n < len(buf) {
		return buf, fmt.Errorf("%w: %d bytes at %d of %s: %w", ErrSpill, b.size, b.off, b.file.f.Name(), err)
	}
	if crc32.Checksum(buf, castagnoli) != b.sum {
		return buf, damaged(b, "checksum differs")
	}
	return buf, nil
}

func damaged(b *bucket, what string) error {
	return fmt.Errorf("%w: %d bytes at %d of %s: %s", ErrSpill, b.size, b.off, b.file.f.Name(), what)
}
