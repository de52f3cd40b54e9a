package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// pending is a checkpoint in flight, as the loop knows it. The coordinator decides; this holds the data.
type pending struct {
	name    element.CheckpointName
	began   time.Time
	barrier gate.Barrier
	// follows is the newest committed root at the trigger. A task that joins later may bring one of a higher id along.
	follows    *snapshot.RootRef
	acks       map[element.TaskID]taskAck
	wanted     []string // names of the requests for a savepoint that it serves
	savepoints map[string]savepointResult
	cut        []snapshot.SavepointRef // that are written; the worker sets it, and it is read when the writers have ended
	last       bool                    // the final one
	renewed    map[element.TaskID]int  // tasks of which it has the whole state in place of their chains, and how long those were
	firsts     map[element.TaskID]bool // tasks that were read in from others, of which it has the whole state since there is no chain
	runs       map[element.TaskID]snapshot.Persisted
	root       *snapshot.Root
	ref        snapshot.RootRef
	stop       func()          // ends the workers
	sealing    <-chan struct{} // closed at the end of the flush; nil before it
	stopSeal   func()          // ends the flush, and the transaction with it
	writers    sync.WaitGroup  // of files
	permitted  bool            // its commit has begun
}

// loop executes the coordinator's actions until one ends the attempt.
func (a *attempt) loop() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	a.quiet = time.NewTimer(a.r.cfg.CleanGroupInterval)
	defer a.quiet.Stop()
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
		case <-a.quiet.C:
			a.houseQuiet()
		case <-a.patience:
			actions = a.drainedLoop(true)
		case <-a.retry:
			actions = a.tryAgain()
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
		if a.retry != nil {
			a.early = true // one has just failed: this one comes when the pause is over
			return nil, nil
		}
		return a.co.RequestCheckpoint(now, checkpoint.Early), nil
	case evBarrier:
		return a.onBarrierPassed(now, e), nil
	case evPersisted:
		if e.err != nil {
			return a.declineAll(now, e), nil
		}
		if p := a.inFlight(e.id); p != nil {
			p.runs, p.savepoints = e.runs, e.savepoints
			a.written(p)
		}
		return a.co.Persisted(now, e.id, e.persist), nil
	case evSealed:
		if e.err != nil && a.inFlight(e.id) == nil {
			return nil, e.err // the checkpoint was given up meanwhile, but what is lost is the transaction
		}
		if e.err != nil {
			return a.co.FlushFailed(now, e.id, e.err), nil
		}
		return a.co.Flushed(now, e.id), nil
	case evRoot:
		if e.err != nil {
			a.noteLost(e.err)
			return a.co.RootFailed(now, e.id, e.err), nil
		}
		if p := a.inFlight(e.id); p != nil {
			p.ref = e.root
		}
		failpoint.Hit(failpoint.PermitBefore)
		return a.co.RootWritten(now, e.id), nil
	case evCommitted:
		if e.err != nil {
			a.noteRefused(e)
			return a.co.CommitFailed(now, e.id, e.err, fault.RecoveryOf(e.err)), nil
		}
		return a.co.Committed(now, e.id), nil
	case evMerged:
		a.onMerged(e)
		return nil, nil
	case evDrained:
		return a.onDrained(), nil
	case evJoined:
		return nil, a.onJoined(e.err)
	case evRevoke:
		a.onRevoke(e.revoke)
		return nil, nil
	case evHalted:
		return a.onHalted(e.task), nil
	case evDeclined:
		return a.co.Declined(now, e.id, e.task, e.err), nil
	case evEnded:
		return a.onEnded(e.task), nil
	case evEmpty:
		return a.onEmpty(), nil
	case evAsk:
		return nil, e.ask()
	case evFailed:
		return nil, e.err
	}
	return nil, fmt.Errorf("event of unknown kind %d", e.kind)
}

func (a *attempt) onBarrierPassed(now time.Duration, e event) []checkpoint.Action {
	p := a.inFlight(e.id)
	if p == nil {
		return nil // of a checkpoint that has ended
	}
	p.acks[e.task] = e.ack
	ack := checkpoint.TaskAck{
		Moved: e.ack.moved, SyncDuration: e.ack.sync, StartDelay: e.ack.at.Sub(p.began),
		StateBytes: e.ack.stateBytes,
		Alignment:  e.ack.alignment, Unaligned: e.ack.unaligned, Buffered: e.ack.buffered, BufferedBytes: e.ack.bufferedBytes,
	}
	if t := a.tasks[e.task]; t != nil && !t.exchange {
		ack.Positions = []element.Position{e.ack.position}
	}
	return a.co.BarrierPassed(now, e.id, e.task, ack)
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
	for i, act := range actions {
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
			if err := a.complete(act.ID, leavingWith(actions[i+1:])); err != nil {
				return err
			}
		case checkpoint.Left:
			a.onLeft(act.Tasks)
			if err := a.execute(a.onEmpty()); err != nil { // what is left may be over
				return err
			}
		case checkpoint.Cancel:
			if p := a.inFlight(act.ID); p != nil {
				p.stop()
				p.stopSeal()
			}
		case checkpoint.Abandon:
			a.abandon(act)
		case checkpoint.FailAttempt:
			return act.Err
		case checkpoint.Drained:
			return a.drained()
		case checkpoint.Skipped:
			a.skipped()
		case checkpoint.Refused:
			a.refused(act.Savepoint)
		case checkpoint.Ignored:
		}
	}
	return nil
}

