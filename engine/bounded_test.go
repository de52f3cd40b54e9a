package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// boundedPlan counts what is in the topic when the run begins; parallelism 0: without an exchange.
func boundedPlan(t *testing.T, parallelism int) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.EndAt(topology.EndLatest()))
	if parallelism > 0 {
		in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	}
	slow := topology.Map(in, "slow", func(_, v string) string {
		time.Sleep(time.Duration(boundedPace.Load()))
		return v
	})
	topology.ToTopic(topology.Count(slow, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// boundedPace is how long a record of a boundedPlan takes.
var boundedPace atomic.Int64

// A bounded run ends by itself with everything committed, also over kills; what came later is for the next run.
func TestABoundedRunEndsByItself(t *testing.T) {
	for name, set := range modes {
		for _, parallelism := range []int{0, 3} {
			t.Run(name+map[bool]string{true: "/chained", false: "/exchange"}[parallelism == 0], func(t *testing.T) {
				w := newWorld(t, 3)
				w.produce(500, 11)
				cfg := w.config()
				set(&cfg)
				cfg.ChannelRecords = 4
				boundedPace.Store(int64(5 * time.Millisecond))
				defer boundedPace.Store(0)
				for range 2 { // cut short
					killed := cfg
					killed.ShutdownTimeout = 1
					kill := w.startPlan(boundedPlan(t, parallelism), killed, w.ports(), nil)
					for until := w.done() + 40; w.done() < until; {
						time.Sleep(time.Millisecond)
					}
					require.NoError(t, kill())
					w.produce(20, 11) // behind the end
				}
				boundedPace.Store(0)
				var over atomic.Bool
				r, err := New(boundedPlan(t, parallelism), cfg, w.ports(), &Listener{Finished: func(o bool) { over.Store(o) }})
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				require.NoError(t, r.Run(ctx))
				require.NoError(t, ctx.Err(), "it ended by itself")
				require.True(t, over.Load())
				require.Equal(t, 500, w.done(), "what lies before the ends, and nothing else")
				r, err = New(boundedPlan(t, parallelism), cfg, w.ports(), nil)
				require.NoError(t, err)
				require.NoError(t, r.Run(ctx)) // one that stood by finds the same ends
				require.Equal(t, 500, w.done())
				clear(w.ends) // a process starts
				r, err = New(boundedPlan(t, parallelism), cfg, w.ports(), nil)
				require.NoError(t, err)
				require.NoError(t, r.Run(ctx)) // the next run has the rest
				w.exact()
			})
		}
	}
}

// Nothing to read is also a run.
func TestABoundedRunOverNothingEnds(t *testing.T) {
	for _, parallelism := range []int{0, 2} {
		w := newWorld(t, 2)
		r, err := New(boundedPlan(t, parallelism), w.config(), w.ports(), nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.NoError(t, r.Run(ctx))
		require.NoError(t, ctx.Err())
	}
}

// Barriers go on meeting when one of the inputs has ended: its partitions are those of the even numbers here.
func TestC50_CheckpointsGoOnWhenAnInputHasEnded(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.produce(200, 8)
			w.mu.Lock()
			w.ends[tp(0)], w.ends[tp(2)] = int64(len(w.logs[0])), int64(len(w.logs[2]))
			w.ends[tp(1)], w.ends[tp(3)] = 1<<40, 1<<40
			w.mu.Unlock()
			var completed atomic.Int64
			cfg := w.config()
			set(&cfg)
			cfg.CheckpointTimeout = 5 * time.Second
			stop := w.startPlan(boundedPlan(t, 2), cfg, w.ports(), &Listener{CheckpointCompleted: func(checkpoint.CheckpointStats) { completed.Add(1) }})
			w.outputs()
			before := completed.Load()
			deadline := time.Now().Add(10 * time.Second)
			for piece := 0; piece < 20 || completed.Load() <= before+3; piece++ { // only to partitions that have not ended
				require.True(t, time.Now().Before(deadline), "checkpoints do not go on")
				w.mu.Lock()
				for _, p := range []int{1, 3} {
					rec := w.logs[p][0]
					rec.Offset = int64(len(w.logs[p]))
					w.logs[p] = append(w.logs[p], rec)
				}
				close(w.grew)
				w.grew = make(chan struct{})
				w.mu.Unlock()
				time.Sleep(5 * time.Millisecond)
			}
			w.outputs()
			w.caughtUp()
			require.NoError(t, stop())
			w.exact()
		})
	}
}

// What lies before the end of an input does not hold up a barrier that overtakes.
func TestC50_AnUnalignedBarrierOvertakesWhatIsLeftOfEndedInputs(t *testing.T) {
	w := newWorld(t, 3)
	w.produce(300, 11)
	cfg := w.config()
	cfg.Unaligned, cfg.ChannelRecords = true, 10_000
	boundedPace.Store(int64(5 * time.Millisecond))
	defer boundedPace.Store(0)
	var buffered atomic.Int64
	stop := w.startPlan(boundedPlan(t, 2), cfg, w.ports(), &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		if s.Unaligned {
			buffered.Store(max(buffered.Load(), s.Buffered))
		}
	}})
	require.Eventually(t, func() bool { return buffered.Load() > 150 }, 5*time.Second, time.Millisecond)
	boundedPace.Store(0)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}
