package checkpoint

import (
	"errors"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// A checkpoint that fails before its Permit either ends the attempt or is abandoned: it is given up, the attempt goes on,
// and the next checkpoint covers its work. It can be abandoned when
//
//   - the transaction is whole: it timed out, a task declined, or the root was not written, with class fault.Restart. A
//     failed flush means that records are missing in it, and the other classes say that a new attempt would not be
//     enough, so neither is going on;
//   - not more than Config.TolerableFailures have failed in a row;
//   - the transaction will last: a checkpoint that is triggered as soon as min-pause allows reaches its deadline before
//     the transaction's time is over. The transaction is taken for as old as it can be: it was not open before the last
//     commit had its outcome, nor before the first input, nor, where nothing had moved by then, before something did. When
//     an older checkpoint is still in flight, the work of the failed one will go into a transaction that has not begun, so
//     the time of the present one does not matter.
//
// All newer ones go with it, since their deltas, their positions and their output build on it; they count as no failure.
// Older ones are not touched.

// fail gives up a checkpoint that has failed and all newer ones. A nil p would be a breach with none in flight, which no
// table leads to.
func (c *Coordinator) fail(p *pending, reason FailureReason, class fault.Recovery, err error) {
	if c.tolerable(p, reason, class) {
		c.abandon(p, reason, err)
		return
	}
	i := slices.Index(c.flights, p)
	if i > 0 && c.flights[0].phase.permitted() {
		// The commit of the oldest one is under way, and only its outcome may end that one: the end of the attempt waits for
		// it. Nothing of the others has any use.
		c.totals.Failed[reason]++
		c.cancel(1, p, reason)
		c.doom = &FailAttempt{ID: p.id, Reason: reason, Class: class, Err: err}
		return
	}
	c.totals.Failed[reason]++
	c.cancel(0, p, reason)
	c.emit(FailAttempt{ID: p.id, Reason: reason, Class: class, Err: err})
	c.dead = true
}

// tolerable says whether a failure leads to an Abandon.
func (c *Coordinator) tolerable(p *pending, reason FailureReason, class fault.Recovery) bool {
	switch {
	case p.phase.permitted() || class != fault.Restart:
		return false
	case reason != FailureTimeout && reason != FailureDeclined && reason != FailureRoot:
		return false
	case c.cfg.TolerableFailures != Unlimited && c.failures >= c.cfg.TolerableFailures:
		return false
	case c.cfg.TransactionTimeout == 0 || c.flights[0] != p:
		return true
	}
	next := c.now
	if p.stats.Reason != Final && p.stats.Reason != Revoke {
		next += c.cfg.MinPause
	}
	return next+c.cfg.Timeout <= c.opened+c.cfg.TransactionTimeout
}

// abandon gives up p and all newer ones, and takes note of what they would have done: what moved has still to be
// committed, who wants a savepoint waits again, the final one has still to come, and who was to leave with one of them
// is as if he had asked just now.
func (c *Coordinator) abandon(p *pending, reason FailureReason, err error) {
	i := slices.Index(c.flights, p)
	given := slices.Clone(c.flights[i:])
	c.flights = slices.Delete(c.flights, i, len(c.flights))
	c.failures++
	a := Abandon{Reason: reason, Failures: c.failures, Err: err}
	var waiting []string
	again := false
	for _, g := range given {
		why := FailureAlong
		if g == p {
			why = reason
		}
		a.IDs = append(a.IDs, g.id)
		c.giveUp(g, why)
		c.totals.Abandoned[why]++
		waiting = append(waiting, g.savepoints...)
		if g.stats.Reason == Final {
			c.finalRun, again = false, true
		}
	}
	c.savepoints = append(waiting, c.savepoints...)
	c.emit(a)
	if c.leaveAgain() || again {
		c.repeats++
	}
}

// cancel gives up all checkpoints from the i-th on, because the attempt ends. Workers are told to stop unless the Permit
// is out: then none is at work.
func (c *Coordinator) cancel(i int, failing *pending, reason FailureReason) {
	given := slices.Clone(c.flights[i:])
	c.flights = slices.Delete(c.flights, i, len(c.flights))
	var waiting []string
	for _, g := range given {
		why := FailureAlong
		if g == failing {
			why = reason
		} else {
			c.totals.Failed[why]++
		}
		permitted := g.phase.permitted()
		c.giveUp(g, why)
		waiting = append(waiting, g.savepoints...)
		if !permitted {
			c.emit(Cancel{ID: g.id, Reason: why})
		}
	}
	c.savepoints = append(waiting, c.savepoints...)
}

// giveUp ends a checkpoint that does not complete.
func (c *Coordinator) giveUp(p *pending, reason FailureReason) {
	s := p.snapshot(c.now)
	s.Failure = reason
	p.step(failed)
	for t, g := range p.by {
		switch ts := c.tasks[t]; {
		case ts == nil || !g.moved:
		case ts.staysOut():
			ts.behind = true // it may leave with an older one: then what came behind that is dropped, after all
		default:
			c.setMoved(ts, true)
		}
	}
	c.gone.add(p.id)
	c.end(s)
}

func (c *Coordinator) end(s CheckpointStats) {
	c.history.add(s)
	c.hasEnded, c.lastEnd = true, c.now
}

// breachOf fails the attempt because a report came before its time.
func (c *Coordinator) breachOf(p *pending, ev event) {
	c.breach(p, fault.Stopf(fault.Failed, "checkpoint %d: report %q while %v", p.id, ev.String(), p.phase))
}

// breach fails the attempt for good: who breaks the order of the protocol once cannot be trusted with a new attempt.
func (c *Coordinator) breach(p *pending, err error) { c.fail(p, FailureProtocol, fault.Stop, err) }

// failBy fails a checkpoint with the class that the cause carries.
func (c *Coordinator) failBy(p *pending, reason FailureReason, err error, what string) {
	class := fault.RecoveryOf(err)
	c.fail(p, reason, class, wrap(p, class, err, what))
}

// wrap adds the checkpoint and what was tried, and keeps class and exit code. A missing cause is not passed on as nil.
func wrap(p *pending, class fault.Recovery, err error, what string) error {
	if err == nil {
		err = errors.New("no cause given")
	}
	return fault.New(class, fault.CodeOf(err), "checkpoint %d: %s: %w", p.id, what, err)
}

// givenUp knows the ids that were given up last, so that reports which cross with that are told from doubled ones. Of an
// id that it has forgotten a report is taken for doubled; nothing comes of it either.
type givenUp struct {
	ring [2 * MaxInFlight]element.CheckpointID
	n    int
}

func (g *givenUp) add(id element.CheckpointID) {
	g.ring[g.n%len(g.ring)] = id
	g.n++
}

func (g *givenUp) has(id element.CheckpointID) bool {
	return slices.Contains(g.ring[:min(g.n, len(g.ring))], id)
}
