package vfstest

import (
	"os"
	"syscall"
)

// zero is the device number of /dev/zero, which never ends: 1, 5.
const zero = 1<<8 | 5

// Kinds gives all kinds.
func Kinds() []Kind {
	return append(portable(),
		Kind{"link to a device", "a symbolic link", func(path, _ string) error { return os.Symlink("/dev/zero", path) }},
		Kind{"named pipe", "a named pipe", func(path, _ string) error { return syscall.Mkfifo(path, 0o644) }},
		Kind{"socket", "a socket", func(path, _ string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o644, 0) }},
		Kind{"device", "a device", func(path, _ string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o644, zero) }},
	)
}
