package sim

import (
	"context"
	"slices"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/txn"
)

// span is a range of checkpoints that were given up, both ends included.
type span struct{ first, last element.CheckpointID }

// takenBack reports that a checkpoint was given up, as far as the sink knows.
func (a *attempt) takenBack(id element.CheckpointID) bool {
	return slices.ContainsFunc(a.back, func(s span) bool { return s.first <= id && id <= s.last })
}

// flight gives a checkpoint in flight, nil when the id is of none.
func (a *attempt) flight(id element.CheckpointID) *pending {
	for _, p := range a.flights {
		if p.name.ID == id {
			return p
		}
	}
	return nil
}

// chainEnd is where the delta of a task begins: at the end of what is committed, or of what an older checkpoint in flight
// writes of it.
func (a *attempt) chainEnd(t *task, p *pending) element.CheckpointID {
	end := t.committed.ChainEnd()
	for _, o := range a.flights {
		if o == p {
			break
		}
		switch ack, ok := o.acks[t.id]; {
		case ok && o.whole[t.id] && len(ack.frozen.full) == 0:
			end = 0 // its chain has no run
		case ok && (o.whole[t.id] || len(ack.frozen.vals) > 0):
			end = o.name.ID
		}
	}
	return end
}

// exclusive runs something in the sink, one after the other, in the order in which it was asked for: each calls end. It
// is still called when the attempt is over.
func (a *attempt) exclusive(f func(end func())) {
	a.running++
	run := func() {
		a.p.w.do(a.p, a.p.w.lag(200*time.Microsecond), kWorker, func() {
			f(func() {
				a.sinkBusy = false
				if len(a.sinkQueue) > 0 {
					next := a.sinkQueue[0]
					a.sinkQueue = a.sinkQueue[1:]
					a.sinkBusy = true
					next()
				}
			})
		})
	}
	if a.sinkBusy && !a.over {
		a.sinkQueue = append(a.sinkQueue, run)
		return
	}
	a.sinkBusy = true
	run()
}

// seal flushes the transaction, after what was held back behind the previous barrier has flowed into it. Once it has
// begun, only the end of the attempt cuts it short: the transaction would not survive that.
func (a *attempt) seal(id element.CheckpointID) {
	p := a.flight(id)
	stop := a.stop(p)
	a.exclusive(func(end func()) {
		if stop() {
			end()
			a.done(event{kind: evSealed, id: id, err: context.Canceled})
			return
		}
		if a.lost() {
			end()
			a.done(event{kind: evSealed, id: id, err: a.broken})
			return
		}
		for _, t := range a.tasks {
			_, covered := p.acks[t.id]
			if a.p.w.plain {
				continue
			}
			if len(t.queues) == 0 || t.queues[0].after < id || (covered && t.queues[0].after != id) {
				a.p.w.violation("driver", "seal of checkpoint %d: task %v does not hold back behind it", id, t.id)
			}
		}
		over := func() bool { return p.stopped || a.over }
		a.p.mgr.drive(txn.Event{Kind: txn.EvSeal, Checkpoint: id}, job{over: over}, func(err error) {
			a.broken = err
			end()
			a.done(event{kind: evSealed, id: id, err: err})
		})
	})
}

// lost reports that the open transaction is gone, with everything that was in it: the flush of a checkpoint that was given
// up has failed. Nobody must begin another one in its place.
func (a *attempt) lost() bool { return a.broken != nil && a.p.w.cfg.Bug != AbandonIgnoresFlush }

// release lets the output flow that is held back behind a barrier, task by task.
func (a *attempt) release(id element.CheckpointID) {
	a.exclusive(func(end func()) {
		a.drain(id, func() {
			end()
			a.running--
			a.finish()
		})
	})
}

func (a *attempt) drain(id element.CheckpointID, done func()) {
	tasks := slices.Clone(a.tasks)
	var next func(i int)
	next = func(i int) {
		if a.over || i == len(tasks) {
			done()
			return
		}
		tasks[i].drain(id)
		a.p.w.do(a.p, a.p.w.lag(200*time.Microsecond), kWorker, func() { next(i + 1) })
	}
	next(0)
}