// inFlight finds a checkpoint in flight, nil when it is over.
func (a *attempt) inFlight(id element.CheckpointID) *pending {
	for _, p := range a.pending {
		if p.name.ID == id {
			return p
		}
	}
	return nil
}

func (a *attempt) trigger(act checkpoint.Trigger) {
	a.lastID, a.early = max(a.lastID, act.ID), false
	a.pending = append(a.pending, &pending{
		name:     element.CheckpointName{ID: act.ID, Incarnation: a.r.cfg.Incarnation},
		began:    time.Now(),
		follows:  a.last,
		wanted:   act.Savepoint,
		last:     act.Reason == checkpoint.Final,
		acks:     make(map[element.TaskID]taskAck, len(act.Tasks)),
		stop:     func() {},
		stopSeal: func() {},
	})
	if a.r.lis.CheckpointTriggered != nil {
		a.r.lis.CheckpointTriggered(act.ID)
	}
	a.renew(a.pending[len(a.pending)-1], act.Tasks)
	b := a.barrier(act)
	a.pending[len(a.pending)-1].barrier = b
	for _, id := range act.Tasks {
		if t := a.tasks[id]; t.rooted() {
			t.inbox.barrier(b)
		}
	}
}

// barrier gives what a checkpoint's barriers are like when they leave the sources. The final one is aligned: nothing comes
// behind it, and what is in flight is processed rather than kept.
func (a *attempt) barrier(act checkpoint.Trigger) gate.Barrier {
	cfg := a.r.cfg
	loose := cfg.Unaligned && act.Reason != checkpoint.Final && len(act.Savepoint) == 0
	return gate.Barrier{ID: act.ID, Unaligned: loose && cfg.AlignedTimeout == 0, Timeout: loose && cfg.AlignedTimeout > 0}
}

// written tells tasks that stand still until their state is written.
func (a *attempt) written(p *pending) {
	if !a.wholes.sync {
		return
	}
	for id := range p.acks {
		if t := a.tasks[id]; t != nil {
			t.inbox.written(p.name.ID)
		}
	}
}

// rooted says that the coordinator itself brings a task its barriers: that of a source, one whose inputs have all ended, and
// one that only a feedback edge leads to.
func (t *owned) rooted() bool { return !t.exchange || t.over || t.feedbackOnly }

// abandon gives up checkpoints that failed where the transaction could go on. What their tasks froze belongs to the next
// checkpoint, and what the sinks hold back behind their barriers flows into the transaction that is open.
func (a *attempt) abandon(act checkpoint.Abandon) {
	first, last := act.IDs[0], act.IDs[len(act.IDs)-1]
	var sealing []<-chan struct{}
	for _, id := range act.IDs {
		if p := a.inFlight(id); p != nil {
			p.stop()
			a.renewLater(p)
			a.discardLater(p)
			if p.sealing != nil {
				sealing = append(sealing, p.sealing)
			}
		}
	}
	a.pending = slices.DeleteFunc(a.pending, func(p *pending) bool { return p.name.ID >= first })
	for _, id := range a.order {
		a.tasks[id].inbox.abandon(span{first, last})
	}
	a.resume(span{first, last}, sealing)
	if a.r.lis.CheckpointAbandoned != nil {
		a.r.lis.CheckpointAbandoned(act.IDs, act.Reason, act.Err)
	}
	if a.retry == nil {
		a.retry = time.After(crowdedPause)
	}
}

// crowdedPause is between a checkpoint that was given up and the next one, where tasks stand for it or ask for it early. One that
// fails at once again and again must cost little, and not use up the tolerable failures within milliseconds.
const crowdedPause = time.Second

// tryAgain is for the end of that pause. A task that has asked for a checkpoint meanwhile does not ask again, also where its share
// has become larger since, and it would stand for the interval when it has filled that.
func (a *attempt) tryAgain() []checkpoint.Action {
	wanted := a.early || a.holding(1)
	a.retry, a.early = nil, false
	if !wanted {
		return nil
	}
	return a.co.RequestCheckpoint(a.now(), checkpoint.Early)
}

// crowded says that a task holds so much that it takes nothing before the next commit. It asked for a checkpoint when it had half
// of that, and asks no more: that one may have been given up, or its share may have become smaller since.
func (a *attempt) crowded() bool { return a.holding(2) }

// holding says that a task holds more than so many times its share of uncommitted state.
func (a *attempt) holding(shares int64) bool {
	for _, t := range a.tasks {
		if t.stats.uncommitted.Load() > shares*t.limit.Load() {
			return true
		}
	}
	return false
}
