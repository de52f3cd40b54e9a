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

// A process that was killed has filled the disk of the checkpoints with data without a root: the next one removes it and goes on.
func TestAStartFreesADiskThatAKilledProcessHasFilled(t *testing.T) {
	testbed.Alongside(t)
	disk := smallDisk(t)
	b := newBed(t)
	const app = "killed"
	cfg := b.config()
	cfg.InstanceID, cfg.CheckpointsDir = "a", filepath.Join(disk, "checkpoints")
	stop := b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())

	filler := filepath.Join(cfg.CheckpointsDir, app, "a", "chk-1000-0000000000000001.data")
	require.ErrorIs(t, os.WriteFile(filler, make([]byte, 8<<20), 0o600), syscall.ENOSPC)

	stop = b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 200 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	require.NoFileExists(t, filler)
}
