//go:build linux

package processor

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/testbed"
)

// smallDisk is a file system of 4 MiB; the test is skipped where none can be mounted.
func smallDisk(t *testing.T) string {
	t.Helper()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("no mount:", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	return disk
}

// The checkpoints have filled their disk: to delete them needs no room, and is what makes some.
func TestAResetFreesAFullDisk(t *testing.T) {
	testbed.Alongside(t)
	disk := smallDisk(t)
	b := newBed(t)
	const app = "filled"
	cfg := b.config()
	cfg.CheckpointsDir = filepath.Join(disk, "checkpoints")
	stop := b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	require.ErrorIs(t, os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 8<<20), 0o600), syscall.ENOSPC)

	r, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.NotZero(t, r.Files)
	require.NoError(t, r.Do(t.Context()))
	require.NoDirExists(t, filepath.Join(cfg.CheckpointsDir, app))
}
