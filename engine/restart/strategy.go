package restart

import "time"

// strategy gives the delay before the next attempt. Times are durations since any fixed start and never go back.
type strategy interface {
	// running says that the present attempt has restored its state and processes records from now on.
	running(now time.Duration)
	// left says that the present attempt has ended and has not failed.
	left(now time.Duration)
	// failed says that the present attempt has failed.
	failed(now time.Duration) next
}

// next is what a strategy makes of a failure.
type next struct {
	delay  time.Duration
	reason string // why it gives up; "" = it does not
	fresh  bool   // what was before this failure is forgotten
}

// newStrategy makes the strategy of a checked configuration. random gives figures in [0, 1).
func newStrategy(c Config, random func() float64) strategy {
	c = c.WithDefaults()
	switch c.Strategy {
	case None:
		return none{}
	case FixedDelay:
		return &fixed{cfg: c.Fixed}
	case FailureRate:
		return &rate{cfg: c.Rate}
	}
	e := &exponential{cfg: c.Exponential, random: random, since: never}
	if e.cfg.Jitter < 0 {
		e.cfg.Jitter = 0
	}
	if e.cfg.Attempts < 0 {
		e.cfg.Attempts = unlimited
	}
	return e
}

// never is the time of what has not happened.
const never time.Duration = -1

type none struct{}

func (none) running(time.Duration) {}

func (none) left(time.Duration) {}

func (none) failed(time.Duration) next { return next{reason: "it restarts nothing"} }

// fixed restarts so many times in the life of the process; the count is never reset, as in Flink.
type fixed struct {
	cfg      Fixed
	restarts int
}

func (f *fixed) running(time.Duration) {}

func (f *fixed) left(time.Duration) {}

func (f *fixed) failed(time.Duration) next {
	if f.restarts >= f.cfg.Attempts {
		return next{reason: counted(f.cfg.Attempts, "restart") + " used up"}
	}
	f.restarts++
	return next{delay: f.cfg.Delay}
}

// rate gives up at the failure that makes one more than MaxFailures within Interval.
type rate struct {
	cfg    Rate
	recent []time.Duration // the newest failures, at most MaxFailures+1
	over   bool
}

func (r *rate) running(time.Duration) {}

func (r *rate) left(time.Duration) {}

func (r *rate) failed(now time.Duration) next {
	kept := r.recent[:0]
	for _, at := range r.recent {
		if now-at <= r.cfg.Interval {
			kept = append(kept, at)
		}
	}
	fresh := len(kept) == 0
	if r.recent = kept; len(kept) <= r.cfg.MaxFailures {
		r.recent = append(kept, now)
	}
	if r.over = r.over || len(r.recent) > r.cfg.MaxFailures; r.over {
		return next{reason: "more than " + counted(r.cfg.MaxFailures, "failure") + " within " + duration(r.cfg.Interval)}
	}
	return next{delay: r.cfg.Delay, fresh: fresh}
}

// exponential waits longer from failure to failure, until attempts have run for the threshold without one between.
type exponential struct {
	cfg      Exponential
	random   func() float64
	restarts int           // since the last reset
	backoff  time.Duration // the latest one, without jitter
	since    time.Duration // when the present attempt began to run
	ran      time.Duration // how long those before it ran that have left since the last failure
	over     bool
}

func (e *exponential) running(now time.Duration) {
	if e.since == never {
		e.since = now
	}
}

func (e *exponential) left(now time.Duration) {
	if e.since != never {
		e.ran += now - e.since
	}
	e.since = never
}

func (e *exponential) failed(now time.Duration) next {
	e.left(now)
	stable := e.ran >= e.cfg.ResetThreshold
	e.ran = 0
	if stable && !e.over {
		e.restarts = 0
	}
	if e.restarts >= e.cfg.Attempts {
		e.over = true
		return next{reason: counted(e.cfg.Attempts, "restart") + " used up, and no attempt ran for " + duration(e.cfg.ResetThreshold)}
	}
	fresh := e.restarts == 0
	e.restarts++
	if fresh {
		e.backoff = e.cfg.InitialBackoff
	} else {
		e.backoff = grown(e.backoff, e.cfg.Multiplier, e.cfg.MaxBackoff)
	}
	spread := (2*e.random() - 1) * e.cfg.Jitter * float64(e.backoff)
	delay := min(max(e.backoff+time.Duration(spread), e.cfg.InitialBackoff), e.cfg.MaxBackoff)
	return next{delay: delay, fresh: fresh}
}

// grown multiplies without leaving the range of a duration.
func grown(d time.Duration, factor float64, most time.Duration) time.Duration {
	if f := float64(d) * factor; f < float64(most) {
		return time.Duration(f)
	}
	return most
}
