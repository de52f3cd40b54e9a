package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
)

// A barrier that overtakes does not wait for the whole of a parcel whose records are slow, whether it comes through a channel
// or was in flight at a restore.
func TestABarrierThatOvertakesWaitsForNoParcel(t *testing.T) {
	const each = 5 * time.Millisecond
	w := newWorld(t, 1)
	w.produce(3000, 17)
	var n, slowest atomic.Int64
	lis := &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		if s.Unaligned && s.Buffered > 0 {
			n.Add(1)
			slowest.Store(max(slowest.Load(), int64(s.EndToEnd)))
		}
	}}
	for range 2 {
		cfg := w.config()
		cfg.Unaligned, cfg.Interval, cfg.ShutdownTimeout = true, 20*time.Millisecond, 1
		n.Store(0)
		kill := w.startPlan(slowPlan(t, 1, each), cfg, w.ports(), lis)
		require.Eventually(t, func() bool { return n.Load() >= 5 }, 20*time.Second, time.Millisecond)
		require.NoError(t, kill())
	}
	require.Less(t, time.Duration(slowest.Load()), sliceRecords*each/2)
	stop := w.startPlan(slowPlan(t, 2, 0), w.config(), w.ports(), lis)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
	t.Logf("the slowest checkpoint took %v", time.Duration(slowest.Load()))
}
