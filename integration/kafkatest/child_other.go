//go:build unix && !linux

package kafkatest

import "syscall"

// childAttr puts the JVM into a process group of its own, so that an interrupt at the terminal reaches it only through
// us.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
