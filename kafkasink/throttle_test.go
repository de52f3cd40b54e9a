package kafkasink

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// way is a model of the brokers: what they take in a moment, in bytes.
type way interface {
	take(now, dt time.Duration) float64
}

// steady takes the same all the time.
type steady float64

func (s steady) take(_, dt time.Duration) float64 { return float64(s) * dt.Seconds() }

// quota is what Kafka's brokers do: they take everything until the average over the last seconds is above the rate, and
// then nothing until it would be right again.
type quota struct {
	rate  float64
	muted time.Duration // until then
	took  [11]float64   // by second
	sec   int
}

func (q *quota) take(now, dt time.Duration) float64 {
	for s := int(now / time.Second); q.sec < s; q.sec++ {
		q.took[(q.sec+1)%len(q.took)] = 0
	}
	if now < q.muted {
		return 0
	}
	return 100e6 * dt.Seconds()
}

// took tells what was taken: one request of it is never refused.
func (q *quota) note(now time.Duration, bytes float64) {
	q.took[q.sec%len(q.took)] += bytes
	sum := 0.0
	for _, b := range q.took {
		sum += b
	}
	const window = 10.0
	if over := sum/window - q.rate; over > 0 {
		q.muted = now + time.Duration(over/q.rate*window*float64(time.Second))
	}
}

// rig runs checkpoints over a way: a source that never ends, a client, and what is held back while a checkpoint is
// flushed and committed.
type rig struct {
	t        *throttle
	way      way
	timeout  time.Duration
	interval time.Duration
	source   float64 // bytes a second

	now              time.Duration
	client, held     float64
	sent             float64
	done, failed     int
	lastFailed       time.Duration
	longest          time.Duration // of the second half
	committed, since float64       // bytes
	waited           time.Duration
}

const rigStep = 5 * time.Millisecond

// step lets a moment pass, in which the source goes to the client or is held back.
func (r *rig) step(holding bool) {
	r.now += rigStep
	got := min(r.client, r.way.take(r.now, rigStep))
	r.client -= got
	if q, ok := r.way.(*quota); ok && got > 0 {
		q.note(r.now, got)
	}
	more := r.source * rigStep.Seconds()
	limit := float64(r.t.limit)
	switch {
	case holding:
		r.held += max(0, min(more, float64(r.t.heldBound())-r.held))
	default:
		if r.held > 0 { // what was held back goes first
			n := max(0, min(r.held, limit-r.client))
			r.held -= n
			r.client += n
			r.sent += n
		}
		n := max(0, min(more, limit-r.client))
		if n < more {
			r.waited += rigStep
			r.t.waited(r.now, rigStep)
		}
		r.client += n
		r.sent += n
		r.t.look(r.now, int64(r.client), int64(r.sent-r.client))
	}
}

// run takes checkpoints for so long.
func (r *rig) run(d time.Duration) {
	half := r.now + d/2
	for end := r.now + d; r.now < end; {
		for until := r.now + r.interval; r.now < until; {
			r.step(false)
		}
		trigger := r.now
		for r.held > 0 && r.now < trigger+r.timeout { // the flush waits for the release
			r.step(false)
		}
		begun := r.t.flushing(r.now, int64(r.client), int64(r.sent-r.client))
		for r.client > 0 && r.now < trigger+r.timeout {
			r.step(true)
		}
		late := r.client > 0
		r.t.flushed(r.now, begun, int64(r.client), int64(r.sent-r.client), late)
		if late {
			r.failed++
			r.lastFailed = r.now
			r.client, r.held, r.sent, r.since = 0, 0, 0, 0
			r.t.begin(r.now)
			continue
		}
		if r.now > half {
			r.longest = max(r.longest, r.now-trigger)
		}
		r.done++
		r.committed += r.sent - r.since
		r.since = r.sent
		for range 2 { // the commit
			r.step(true)
		}
	}
}

func newRig(w way, timeout, interval time.Duration) *rig {
	t := newThrottle(timeout, 64<<20)
	return &rig{t: &t, way: w, timeout: timeout, interval: interval, source: 200e6}
}

