package main

import (
	"os"
	"syscall"
	"unsafe"
)

// readsTerminal says whether a person may type into f. /dev/null is a character device, too, so the kernel is asked for the
// settings that only a terminal has.
func readsTerminal(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var settings syscall.Termios
	var no syscall.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, no = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TCGETS, uintptr(unsafe.Pointer(&settings)))
	})
	return err == nil && no == 0
}
