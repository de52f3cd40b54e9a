package engine

import (
	"sync/atomic"
	"time"
)

// flow counts what an attempt has begun and not finished: batches that sources' tasks work on, parcels on the way or being
// processed, slices of timers. What a piece of work sends is counted before the piece is done, so at zero there is nothing
// on its way anywhere, and nothing comes but from a source, or from a timer that comes due.
//
//	a source's task            a subtask                        the loop
//	enter: 1
//	sends a parcel: 2
//	leave: 1
//	                           processes it, sends one: 2
//	                           leave: 1                         (does not look before it watches)
//	                           processes that, leave: 0 ------> evEmpty
//
// A nil flow counts nothing.
type flow struct {
	n       atomic.Int64
	watched atomic.Bool // whoever brings it to zero tells the loop
	closed  atomic.Bool // no source's task and no timer begins anything
}

// add counts work that comes of work that is counted, or that waits from the start.
func (f *flow) add(n int) {
	if f != nil {
		f.n.Add(int64(n))
	}
}

// enter counts a beginning; when it gives false there must be none. It counts before it looks: the loop closes before it
// looks at the count, so one of both sees the other.
func (f *flow) enter() (ok, empty bool) {
	if f == nil {
		return true, false
	}
	f.n.Add(1)
	if f.closed.Load() {
		return false, f.leave()
	}
	return true, false
}

// leave counts a piece of work as done and says whether the loop has to be told.
func (f *flow) leave() (empty bool) {
	return f != nil && f.n.Add(-1) == 0 && f.watched.Load()
}

func (f *flow) isClosed() bool { return f != nil && f.closed.Load() }

// watch asks to be told of zero, and says whether it is zero now.
func (f *flow) watch() bool {
	f.watched.Store(true)
	return f.n.Load() == 0
}

// close lets nothing begin any more, and says whether nothing is on its way now.
func (f *flow) close() bool {
	f.watched.Store(true)
	f.closed.Store(true)
	return f.n.Load() == 0
}

// begin counts a piece of work that a source's task or a timer begins.
func (t *task) begin() bool {
	ok, empty := t.flow.enter()
	if empty {
		t.report(event{kind: evEmpty})
	}
	return ok
}

// done counts a piece of work as finished. Timers that are due by then are work, too, so that nobody thinks all is over
// before they have fired.
func (t *task) done() {
	t.claim()
	t.leave()
}

func (t *task) leave() {
	if t.flow.leave() {
		t.report(event{kind: evEmpty})
	}
}

// claim counts the timers that are due as a piece of work, which fireTimers finishes. It is called while something else is
// counted, or before anything runs.
func (t *task) claim() {
	if t.hasTimers && !t.claimed && !t.halted && !t.flow.isClosed() && t.timersDue(time.Now().UnixMilli()) {
		t.claimed = true
		t.flow.add(1)
	}
}

// unclaim: no timer is due any more, or none fires.
func (t *task) unclaim() {
	if t.claimed {
		t.claimed = false
		t.leave()
	}
}
