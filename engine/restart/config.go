package restart

import (
	"fmt"
	"math"
	"time"

	"github.com/millweir/millweir/internal/rules"
)

// Kind names a restart strategy as the setting restart-strategy.type does.
type Kind string

// The strategies.
const (
	ExponentialDelay Kind = "exponential-delay"
	FixedDelay       Kind = "fixed-delay"
	FailureRate      Kind = "failure-rate"
	None             Kind = "none"
)

// Kinds are the strategies in the order of the reference page.
var Kinds = []Kind{ExponentialDelay, FixedDelay, FailureRate, None}

// Config chooses a strategy. The zero value is exponential-delay with Flink's defaults; a zero option means its default.
// Options of another strategy than the chosen one are a mistake, since they would have no effect.
type Config struct {
	// Strategy is restart-strategy.type. Default ExponentialDelay.
	Strategy Kind
	// Exponential, Fixed and Rate are the options below restart-strategy.exponential-delay, .fixed-delay and
	// .failure-rate.
	Exponential Exponential
	Fixed       Fixed
	Rate        Rate
	// SameRecord is restart-strategy.same-record-failures: so many failures at one and the same record end the service
	// with a verdict that names it, whatever the strategy. Default 10; negative: the guard is off.
	SameRecord int
}

// Exponential holds the options of exponential-delay: the delay grows with each failure until an attempt has run for
// ResetThreshold.
type Exponential struct {
	InitialBackoff time.Duration // Default 1 s.
	MaxBackoff     time.Duration // Default 1 min.
	Multiplier     float64       // backoff-multiplier. Default 1.5.
	// ResetThreshold is reset-backoff-threshold: an attempt that runs for so long makes the delay the initial one again
	// and the count of attempts zero. Default 1 h.
	ResetThreshold time.Duration
	// Jitter is jitter-factor: the share of the delay that is random, in either direction. Default 0.1; negative: none.
	Jitter float64
	// Attempts is attempts-before-reset-backoff: so many restarts without a reset in between, then it gives up.
	// Default and negative: unlimited.
	Attempts int
}

// Fixed holds the options of fixed-delay: so many restarts in all, each after the same delay.
type Fixed struct {
	Attempts int           // Default 1.
	Delay    time.Duration // Default 1 s.
}

// Rate holds the options of failure-rate: more failures than MaxFailures within Interval give up.
type Rate struct {
	MaxFailures int           // max-failures-per-interval. Default 1.
	Interval    time.Duration // failure-rate-interval. Default 1 min.
	Delay       time.Duration // Default 1 s.
}

// unlimited is a count that is never reached.
const unlimited = math.MaxInt

// WithDefaults fills in the options of the chosen strategy that are zero. The others stay zero.
func (c Config) WithDefaults() Config {
	orDefault(&c.Strategy, ExponentialDelay)
	orDefault(&c.SameRecord, 10)
	switch c.Strategy {
	case ExponentialDelay:
		e := &c.Exponential
		orDefault(&e.InitialBackoff, time.Second)
		orDefault(&e.MaxBackoff, time.Minute)
		orDefault(&e.Multiplier, 1.5)
		orDefault(&e.ResetThreshold, time.Hour)
		orDefault(&e.Jitter, 0.1)
		orDefault(&e.Attempts, -1)
	case FixedDelay:
		orDefault(&c.Fixed.Attempts, 1)
		orDefault(&c.Fixed.Delay, time.Second)
	case FailureRate:
		orDefault(&c.Rate.MaxFailures, 1)
		orDefault(&c.Rate.Interval, time.Minute)
		orDefault(&c.Rate.Delay, time.Second)
	}
	return c
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Problem is one mistake in a Config.
type Problem struct {
	// Option is the name below restart-strategy, for example fixed-delay.attempts.
	Option string
	Text   string
}

// Check gives every mistake; nil when there is none.
func (c Config) Check() []Problem {
	chosen := c
	orDefault(&chosen.Strategy, ExponentialDelay)
	var out []Problem
	add := func(option, format string, args ...any) {
		out = append(out, Problem{option, fmt.Sprintf(format, args...)})
	}
	known := false
	for _, k := range Kinds {
		known = known || k == chosen.Strategy
	}
	if !known {
		add("type", "unknown value %q; allowed: exponential-delay, fixed-delay, failure-rate, none", string(c.Strategy))
		return out
	}
	for _, o := range c.given() {
		if o.of != chosen.Strategy {
			add(o.name, "has no effect with restart-strategy.type %s; set the type to %s, or leave this out", chosen.Strategy, o.of)
		}
	}
	if len(out) > 0 {
		return out
	}
	d := c.WithDefaults()
	in := func(option string, value float64) {
		if text := rules.Check("restart-strategy."+option, value); text != "" {
			add(option, "%s", text)
		}
	}
	if d.SameRecord > 0 {
		in("same-record-failures", float64(d.SameRecord))
	}
	for _, o := range d.given() {
		if o.value >= 0 || !o.off {
			in(o.name, o.value)
		}
	}
	if e := d.Exponential; len(out) == 0 && e.MaxBackoff < e.InitialBackoff {
		add("exponential-delay.max-backoff", "%s is less than restart-strategy.exponential-delay.initial-backoff, which is %s",
			rules.Duration(e.MaxBackoff), rules.Duration(e.InitialBackoff))
	}
	return out
}

// option is one that is not zero.
type option struct {
	of    Kind
	name  string
	value float64 // durations in ms
	off   bool    // a negative value turns it off
}

// given lists the options of all strategies that are not zero.
func (c Config) given() []option {
	e, ms := c.Exponential, rules.MillisOf
	all := []option{
		{ExponentialDelay, "exponential-delay.initial-backoff", ms(e.InitialBackoff), false},
		{ExponentialDelay, "exponential-delay.max-backoff", ms(e.MaxBackoff), false},
		{ExponentialDelay, "exponential-delay.backoff-multiplier", e.Multiplier, false},
		{ExponentialDelay, "exponential-delay.reset-backoff-threshold", ms(e.ResetThreshold), false},
		{ExponentialDelay, "exponential-delay.jitter-factor", e.Jitter, true},
		{ExponentialDelay, "exponential-delay.attempts-before-reset-backoff", float64(e.Attempts), true},
		{FixedDelay, "fixed-delay.attempts", float64(c.Fixed.Attempts), false},
		{FixedDelay, "fixed-delay.delay", ms(c.Fixed.Delay), false},
		{FailureRate, "failure-rate.max-failures-per-interval", float64(c.Rate.MaxFailures), false},
		{FailureRate, "failure-rate.failure-rate-interval", ms(c.Rate.Interval), false},
		{FailureRate, "failure-rate.delay", ms(c.Rate.Delay), false},
	}
	var out []option
	for _, o := range all {
		if o.value != 0 {
			out = append(out, o)
		}
	}
	return out
}
