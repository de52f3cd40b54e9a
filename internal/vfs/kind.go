package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// NotFileError says that a name has something else than a regular file.
type NotFileError struct {
	Name string
	What string // "a directory", as Entry.What
}

// Error names both.
func (e *NotFileError) Error() string { return e.Name + " is " + e.What + ", not a file" }

// Is makes it an fs.ErrInvalid.
func (e *NotFileError) Is(target error) bool { return target == fs.ErrInvalid }

// LinkError says that a directory on the way to a name is a symbolic link that leads out of the root or nowhere. It is no
// fs.ErrNotExist: something is there.
type LinkError struct {
	Name   string // of the link
	Target string
}

// Error says where it leads, and what may be.
func (e *LinkError) Error() string {
	return fmt.Sprintf("%s is a symbolic link to %s, which leads out of the directory or nowhere, or is absolute: only relative links within the directory are followed", e.Name, e.Target)
}

// Link is Entry.What of a symbolic link.
const Link = "a symbolic link"

// whatIs names what a mode is of, "" for a regular file.
func whatIs(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return ""
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return Link
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "of an unknown kind"
}

// regular gives an opened file back if it is a regular one, and closes it otherwise.
func regular(f *os.File, name string) (*os.File, error) {
	st, err := f.Stat()
	if err == nil {
		if what := whatIs(st.Mode()); what != "" {
			err = &NotFileError{Name: name, What: what}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// explain finds the directory on the way to a name that is a link which is not followed. It has a look only at errors that
// such a link has: no other error costs more than it did.
func explain(root *os.Root, name string, err error) error {
	var no syscall.Errno
	if err == nil || errors.As(err, &no) && no != syscall.ENOENT && no != syscall.ELOOP {
		return err
	}
	for at := path.Clean(name); at != "." && at != "/"; at = path.Dir(at) {
		info, lerr := root.Lstat(at)
		if lerr != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		if _, serr := root.Stat(at); serr == nil {
			continue // it leads somewhere
		}
		target, rerr := root.Readlink(at)
		if rerr != nil {
			target = "an unknown place"
		}
		return &LinkError{Name: at, Target: strings.ToValidUTF8(target, "?")}
	}
	return err
}
