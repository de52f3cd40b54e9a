package kafkasink

import (
	"math"
	"time"
)

// The throttle decides how much output may be unflushed: what is handed to the client and not acknowledged, and as much
// again held back. All of it has to be acknowledged within the time that a checkpoint has, so the bound is what the way out
// takes in a fraction of that time, and the way out is measured. It has no clock: every call says what time it is.
//
//	way out     bound of each of the two places, with a timeout of 50 s
//	10 MB/s     62 MB
//	200 KB/s    1.2 MB
//	1 KB/s      16 KiB, the least
//
// What it is told are looks at the client: how much is unanswered and how much was acknowledged so far. Between two looks
// the way out shows what it can do only if it had enough to do all the time, else it has shown the least that it can do:
//
//	unanswered  ▁▁▂▁▁▂▁│▅▆▇▇▆▇▇▇▇│▇▅▃▁│
//	            idle   │ busy    │ flush
//	            raises │ measures│ measures
//
// A flush that took too long is the best measurement there is, and replaces all before it. As it may be wrong all the same,
// each one also halves the bound, and so does a stall, in which nothing is acknowledged for a quarter of the timeout. The
// bound gets this back with time.
const (
	// throttleShare is the part of the timeout in which all that is unflushed can be flushed. The two places share it.
	throttleShare = 4
	// throttleLeast is the least bound: a way out that takes a kilobyte a second flushes it within the default timeout.
	throttleLeast = 16 << 10
	// throttleRate is what the way out is believed to take in a second before it is known. It is next to nothing as a measurement:
	// it counts like one second of it.
	throttleRate = 1 << 20
	// throttleWindow is the least time that makes a measurement, except for a flush. Acknowledgements come in lumps.
	throttleWindow = 200 * time.Millisecond
	// throttleMemory is how long a measurement counts at the least: brokers hold quotas over some ten seconds, in which they
	// take much at once and then nothing.
	throttleMemory = 10 * time.Second
	// throttleSpell is how long tasks have to have waited before it is told of, and throttleCalm how long they have to
	// have gone without before that is over.
	throttleSpell = time.Second
	throttleCalm  = 30 * time.Second
)

// throttle is the controller. It is not safe for concurrent use.
type throttle struct {
	timeout time.Duration // of a checkpoint
	most    int64         // the bound is never above

	limit int64   // bytes in each of the two places
	bytes float64 // acknowledged in secs, older ones counting less
	secs  float64
	known bool // the way out was seen busy, or stalled: the rate is no guess any more

	window  look // where the window began
	busy    bool // at every look of the window
	grownAt time.Duration

	alive time.Duration // when something was acknowledged last, or there was not enough to do
	seen  int64         // what was acknowledged then

	late   int64 // the bound after the last flush that was late, or stall, 0 = there was none
	lateAt time.Duration

	spell    time.Duration // that tasks have waited, without a calm between
	waitedAt time.Duration // when they did last
	told     bool
}

// look is what was seen of the client at a moment.
type look struct {
	at    time.Duration
	acked int64
}

// newThrottle makes one. timeout is above 0.
func newThrottle(timeout time.Duration, most int64) throttle {
	t := throttle{timeout: timeout, most: max(most, throttleLeast), bytes: throttleRate, secs: 1}
	t.limit = t.target()
	return t
}

// begin says that a new attempt begins: nothing is handed over, and acked counts from 0 again.
func (t *throttle) begin(now time.Duration) {
	t.window, t.busy = look{at: now}, false
	t.alive, t.seen = now, 0
}

// rate is the bytes that the way out takes in a second.
func (t *throttle) rate() float64 { return t.bytes / t.secs }

// target is the bound by the rate alone.
func (t *throttle) target() int64 {
	want := t.rate() * t.timeout.Seconds() / (2 * throttleShare)
	return int64(max(throttleLeast, min(want, float64(t.most))))
}

// heldBound is the bound of what is held back. What goes to the client is measured on its way; what is held back is not,
// so it is bounded only when the way out is known to be slow.
func (t *throttle) heldBound() int64 {
	if t.known && t.target() < t.most {
		return t.limit
	}
	return t.most
}

