//go:build unix && !linux

package integration

import "syscall"

func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
