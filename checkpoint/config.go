package checkpoint

import (
	"errors"
	"fmt"
	"time"
)

// MaxDuration bounds every duration of a Config. A day without a checkpoint is a mistake in a unit, not a wish: no
// broker keeps a transaction open that long.
const MaxDuration = 24 * time.Hour

// Config says when checkpoints are taken and how long one may last.
type Config struct {
	// Interval is the time from one trigger to the next. A trigger that comes due while a checkpoint is in flight is
	// not lost: it happens right after that one's end. Triggers that nobody could take do not pile up. In (0, MaxDuration].
	Interval time.Duration
	// First is the time from the first task to the first trigger, when it is to be shorter than Interval: after a restart
	// readers wait for the first commit, and how long ago the last one was is not known. In [0, Interval], 0 = Interval.
	First time.Duration
	// Timeout is counted from the trigger. A checkpoint that has not got its Permit by then is aborted. In (0, MaxDuration].
	Timeout time.Duration
	// MinPause is the least time from the end of one checkpoint to the trigger of the next, whatever the interval and
	// whoever asks; only the final checkpoint and that of a revoke pass it. In [0, MaxDuration], 0 = no pause.
	MinPause time.Duration
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
	return errors.Join(problems...)
}
