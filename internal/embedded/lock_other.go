//go:build !unix

package embedded

import (
	"os"
	"path/filepath"

	"github.com/millweir/millweir/internal/vfs"
)

// lockDir opens the lock file. These systems have no advisory lock in the standard library: the listener's port is
// the only guard against a second broker there.
func lockDir(dir string) (*os.File, error) {
	return vfs.OpenFile(filepath.Join(dir, "broker.lock"), os.O_CREATE|os.O_RDWR, 0o644)
}
