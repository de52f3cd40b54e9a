package checkpoint

import (
	"maps"
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
	// inflight is nil when no checkpoint is; failedID is the checkpoint that ended the coordinator.
	inflight *pending
	failedID element.CheckpointID

	clockRuns   bool          // a task was there once: the first interval runs
	lastTrigger time.Duration // or the start of the clock
	hasEnded    bool
	lastEnd     time.Duration

	wanted   Reason // the strongest request that waits, Periodic = none
	draining bool   // Final was requested
	finalRun bool   // the final checkpoint was triggered
	dead     bool

	out     []Action
	totals  Totals
	history history
}

// taskState is what the coordinator knows of a task between checkpoints.
type taskState struct {
	moved bool
	// leaving: the task goes when the checkpoint in flight completes, which covers it. It has halted.
	leaving bool
	// covered is S of the last completed checkpoint.
	covered []element.Position
}

// New makes the coordinator of one attempt. last is the highest id known: of all handles that the instance holds and
// of its own earlier attempts; the first checkpoint gets last+1. cfg must be valid.
func New(cfg Config, last element.CheckpointID) *Coordinator {
	return &Coordinator{cfg: cfg, last: last, ids: foreign{base: last}, tasks: make(map[element.TaskID]*taskState)}
}

// AddTask makes a task part of every later checkpoint; one that is in flight does not wait for it, so what the task
// writes until that one is complete must be held back, as if the task had passed its barrier. To add a task twice
// changes nothing, also while it is leaving. The first task starts the first interval, which Config.First may shorten.
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
// a timer fired. It is cheap and may be repeated. Nothing is ever triggered without it. Of a task that leaves it says
// nothing any more: what came behind its barrier is dropped.
func (c *Coordinator) Moved(now time.Duration, t element.TaskID) []Action {
	c.enter(now)
	if ts := c.tasks[t]; ts != nil && !ts.leaving && !c.dead {
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
	switch {
	case c.dead:
		return 0, false
	case c.inflight != nil:
		if c.inflight.phase.permitted() {
			return 0, false
		}
		return max(0, c.inflight.deadline-now), true
	case c.moved == 0:
		return 0, false
	}
	return max(0, c.due()-now), true
}

// RequestCheckpoint asks for a checkpoint before the interval is over. Early and Manual wait for the one in flight (it
// may not cover what the asker has seen) and for min-pause; when nothing has moved by then, the answer is Skipped.
// Final takes neither: it triggers at once, or right after the one in flight, nothing is triggered after it, and the
// answer is Drained. A request for Periodic or Revoke does nothing: nobody asks for those.
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

// InFlight gives the id of the checkpoint in flight, and whether its Permit was handed out.
func (c *Coordinator) InFlight() (id element.CheckpointID, permitted, ok bool) {
	if c.inflight == nil {
		return 0, false, false
	}
	return c.inflight.id, c.inflight.phase.permitted(), true
}

// Stats copies the statistics.
func (c *Coordinator) Stats() Stats {
	s := Stats{Recent: c.history.list(), Totals: c.totals}
	if c.inflight != nil {
		cur := c.inflight.snapshot(c.now)
		s.Current = &cur
	}
	return s
}

// enter begins every input: time advances, and a deadline that lies behind takes effect before the input does. So a
// process that was stopped for a minute and wakes up with the report of the root file in its queue gives no Permit.
func (c *Coordinator) enter(now time.Duration) {
	c.now = max(c.now, now)
	p := c.inflight
	if c.dead || p == nil || p.phase.permitted() || c.now < p.deadline {
		return
	}
	c.fail(FailureTimeout, fault.Restart, fault.Restartf(fault.Failed, "checkpoint %d is not complete after %v (timeout %v): %v, %d barriers and %d acknowledgements missing",
		p.id, c.now-p.triggered, c.cfg.Timeout, p.phase, p.barriers, p.acks))
}

// leave ends every input: what may be triggered now is, and the actions go to the driver.
func (c *Coordinator) leave() []Action {
	if !c.dead && c.inflight == nil {
		c.consider()
	}
	out := c.out
	c.out = nil
	return out
}

// consider is called with nothing in flight and decides whether the next checkpoint starts.
func (c *Coordinator) consider() {
	if c.draining {
		if c.moved > 0 && !c.finalRun {
			c.finalRun = true
			c.trigger(Final)
			return
		}
		c.skip(c.wanted)
		c.emit(Drained{})
		c.dead = true
		return
	}
	if c.moved == 0 {
		c.skip(c.wanted)
		c.wanted = Periodic
		return
	}
	if c.now >= c.due() {
		c.trigger(c.wanted)
	}
}

// due is the earliest time of the next trigger, given that something has moved.
func (c *Coordinator) due() time.Duration {
	due := c.lastTrigger + c.cfg.Interval
	if c.wanted > Periodic {
		due = c.now
	}
	if c.hasEnded {
		due = max(due, c.lastEnd+c.cfg.MinPause)
	}
	return due
}

// trigger starts a checkpoint of all tasks, also of those that have not moved: the root lists the whole instance.
//
// Moved is cleared here and not when the barrier has passed: a report that came before the trigger is of a change that
// lies before the barrier, whatever way it took. One that comes later may lie on either side; it stays, at the price of
// one needless checkpoint. To clear it at the barrier could forget the last record before a silence.
func (c *Coordinator) trigger(r Reason) {
	c.last++
	p := &pending{
		id: c.last, by: make(map[element.TaskID]*progress, len(c.tasks)),
		tasks:    slices.SortedFunc(maps.Keys(c.tasks), element.TaskID.Compare),
		barriers: len(c.tasks), acks: len(c.tasks),
		triggered: c.now, deadline: c.now + c.cfg.Timeout,
	}
	for t, ts := range c.tasks {
		p.by[t] = &progress{moved: ts.moved}
		c.setMoved(ts, false)
	}
	p.stats = CheckpointStats{ID: p.id, Reason: r, Tasks: len(p.tasks), Triggered: c.now}
	c.inflight, c.lastTrigger, c.wanted = p, c.now, Periodic
	c.totals.Triggered++
	c.emit(Trigger{ID: p.id, Reason: r, Tasks: slices.Clone(p.tasks)})
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
		c.moved++
	case !moved && ts.moved:
		c.moved--
	}
	ts.moved = moved
}

func (c *Coordinator) emit(a Action) { c.out = append(c.out, a) }
