package demo

import "syscall"

// childAttr lets the kernel kill the child when the thread that started it ends, and keeps the terminal's Ctrl-C from
// it: the demo stops it in its own way.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
