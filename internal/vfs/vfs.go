package vfs

import (
	"io"
	"time"
)

// FS is a file system below one root directory. Errors wrap those of io/fs (ErrExist, ErrNotExist, ErrPermission)
// and syscall (ENOSPC, EIO, …), so errors.Is works alike on both implementations.
type FS interface {
	// Create makes a new empty file for writing; fs.ErrExist when the name is taken.
	Create(name string) (File, error)
	// Open opens a regular file for reading. Anything else of that name is a NotFileError, and never blocks.
	Open(name string) (File, error)
	// Link gives a file a second name; fs.ErrExist when that name is taken.
	Link(oldname, newname string) error
	// Rename moves a file, replacing what has the new name.
	Rename(oldname, newname string) error
	// Remove takes away a name of a file, or an empty directory.
	Remove(name string) error
	// MkdirAll makes a directory and those above it. The new names are durable after SyncDir of each parent.
	MkdirAll(dir string) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(dir string) ([]Entry, error)
	// Stat describes what the name holds.
	Stat(name string) (Entry, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
	// Close releases what the file system holds open itself. Open files stay usable.
	Close() error
}

// File is an open file. Write appends (files are written once, front to back); ReadAt reads as io.ReaderAt says.
type File interface {
	io.Writer
	io.ReaderAt
	io.Closer
	// Sync makes the bytes written so far durable. After an error the bytes count as lost: the file must be given up
	// and written anew under another name, since a second Sync may return nil without having written anything.
	Sync() error
	// Size gives the length in bytes.
	Size() (int64, error)
}

// Entry describes a name.
type Entry struct {
	Name    string // last element only
	Size    int64  // bytes, 0 for a directory
	Dir     bool
	Regular bool      // a plain file: no directory, link, device or socket
	What    string    // what it is instead of a plain file, "a directory"; empty for one
	Err     error     // why it could not be looked at: nothing but the name is known then
	Mod     time.Time // when a plain file was last written to, by the clock of whoever keeps it; zero for anything else
}
