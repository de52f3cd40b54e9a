package restart

import (
	"errors"
	"fmt"
	"time"
)

// HistorySize is the number of attempts that the history keeps.
const HistorySize = 16

// Attempt is one attempt in the history. Times are the caller's: durations since a fixed start.
type Attempt struct {
	Number  int // from 1
	Started time.Duration
	Running time.Duration // when it had restored its state and processed records; -1 = it never did
	Ended   time.Duration // -1 = it goes on
	// Cause is what it ended of, nil while it goes on and after a stop in order. Record is the record it failed at, nil when it
	// was none.
	Cause  error
	Record *Record
	// Another says that an attempt was to follow, after Delay; Counted that the strategy has counted this one as failed. Verdict is
	// set when it gave up.
	Another bool
	Counted bool
	Delay   time.Duration
	Verdict *Verdict
}

// Policy counts attempts and decides what follows a failed one. It is used by one goroutine.
type Policy struct {
	kind     Kind
	strategy strategy
	guard    guard
	history  []Attempt
	number   int
	restarts int
	first    error // of the failures that the strategy has not forgotten
}

// New makes a policy. random gives figures in [0, 1), for the jitter. The error lists every mistake of cfg.
func New(cfg Config, random func() float64) (*Policy, error) {
	var errs []error
	for _, p := range cfg.Check() {
		errs = append(errs, fmt.Errorf("restart-strategy.%s: %s", p.Option, p.Text))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	cfg = cfg.WithDefaults()
	return &Policy{kind: cfg.Strategy, strategy: newStrategy(cfg, random), guard: guard{limit: max(cfg.SameRecord, 0)}}, nil
}

// Started says that an attempt begins, with the wait for partitions and the restore still before it.
func (p *Policy) Started(now time.Duration) {
	p.number++
	if len(p.history) == HistorySize {
		p.history = append(p.history[:0], p.history[1:]...)
	}
	p.history = append(p.history, Attempt{Number: p.number, Started: now, Running: never, Ended: never})
}

// Running says that the attempt has restored its state and processes records. Only the first call of an attempt counts.
func (p *Policy) Running(now time.Duration) {
	p.strategy.running(now)
	if a := p.current(); a != nil && a.Running == never {
		a.Running = now
	}
}

// Ended says that the attempt is over and none follows, whatever the strategy thinks: after a stop (cause is nil when it was in
// order), or of a cause that no attempt can cure. Nothing is counted.
func (p *Policy) Ended(now time.Duration, cause error) {
	if a := p.current(); a != nil {
		a.Cause = cause
		p.end(a, now)
	}
}

// Left says that the attempt is over for a reason that is no failure, such as a new assignment, and that another one follows
// after a delay, which is the caller's. Nothing is counted.
func (p *Policy) Left(now time.Duration, cause error, delay time.Duration) {
	if a := p.current(); a != nil {
		a.Cause, a.Another, a.Delay = cause, true, delay
		p.end(a, now)
		p.strategy.left(now)
	}
}

func (p *Policy) end(a *Attempt, now time.Duration) {
	a.Ended = now
	if a.Running != never {
		p.guard.passed(now - a.Running)
	}
}

// Failed says that the attempt has failed of cause, which is not nil. It gives the wait before the next attempt, or the
// verdict when there is to be none.
func (p *Policy) Failed(now time.Duration, cause error) (time.Duration, *Verdict) {
	if p.current() == nil {
		p.Started(now)
	}
	a := p.current()
	a.Cause, a.Counted = cause, true
	p.end(a, now)
	n := p.strategy.failed(now)
	if n.fresh || p.first == nil {
		p.first = cause
	}
	v := &Verdict{Strategy: p.kind, Reason: n.reason, Restarts: p.restarts, First: p.first, Last: cause}
	if r, ok := RecordOf(cause); ok {
		a.Record = &r
		s := p.guard.failed(r, cause)
		v.Record, v.Failures = &r, s.failures
		if p.guard.condemns(s) {
			v.Poison = true
		}
		if v.Poison || s.failures > 1 {
			v.First = s.first
		}
	}
	if v.Poison || v.Reason != "" {
		a.Verdict = v
		return 0, v
	}
	a.Delay, a.Another = n.delay, true
	p.restarts++
	return n.delay, nil
}

// Restarts is the number of restarts that have been decided.
func (p *Policy) Restarts() int { return p.restarts }

// History gives the newest attempts, the oldest first, at most HistorySize.
func (p *Policy) History() []Attempt { return append([]Attempt(nil), p.history...) }

// current is the attempt that goes on.
func (p *Policy) current() *Attempt {
	if n := len(p.history); n > 0 && p.history[n-1].Ended == never {
		return &p.history[n-1]
	}
	return nil
}
