package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
)

// A barrier that overtakes does not wait for the whole of a parcel whose records are slow, whether it comes through a channel
// or was in flight at a restore.
func TestABarrierThatOvertakesWaitsForNoParcel(t *testing.T) {
	t.Parallel()
	const each = 5 * time.Millisecond
	w := newWorld(t, 1)
	w.produce(3000, 17)
	var n, slowest atomic.Int64
	lis := &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		if s.Unaligned && s.Buffered > 0 {
			n.Add(1)
			slowest.Store(max(slowest.Load(), int64(s.StartDelay)))
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

// What is in flight does not grow from restart to restart: while a subtask has as much to take again as a channel holds,
// nobody sends to it.
func TestWhatIsInFlightStaysBoundedOverRestarts(t *testing.T) {
	t.Parallel()
	const partitions, limit = 2, 64
	w := newWorld(t, partitions)
	w.produce(9000, 17)
	var n, most atomic.Int64
	lis := &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		if s.Unaligned && s.Buffered > limit {
			n.Add(1)
			most.Store(max(most.Load(), s.Buffered))
		}
	}}
	for round := range 8 {
		cfg := w.config()
		cfg.Unaligned, cfg.Interval, cfg.ChannelRecords, cfg.ShutdownTimeout = true, 5*time.Millisecond, limit, 1
		n.Store(0)
		kill := w.startPlan(slowPlan(t, 1, 2*time.Millisecond), cfg, w.ports(), lis)
		require.Eventually(t, func() bool { return n.Load() >= 5 }, 10*time.Second, time.Millisecond)
		require.NoError(t, kill())
		t.Logf("round %d: %d records in flight at most", round, most.Load())
	}
	// A channel gives credit below its limit, for a delivery of up to 20 records of this world.
	require.LessOrEqual(t, most.Load(), int64(partitions*(limit+20)+limit))
	stop := w.startPlan(slowPlan(t, 3, 0), w.config(), w.ports(), lis)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

// However many records there are: a turn has some that together are few bytes, and one that is more by itself.
func TestATurnIsBoundedInBytes(t *testing.T) {
	of := func(sizes ...int) (recs []element.Record) {
		for _, n := range sizes {
			recs = append(recs, element.Record{Key: make([]byte, n/2), Value: make([]byte, n-n/2)})
		}
		return recs
	}
	require.Equal(t, 0, bounded(nil, 5))
	require.Equal(t, 3, bounded(of(1, 1, 1), 5))
	require.Equal(t, 2, bounded(of(1, 1, 1), 2))
	require.Equal(t, 2, bounded(of(sliceBytes-1, 1, 1), 5))
	require.Equal(t, 1, bounded(of(sliceBytes, 1), 5))
	require.Equal(t, 1, bounded(of(10*sliceBytes, 10*sliceBytes), 5))
}
