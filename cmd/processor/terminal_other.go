//go:build !linux

package main

import "os"

// readsTerminal says whether a person may type into f: a character device, and not the null device, which is one, too.
func readsTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(info, null)
}
