package engine

import (
	"fmt"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// pending is the checkpoint in flight, as the loop knows it. The coordinator decides; this holds the data.
type pending struct {
	name  element.CheckpointName
	began time.Time
	// follows is the newest committed root at the trigger. A task that joins later may bring one of a higher id along.
	follows *snapshot.RootRef
	acks    map[element.TaskID]taskAck
	runs    map[element.TaskID]snapshot.RunRef
	root    *snapshot.Root
	ref     snapshot.RootRef
	stop    func() // ends the workers
}

// loop executes the coordinator's actions until one ends the attempt.
func (a *attempt) loop() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	drain := a.stop.Done()
	if err := a.reconcile(); err != nil { // the assignment may have changed while the states were restored
		return err
	}
	for {
		if wake, ok := a.co.NextWake(a.now()); ok {
			timer.Reset(wake)
		} else {
			timer.Reset(time.Hour)
		}
		var actions []checkpoint.Action
		select {
		case e := <-a.events:
			var err error
			if actions, err = a.handle(e); err != nil {
				return err
			}
		case <-timer.C:
			actions = a.co.Tick(a.now())
		case <-drain:
			drain = nil
			// The source stops first, so that the last barrier has an end to stand behind; evDrained goes on.
			a.stopIn()
		case <-a.r.ports.Group.Changes():
			if err := a.reconcile(); err != nil {
				return err
			}
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
		if err := a.execute(actions); err != nil {
			return err
		}
	}
}

// handle turns an event into the coordinator's input.
func (a *attempt) handle(e event) ([]checkpoint.Action, error) {
	now := a.now()
	switch e.kind {
	case evMoved:
		return a.co.Moved(now, e.task), nil
	case evEarly:
		return a.co.RequestCheckpoint(now, checkpoint.Early), nil
	case evBarrier:
		return a.onBarrierPassed(now, e), nil
	case evPersisted:
		if e.err != nil {
			return a.declineAll(now, e), nil
		}
		if a.pending != nil && a.pending.name.ID == e.id {
			a.pending.runs = e.runs
		}
		return a.co.Persisted(now, e.id, e.persist), nil
	case evSealed:
		if e.err != nil {
			return a.co.FlushFailed(now, e.id, e.err), nil
		}
		return a.co.Flushed(now, e.id), nil
	case evRoot:
		if e.err != nil {
			return a.co.RootFailed(now, e.id, e.err), nil
		}
		if a.pending != nil && a.pending.name.ID == e.id {
			a.pending.ref = e.root
		}
		failpoint.Hit(failpoint.PermitBefore)
		return a.co.RootWritten(now, e.id), nil
	case evCommitted:
		if e.err != nil {
			return a.co.CommitFailed(now, e.id, e.err, fault.RecoveryOf(e.err)), nil
		}
		return a.co.Committed(now, e.id), nil
	case evMerged:
		a.onMerged(e)
		return nil, nil
	case evDrained:
		return a.co.RequestCheckpoint(now, checkpoint.Final), nil
	case evJoined:
		return nil, a.onJoined(e.err)
	case evRevoke:
		a.onRevoke(e.revoke)
		return nil, nil
	case evHalted:
		return a.onHalted(e.task), nil
	case evFailed:
		return nil, e.err
	}
	return nil, fmt.Errorf("event of unknown kind %d", e.kind)
}

func (a *attempt) onBarrierPassed(now time.Duration, e event) []checkpoint.Action {
	p := a.pending
	if p == nil || p.name.ID != e.id {
		return nil // of a checkpoint that has ended
	}
	p.acks[e.task] = e.ack
	return a.co.BarrierPassed(now, e.id, e.task, checkpoint.TaskAck{
		Positions:    []element.Position{e.ack.position},
		Moved:        e.ack.moved,
		SyncDuration: e.ack.sync,
		StartDelay:   e.ack.at.Sub(p.began),
	})
}

// declineAll reports that the changes could not be made durable. One pack file holds them all, so all tasks decline.
func (a *attempt) declineAll(now time.Duration, e event) []checkpoint.Action {
	var actions []checkpoint.Action
	for _, id := range a.order {
		actions = append(actions, a.co.Declined(now, e.id, id, e.err)...)
	}
	return actions
}

// execute does what the coordinator asks for. What can block runs in a worker, which reports back.
func (a *attempt) execute(actions []checkpoint.Action) error {
	for _, act := range actions {
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
			if err := a.complete(act.ID); err != nil {
				return err
			}
		case checkpoint.Left:
			a.onLeft(act.Tasks)
		case checkpoint.Cancel:
			if a.pending != nil {
				a.pending.stop()
			}
		case checkpoint.FailAttempt:
			return act.Err
		case checkpoint.Drained:
			return errStopped
		case checkpoint.Skipped, checkpoint.Ignored:
		}
	}
	return nil
}

func (a *attempt) trigger(act checkpoint.Trigger) {
	a.lastID = max(a.lastID, act.ID)
	a.pending = &pending{
		name:    element.CheckpointName{ID: act.ID, Incarnation: a.r.cfg.Incarnation},
		began:   time.Now(),
		follows: a.last,
		acks:    make(map[element.TaskID]taskAck, len(act.Tasks)),
		stop:    func() {},
	}
	if a.r.lis.CheckpointTriggered != nil {
		a.r.lis.CheckpointTriggered(act.ID)
	}
	for _, id := range act.Tasks {
		a.tasks[id].inbox.barrier(act.ID)
	}
}
