package processor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// failing runs a service whose user code fails at the first record, each time after a while, until it gives up.
func failing(t *testing.T, cfg restart.Config, after time.Duration) (delays []time.Duration, err error) {
	s := newSettled(t)
	s.cfg.Restart = cfg
	s.work = func(string) error {
		time.Sleep(after)
		return errors.New("no luck")
	}
	s.put(1)
	done := make(chan error, 1)
	go func() { done <- Run(t.Context(), s.plan(0), s.cfg) }()
	select {
	case err = <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("the service does not give up")
	}
	require.ErrorContains(t, err, "no luck")
	for _, e := range s.failures() {
		delays = append(delays, e.delay)
	}
	return delays, err
}

// Every option of every strategy shows in the delays of a service that always fails; 0 is that of the last attempt.
func TestSettingRestartStrategy(t *testing.T) {
	testbed.Alongside(t)
	const ms = time.Millisecond
	exponential := func(e restart.Exponential) restart.Config {
		return restart.Config{Strategy: restart.ExponentialDelay, Exponential: e}
	}
	for name, c := range map[string]struct {
		cfg   restart.Config
		after time.Duration
		want  []time.Duration
	}{
		"none":                         {restart.Config{Strategy: restart.None}, 0, []time.Duration{0}},
		"fixed-delay":                  {restart.Config{Strategy: restart.FixedDelay, Fixed: restart.Fixed{Attempts: 2, Delay: 30 * ms}}, 0, []time.Duration{30 * ms, 30 * ms, 0}},
		"fixed-delay: another":         {restart.Config{Strategy: restart.FixedDelay, Fixed: restart.Fixed{Attempts: 1, Delay: 50 * ms}}, 0, []time.Duration{50 * ms, 0}},
		"failure-rate":                 {restart.Config{Strategy: restart.FailureRate, Rate: restart.Rate{MaxFailures: 2, Delay: 20 * ms}}, 0, []time.Duration{20 * ms, 20 * ms, 0}},
		"failure-rate: a short time":   {restart.Config{Strategy: restart.FailureRate, Rate: restart.Rate{MaxFailures: 1, Interval: 50 * ms, Delay: 100 * ms}, SameRecord: 4}, 0, []time.Duration{100 * ms, 100 * ms, 100 * ms, 0}},
		"exponential-delay":            {exponential(restart.Exponential{InitialBackoff: 10 * ms, MaxBackoff: 35 * ms, Multiplier: 2, Jitter: -1, Attempts: 4}), 0, []time.Duration{10 * ms, 20 * ms, 35 * ms, 35 * ms, 0}},
		"exponential-delay: reset":     {exponential(restart.Exponential{InitialBackoff: 10 * ms, Multiplier: 3, Jitter: -1, ResetThreshold: 30 * ms, Attempts: 2}), 60 * ms, []time.Duration{10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 10 * ms, 0}},
		"exponential-delay: no reset":  {exponential(restart.Exponential{InitialBackoff: 10 * ms, Multiplier: 3, Jitter: -1, Attempts: 2}), 60 * ms, []time.Duration{10 * ms, 30 * ms, 0}},
		"same-record-failures":         {restart.Config{Exponential: restart.Exponential{InitialBackoff: ms, MaxBackoff: ms, Jitter: -1}, SameRecord: 3}, 0, []time.Duration{ms, ms, 0}},
		"same-record-failures default": {restart.Config{Exponential: restart.Exponential{InitialBackoff: ms, MaxBackoff: ms, Jitter: -1}}, 0, []time.Duration{ms, ms, ms, ms, ms, ms, ms, ms, ms, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			delays, _ := failing(t, c.cfg, c.after)
			require.Equal(t, c.want, delays)
		})
	}
	t.Run("exponential-delay: jitter", func(t *testing.T) { // one half of the delays is the least one, where jitter goes below
		cfg := exponential(restart.Exponential{InitialBackoff: 4 * ms, MaxBackoff: time.Second, Multiplier: 1, Jitter: 0.9, Attempts: 30})
		cfg.SameRecord = -1
		delays, _ := failing(t, cfg, 0)
		require.Len(t, delays, 31)
		other := false
		for _, d := range delays[:len(delays)-1] {
			require.True(t, 4*ms <= d && d <= 8*ms, d)
			other = other || d != 4*ms
		}
		require.True(t, other, "%v", delays)
	})
}

// A feedback edge within the process is refused unless it is forced; then a run says what may be lost.
func TestSettingForce(t *testing.T) {
	for _, force := range []bool{false, true} {
		s := newSettled(t)
		var log logBuffer
		s.cfg.ForceIterations, s.cfg.Logger = force, log.logger()
		b := topology.New(s.app)
		in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String())
		again := topology.NewFeedback(b, "again", serde.String(), serde.String())
		all := topology.Map(topology.Merge("all", in, again.Stream()), "longer", func(_, v string) string { return v + "." })
		again.From(topology.Filter(all, "short", func(_, v string) bool { return len(v) < 4 }))
		long := topology.Filter(all, "long", func(_, v string) bool { return len(v) >= 4 })
		topology.ToTopic(long, "out", outTopic(), serde.String(), serde.String())
		plan, err := b.Plan()
		require.NoError(t, err)
		if !force {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			require.ErrorContains(t, Run(ctx, plan, s.cfg), "checkpointing.force")
			cancel()
			continue
		}
		s.cfg.AdminListen = "127.0.0.1:0"
		s.put(10)
		stop := s.start(plan, s.cfg)
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "all is committed")
		require.Contains(t, outside{t, s.cfg.DataDir}.metrics("feedback_records"), "", "the start says that they are counted")
		require.NoError(t, stop())
		require.NotZero(t, log.count("checkpointing.force: true"))
	}
}