// abandon gives up the newest checkpoints in flight. The tasks hear of it before the next barrier; the sink takes their
// barriers back when what it is at has ended.
func (a *attempt) abandon(ids []element.CheckpointID) {
	s := span{ids[0], ids[len(ids)-1]}
	w := a.p.w
	w.counts.Abandoned += len(ids)
	for i, p := range a.flights {
		if p.name.ID == s.first {
			for _, g := range a.flights[i:] {
				g.back = true
				a.given = append(a.given, g)
			}
			a.flights = a.flights[:i]
			break
		}
	}
	if len(a.flights) > 0 {
		w.counts.AbandonedBeside++
	}
	a.p.cancelled()
	a.discardGiven()
	for _, t := range a.tasks {
		t.takeBack(s)
	}
	a.resuming++
	a.exclusive(func(end func()) { a.resume(s, end) })
}

// resume merges what is held back behind barriers that were given up with what lies before them: the queue of the newest
// one that is left, or the transaction, reopened if it was sealed.
func (a *attempt) resume(s span, end func()) {
	a.back = append(a.back, s)
	var older element.CheckpointID
	for _, p := range a.flights {
		if p.name.ID < s.first {
			older = p.name.ID
		}
	}
	for _, t := range a.tasks {
		t.mergeQueues(s, older)
	}
	over := func() {
		a.resuming--
		end()
		a.running--
		a.finish()
	}
	if older != 0 || a.over {
		over()
		return
	}
	if a.lost() {
		a.p.w.counts.BrokenBack++
		a.report(event{kind: evFailed, err: a.broken})
		over()
		return
	}
	flow := func() { a.drain(0, over) }
	m := a.p.mgr
	if m.machine.State(m.machine.Current()) != txn.Sealed {
		flow()
		return
	}
	a.p.w.counts.Reopened++
	m.drive(txn.Event{Kind: txn.EvReopen}, job{}, func(err error) {
		if err != nil {
			a.report(event{kind: evFailed, err: err})
			over()
			return
		}
		flow()
	})
}

// mergeQueues is the writer's part of that. A task that joined behind what was given up holds back behind what is left.
func (t *task) mergeQueues(s span, older element.CheckpointID) {
	from := 0
	for from < len(t.queues) && t.queues[from].after < s.first {
		from++
	}
	to := from
	for to < len(t.queues) && t.queues[to].after <= s.last {
		to++
	}
	if from == to {
		return
	}
	into := max(0, from-1)
	for _, q := range t.queues[into+1 : to] {
		t.queues[into].recs = append(t.queues[into].recs, q.recs...)
	}
	t.queues = slices.Delete(t.queues, into+1, to)
	if from == 0 {
		t.queues[0].after = older // 0: it flows at once
	}
}

// takeBack tells the task that checkpoints were given up.
func (t *task) takeBack(s span) {
	t.given = append(t.given, s)
	t.barriers = slices.DeleteFunc(t.barriers, func(b gate.Barrier) bool { return s.first <= b.ID && b.ID <= s.last })
	t.wake()
}

// takeBack gives up freezes, and all later ones: what changed up to them is part of the next one.
func (s *state) takeBack(g span, bug Bug) {
	var all map[byte]int64
	keep := s.frozen[:0:0]
	for _, f := range s.frozen {
		switch {
		case f.id < g.first, bug == AbandonKeepsLater && f.id > g.first:
			keep = append(keep, f)
		case bug == AbandonLoses:
			for k, v := range f.vals {
				s.base[k] = v
			}
		default:
			if all == nil {
				all = map[byte]int64{}
			}
			for k, v := range f.vals {
				all[k] = v
			}
		}
	}
	s.frozen = keep
	for k, v := range s.active {
		if all == nil {
			break
		}
		all[k] = v
	}
	if all != nil {
		s.active = all
	}
}

// wish asks for a savepoint now and then.
func (a *attempt) wish() []checkpoint.Action {
	w := a.p.w
	if w.tolerable == 0 || w.healed || !w.chance(2) {
		return nil
	}
	return a.co.RequestSavepoint(w.now, "wish")
}
