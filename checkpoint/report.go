package checkpoint

import (
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// BarrierPassed reports that the barrier went through the task's chain and the task's state is frozen. With the last
// one the flush and the persisting start.
func (c *Coordinator) BarrierPassed(now time.Duration, id element.CheckpointID, t element.TaskID, ack TaskAck) []Action {
	c.enter(now)
	p, g := c.taskReport(id, t, evBarrier)
	if g == nil {
		return c.leave()
	}
	older := c.older(p, t)
	if older != nil && !older.by[t].passed {
		c.breach(p, fault.Stopf(fault.Failed, "checkpoint %d: task %v reports its barrier before that of checkpoint %d", id, t, older.id))
		return c.leave()
	}
	if err := c.checkPositions(older, t, ack.Positions); err != nil {
		c.breach(p, err)
		return c.leave()
	}
	if p.barrier(c.now, t, ack) {
		p.step(storing)
		c.flush()
		c.emit(Persist{ID: id})
	}
	return c.leave()
}

// Acked reports that the frozen changes of one task are durable. It may come before the barriers of other tasks, not
// before the task's own.
func (c *Coordinator) Acked(now time.Duration, id element.CheckpointID, t element.TaskID, s PersistStats) []Action {
	c.enter(now)
	if p, g := c.taskReport(id, t, evAcked); g != nil {
		c.written(p, s)
		p.acknowledge(c.now, t)
		c.advance(p)
	}
	return c.leave()
}

// Persisted acknowledges at once for all tasks that have not acknowledged yet: one pack file holds the frozen changes
// of them all. It answers Persist and cannot come before it.
func (c *Coordinator) Persisted(now time.Duration, id element.CheckpointID, s PersistStats) []Action {
	c.enter(now)
	p := c.report(id, element.TaskID{}, evAcked)
	switch {
	case p == nil:
	case p.barriers > 0:
		c.breachOf(p, evAcked)
	case p.acks == 0:
		c.answer(id, element.TaskID{}, evAcked, Duplicate)
	default:
		c.answer(id, element.TaskID{}, evAcked, Success)
		c.written(p, s)
		for _, t := range p.tasks {
			if !p.by[t].acked {
				p.acknowledge(c.now, t)
			}
		}
		c.advance(p)
	}
	return c.leave()
}

// Declined reports that a task cannot take its part: the operator or the worker failed. The class of err says how
// recovery goes on.
func (c *Coordinator) Declined(now time.Duration, id element.CheckpointID, t element.TaskID, err error) []Action {
	c.enter(now)
	if p, g := c.taskReport(id, t, evDeclined); g != nil {
		c.failBy(p, FailureDeclined, err, "task "+t.String()+" declined")
	}
	return c.leave()
}

// Flushed reports that the transaction is sealed: every record in it is acknowledged by the broker.
func (c *Coordinator) Flushed(now time.Duration, id element.CheckpointID) []Action {
	c.enter(now)
	if p := c.report(id, element.TaskID{}, evFlushed); p != nil {
		switch {
		case p.flushed:
			c.answer(id, element.TaskID{}, evFlushed, Duplicate)
			return c.leave()
		case !p.flushAsked:
			c.breachOf(p, evFlushed)
			return c.leave()
		}
		c.answer(id, element.TaskID{}, evFlushed, Success)
		p.flushed = true
		p.stats.Flush = c.now - p.flushBegun
		c.advance(p)
	}
	return c.leave()
}

// FlushFailed reports that records of the transaction were not acknowledged.
func (c *Coordinator) FlushFailed(now time.Duration, id element.CheckpointID, err error) []Action {
	return c.failure(now, id, evFlushFailed, FailureFlush, err, "flushing the outputs failed")
}

// RootWritten reports that the root file is durable. The Permit goes out.
func (c *Coordinator) RootWritten(now time.Duration, id element.CheckpointID) []Action {
	c.enter(now)
	if p := c.report(id, element.TaskID{}, evRootWritten); p != nil {
		c.answer(id, element.TaskID{}, evRootWritten, Success)
		p.stats.Root = c.now - p.rootBegun
		p.permitted = c.now
		p.step(committing)
		c.emit(CommitAction{ID: id, Permit: Permit{id: id, valid: true}})
	}
	return c.leave()
}

// RootFailed reports that the root file could not be written.
func (c *Coordinator) RootFailed(now time.Duration, id element.CheckpointID, err error) []Action {
	return c.failure(now, id, evRootFailed, FailureRoot, err, "writing the root file failed")
}

// Committed reports that the broker has committed the transaction.
func (c *Coordinator) Committed(now time.Duration, id element.CheckpointID) []Action {
	c.enter(now)
	if p := c.report(id, element.TaskID{}, evCommitted); p != nil {
		c.answer(id, element.TaskID{}, evCommitted, Success)
		c.complete(p)
	}
	return c.leave()
}

// CommitFailed reports that the commit was refused, or with fault.Unconfirmed that nobody here can know. class decides
// what the driver does next, whatever err carries.
func (c *Coordinator) CommitFailed(now time.Duration, id element.CheckpointID, err error, class fault.Recovery) []Action {
	c.enter(now)
	if p := c.report(id, element.TaskID{}, evCommitFailed); p != nil {
		c.answer(id, element.TaskID{}, evCommitFailed, Success)
		c.fail(p, FailureCommit, class, wrap(p, class, err, "commit failed"))
	}
	return c.leave()
}

// failure is a report about the whole checkpoint that fails it.
func (c *Coordinator) failure(now time.Duration, id element.CheckpointID, ev event, reason FailureReason, err error, what string) []Action {
	c.enter(now)
	if p := c.report(id, element.TaskID{}, ev); p != nil {
		c.answer(id, element.TaskID{}, ev, Success)
		c.failBy(p, reason, err, what)
	}
	return c.leave()
}

// report looks a report up in the table. It gives the checkpoint if the report counts, and has answered if not.
func (c *Coordinator) report(id element.CheckpointID, t element.TaskID, ev event) *pending {
	p, ph := c.flight(id), completed
	switch {
	case p != nil:
		ph = p.phase
	case id > c.last || c.ids.has(id):
		c.answer(id, t, ev, Unknown)
		return nil
	case c.gone.has(id):
		ph = failed
	}
	switch verdicts[ph][ev] {
	case accept:
		return p
	case again:
		c.answer(id, t, ev, Duplicate)
	case late:
		c.answer(id, t, ev, Discarded)
	case breach:
		c.breachOf(p, ev)
	}
	return nil
}

// taskReport is report for what one task says: it counts once per task, and only for tasks that are covered.
func (c *Coordinator) taskReport(id element.CheckpointID, t element.TaskID, ev event) (*pending, *progress) {
	if p := c.flight(id); p != nil && p.by[t] == nil {
		c.answer(id, t, ev, Unknown)
		return nil, nil
	}
	p := c.report(id, t, ev)
	if p == nil {
		return nil, nil
	}
	g := p.by[t]
	switch {
	case ev == evBarrier && g.passed, ev == evAcked && g.acked:
		c.answer(id, t, ev, Duplicate)
		return nil, nil
	case ev == evAcked && !g.passed:
		c.breachOf(p, ev)
		return nil, nil
	}
	c.answer(id, t, ev, Success)
	return p, g
}

// answer counts, and traces what changed nothing. A dead coordinator gives no action, also not this one.
func (c *Coordinator) answer(id element.CheckpointID, t element.TaskID, ev event, a Answer) {
	c.totals.Answers[a]++
	if a != Success && !c.dead {
		c.emit(Ignored{Report: ev.String(), ID: id, Task: t, Answer: a})
	}
}

// advance goes on to the root file once both parallel parts are done.
func (c *Coordinator) advance(p *pending) {
	if !p.stored() {
		return
	}
	p.step(rooting)
	p.rootBegun = c.now
	c.emit(WriteRoot{ID: p.id, Tasks: p.positions()})
}

func (c *Coordinator) written(p *pending, s PersistStats) {
	p.stats.DeltaBytes += s.Bytes
	p.stats.Entries += s.Entries
	p.stats.Files += s.Files
	p.stats.FullBytes += s.FullBytes
}

// checkPositions refuses positions that lack a partition which the last completed checkpoint had, or the older one that
// is in flight and covers the task, or lie below it: to commit them would take the group back and make committed outputs
// again.
func (c *Coordinator) checkPositions(older *pending, t element.TaskID, positions []element.Position) error {
	ts := c.tasks[t]
	if ts == nil {
		return nil
	}
	covered, state := ts.covered, "is committed"
	if older != nil {
		covered, state = older.by[t].positions, "checkpoint "+idText(older.id)+" covers"
	}
	for _, old := range covered {
		i := slices.IndexFunc(positions, func(p element.Position) bool { return p.TopicPartition == old.TopicPartition })
		if i < 0 {
			return fault.Stopf(fault.Failed, "task %v reports no position of %v, of which %d %s", t, old.TopicPartition, old.Offset, state)
		}
		if positions[i].Offset < old.Offset {
			return fault.Stopf(fault.Failed, "task %v reports position %d of %v, below %d which %s", t, positions[i].Offset, old.TopicPartition, old.Offset, state)
		}
	}
	return nil
}

// complete ends the oldest checkpoint in flight well: its transaction is over, and the next one may be flushed.
func (c *Coordinator) complete(p *pending) {
	p.stats.Commit = c.now - p.permitted
	p.step(completed)
	for t, g := range p.by {
		if ts := c.tasks[t]; ts != nil {
			ts.covered = g.positions
		}
	}
	c.flights = slices.Delete(c.flights, 0, 1)
	c.end(p.snapshot(c.now))
	c.opened, c.idle = c.now, c.moved == 0 && len(c.flights) == 0
	c.failures, c.repeats = 0, 0
	c.totals.Completed++
	c.totals.DeltaBytes += p.stats.DeltaBytes
	c.totals.Entries += p.stats.Entries
	c.emit(Complete{ID: p.id})
	c.leftWith(p)
	if c.doom != nil {
		c.emit(*c.doom)
		c.doom, c.dead = nil, true
		return
	}
	c.flush()
}
