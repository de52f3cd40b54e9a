package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// endedTimersPlan has a source that ends, a timer for each of its records, behind an exchange or not, and a second source
// that goes on; all of it is counted behind a further exchange, by a step that takes pace.
func endedTimersPlan(t *testing.T, exchange bool, parallelism int, base time.Time, pace time.Duration) *topology.Plan {
	b := topology.New(app)
	byKey := func(in topology.Stream[string, string], step string) topology.Stream[string, string] {
		return topology.GroupBy(in, step, serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	}
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.EndAt(topology.EndLatest()))
	if exchange {
		in = byKey(in, "first")
	}
	timed := topology.Process(in, "timed", func() topology.Processor[string, string, int64] { return &alarm{base: base} })
	fired := topology.Map(timed, "fired", func(_ string, _ int64) string { return "x" })
	more := topology.Map(topology.FromTopic(b, "more", "more", serde.String(), serde.String()), "late", func(_, v string) string {
		time.Sleep(10 * pace) // its barriers come late
		return v
	})
	by := byKey(topology.Merge("both", fired, more), "by-key")
	slow := topology.Map(by, "slow", func(_, v string) string {
		time.Sleep(pace)
		return v
	})
	topology.ToTopic(topology.Count(slow, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// newEndsWorld has two partitions that end and two of another topic that do not.
func newEndsWorld(t *testing.T) *world {
	w := newWorld(t, 4)
	w.more = 2
	w.assign(4)
	return w
}

// Timers that fire behind the end of their task's input are records as others are: barriers stay behind them, and what they
// send is in flight. Each counts once, whatever is killed when.
func TestTimersBehindTheEndOfTheirInputCountOnce(t *testing.T) {
	for name, set := range modes {
		for _, exchange := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "/chained", true: "/exchange"}[exchange], func(t *testing.T) {
				t.Parallel()
				w := newEndsWorld(t)
				w.produce(600, 44)
				base := time.Now().Add(60 * time.Millisecond)
				for _, parallelism := range []int{2, 2, 3, 1} {
					cfg := w.config()
					set(&cfg)
					cfg.ShutdownTimeout = 1 // cut short
					kill := w.startPlan(endedTimersPlan(t, exchange, parallelism, base, time.Millisecond), cfg, w.ports(), nil)
					time.Sleep(100 * time.Millisecond)
					require.NoError(t, kill())
				}
				cfg := w.config()
				set(&cfg)
				stop := w.startPlan(endedTimersPlan(t, exchange, 2, base, 0), cfg, w.ports(), nil)
				w.outputs()
				time.Sleep(20 * time.Millisecond)
				require.NoError(t, stop())
				w.exact()
			})
		}
	}
}

// At least once nothing of it is missing.
func TestTimersBehindTheEndOfTheirInputAreNotLostAtLeastOnce(t *testing.T) {
	t.Parallel()
	w := newEndsWorld(t)
	w.loose()
	w.produce(600, 44)
	base := time.Now().Add(60 * time.Millisecond)
	for range 4 {
		cfg := w.config()
		cfg.AtLeastOnce, cfg.ShutdownTimeout = true, 1
		kill := w.startPlan(endedTimersPlan(t, true, 2, base, time.Millisecond), cfg, w.ports(), nil)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, kill())
	}
	cfg := w.config()
	cfg.AtLeastOnce = true
	stop := w.startPlan(endedTimersPlan(t, true, 2, base, 0), cfg, w.ports(), nil)
	require.Eventually(t, func() bool {
		greatest := w.greatest()
		for key, n := range w.inputs() {
			if greatest[key] < n {
				return false
			}
		}
		return true
	}, 5*time.Second, 5*time.Millisecond)
	require.NoError(t, stop())
}