// plenty says that so much unanswered keeps the way out busy.
func (t *throttle) plenty(unanswered int64) bool { return unanswered >= t.limit/4 }

// look says what the client has: bytes without an answer, and bytes acknowledged since begin.
func (t *throttle) look(now time.Duration, unanswered, acked int64) {
	t.busy = t.busy && t.plenty(unanswered)
	if now-t.window.at >= throttleWindow {
		t.measure(now, acked)
		t.window, t.busy = look{now, acked}, t.plenty(unanswered)
	}
	switch {
	case acked > t.seen || !t.plenty(unanswered):
		t.alive, t.seen = now, acked
	case now-t.alive >= t.timeout/throttleShare:
		t.alive = now
		t.halve(now)
	}
	t.adjust(now)
}

// halve is what follows a flush that was late, and a stall.
func (t *throttle) halve(now time.Duration) {
	t.known = true
	t.late, t.lateAt = max(throttleLeast, min(t.limit, t.target())/2), now
}

// flushing says that a flush begins. flushed takes what is returned.
func (t *throttle) flushing(now time.Duration, unanswered, acked int64) look {
	t.look(now, unanswered, acked)
	if t.window.at != now {
		t.measure(now, acked)
	}
	t.window, t.busy = look{now, acked}, t.plenty(unanswered)
	return t.window
}

// flushed says that the flush has ended, well or not.
func (t *throttle) flushed(now time.Duration, begun look, unanswered, acked int64, failed bool) {
	took := now - begun.at
	switch {
	case took >= t.timeout/2, failed && took >= t.timeout/throttleShare:
		t.bytes, t.secs = float64(max(0, acked-begun.acked)), max(took.Seconds(), 1)
		t.halve(now)
	case failed:
		// It says nothing of the way out.
	default:
		t.measure(now, acked)
	}
	t.window, t.busy = look{now, acked}, t.plenty(unanswered)
	t.alive, t.seen = now, acked
	t.adjust(now)
}

// measure ends the window. One in which the way out was not busy all the time counts only if it raises the rate.
func (t *throttle) measure(now time.Duration, acked int64) {
	secs, bytes := (now - t.window.at).Seconds(), float64(max(0, acked-t.window.acked))
	if secs <= 0 || (!t.busy && bytes <= t.rate()*secs) {
		return
	}
	t.known = t.known || t.busy
	t.bytes += bytes
	t.secs += secs
	if most := max(t.timeout/throttleShare, throttleMemory).Seconds(); t.secs > most {
		t.bytes *= most / t.secs
		t.secs = most
	}
}

// adjust follows the rate: down at once, up by no more than double in a while, since a way out that takes much at once may
// not go on so.
func (t *throttle) adjust(now time.Duration) {
	want := t.target()
	if t.late > 0 {
		allowed := float64(t.late) * math.Exp2(2*float64(now-t.lateAt)/float64(t.timeout)) // double in half a timeout
		if allowed >= float64(t.most) {
			t.late = 0
		} else {
			want = min(want, int64(allowed))
		}
	}
	switch {
	case want <= t.limit:
		t.limit = want
	case now-t.grownAt >= max(t.timeout/8, throttleMemory):
		t.limit, t.grownAt = min(want, 2*t.limit), now
	}
}

// waited says that a task has waited for the way out until now. It reports that this is a new spell of it.
func (t *throttle) waited(now, took time.Duration) (news bool) {
	t.calm(now - took)
	t.spell += min(took, now-t.waitedAt) // several may wait at a time
	t.waitedAt = now
	if t.told || t.spell < throttleSpell || t.late == 0 && t.target() > 2*t.limit { // the last: the bound is only on its way up
		return false
	}
	t.told = true
	return true
}

// calm ends a spell when no task has waited for a while. It reports that one is over which was told of.
func (t *throttle) calm(now time.Duration) (over bool) {
	if t.spell == 0 || now-t.waitedAt < throttleCalm {
		return false
	}
	over = t.told
	t.spell, t.told = 0, false
	return over
}
