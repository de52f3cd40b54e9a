//go:build !linux && !darwin

package store

import (
	"os"

	"github.com/millweir/millweir/internal/vfs"
)

func freeBytes(string) (int64, bool) { return 0, false }

func removeUnlocked(dir string) error { return os.RemoveAll(dir) }

// lockFile opens a file. Files that are open cannot be removed here.
func lockFile(name string, _ bool) (*os.File, error) {
	return vfs.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
}
