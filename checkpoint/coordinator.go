package checkpoint

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Coordinator decides when the checkpoints of one attempt are taken and when each of them may be committed. It is not
// safe for concurrent use: one goroutine, the driver, feeds it inputs and executes the actions that each input returns,
// in order. Every input takes the time since an arbitrary start, from a monotonic clock; a time before an earlier one
// counts as that.
type Coordinator struct {
	cfg  Config
	last element.CheckpointID // the last id given, or known to be taken
	ids  foreign              // ids that others took
	now  time.Duration

	tasks map[element.TaskID]*taskState
	moved int // how many tasks have moved
	waits int // how many tasks that leave wait for a checkpoint to be triggered
	// flights are the checkpoints in flight, oldest first; gone are ids that were given up.
	flights []*pending
	gone    givenUp
	doom    *FailAttempt // what ends the attempt when the commit that is under way has its outcome

	clockRuns   bool          // a task was there once: the first interval runs
	lastTrigger time.Duration // or the start of the clock
	hasEnded    bool
	lastEnd     time.Duration
	begun       bool          // there was an input
	opened      time.Duration // the open transaction is not older than that
	idle        bool          // nothing can be in it: nothing has moved since the last commit, and none is in flight

	failures int // in a row
	repeats  int // how many of them were of a checkpoint for which a revoke or the end waits

	wanted     Reason   // the strongest request that waits, Periodic = none
	savepoints []string // the requests that wait for a trigger
	hurry      bool     // one of them does not wait for the interval
	draining   bool     // Final was requested
	finalRun   bool     // the final checkpoint was triggered
	dead       bool

	out     []Action
	totals  Totals
	history history
}

// taskState is what the coordinator knows of a task between checkpoints.
type taskState struct {
	moved bool
	// leaving: the task has halted and goes when checkpoint with completes, the newest that covers it; 0 = the next one
	// that is triggered. behind is what moved is for others, while with is in flight: it tells of what comes behind the
	// barrier of with, and counts only if with is abandoned.
	leaving bool
	with    element.CheckpointID
	behind  bool
	// covered is S of the last completed checkpoint.
	covered []element.Position
}

// staysOut reports that checkpoints which are triggered now do not cover the task.
func (ts *taskState) staysOut() bool { return ts.leaving && ts.with != 0 }

// New makes the coordinator of one attempt. last is the highest id known: of all handles that the instance holds and
// of its own earlier attempts; the first checkpoint gets last+1. cfg must be valid.
func New(cfg Config, last element.CheckpointID) *Coordinator {
	cfg.MaxConcurrent = max(1, cfg.MaxConcurrent)
	return &Coordinator{cfg: cfg, last: last, ids: foreign{base: last}, tasks: make(map[element.TaskID]*taskState)}
}

// AddTask makes a task part of every later checkpoint; those that are in flight do not wait for it, so what the task
// writes until the newest of them is complete must be held back, as if the task had passed its barrier. To add a task
// twice changes nothing, also while it is leaving. The first task starts the first interval, which Config.First may
// shorten.
func (c *Coordinator) AddTask(now time.Duration, t element.TaskID) []Action {
	if c.enter(now); !c.dead && c.tasks[t] == nil {
		c.tasks[t] = &taskState{}
		if !c.clockRuns {
			c.clockRuns, c.lastTrigger = true, c.now
			if c.cfg.First > 0 {
				c.lastTrigger -= c.cfg.Interval - c.cfg.First // as if the last trigger was that much earlier
			}
		}
	}
	return c.leave()
}

// Moved reports that something of the task changed since its last barrier: a record was taken, an offset passed a gap,
// a timer fired. It is cheap and may be repeated. But for a savepoint nothing is ever triggered without it. Of a task
// that leaves it counts only if the checkpoint that it leaves with is abandoned: else what came behind its barrier is
// dropped.
func (c *Coordinator) Moved(now time.Duration, t element.TaskID) []Action {
	c.enter(now)
	switch ts := c.tasks[t]; {
	case ts == nil || c.dead:
	case ts.staysOut():
		ts.behind = true
	default:
		c.setMoved(ts, true)
	}
	return c.leave()
}

// Tick lets time pass: see NextWake.
func (c *Coordinator) Tick(now time.Duration) []Action {
	c.enter(now)
	return c.leave()
}

