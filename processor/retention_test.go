package processor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/testbed"
)

// With checkpointing.retention a cancel keeps the checkpoints, and the next run goes on, or deletes them, and it starts
// empty at the committed offsets and says so. A stop by signal deletes nothing.
func TestCancelKeepsOrDeletesTheCheckpoints(t *testing.T) {
	testbed.Alongside(t)
	for retention, want := range map[Retention]int64{RetainOnCancellation: 20, DeleteOnCancellation: 10} {
		t.Run(string(retention), func(t *testing.T) {
			b := newBed(t)
			const app = "cancelled"
			var log logBuffer
			cfg := b.config()
			cfg.Retention, cfg.Logger, cfg.MemoryThreshold, cfg.CheckpointsDir = retention, log.logger(), -1, filepath.Join(b.dir, "checkpoints")
			started := make(chan *service, 2)
			cfg.started = func(x *service) { started <- x }
			stop := b.start(countByKey(t, app), cfg)
			s := <-started
			b.put(100)
			require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
			s.cancel(t.Context(), retention == DeleteOnCancellation)
			require.NoError(t, stop())
			var files []string
			require.NoError(t, filepath.WalkDir(cfg.CheckpointsDir, func(path string, d os.DirEntry, err error) error {
				if err == nil && strings.HasPrefix(d.Name(), "chk-") {
					files = append(files, path)
				}
				return err
			}))
			require.Equal(t, retention == DeleteOnCancellation, len(files) == 0, "%v", files)

			stop = b.start(countByKey(t, app), cfg)
			b.put(100)
			require.Eventually(t, func() bool { return len(b.counts()) >= 200 && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
			require.NoError(t, stop())
			highest := int64(0)
			for _, c := range b.counts() {
				highest = max(highest, c.n)
			}
			require.Equal(t, want, highest)
			require.Equal(t, retention == DeleteOnCancellation, log.count("starts without state") > 1)
		})
	}
}