// TestThrottleMakesProgressAtAnyRate: from a kilobyte to 100 MB a second, behind a steady way out and behind a quota,
// checkpoints complete, well before their time is over, and the way out is used.
func TestThrottleMakesProgressAtAnyRate(t *testing.T) {
	for _, timeout := range []time.Duration{50 * time.Second, 5 * time.Second} {
		for _, rate := range []float64{1e3, 1e4, 1e5, 2e5, 1e6, 5e6, 2e7, 1e8} {
			for _, w := range []way{steady(rate), &quota{rate: rate}} {
				if rate*timeout.Seconds() < 2*throttleLeast {
					continue // not even the least can be flushed
				}
				t.Run(fmt.Sprintf("%v/%.0f/%T", timeout, rate, w), func(t *testing.T) {
					r := newRig(w, timeout, time.Second)
					r.run(40 * timeout)
					used := r.committed / rate / r.now.Seconds()
					t.Logf("%d completed, %d failed, the last after %v, longest %v, %.0f %% of the rate, limit %d", r.done, r.failed, r.lastFailed, r.longest, 100*used, r.t.limit)
					require.GreaterOrEqual(t, r.done, 10)
					most := 3 + r.done/50 // a quota is over a longer time than the short timeout
					if _, ok := w.(*quota); ok && rate*timeout.Seconds() <= 5e4 {
						most = 10 // what went through before anything was known is worked off for minutes
					}
					require.LessOrEqual(t, r.failed, most)
					require.Greater(t, used, 0.5)
					if _, ok := w.(steady); ok {
						require.Less(t, r.longest, timeout*3/4)
						require.Less(t, r.lastFailed, r.now/10, "it goes on failing")
					}
				})
			}
		}
	}
}

// changing is a steady way out until a time, and another one from there on.
type changing struct {
	before, after steady
	at            time.Duration
}

func (c changing) take(now, dt time.Duration) float64 {
	if now < c.at {
		return c.before.take(now, dt)
	}
	return c.after.take(now, dt)
}

// TestThrottleFollowsAChange: a way out that becomes five hundred times slower costs one checkpoint, and the bound comes
// back with the way out.
func TestThrottleFollowsAChange(t *testing.T) {
	r := newRig(changing{1e8, 2e5, 110 * time.Second}, 50*time.Second, time.Second)
	r.run(100 * time.Second)
	require.Equal(t, int64(64<<20), r.t.limit)
	r.run(500 * time.Second)
	t.Logf("%d completed, %d failed, the last after %v", r.done, r.failed, r.lastFailed)
	require.LessOrEqual(t, r.failed, 2)
	require.Less(t, r.lastFailed, 220*time.Second)
	require.InDelta(t, 2e5*50/8, float64(r.t.limit), 5e5)
	r.way = steady(1e8)
	r.run(120 * time.Second)
	require.Equal(t, int64(64<<20), r.t.limit)
}

// TestThrottleLeavesAFastWayOutAlone: neither a source that gives little, nor pauses, nor a moment in which the brokers do
// nothing makes it seem slow.
func TestThrottleLeavesAFastWayOutAlone(t *testing.T) {
	r := newRig(steady(1e8), 50*time.Second, time.Second)
	first := r.t.limit
	r.source = 1e4
	r.run(300 * time.Second)
	require.GreaterOrEqual(t, r.t.limit, first)
	r.source = 2e8
	r.run(100 * time.Second)
	require.Equal(t, int64(64<<20), r.t.limit)
	r.source = 0
	r.run(300 * time.Second)
	r.source = 2e8
	r.way = changing{0, 1e8, r.now + 3*time.Second}
	r.run(30 * time.Second)
	require.Equal(t, int64(64<<20), r.t.limit)
	require.Zero(t, r.failed)
}

// TestThrottleTellsOfASpellOnce: one word when tasks have waited for a second, one when it is over, and again next time.
func TestThrottleTellsOfASpellOnce(t *testing.T) {
	ctl := newThrottle(50*time.Second, 1<<20)
	now, news, overs := time.Duration(0), 0, 0
	wait := func(d time.Duration) {
		for end := now + d; now < end; {
			now += 10 * time.Millisecond
			for range 4 { // tasks
				if ctl.waited(now, 10*time.Millisecond) {
					news++
				}
			}
		}
	}
	calm := func(d time.Duration) {
		if now += d; ctl.calm(now) {
			overs++
		}
	}
	wait(900 * time.Millisecond)
	require.Zero(t, news, "time counts, not tasks")
	wait(5 * time.Minute)
	calm(29 * time.Second)
	require.Equal(t, []int{1, 0}, []int{news, overs})
	wait(time.Minute)
	require.Equal(t, 1, news, "the same spell")
	calm(31 * time.Second)
	calm(time.Hour)
	require.Equal(t, []int{1, 1}, []int{news, overs})
	wait(500 * time.Millisecond)
	calm(time.Minute)
	wait(600 * time.Millisecond)
	require.Equal(t, []int{1, 1}, []int{news, overs})
	wait(600 * time.Millisecond)
	require.Equal(t, 2, news)
}

// Brokers that are much faster than was assumed are not told of while the bound is still on its way up.
func TestFastBrokersAreNotToldOf(t *testing.T) {
	c := newThrottle(50*time.Second, 64<<20)
	now := time.Duration(0)
	c.begin(now)
	var acked int64
	for range 25 { // 80 MB/s
		now += throttleWindow
		acked += 16 << 20
		c.look(now, c.limit, acked)
		require.False(t, c.waited(now, throttleWindow/2))
	}
	require.Greater(t, c.target(), 2*c.limit)
}
