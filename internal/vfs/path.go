package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// OpenFile is os.OpenFile for files that lie outside of an FS, by their path in the system: locks, marks, small records. Anything
// else than a regular file is a NotFileError, a symbolic link as well, wherever it leads: it is looked at first, so that nothing
// happens to it, and opened so that a FIFO which takes its place meanwhile does not block. O_CREATE makes a file and never what a
// link names.
func OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	for tries := 0; ; tries++ {
		how := flag | syscall.O_NONBLOCK
		switch st, err := os.Lstat(name); {
		case err == nil:
			if what := whatIs(st.Mode()); what != "" {
				return nil, &NotFileError{Name: name, What: what}
			}
			if flag&os.O_EXCL == 0 {
				how &^= os.O_CREATE
			}
		case flag&os.O_CREATE == 0 || !errors.Is(err, fs.ErrNotExist):
			return nil, err
		default:
			how |= os.O_EXCL
		}
		f, err := os.OpenFile(name, how, perm)
		if flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE && tries < 10 && (errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) && how&os.O_CREATE == 0) {
			continue // somebody has made or removed it since it was looked at
		}
		if err != nil {
			return nil, err
		}
		return regular(f, name)
	}
}

// ReadFile reads a file that OpenFile opens. One that is longer than so many bytes is an error.
func ReadFile(name string, most int64) ([]byte, error) {
	f, err := OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", name, most)
	}
	return b, err
}

// CreateNew makes a file for writing in place of what a process that was killed has left under the name, or of what else is there
// and can be removed: anything but a directory that has something in it.
func CreateNew(name string, perm fs.FileMode) (*os.File, error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
}

// NotDirError says that something else than a directory is on the way to one, or in its place.
type NotDirError struct {
	Name string // of what is there
	What string // "a named pipe", "a symbolic link to x, which leads to no directory"
	Err  error  // of the operating system
}

// Error names both.
func (e *NotDirError) Error() string { return e.Name + " is " + e.What + ", not a directory" }

// Unwrap gives the cause.
func (e *NotDirError) Unwrap() error { return e.Err }

// MkdirAll is os.MkdirAll by a path of the system, and each name that it makes is durable before the next one is made. Links
// to directories are followed. What is in the way is a NotDirError.
func MkdirAll(dir string, perm fs.FileMode) error { return mkdirAll(dir, perm, SyncDir) }

func mkdirAll(dir string, perm fs.FileMode, sync func(dir string) error) error {
	dir = filepath.Clean(dir)
	var missing []string // the deepest first
	at := dir
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, at)
	}
	_ = sync(filepath.Dir(at)) // who made it may have been killed right then; it may also be the system's, where this is refused
	for _, name := range slices.Backward(missing) {
		if err := os.MkdirAll(name, perm); err != nil {
			return inTheWay(name, err)
		}
		if err := sync(filepath.Dir(name)); err != nil && !errors.Is(err, fs.ErrPermission) { // it may be written and not read
			return err
		}
	}
	if err := os.MkdirAll(dir, perm); err != nil { // what is there may be something else
		return inTheWay(dir, err)
	}
	return nil
}

// SyncDir fsyncs a directory by its path in the system: the names in it are durable then.
func SyncDir(dir string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0) // what is none is not waited for
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// inTheWay finds what keeps a directory from being made.
func inTheWay(dir string, err error) error {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		info, lerr := os.Lstat(at)
		if lerr != nil {
			if at == filepath.Dir(at) {
				return err
			}
			continue
		}
		if to, serr := os.Stat(at); serr == nil && to.IsDir() {
			return err // the way to it is free
		}
		what := whatIs(info.Mode())
		if what == Link {
			target, _ := os.Readlink(at)
			what = fmt.Sprintf("%s to %q, which leads to no directory", Link, target)
		} else if what == "" {
			what = "a file"
		}
		return &NotDirError{Name: at, What: what, Err: err}
	}
}