// NextWake says how long after now Tick has to be called, 0 when it is due already; false when nothing waits for time
// to pass. It may change with every input.
func (c *Coordinator) NextWake(now time.Duration) (time.Duration, bool) {
	if c.dead || c.doom != nil {
		return 0, false
	}
	var wake time.Duration
	ok := false
	if i := c.unpermitted(); i < len(c.flights) {
		wake, ok = c.flights[i].deadline, true // those behind it were triggered later
	}
	if c.work() && len(c.flights) < c.cfg.MaxConcurrent && !(c.draining && c.finalRun) {
		if due := c.due(); !ok || due < wake {
			wake, ok = due, true
		}
	}
	return max(0, wake-now), ok
}

// RequestCheckpoint asks for a checkpoint before the interval is over. Early and Manual wait while as many as may be are
// in flight (none of them need cover what the asker has seen) and for min-pause; when nothing has moved by the time that
// none is in flight, the answer is Skipped. Final takes neither: it triggers at once, or as soon as one more may be in
// flight, nothing is triggered after it, and the answer is Drained. A request for Periodic or Revoke does nothing: nobody
// asks for those.
func (c *Coordinator) RequestCheckpoint(now time.Duration, r Reason) []Action {
	c.enter(now)
	switch {
	case c.dead || r == Periodic || r == Revoke || r > Final:
	case r == Final:
		c.draining = true
	case c.draining:
		// The final checkpoint, if one comes, covers the wish; without one there was nothing to do.
		if c.finalRun {
			c.skip(r)
		} else {
			c.wanted = max(c.wanted, r)
		}
	default:
		c.wanted = max(c.wanted, r)
	}
	return c.leave()
}

// Dead reports that the coordinator has ended, by FailAttempt or Drained: no input gives an action any more.
func (c *Coordinator) Dead() bool { return c.dead }

// LastID is the highest id given or known: what the next attempt's New needs.
func (c *Coordinator) LastID() element.CheckpointID { return c.last }

// InFlight gives the id of the oldest checkpoint in flight, and whether its Permit was handed out. Only the oldest can
// have one.
func (c *Coordinator) InFlight() (id element.CheckpointID, permitted, ok bool) {
	if len(c.flights) == 0 {
		return 0, false, false
	}
	return c.flights[0].id, c.flights[0].phase.permitted(), true
}

// Flights gives the ids of all checkpoints in flight, oldest first.
func (c *Coordinator) Flights() []element.CheckpointID {
	ids := make([]element.CheckpointID, 0, len(c.flights))
	for _, p := range c.flights {
		ids = append(ids, p.id)
	}
	return ids
}

// Stats copies the statistics.
func (c *Coordinator) Stats() Stats {
	s := Stats{Recent: c.history.list(), Totals: c.totals, FailuresInARow: c.failures}
	for _, p := range c.flights {
		s.InFlight = append(s.InFlight, p.snapshot(c.now))
	}
	if len(s.InFlight) > 0 {
		s.Current = &s.InFlight[0]
	}
	return s
}

// enter begins every input: time advances, and a deadline that lies behind takes effect before the input does. So a
// process that was stopped for a minute and wakes up with the report of the root file in its queue gives no Permit.
func (c *Coordinator) enter(now time.Duration) {
	c.now = max(c.now, now)
	if !c.begun {
		c.begun, c.opened, c.idle = true, c.now, true
	}
	i := c.unpermitted()
	if c.dead || i == len(c.flights) || c.now < c.flights[i].deadline {
		return
	}
	p := c.flights[i]
	missing := ""
	if p.flushAsked && !p.flushed {
		missing = "; the brokers have not acknowledged the outputs"
	}
	c.fail(p, FailureTimeout, fault.Restart, fault.Restartf(fault.Failed, "checkpoint %d is not complete after %v (timeout %v): %v, %d barriers and %d acknowledgements missing%s",
		p.id, c.now-p.triggered, c.cfg.Timeout, p.phase, p.barriers, p.acks, missing))
}

// leave ends every input: what may be triggered now is, and the actions go to the driver.
func (c *Coordinator) leave() []Action {
	if !c.dead && c.doom == nil {
		c.consider()
	}
	out := c.out
	c.out = nil
	return out
}

