package integration

import "syscall"

// childAttr has the kernel kill a child whose parent dies.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
