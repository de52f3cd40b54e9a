//go:build !linux

package demo

import "syscall"

// childAttr has nothing to set here: a child of a demo that is killed -9 must be ended by hand on these systems.
func childAttr() *syscall.SysProcAttr { return nil }
