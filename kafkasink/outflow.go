package kafkasink

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// OutflowConfig says what an Outflow goes by.
type OutflowConfig struct {
	// Timeout is how long a checkpoint may take, the flush of its output included.
	Timeout time.Duration
	// Most is the most that may be unflushed in the client, and as much again held back, however fast the way out is.
	Most int64
	// Logger, nil = slog.Default().
	Logger *slog.Logger
}

// Outflow bounds what is unflushed to what the brokers take in a part of the time that a checkpoint has: a quarter of it.
// It measures how fast they acknowledge, and outlives attempts: after one that failed since its flush took too long, the
// next has less to flush. Writers wait where there is more, and so, in the end, do the sources. Safe for concurrent use.
type Outflow struct {
	log   *slog.Logger
	most  int64
	since time.Time

	limit atomic.Int64 // bytes that may be in the client; what throttle says
	held  atomic.Int64 // and held back
	fresh atomic.Int64 // bytes handed over since the client was looked at
	sent  atomic.Int64 // bytes handed over since begin
	spent atomic.Int64 // nanoseconds that tasks have waited

	waiting atomic.Int64 // writers

	mu  sync.Mutex
	ctl throttle // under mu
}

// OutflowStats is what there is to know of an Outflow.
type OutflowStats struct {
	// Limit is the bytes that may be unflushed in the client; as many may be held back if the way out is slow.
	Limit int64
	// Rate is how many bytes a second the brokers acknowledge when they are kept busy, as far as it has been seen.
	Rate float64
	// Throttled says that tasks wait for the brokers to acknowledge output, or did so lately.
	Throttled bool
	// Waited is how long tasks have waited so, added up.
	Waited time.Duration
}

// A writer that waits looks at the client this often; many look less often each.
const (
	outflowPoll     = 5 * time.Millisecond
	outflowPollMost = 100 * time.Millisecond
	outflowPollers  = 16 // so many do it that often
)

// piece is how many bytes are handed over at once.
func (o *Outflow) piece() int64 { return max(throttleLeast, o.limit.Load()/4) }

func (o *Outflow) poll() time.Duration {
	return min(outflowPollMost, outflowPoll*time.Duration(1+o.waiting.Load()/outflowPollers))
}

// NewOutflow makes the Outflow of a process.
func NewOutflow(cfg OutflowConfig) (*Outflow, error) {
	if cfg.Timeout <= 0 || cfg.Most <= 0 {
		return nil, errors.New("kafkasink: an outflow needs a timeout and a limit")
	}
	o := &Outflow{log: cmp.Or(cfg.Logger, slog.Default()).With("component", "kafkasink"), most: cfg.Most, since: time.Now(), ctl: newThrottle(cfg.Timeout, cfg.Most)}
	o.limit.Store(o.ctl.limit)
	o.held.Store(o.ctl.heldBound())
	return o, nil
}

// Stats gives the figures of the moment.
func (o *Outflow) Stats() OutflowStats {
	o.with(func(*throttle, time.Duration) {})
	o.mu.Lock()
	defer o.mu.Unlock()
	return OutflowStats{Limit: o.ctl.limit, Rate: o.ctl.rate(), Throttled: o.ctl.told, Waited: time.Duration(o.spent.Load())}
}

// with changes the throttle, and tells when a spell of waiting is over.
func (o *Outflow) with(f func(t *throttle, now time.Duration)) {
	now := time.Since(o.since)
	o.mu.Lock()
	f(&o.ctl, now)
	over := o.ctl.calm(now)
	limit := o.ctl.limit
	o.limit.Store(limit)
	o.held.Store(o.ctl.heldBound())
	o.mu.Unlock()
	if over {
		o.log.Info("output is no longer held up by the brokers", "unflushed_bytes_limit", limit)
	}
}

// begin is a new attempt, with a client that has nothing.
func (o *Outflow) begin() {
	o.sent.Store(0)
	o.fresh.Store(0)
	o.with(func(t *throttle, now time.Duration) { t.begin(now) })
}

// waited notes that a task has waited, and says so when that is news.
func (o *Outflow) waited(took time.Duration) {
	o.spent.Add(int64(took))
	var news bool
	var rate float64
	var limit int64
	o.with(func(t *throttle, now time.Duration) { news, rate, limit = t.waited(now, took), t.rate(), t.limit })
	if news {
		o.log.Warn("output is held up by the brokers: they acknowledge it so slowly (a quota, a slow network or slow brokers) that more of it could not be flushed in time for a checkpoint; tasks and sources wait",
			"acknowledged_bytes_per_second", int64(rate), "unflushed_bytes_limit", limit)
	}
}

// measure looks at the client, and tells the throttle how much has no answer and how much was acknowledged since begin.
func (o *Outflow) measure(t Transactions, tell func(t *throttle, now time.Duration, unanswered, acked int64)) (unanswered int64) {
	unanswered = t.Unanswered()
	acked := o.sent.Load() - unanswered
	o.with(func(t *throttle, now time.Duration) { tell(t, now, unanswered, acked) })
	return unanswered
}

// look measures and reports whether the client has room. What other tasks hand over meanwhile may go above.
func (o *Outflow) look(t Transactions) bool {
	unanswered := o.measure(t, (*throttle).look)
	if limit := o.limit.Load(); unanswered >= limit && limit < o.most {
		return false // at the most the client's own limit holds
	}
	o.fresh.Store(0)
	return true
}

// room waits until the client has room. It looks at it once for a sixteenth of the limit; while it has none, every time.
func (o *Outflow) room(ctx, over context.Context, t Transactions) error {
	if o.fresh.Load() < o.limit.Load()/16 || o.look(t) {
		return nil
	}
	o.waiting.Add(1)
	defer o.waiting.Add(-1)
	last := time.Now()
	poll := time.NewTimer(o.poll())
	defer poll.Stop()
	for {
		select {
		case <-poll.C:
		case <-over.Done():
			return ErrDiscarded
		case <-ctx.Done():
			return ctx.Err()
		}
		now := time.Now()
		o.waited(now.Sub(last))
		last = now
		if o.look(t) {
			return nil
		}
		poll.Reset(o.poll())
	}
}

// hand notes that bytes go to the client.
func (o *Outflow) hand(bytes int64) {
	o.sent.Add(bytes)
	o.fresh.Add(bytes)
}

// flush measures a flush.
func (o *Outflow) flush(t Transactions, f func() error) error {
	var begun look
	o.measure(t, func(t *throttle, now time.Duration, unanswered, acked int64) {
		begun = t.flushing(now, unanswered, acked)
	})
	err := f()
	o.measure(t, func(t *throttle, now time.Duration, unanswered, acked int64) {
		t.flushed(now, begun, unanswered, acked, err != nil)
	})
	return err
}
