package engine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// panicPlan counts, and panics at records for which it is told so.
func panicPlan(t *testing.T, now func(key string, seen int64) bool) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	var seen atomic.Int64
	step := topology.FilterRec(in, "step", func(r *topology.Rec[string, string]) (bool, error) {
		if now(fmt.Sprintf("%s@%d", r.Key, r.Offset), seen.Add(1)) {
			panic("planted")
		}
		return true, nil
	})
	topology.ToTopic(topology.Count(step, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func quickRestarts(c *Config) {
	c.Restart = restart.Config{SameRecord: -1, Exponential: restart.Exponential{InitialBackoff: 2 * time.Millisecond, MaxBackoff: 50 * time.Millisecond, Multiplier: 2, Attempts: 5, ResetThreshold: 10 * time.Second}}
}

// A record that always panics: growing waits, then the end, with the record and the first cause in the message, and nothing
// of its transaction visible.
func TestC49_APoisonRecordEndsTheServiceAfterTheAttemptsAllowed(t *testing.T) {
	for name, same := range map[string]int{"by the strategy": -1, "by the guard": 3} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			cfg := w.config()
			quickRestarts(&cfg)
			cfg.Restart.SameRecord = same
			var starts atomic.Int64
			var delays []time.Duration
			plan := panicPlan(t, func(at string, _ int64) bool { return at == "k1@50" })
			r, err := New(plan, cfg, w.ports(), &Listener{
				AttemptStarted: func(AttemptInfo) { starts.Add(1) },
				AttemptEnded:   func(_ int, _ error, _ fault.Recovery, d time.Duration) { delays = append(delays, d) },
			})
			require.NoError(t, err)
			w.produce(60, 7)
			err = r.Run(t.Context())
			require.ErrorContains(t, err, "in-0@50")
			require.ErrorContains(t, err, "panic: planted")
			require.Equal(t, fault.Stop, fault.RecoveryOf(err))
			require.Equal(t, fault.BadRecord, fault.CodeOf(err))
			require.LessOrEqual(t, starts.Load(), int64(6))
			require.Len(t, delays, map[bool]int{true: 6, false: 3}[same < 0])
			for i := 1; i < len(delays)-1; i++ {
				require.Greater(t, delays[i], delays[i-1], "waits grow: %v", delays)
			}
			require.LessOrEqual(t, w.done(), 50, "nothing behind the record is visible")
			s, err := r.Status(t.Context())
			require.NoError(t, err)
			require.Equal(t, Ended, s.State)
			require.NotEmpty(t, s.History)
			require.NotNil(t, s.History[len(s.History)-1].Verdict)
		})
	}
}

// A fault now and then never adds up to the end, since the attempts between are stable.
func TestC49_FaultsFarApartNeverGiveUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	cfg := w.config()
	quickRestarts(&cfg)
	cfg.Restart.Exponential.ResetThreshold = 5 * time.Millisecond
	var faults atomic.Int64
	next := time.Now().Add(20 * time.Millisecond)
	plan := panicPlan(t, func(string, int64) bool {
		if time.Now().Before(next) || faults.Load() == 20 {
			return false
		}
		faults.Add(1)
		next = time.Now().Add(30 * time.Millisecond)
		return true
	})
	stop := w.startPlan(plan, cfg, w.ports(), nil)
	w.produceUntil(func() bool { return faults.Load() == 20 })
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

// A fault that heals after the third attempt.
func TestC49_AFaultThatHealsIsGotOver(t *testing.T) {
	w := newWorld(t, 1)
	cfg := w.config()
	quickRestarts(&cfg)
	var faults atomic.Int64
	plan := panicPlan(t, func(at string, _ int64) bool { return at == "k1@50" && faults.Add(1) <= 3 })
	r, err := New(plan, cfg, w.ports(), nil)
	require.NoError(t, err)
	stop := w.run(r)
	w.produce(100, 7)
	w.outputs()
	s, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, s.Restarts)
	require.NoError(t, stop())
	w.exact()
}
