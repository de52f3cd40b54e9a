package checkpoint

import (
	"errors"
	"fmt"
	"time"
)

// MaxDuration bounds every duration of a Config. A day without a checkpoint is a mistake in a unit, not a wish: no
// broker keeps a transaction open that long.
const MaxDuration = 24 * time.Hour

// MaxInFlight bounds Config.MaxConcurrent: each checkpoint in flight keeps frozen state and held-back output in memory.
const MaxInFlight = 64

// Unlimited as Config.TolerableFailures says that no number of failures ends an attempt.
const Unlimited = -1

// Config says when checkpoints are taken and how long one may last.
type Config struct {
	// Interval is the time from one trigger to the next. A trigger that comes due while a checkpoint is in flight is
	// not lost: it happens right after that one's end. Triggers that nobody could take do not pile up. With MaxConcurrent
	// in flight, "a checkpoint" is the oldest of them. In (0, MaxDuration].
	Interval time.Duration
	// First is the time from the first task to the first trigger, when it is to be shorter than Interval: after a restart
	// readers wait for the first commit, and how long ago the last one was is not known. In [0, Interval], 0 = Interval.
	First time.Duration
	// Timeout is counted from the trigger. A checkpoint that has not got its Permit by then is aborted. The time for which
	// it does nothing but wait for its predecessor's commit counts too: it keeps state and output in memory meanwhile. In
	// (0, MaxDuration].
	Timeout time.Duration
	// MinPause is the least time from the end of one checkpoint, also of an abandoned one, to the trigger of the next,
	// whatever the interval and whoever asks; only the final checkpoint and that of a revoke pass it. In [0, MaxDuration],
	// 0 = no pause. With MaxConcurrent above 1 it would mean nothing, and is refused.
	MinPause time.Duration
	// MaxConcurrent is how many checkpoints may be in flight. They are committed in order. In [0, MaxInFlight], 0 = 1.
	MaxConcurrent int
	// TolerableFailures is how many failures in a row are tolerated: such a checkpoint is abandoned, and the next covers its
	// work. One more ends the attempt, as does every failure that leaves the transaction in doubt. 0 = none is tolerated,
	// Unlimited = any number.
	TolerableFailures int
	// TransactionTimeout is how long the broker keeps a transaction open. A failure is tolerated only while the next
	// checkpoint can still reach its deadline within it. In [0, MaxDuration], 0 = there is no transaction that could end.
	TransactionTimeout time.Duration
}

// Validate reports all problems at once, nil when there are none.
func (c Config) Validate() error {
	var problems []error
	positive := func(name string, d time.Duration) {
		if d <= 0 {
			problems = append(problems, fmt.Errorf("checkpoint %s is %v: it must be above 0", name, d))
		}
	}
	bounded := func(name string, d time.Duration) {
		if d > MaxDuration {
			problems = append(problems, fmt.Errorf("checkpoint %s is %v: at most %v is allowed", name, d, MaxDuration))
		}
	}
	positive("interval", c.Interval)
	bounded("interval", c.Interval)
	positive("timeout", c.Timeout)
	bounded("timeout", c.Timeout)
	if c.First < 0 || c.First > c.Interval {
		problems = append(problems, fmt.Errorf("checkpoint first is %v: it must be within the interval", c.First))
	}
	if c.MinPause < 0 {
		problems = append(problems, fmt.Errorf("checkpoint min-pause is %v: it must not be negative", c.MinPause))
	}
	bounded("min-pause", c.MinPause)
	if c.MaxConcurrent < 0 || c.MaxConcurrent > MaxInFlight {
		problems = append(problems, fmt.Errorf("checkpoint max-concurrent is %d: it must be from 1 to %d", c.MaxConcurrent, MaxInFlight))
	}
	if c.MinPause > 0 && c.MaxConcurrent > 1 {
		problems = append(problems, fmt.Errorf("checkpoint min-pause is %v and max-concurrent is %d: a pause between checkpoints leaves no room for a second one in flight; set one of them only", c.MinPause, c.MaxConcurrent))
	}
	if c.TolerableFailures < Unlimited {
		problems = append(problems, fmt.Errorf("checkpoint tolerable-failures is %d: it must not be negative, except %d for unlimited", c.TolerableFailures, Unlimited))
	}
	if c.TransactionTimeout < 0 {
		problems = append(problems, fmt.Errorf("checkpoint transaction timeout is %v: it must not be negative", c.TransactionTimeout))
	}
	bounded("transaction timeout", c.TransactionTimeout)
	return errors.Join(problems...)
}
