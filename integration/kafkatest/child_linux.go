package kafkatest

import "syscall"

// childAttr puts the JVM into a process group of its own, so that an interrupt at the terminal reaches it only through
// us, and has the kernel kill it if this process dies.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
