//go:build linux || darwin

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/millweir/millweir/internal/vfs"
)

// freeBytes is the space that the file system of a directory has left for this process.
func freeBytes(dir string) (int64, bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}

// removeUnlocked removes a database directory unless another process holds Badger's lock on it. What is no directory nobody can
// have locked.
func removeUnlocked(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) || errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(dir)
	} else if err != nil {
		return err
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("%s is in use by another process: %w", filepath.Base(dir), err)
	}
	return os.RemoveAll(dir)
}

// lockFile opens a file, made when there is none, and locks it until it is closed or the process ends. Without wait it
// fails with errLocked when another process, or this one, has it. What is no file cannot keep anybody out: a link may lead to
// where nobody else looks, or to what another one has locked.
func lockFile(name string, wait bool) (*os.File, error) {
	f, err := vfs.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		if err = syscall.Flock(int(f.Fd()), how); err == nil {
			return f, nil
		} else if err != syscall.EINTR {
			f.Close()
			if err == syscall.EWOULDBLOCK {
				err = errLocked
			}
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}