// A bounded run does not wait for timers that are not due: they are in its last checkpoint, and the next run has them.
func TestABoundedRunLeavesTimersToTheNextOne(t *testing.T) {
	for _, name := range []string{"aligned", "unaligned"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, set := newWorld(t, 3), modes[name]
			w.produce(300, 11)
			base := time.Now().Add(800 * time.Millisecond)
			run := func() {
				cfg := w.config()
				set(&cfg)
				r, err := New(boundedTimerPlan(t, base), cfg, w.ports(), nil)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				require.NoError(t, r.Run(ctx))
				require.NoError(t, ctx.Err(), "it ended by itself")
			}
			run()
			require.Zero(t, w.done(), "no timer was due")
			require.True(t, time.Now().Before(base))
			time.Sleep(time.Until(base.Add(120 * time.Millisecond)))
			clear(w.ends) // a process starts
			run()
			require.Equal(t, 300, w.done(), "there is nothing to read, but timers are due")
			clear(w.ends)
			w.produce(30, 11)
			run()
			w.exact()
		})
	}
}

// A bounded run is not over while timers are due: they count as work before the piece of work that set them, or beside which they
// came due, is counted off, and before it is said that the input has ended. Else the last checkpoint could come in between.
func TestTimersThatAreDueAreWorkOfABoundedRun(t *testing.T) {
	timing := func(base time.Time) *hearing {
		h := newTiming(t, false, slowTimerPlan(t, false, base, 0))
		h.flow = &flow{}
		h.flow.watch()
		return h
	}
	empty := func(h *hearing) (n int) {
		for _, e := range h.events {
			if e.kind == evEmpty {
				n++
			}
		}
		return n
	}
	t.Run("behind the record that set them", func(t *testing.T) {
		h := timing(time.Now().Add(-time.Hour))
		h.give(0, 1)
		require.Equal(t, "records", h.turned())
		require.Zero(t, empty(h))
		require.EqualValues(t, 1, h.flow.n.Load())
		require.Equal(t, "timers", h.turned())
		require.Equal(t, 1, empty(h))
		require.Zero(t, h.flow.n.Load())
	})
	t.Run("at the end of the input", func(t *testing.T) {
		h := timing(time.Now().Add(-time.Hour))
		h.hasTimers = false // as if it came due a little later
		h.give(0, 1)
		require.Equal(t, "records", h.turned())
		require.Equal(t, 1, empty(h))
		h.hasTimers = true
		require.NoError(t, h.onEnd())
		require.Equal(t, evEnded, h.events[len(h.events)-1].kind)
		require.EqualValues(t, 1, h.flow.n.Load(), "it is counted when the loop hears of the end")
		require.Equal(t, "timers", h.turned())
		require.Equal(t, 2, empty(h))
		require.Zero(t, h.flow.n.Load())
	})
	t.Run("before anything runs", func(t *testing.T) {
		h := timing(time.Now().Add(-time.Hour))
		h.hasTimers = false // as if it was restored with the timer
		h.give(0, 1)
		require.Equal(t, "records", h.turned())
		h.hasTimers = true
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // the task itself does nothing
		a := &attempt{ctx: ctx, source: &worldSource{}}
		a.startTask(&owned{task: h.task})
		a.wg.Wait()
		require.EqualValues(t, 1, h.flow.n.Load())
	})
}

// The same with everything in place: timers that are due fire in the run that set them.
func TestABoundedRunFiresTheTimersThatAreDue(t *testing.T) {
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3)
			w.produce(300, 11)
			cfg := w.config()
			set(&cfg)
			r, err := New(boundedTimerPlan(t, time.Now().Add(-time.Hour)), cfg, w.ports(), nil)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, r.Run(ctx))
			require.NoError(t, ctx.Err(), "it ended by itself")
			w.exact()
		})
	}
}

// boundedTimerPlan reads what is there, over two exchanges with timers in between.
func boundedTimerPlan(t *testing.T, base time.Time) *topology.Plan {
	b := topology.New(app)
	byKey := func(in topology.Stream[string, string], step string) topology.Stream[string, string] {
		return topology.GroupBy(in, step, serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	}
	in := byKey(topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.EndAt(topology.EndLatest())), "first")
	timed := topology.Process(in, "timed", func() topology.Processor[string, string, int64] { return &alarm{base: base} })
	fired := topology.Map(timed, "fired", func(_ string, _ int64) string { return "x" })
	topology.ToTopic(topology.Count(byKey(fired, "by-key"), "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}
