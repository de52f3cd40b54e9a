package sim

import (
	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// pending mirrors engine.pending: the data of one checkpoint in flight.
type pending struct {
	name    element.CheckpointName
	barrier gate.Barrier
	acks    map[element.TaskID]taskAck
	runs    map[element.TaskID]snapshot.Persisted
	root    *snapshot.Root
	ref     snapshot.RootRef
	offsets []checkpoint.OffsetCommit
	whole   map[element.TaskID]bool // tasks of which it has the whole state in place of their chains
	saves   bool                    // a savepoint is cut with it
	stopped bool                    // Cancel came
	back    bool                    // Abandon came

	writing   int  // workers that write files
	permitted bool // the commit has begun
}

type taskAck struct {
	position element.Position
	frozen   *frozen
	moved    bool
	inflight []parcel // on the way to a subtask, in order
}

type eventKind uint8

const (
	evMoved eventKind = iota
	evBarrier
	evPersisted
	evSealed
	evRoot
	evCommitted
	evMerged
	evDrained
	evFailed
	evJoined
	evRevoke
	evHalted
	evDeclined
	evEnded
)

// event is what a task or a worker reports to the loop.
type event struct {
	kind eventKind
	id   element.CheckpointID
	task element.TaskID
	ack  taskAck
	runs map[element.TaskID]snapshot.Persisted
	root snapshot.RootRef
	err  error

	revoke *revocation
}

// report hands an event to the loop; when the attempt is over nobody listens.
func (a *attempt) report(e event) {
	if a.over {
		return
	}
	a.events = append(a.events, e)
	a.wakeLoop()
}

// wakeLoop queues a turn of the loop when it has something to do.
func (a *attempt) wakeLoop() {
	if a.over || !a.ready || a.looping || (len(a.events) == 0 && !a.p.changed && (!a.p.draining || a.stopIn)) {
		return
	}
	a.looping = true
	a.p.w.do(a.p, a.p.w.lag(2e5), kLoop, func() {
		a.looping = false
		if !a.over {
			a.turn()
		}
	})
}

// turn is one round of the loop's select. Which of several ready cases it takes is not said in the engine either.
func (a *attempt) turn() {
	var actions []checkpoint.Action
	var err error
	switch {
	case a.p.changed && (len(a.events) == 0 || a.p.w.chance(50)):
		a.p.changed = false
		err = a.reconcile()
	case a.p.draining && !a.stopIn:
		a.stopIn = true
		a.report(event{kind: evDrained})
	case len(a.events) > 0:
		e := a.events[0]
		a.events = a.events[1:]
		actions, err = a.handle(e)
	}
	if err == nil {
		err = a.execute(actions)
	}
	if err != nil {
		a.end(err)
		return
	}
	a.arm()
	a.wakeLoop()
}

// arm sets the timer by the coordinator's wish.
func (a *attempt) arm() {
	wake, ok := a.co.NextWake(a.p.w.now)
	a.ticks++
	if !ok {
		return
	}
	this := a.ticks
	a.p.w.do(a.p, wake, kTick, func() {
		if a.over || this != a.ticks {
			return
		}
		if err := a.execute(a.co.Tick(a.p.w.now)); err != nil {
			a.end(err)
			return
		}
		a.arm()
	})
}

// handle turns an event into the coordinator's input.
func (a *attempt) handle(e event) ([]checkpoint.Action, error) {
	now, co := a.p.w.now, a.co
	switch e.kind {
	case evMoved:
		return append(co.Moved(now, e.task), a.wish()...), nil
	case evBarrier:
		return a.onBarrierPassed(e), nil
	case evPersisted:
		if e.err != nil {
			var actions []checkpoint.Action
			for _, t := range a.tasks {
				actions = append(actions, co.Declined(now, e.id, t.id, e.err)...)
			}
			return actions, nil
		}
		if p := a.flight(e.id); p != nil {
			p.runs = e.runs
		}
		return co.Persisted(now, e.id, checkpoint.PersistStats{}), nil
	case evSealed:
		if e.err != nil {
			return co.FlushFailed(now, e.id, e.err), nil
		}
		return co.Flushed(now, e.id), nil
	case evRoot:
		if e.err != nil {
			return co.RootFailed(now, e.id, e.err), nil
		}
		if p := a.flight(e.id); p != nil {
			p.ref = e.root
		}
		return co.RootWritten(now, e.id), nil
	case evCommitted:
		if e.err != nil {
			return co.CommitFailed(now, e.id, e.err, fault.RecoveryOf(e.err)), nil
		}
		return co.Committed(now, e.id), nil
	case evMerged:
		a.keepMerged()
		if late := a.late; late != nil {
			a.late = nil
			a.p.w.counts.CleanedLate++
			a.roundOf(*late, nil)
		}
		return nil, nil
	case evJoined:
		return a.onJoined(e.err)
	case evRevoke:
		a.onRevoke(e.revoke)
		return nil, nil
	case evHalted:
		return a.onHalted(e.task), nil
	case evDeclined:
		return co.Declined(now, e.id, e.task, e.err), nil
	case evEnded:
		a.onEnded(e.task)
		return nil, nil
	case evDrained:
		return co.RequestCheckpoint(now, checkpoint.Final), nil
	}
	return nil, e.err
}

// onEnded mirrors engine's: from now on the coordinator brings a subtask its barriers, those that it may have missed at once.
// A run of which all inputs have ended stays up here: its checkpoints go on as those of any other.
func (a *attempt) onEnded(id element.TaskID) {
	t := a.task(id)
	if t == nil || t.over || a.p.w.cfg.Bug == EndUnheard {
		return
	}
	if t.over = true; t.in == nil {
		return
	}
	for _, p := range a.flights {
		if _, passed := p.acks[id]; !passed && !p.back {
			t.barrier(p.barrier)
		}
	}
}

func (a *attempt) onBarrierPassed(e event) []checkpoint.Action {
	if p := a.flight(e.id); p != nil {
		p.acks[e.task] = e.ack
	}
	ack := checkpoint.TaskAck{Moved: e.ack.moved}
	if t := a.task(e.task); t == nil || t.in == nil {
		ack.Positions = []element.Position{e.ack.position}
	}
	return a.co.BarrierPassed(a.p.w.now, e.id, e.task, ack)
}

// execute does what the coordinator asks for.
func (a *attempt) execute(actions []checkpoint.Action) error {
	for i, act := range actions {
		if a.p.w.cfg.Trace {
			a.p.w.tracef(a.p, "  coordinator: %v", act)
		}
		switch act := act.(type) {
		case checkpoint.Trigger:
			a.trigger(act)
		case checkpoint.Persist:
			a.persist(act.ID)
		case checkpoint.Flush:
			a.seal(act.ID)
		case checkpoint.WriteRoot:
			a.writeRoot(act.ID)
		case checkpoint.CommitAction:
			if err := a.commit(act); err != nil {
				return err
			}
		case checkpoint.Complete:
			var leaving []element.TaskID
			if i+1 < len(actions) {
				if next, ok := actions[i+1].(checkpoint.Left); ok {
					leaving = next.Tasks
				}
			}
			a.complete(act.ID, leaving)
		case checkpoint.Left:
			a.onLeft(act.Tasks)
			if len(a.tasks) == 0 && a.joining == nil {
				a.p.changed = true // a look whether anything is owned still
			}
		case checkpoint.Abandon:
			a.abandon(act.IDs)
		case checkpoint.Cancel:
			if p := a.flight(act.ID); p != nil {
				p.stopped = true
				a.p.cancelled()
			}
		case checkpoint.FailAttempt:
			return act.Err
		case checkpoint.Drained:
			if a.redrawn && !a.p.draining {
				return errRedrawn
			}
			return errStopped
		}
	}
	return nil
}

func (a *attempt) trigger(act checkpoint.Trigger) {
	a.lastID = max(a.lastID, act.ID)
	if s := a.p.w.cfg.script; s != nil && s.from == 0 {
		s.from = a.p.w.steps
	}
	a.flights = append(a.flights, &pending{name: element.CheckpointName{ID: act.ID, Incarnation: a.p.inc}, acks: map[element.TaskID]taskAck{}})
	if len(a.flights) > 1 {
		a.p.w.counts.Concurrent++
	}
	if len(a.flights) > 2 {
		a.p.w.counts.ThreeInFlight++
	}
	if len(act.Savepoint) > 0 {
		a.p.w.counts.Savepoints++
	}
	if act.Reason == checkpoint.Revoke {
		a.p.w.counts.RevokeCheckpoints++
	}
	a.flights[len(a.flights)-1].saves = a.p.w.saves.wanted(act.Savepoint)
	a.renew(a.flights[len(a.flights)-1], act.Tasks)
	b := gate.Barrier{ID: act.ID}
	if x := a.p.w.x; x != nil && x.mode == gate.Unaligned && act.Reason != checkpoint.Final && len(act.Savepoint) == 0 {
		b.Unaligned, b.Timeout = x.timeout == 0, x.timeout > 0
	}
	a.flights[len(a.flights)-1].barrier = b
	for _, id := range act.Tasks {
		if t := a.task(id); t.in == nil || t.over { // the others get it from these
			t.barrier(b)
		}
	}
}
