//go:build linux

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The file system has bytes but no inode left: Badger cannot make its next file and tries for ever.
func TestNoInodesLeftDoNotHoldUpTheStop(t *testing.T) {
	for name, flushed := range map[string]bool{"noticed by a flush": true, "noticed at the end": false} {
		t.Run(name, func(t *testing.T) {
			disk := t.TempDir()
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=160m,nr_inodes=40"); err != nil {
				t.Skip("no mount:", err)
			}
			defer func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }()
			f := newLocalFixture(t)
			require.NoError(t, f.local.Close())
			f.cfg.Dir, f.cfg.memTable = disk, 4<<20
			f.open()
			require.False(t, f.local.Stats().Disabled)
			f.begin()
			f.kilobytes(500)
			f.flush()
			var err error
			for i := 0; err == nil; i++ {
				err = os.WriteFile(filepath.Join(disk, fmt.Sprint("filler-", i)), nil, 0o600)
			}
			require.ErrorIs(t, err, syscall.ENOSPC)
			if flushed {
				f.kilobytes(9000)
				require.ErrorIs(t, f.local.Flush(t.Context()), syscall.ENOSPC)
			}
			f.closesSoon()
			require.Contains(t, f.log.String(), "is not closed")
		})
	}
}
