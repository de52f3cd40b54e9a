package restart

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want []Problem
	}{
		"an unknown strategy": {Config{Strategy: "fixed"}, []Problem{{"type", `unknown value "fixed"; allowed: exponential-delay, fixed-delay, failure-rate, none`}}},
		"options of another strategy": {Config{Strategy: FailureRate, Fixed: Fixed{Attempts: 3}, Exponential: Exponential{Jitter: -1}}, []Problem{
			{"exponential-delay.jitter-factor", "has no effect with restart-strategy.type failure-rate; set the type to exponential-delay, or leave this out"},
			{"fixed-delay.attempts", "has no effect with restart-strategy.type failure-rate; set the type to fixed-delay, or leave this out"}}},
		"options without a type": {Config{Fixed: Fixed{Delay: time.Second}}, []Problem{
			{"fixed-delay.delay", "has no effect with restart-strategy.type exponential-delay; set the type to fixed-delay, or leave this out"}}},
		"options of none": {Config{Strategy: None, Rate: Rate{Interval: 1}}, []Problem{
			{"failure-rate.failure-rate-interval", "has no effect with restart-strategy.type none; set the type to failure-rate, or leave this out"}}},
		"maximum below the initial backoff": {Config{Exponential: Exponential{InitialBackoff: 2 * time.Minute}}, []Problem{
			{"exponential-delay.max-backoff", "1m is less than restart-strategy.exponential-delay.initial-backoff, which is 2m"}}},
		"out of range": {Config{SameRecord: 1, Exponential: Exponential{InitialBackoff: -time.Second, Multiplier: 0.5, Jitter: 1.5, ResetThreshold: time.Microsecond}}, []Problem{
			{"same-record-failures", "1 is out of range: from 2 to 1000000"},
			{"exponential-delay.initial-backoff", "-1s is out of range: from 1ms to 24h"},
			{"exponential-delay.backoff-multiplier", "0.5 is out of range: from 1 to 100"},
			{"exponential-delay.reset-backoff-threshold", "1µs is out of range: from 1ms to 720h"},
			{"exponential-delay.jitter-factor", "1.5 is out of range: from 0 to 1"}}},
		"no number":  {Config{Exponential: Exponential{Multiplier: math.NaN()}}, []Problem{{"exponential-delay.backoff-multiplier", "NaN is out of range: from 1 to 100"}}},
		"fixed":      {Config{Strategy: FixedDelay, Fixed: Fixed{Attempts: -1, Delay: 48 * time.Hour}}, []Problem{{"fixed-delay.attempts", "-1 is out of range: from 1 to 1000000"}, {"fixed-delay.delay", "48h is out of range: from 1ms to 24h"}}},
		"rate":       {Config{Strategy: FailureRate, Rate: Rate{MaxFailures: 20_000}}, []Problem{{"failure-rate.max-failures-per-interval", "20000 is out of range: from 1 to 10000"}}},
		"nothing":    {Config{}, nil},
		"turned off": {Config{SameRecord: -1, Exponential: Exponential{Jitter: -1, Attempts: -1}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, c.cfg.Check())
			_, err := New(c.cfg, mid)
			require.Equal(t, len(c.want) > 0, err != nil)
			for _, p := range c.want {
				require.ErrorContains(t, err, "restart-strategy."+p.Option+": "+p.Text)
			}
		})
	}
}

func TestDefaultsAreFlinks(t *testing.T) {
	require.Equal(t, Config{Strategy: ExponentialDelay, SameRecord: 10, Exponential: Exponential{InitialBackoff: time.Second, MaxBackoff: time.Minute,
		Multiplier: 1.5, ResetThreshold: time.Hour, Jitter: 0.1, Attempts: -1}}, Config{}.WithDefaults())
	require.Equal(t, Config{Strategy: FixedDelay, SameRecord: 10, Fixed: Fixed{1, time.Second}}, Config{Strategy: FixedDelay}.WithDefaults())
	require.Equal(t, Config{Strategy: FailureRate, SameRecord: 10, Rate: Rate{1, time.Minute, time.Second}}, Config{Strategy: FailureRate}.WithDefaults())
	require.Equal(t, Config{Strategy: None, SameRecord: 10}, Config{Strategy: None}.WithDefaults())
}
