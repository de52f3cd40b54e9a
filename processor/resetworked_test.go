package processor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// Between the plan of a reset, which is asked about, and its doing an instance has started, worked and ended. What it has done
// was not in the plan, and stays.
func TestAResetOfWhatWasNotThereIsRefused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "planned"
	cfg := b.config()
	cfg.CheckpointsDir, cfg.MemoryThreshold = filepath.Join(b.dir, "checkpoints"), -1
	work := func(all int) {
		stop := b.start(countByKey(t, app), cfg)
		b.put(100)
		require.Eventually(t, func() bool { return len(b.counts()) >= all && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
	}
	work(100)
	early, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	work(200)
	late, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	err = early.Do(t.Context())
	require.Equal(t, fault.GroupActive, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "nothing is deleted: ")
	again, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.Equal(t, late, again)
	require.NoError(t, again.Do(t.Context()))
	gone, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.True(t, gone.Empty())
}
