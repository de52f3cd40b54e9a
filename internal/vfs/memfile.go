package vfs

import (
	"io"
	"io/fs"
	"syscall"
)

// memBlock is the unit in which unsynced data is kept or lost.
const memBlock = 512

type memFile struct {
	m        *Mem
	n        *memNode
	name     string
	epoch    int
	writable bool
	closed   bool
}

// check refuses a closed file and one opened before a crash. Called with mu held.
func (f *memFile) check(op string) error {
	if f.closed {
		return pathErr(op, f.name, fs.ErrClosed)
	}
	if f.epoch != f.m.epoch {
		return pathErr(op, f.name, ErrCrashed)
	}
	return nil
}

// Write appends. An injected ShortWrite and a full disk write a part and say how much.
func (f *memFile) Write(p []byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("write"); err != nil {
		return 0, err
	}
	if !f.writable {
		return 0, pathErr("write", f.name, fs.ErrPermission)
	}
	n, err := len(p), f.m.step(OpWrite, f.name, len(p))
	if err != nil {
		n = partOf(err, len(p))
	}
	if f.m.limit > 0 {
		if room := f.m.limit - f.m.used(); int64(n) > room {
			n, err = int(max(room, 0)), syscall.ENOSPC
		}
	}
	f.n.mod = f.m.now()
	start := len(f.n.data)
	f.n.data = append(f.n.data, p[:n]...)
	for b := start / memBlock; b*memBlock < start+n; b++ {
		f.n.dirty[b] = true
	}
	if err != nil {
		return n, pathErr("write", f.name, err)
	}
	return n, nil
}

// used sums the bytes of all files that have a name; a file with two names counts twice, which no test minds.
func (m *Mem) used() int64 {
	var sum int64
	for _, d := range m.dirs {
		for _, n := range d.now {
			sum += int64(len(n.data))
		}
	}
	return sum
}

// ReadAt reads at an offset.
func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("read"); err != nil {
		return 0, err
	}
	if err := f.m.step(OpRead, f.name, len(p)); err != nil {
		return 0, pathErr("read", f.name, err)
	}
	if off < 0 {
		return 0, pathErr("read", f.name, fs.ErrInvalid)
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Sync makes the content durable. A failed one loses the dirty blocks for good, as Linux does: a later Sync returns
// nil and writes nothing of them.
func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("sync"); err != nil {
		return err
	}
	if err := f.m.step(OpSync, f.name, 0); err != nil {
		for b := range f.n.dirty {
			f.n.lost[b] = true
		}
		clear(f.n.dirty)
		return pathErr("sync", f.name, err)
	}
	grown := make([]byte, len(f.n.data))
	copy(grown, f.n.durable)
	f.n.durable = grown
	for b := range f.n.dirty {
		lo := b * memBlock
		hi := min(lo+memBlock, len(f.n.data))
		copy(f.n.durable[lo:hi], f.n.data[lo:hi])
		delete(f.n.lost, b)
	}
	clear(f.n.dirty)
	return nil
}

// Size gives the length.
func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("stat"); err != nil {
		return 0, err
	}
	return int64(len(f.n.data)), nil
}

// Close closes the file; closing is possible after a crash too, as a process ends all its files.
func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return pathErr("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	f.m.open--
	if f.m.halted {
		return nil
	}
	if err := f.m.step(OpClose, f.name, 0); err != nil {
		return pathErr("close", f.name, err)
	}
	return nil
}
