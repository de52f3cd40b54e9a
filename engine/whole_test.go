package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// All partitions of an application with exchanges move together: a last checkpoint, and the other member goes on.
func TestAllPartitionsMoveTogether(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.others = true
			a, b := w.member, w.join("i2")
			var losses int
			lis := &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
				if err != nil {
					losses++
				}
			}}
			var stops []func() error
			for _, m := range []*member{a, b} {
				cfg := m.config()
				set(&cfg)
				stops = append(stops, m.startPlan(exchangePlan(t, 2), cfg, m.ports(), lis))
			}
			from, to := a, b
			for range 5 {
				until := w.done() + 60
				w.produceUntil(func() bool { return w.done() > until })
				w.move(from, to, 5*time.Second, 0, 1, 2)
				from, to = to, from
			}
			w.outputs()
			for _, stop := range stops {
				require.NoError(t, stop())
			}
			w.exact()
			require.Zero(t, losses, "nothing was lost on the way")
		})
	}
}

// An instance that has only some of the partitions waits for the others.
func TestAnExchangeNeedsAllPartitions(t *testing.T) {
	w := newWorld(t, 3)
	w.assign(2)
	stop := w.startPlan(exchangePlan(t, 2), w.config(), w.ports(), nil)
	w.produce(100, 7)
	time.Sleep(100 * time.Millisecond)
	require.Zero(t, w.done())
	w.assign(3)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

// loopPlan sends every record once around a feedback edge within the process before it is counted.
func loopPlan(t *testing.T) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	loop := topology.NewFeedback(b, "again", serde.String(), serde.String(), topology.Parallelism(2))
	both := topology.Merge("both", in, loop.Stream())
	by := topology.GroupBy(both, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	first := topology.Filter(by, "first", func(_, v string) bool { return v == "x" })
	loop.From(topology.Map(first, "marked", func(_, _ string) string { return "again" }))
	second := topology.Filter(by, "second", func(_, v string) bool { return v == "again" })
	topology.ToTopic(topology.Count(second, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func TestFeedbackIsRefusedUnlessForced(t *testing.T) {
	w := newWorld(t, 1)
	_, err := New(loopPlan(t), w.config(), w.ports(), nil)
	require.ErrorContains(t, err, "again")
	require.ErrorContains(t, err, "checkpointing.force")
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
}

func TestRecordsGoAroundAFeedbackEdgeWhileCheckpointsAreTaken(t *testing.T) {
	w := newWorld(t, 2)
	cfg := w.config()
	cfg.ForceIterations, cfg.ChannelRecords = true, 8
	var checkpoints atomic.Int64
	stop := w.startPlan(loopPlan(t), cfg, w.ports(), &Listener{CheckpointCompleted: func(checkpoint.CheckpointStats) { checkpoints.Add(1) }})
	w.produce(1000, 7)
	w.produceUntil(func() bool { return checkpoints.Load() > 3 && w.total() >= 2000 })
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}