// consider decides whether the next checkpoint starts, and whether requests have come to nothing.
func (c *Coordinator) consider() {
	switch {
	case c.draining && c.finalRun || !c.work():
		if len(c.flights) > 0 {
			return // if one is abandoned, there is something to do again
		}
		c.skip(c.wanted)
		if c.wanted = Periodic; c.draining {
			c.emit(Drained{})
			c.dead = true
		}
	case len(c.flights) < c.cfg.MaxConcurrent && c.now >= c.due():
		switch {
		case c.draining:
			c.finalRun = true
			c.trigger(Final)
		case c.waits > 0:
			c.trigger(Revoke)
		case len(c.savepoints) > 0:
			c.trigger(max(c.wanted, Manual))
		default:
			c.trigger(c.wanted)
		}
	}
}

// work reports that there is something to take a checkpoint of, or for.
func (c *Coordinator) work() bool {
	if c.moved > 0 || c.waits > 0 {
		return true
	}
	return len(c.savepoints) > 0 && c.anybody()
}

// anybody reports that a checkpoint which is triggered now covers a task.
func (c *Coordinator) anybody() bool {
	for _, ts := range c.tasks {
		if !ts.staysOut() {
			return true
		}
	}
	return false
}

// due is the earliest time of the next trigger, given that there is work.
//
// After an abandoned checkpoint the next one comes when it would have come anyway: at the interval's next tick, and not
// before min-pause. So an error that comes at once, again and again, costs one checkpoint per interval. Two things hurry
// it: the transaction, which holds the work of both and has to last until the next one's deadline; and somebody who waits
// to leave, or the end: that one is triggered again at once, though only once, and then goes by the interval too.
func (c *Coordinator) due() time.Duration {
	earliest, due := c.now, c.lastTrigger+c.cfg.Interval
	switch {
	case c.draining || c.waits > 0:
		if c.repeats <= 1 {
			due = c.now
		}
	default:
		if c.hasEnded {
			earliest = c.lastEnd + c.cfg.MinPause
		}
		if c.wanted > Periodic || c.hurry {
			due = c.now
		}
		due = max(due, earliest)
	}
	if c.failures > 0 && c.cfg.TransactionTimeout > 0 && len(c.flights) == 0 {
		due = min(due, max(earliest, c.opened+c.cfg.TransactionTimeout-c.cfg.Timeout))
	}
	return due
}

// trigger starts a checkpoint of all tasks, also of those that have not moved: the root lists the whole instance. Only
// those stay out that leave with an older one.
//
// Moved is cleared here and not when the barrier has passed: a report that came before the trigger is of a change that
// lies before the barrier, whatever way it took. One that comes later may lie on either side; it stays, at the price of
// one needless checkpoint. To clear it at the barrier could forget the last record before a silence.
func (c *Coordinator) trigger(r Reason) {
	c.last++
	p := &pending{id: c.last, by: make(map[element.TaskID]*progress, len(c.tasks)), triggered: c.now, deadline: c.now + c.cfg.Timeout}
	for t, ts := range c.tasks {
		if ts.staysOut() {
			continue
		}
		p.tasks = append(p.tasks, t)
		p.by[t] = &progress{moved: ts.moved}
		c.setMoved(ts, false)
		if ts.leaving {
			ts.with = p.id
		}
	}
	c.use()
	slices.SortFunc(p.tasks, element.TaskID.Compare)
	p.barriers, p.acks = len(p.tasks), len(p.tasks)
	p.savepoints, c.savepoints, c.waits = c.savepoints, nil, 0
	p.stats = CheckpointStats{ID: p.id, Reason: r, Tasks: len(p.tasks), Savepoints: len(p.savepoints), Triggered: c.now}
	c.flights = append(c.flights, p)
	c.lastTrigger, c.wanted, c.hurry = c.now, Periodic, false
	c.totals.Triggered++
	c.emit(Trigger{ID: p.id, Reason: r, Tasks: slices.Clone(p.tasks), Savepoint: slices.Clone(p.savepoints)})
}

func (c *Coordinator) skip(r Reason) {
	if r > Periodic {
		c.totals.Skipped++
		c.emit(Skipped{Reason: r})
	}
}

func (c *Coordinator) setMoved(ts *taskState, moved bool) {
	switch {
	case moved && !ts.moved:
		c.use()
		c.moved++
	case !moved && ts.moved:
		c.moved--
	}
	ts.moved = moved
}

// use notes that something may be in the open transaction from now on. After a silence it is as young as that, and not as
// old as the last commit.
func (c *Coordinator) use() {
	if c.idle {
		c.idle, c.opened = false, c.now
	}
}

func (c *Coordinator) emit(a Action) { c.out = append(c.out, a) }
