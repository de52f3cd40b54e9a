package restart

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// life is what happens to one attempt.
type life struct {
	wait, restore, run time.Duration
	runs               bool
	offset             int64 // of the record it fails at, -1 = none
}

func lives(t *rapid.T) []life {
	ms := func(most int, name string) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, name)) * time.Millisecond
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) life {
		return life{ms(200, "wait"), ms(200, "restore"), ms(2000, "run"), rapid.Bool().Draw(t, "runs"), rapid.Int64Range(-1, 3).Draw(t, "offset")}
	}), 1, 60).Draw(t, "lives")
}

func config(t *rapid.T) Config {
	ms := func(from, to int, name string) time.Duration {
		return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Millisecond
	}
	c := Config{Strategy: rapid.SampledFrom(Kinds).Draw(t, "strategy"), SameRecord: rapid.SampledFrom([]int{-1, 2, 3, 10}).Draw(t, "same")}
	switch c.Strategy {
	case ExponentialDelay:
		initial := ms(1, 300, "initial")
		c.Exponential = Exponential{InitialBackoff: initial, MaxBackoff: initial + ms(0, 3000, "above"), Multiplier: rapid.Float64Range(1, 4).Draw(t, "multiplier"),
			ResetThreshold: ms(1, 1500, "reset"), Jitter: rapid.SampledFrom([]float64{-1, 0.1, 0.5, 1}).Draw(t, "jitter"), Attempts: rapid.SampledFrom([]int{-1, 1, 4}).Draw(t, "attempts")}
	case FixedDelay:
		c.Fixed = Fixed{rapid.IntRange(1, 8).Draw(t, "attempts"), ms(1, 500, "delay")}
	case FailureRate:
		c.Rate = Rate{rapid.IntRange(1, 5).Draw(t, "failures"), ms(1, 4000, "interval"), ms(1, 500, "delay")}
	}
	return c
}

// oracle says by looking back over all that happened, which is what the strategies avoid, whether it is time to give up.
type oracle struct {
	cfg      Config
	failures []time.Duration
	stable   []bool // whether the attempt that ended with the failure was
	at       map[int64]int
}

// givesUp takes one more failure.
func (o *oracle) givesUp(now time.Duration, stable bool, offset int64) (strategy, poison bool, sinceReset int) {
	o.failures, o.stable = append(o.failures, now), append(o.stable, stable)
	if offset >= 0 {
		o.at[offset]++
		poison = o.cfg.SameRecord > 0 && o.at[offset] >= o.cfg.SameRecord
	}
	for i := len(o.stable) - 1; i >= 0; i-- {
		if sinceReset++; o.stable[i] {
			break
		}
	}
	switch o.cfg.Strategy {
	case None:
		strategy = true
	case FixedDelay:
		strategy = len(o.failures) > o.cfg.Fixed.Attempts
	case FailureRate:
		within := 0
		for _, f := range o.failures {
			if now-f <= o.cfg.Rate.Interval {
				within++
			}
		}
		strategy = within > o.cfg.Rate.MaxFailures
	case ExponentialDelay:
		strategy = o.cfg.Exponential.Attempts > 0 && sinceReset > o.cfg.Exponential.Attempts
	}
	return strategy, poison, sinceReset
}

func TestPolicyAgainstTheWholeHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := config(rt)
		random := func() float64 { return rapid.Float64Range(0, 0.999).Draw(rt, "random") }
		p, err := New(c, random)
		require.NoError(rt, err)
		o := oracle{cfg: c, at: map[int64]int{}}
		now := time.Duration(0)
		for n, l := range lives(rt) {
			now += l.wait
			p.Started(now)
			now += l.restore
			if l.runs {
				p.Running(now)
				now += l.run
			}
			stable := l.runs && l.run >= c.Exponential.ResetThreshold
			cause := errors.New("broken")
			if l.offset >= 0 {
				cause = badRecord(l.offset, cause)
			}
			byStrategy, poison, sinceReset := o.givesUp(now, stable, l.offset)
			delay, v := p.Failed(now, cause)
			require.Equal(rt, byStrategy || poison, v != nil, "failure %d", n)
			if v != nil {
				require.Equal(rt, poison, v.Poison)
				require.Equal(rt, byStrategy, v.Reason != "")
				require.Equal(rt, n, p.Restarts())
				require.NotEmpty(rt, v.Error())
				require.ErrorIs(rt, v, cause)
				return
			}
			requireDelay(rt, c, sinceReset, delay)
			require.Equal(rt, n+1, p.Restarts())
			require.LessOrEqual(rt, len(p.History()), HistorySize)
			now += delay
		}
	})
}

func requireDelay(t *rapid.T, c Config, nth int, delay time.Duration) {
	switch c.Strategy {
	case FixedDelay:
		require.Equal(t, c.Fixed.Delay, delay)
	case FailureRate:
		require.Equal(t, c.Rate.Delay, delay)
	case ExponentialDelay:
		e := c.Exponential
		exact := float64(e.InitialBackoff)
		for range nth - 1 {
			exact = min(exact*e.Multiplier, float64(e.MaxBackoff))
		}
		slack := exact*max(e.Jitter, 0) + float64(nth) // a nanosecond is cut off at each step
		slack *= 1 + 1e-6
		if lo := max(float64(e.InitialBackoff), exact-slack-1e3); float64(delay) < lo-1 {
			t.Fatalf("delay %s after %d failures is below %s", delay, nth, time.Duration(lo))
		}
		if hi := min(float64(e.MaxBackoff), exact+slack+1e3); float64(delay) > hi+1 {
			t.Fatalf("delay %s after %d failures is above %s", delay, nth, time.Duration(hi))
		}
	}
}
