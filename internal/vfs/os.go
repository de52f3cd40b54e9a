package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sort"
	"syscall"
)

// OS is the real file system below one directory.
type OS struct{ root *os.Root }

var _ FS = (*OS)(nil)

// OpenOS opens a directory that exists.
func OpenOS(dir string) (*OS, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &OS{root: root}, nil
}

// Create makes a new file, readable by the owner and the group.
func (o *OS) Create(name string) (File, error) {
	f, err := o.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open opens a regular file for reading. Anything else is a NotFileError; it is looked at first, so that nothing happens to it,
// and opened so that a FIFO which takes its place meanwhile does not block.
func (o *OS) Open(name string) (File, error) {
	st, err := o.root.Lstat(name)
	if err != nil {
		return nil, explain(o.root, path.Dir(name), err)
	}
	if what := whatIs(st.Mode()); what != "" {
		return nil, &NotFileError{Name: name, What: what}
	}
	f, err := o.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if f, err = regular(f, name); err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Link gives a file a second name.
func (o *OS) Link(oldname, newname string) error { return o.root.Link(oldname, newname) }

// Rename moves a file.
func (o *OS) Rename(oldname, newname string) error { return o.root.Rename(oldname, newname) }

// Remove removes a file or an empty directory.
func (o *OS) Remove(name string) error { return o.root.Remove(name) }

// MkdirAll makes directories.
func (o *OS) MkdirAll(dir string) error { return explain(o.root, dir, o.root.MkdirAll(dir, 0o750)) }

// ReadDir lists a directory. A file that vanishes while being listed is left out; one that cannot be looked at is not.
func (o *OS) ReadDir(dir string) ([]Entry, error) {
	sub, err := o.root.OpenRoot(dir)
	if err != nil {
		return nil, explain(o.root, dir, err)
	}
	defer sub.Close()
	d, err := o.root.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK, 0) // "." of sub would need the right to search it
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1) // ReadDir would fail at the first that cannot be looked at
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	out := make([]Entry, 0, len(names))
	for _, name := range names {
		info, err := sub.Lstat(name)
		switch {
		case err == nil:
			out = append(out, entryOf(info))
		case !errors.Is(err, fs.ErrNotExist): // a broken inode, or no right to search
			out = append(out, Entry{Name: name, What: "of an unknown kind", Err: err})
		}
	}
	return out, nil
}

// Stat describes a name without following a symbolic link.
func (o *OS) Stat(name string) (Entry, error) {
	info, err := o.root.Lstat(name)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(info), nil
}

// SyncDir fsyncs a directory.
func (o *OS) SyncDir(dir string) error {
	d, err := o.root.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// Close closes the root directory.
func (o *OS) Close() error { return o.root.Close() }

func entryOf(info fs.FileInfo) Entry {
	e := Entry{Name: info.Name(), Dir: info.IsDir(), Regular: info.Mode().IsRegular(), What: whatIs(info.Mode())}
	if e.Regular {
		e.Size, e.Mod = info.Size(), info.ModTime()
	}
	return e
}

type osFile struct{ *os.File }

// Size gives the length of the file.
func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
