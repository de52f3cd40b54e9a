package engine

import (
	"math/rand/v2"
	"time"
)

// backoff is Flink's exponential-delay restart strategy: the delay grows by a factor with every failure, up to a
// maximum, and falls back to the first one after a long enough time without a failure.
type backoff struct {
	initial, max, reset time.Duration
	factor              float64
	jitter              float64 // share of the delay that is random, Flink's default is 0.1

	current time.Duration
	last    time.Duration // when the latest failure was
	failed  bool
}

// next gives the delay before the next attempt after a failure at now (time since any fixed start).
func (b *backoff) next(now time.Duration) time.Duration {
	if !b.failed || now-b.last >= b.reset {
		b.current = b.initial
	} else {
		b.current = min(time.Duration(float64(b.current)*b.factor), b.max)
	}
	b.failed, b.last = true, now
	if b.jitter == 0 {
		return b.current
	}
	spread := float64(b.current) * b.jitter
	return b.current + time.Duration((rand.Float64()*2-1)*spread)
}
