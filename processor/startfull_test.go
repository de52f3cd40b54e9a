//go:build linux

package processor

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

var bothModes = map[string]Mode{"exactly-once": ExactlyOnce, "at-least-once": AtLeastOnce}

// onSmallDisk is a configuration of instance a whose checkpoints are on a disk of their own that is soon full.
func onSmallDisk(t *testing.T, mode Mode) (b *bed, cfg Config, disk string) {
	t.Helper()
	testbed.Alongside(t)
	disk = smallDisk(t)
	b = newBed(t)
	cfg = b.config()
	cfg.Mode, cfg.InstanceID, cfg.CheckpointsDir = mode, "a", filepath.Join(disk, "checkpoints")
	return b, cfg, disk
}

// A process that was killed has filled the disk of the checkpoints with data without a root: the next one removes it and goes on.
func TestAStartFreesADiskThatAKilledProcessHasFilled(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			const app = "killed"
			b, cfg, _ := onSmallDisk(t, mode)
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
		})
	}
}

// fill makes a file longer until there is no room left.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
}

// Somebody else has filled the disk. Attempt after attempt fails with that reason, in the instance that runs and in one that starts,
// and when there is room it goes on by itself.
func TestAServiceWaitsForRoomOnADiskThatOthersHaveFilled(t *testing.T) {
	for name, mode := range bothModes {
		t.Run(name, func(t *testing.T) {
			const app = "waits"
			b, cfg, disk := onSmallDisk(t, mode)
			cfg.Restart.Exponential.InitialBackoff, cfg.Restart.Exponential.MaxBackoff = 10*time.Millisecond, 20*time.Millisecond
			failed := make(chan error, 100)
			cfg.Listener.AttemptEnded = func(_ int, err error, _ fault.Recovery, _ time.Duration) {
				select {
				case failed <- err:
				default:
				}
			}
			written := 0
			put := func() { b.put(10); written += 10 }
			done := func() {
				require.Eventually(t, func() bool { return b.lag(app) == 0 && len(b.counts()) >= written }, 30*time.Second, 20*time.Millisecond)
			}
			ballast := filepath.Join(disk, "ballast")
			fails := func() {
				for {
					fill(t, ballast) // again and again: files of checkpoints that are cleaned up make some room
					put()
					select {
					case err := <-failed:
						require.ErrorIs(t, err, syscall.ENOSPC)
						require.ErrorContains(t, err, "checkpoint directory "+cfg.CheckpointsDir+" is full: ")
						require.NotContains(t, err.Error(), "\n")
						return
					case <-time.After(200 * time.Millisecond):
					}
				}
			}
			for range 2 { // in an instance that runs, and in one that starts
				stop := b.start(countByKey(t, app), cfg)
				if written == 0 {
					put()
					done()
				}
				fails()
				require.NotZero(t, b.lag(app), "nothing is committed")
				require.NoError(t, os.Remove(ballast))
				done()
				require.NoError(t, stop())

				for len(failed) > 0 {
					<-failed
				}
				fill(t, ballast)
			}
			if mode == ExactlyOnce {
				require.Len(t, b.counts(), written, "nothing is lost, nothing repeated")
			}
			most := map[string]int64{}
			for _, c := range b.counts() {
				most[c.key] = max(most[c.key], c.n)
			}
			for key, n := range most {
				require.EqualValues(t, written/10, n, key)
			}
			require.Len(t, most, 10)
		})
	}
}
