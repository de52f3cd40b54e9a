//go:build linux || darwin

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// freeBytes is the space that the file system of a directory has left for this process.
func freeBytes(dir string) (int64, bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}

// removeUnlocked removes a database directory unless another process holds Badger's lock on it.
func removeUnlocked(dir string) error {
	f, err := os.Open(dir)
	if os.IsNotExist(err) {
		return nil
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
// fails when another process, or this one, has it.
func lockFile(name string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
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
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}
