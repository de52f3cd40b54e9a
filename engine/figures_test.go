package engine

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/snapshot"
)

// The statistics of a running engine are of what happens in it: barriers that wait behind slow records are late, inputs
// wait for each other, a freeze takes time, and the full size is that of all runs which the root names.
func TestFiguresAreOfWhatHappens(t *testing.T) {
	t.Parallel()
	const each = 2 * time.Millisecond
	w := newWorld(t, 2)
	w.produce(600, 40)
	var mu sync.Mutex
	var all []checkpoint.CheckpointStats
	cfg := w.config()
	cfg.ChannelRecords = 16
	stop := w.startPlan(slowPlan(t, 2, each), cfg, w.ports(), &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
	}})
	w.outputs()
	require.NoError(t, stop())
	mu.Lock()
	defer mu.Unlock()
	var delay, alignment, sync time.Duration
	grown := false
	for _, s := range all {
		require.LessOrEqual(t, s.StartDelay, s.Barriers)
		require.LessOrEqual(t, s.Alignment, s.Barriers)
		require.LessOrEqual(t, s.Sync, s.EndToEnd)
		require.GreaterOrEqual(t, s.FullBytes, s.DeltaBytes)
		delay, alignment, sync = max(delay, s.StartDelay), max(alignment, s.Alignment), max(sync, s.Sync)
		grown = grown || s.DeltaBytes > 0 && s.FullBytes > s.DeltaBytes
	}
	require.Greater(t, delay, each, "barriers pass no full channel")
	require.Greater(t, alignment, 10*time.Microsecond, "two inputs whose barriers never come at the same time")
	require.Greater(t, sync, 100*time.Nanosecond)
	require.True(t, grown, "no checkpoint is built on older runs")

	w.mu.Lock()
	text := w.committed[tp(0)].Metadata
	w.mu.Unlock()
	h, err := snapshot.ParseHandle(text)
	require.NoError(t, err)
	root, err := w.repo.ReadRoot(t.Context(), h.Root)
	require.NoError(t, err)
	var named int64
	for _, e := range root.Tasks {
		named += e.RunBytes()
	}
	last := all[len(all)-1]
	require.Equal(t, h.Root.Name.ID, last.ID)
	require.Equal(t, named, last.FullBytes)
}
