//go:build !linux && !darwin

package store

import "os"

func freeBytes(string) (int64, bool) { return 0, false }

func removeUnlocked(dir string) error { return os.RemoveAll(dir) }
