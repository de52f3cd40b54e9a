package vfstest

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// nobody is the user and group of the overflow ids.
const nobody = 65534

// Unprivileged runs a function with the rights of the owner of what lies in a directory, not those of root, on one thread.
func Unprivileged(t testing.TB, dir string, fn func()) {
	t.Helper()
	if os.Getuid() != 0 {
		fn()
		return
	}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(p, nobody, nobody)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	set := func(uid uintptr) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, uid, 0, 0)
		if now, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0); now != uid { // an id that is none only tells
			panic("the thread has another user")
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set(nobody)
	defer set(0)
	fn()
}
