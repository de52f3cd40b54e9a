package vfs

import (
	"errors"
	"fmt"
)

// OpKind names an operation of a Mem, as faults and the crash counter see it.
type OpKind int

// The operations.
const (
	OpCreate OpKind = iota
	OpOpen
	OpLink
	OpRename
	OpRemove
	OpMkdir
	OpReadDir
	OpStat
	OpSyncDir
	OpWrite
	OpRead
	OpSync
	OpClose
)

var opNames = [...]string{"create", "open", "link", "rename", "remove", "mkdir", "readdir", "stat", "syncdir", "write",
	"read", "sync", "close"}

// String names the operation.
func (k OpKind) String() string {
	if k < 0 || int(k) >= len(opNames) {
		return fmt.Sprintf("op(%d)", int(k))
	}
	return opNames[k]
}

// Op is one operation about to happen.
type Op struct {
	Kind   OpKind
	Name   string // of the file or directory; the new name for Link and Rename
	Bytes  int    // length of a Read or Write
	Number int    // counts all operations of the Mem from 0
}

// ErrCrashed is what every operation gives between the cut of the power and Crash, and files opened before it for
// ever.
var ErrCrashed = errors.New("file system lost power")

// ShortWrite, given by a fault for an OpWrite, lets N bytes through before the write fails with Err.
type ShortWrite struct {
	N   int
	Err error
}

// Error gives the cause.
func (s *ShortWrite) Error() string { return fmt.Sprintf("short write of %d bytes: %v", s.N, s.Err) }

// Unwrap gives the cause.
func (s *ShortWrite) Unwrap() error { return s.Err }

func partOf(err error, n int) int {
	var s *ShortWrite
	if errors.As(err, &s) {
		return max(0, min(s.N, n))
	}
	return 0
}

// SetFault sets the function that is asked before every operation; an error from it fails the operation, which then
// has no effect (but see ShortWrite and Sync). nil takes it away. It must not call the file system.
func (m *Mem) SetFault(f func(Op) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// CrashAt cuts the power just before the operation with this number and, when it is a write, after half of it.
// From then on every operation gives ErrCrashed until Crash is called.
func (m *Mem) CrashAt(number int) {
	m.SetFault(func(op Op) error {
		if op.Number < number {
			return nil
		}
		if op.Number == number && op.Kind == OpWrite {
			return &ShortWrite{N: op.Bytes / 2, Err: ErrCrashed}
		}
		return ErrCrashed
	})
}

// Ops gives the number of operations so far, which is the number of the next one.
func (m *Mem) Ops() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ops
}

// step counts an operation and asks for a fault. Called with mu held.
func (m *Mem) step(kind OpKind, name string, n int) error {
	op := Op{Kind: kind, Name: name, Bytes: n, Number: m.ops}
	m.ops++
	if m.fault == nil {
		return nil
	}
	err := m.fault(op)
	if errors.Is(err, ErrCrashed) {
		m.halted = true
	}
	return err
}
