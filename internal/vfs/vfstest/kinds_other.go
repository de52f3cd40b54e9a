//go:build !linux

package vfstest

// Kinds gives the kinds that every system has.
func Kinds() []Kind { return portable() }
