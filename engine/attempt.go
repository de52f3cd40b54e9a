package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// attempt is one run of the plan: from the stable read of the committed offsets to the first failure or the wish to stop.
// Partitions come and go meanwhile. Its loop goroutine (run) owns everything here but what says otherwise.
type attempt struct {
	r      *Runner
	number int
	asg    Assignment      // that it began with
	ctx    context.Context // of everything the attempt starts
	cancel context.CancelCauseFunc
	stop   context.Context // its end: stop gracefully
	began  time.Time

	tasks  map[element.TaskID]*owned
	order  []element.TaskID
	byTP   map[element.TopicPartition]element.TaskID
	kept   map[element.TaskID]*keptState // what the last attempt left in memory; nil once the first tasks are restored
	lastID element.CheckpointID          // highest id in any handle seen, or given

	par      parallelism // of the exchanges
	brake    *brake      // nil without exchanges
	wholes   *wholes
	flow     *flow
	requests []*request                       // that wait for a checkpoint
	ends     map[element.TopicPartition]int64 // of the partitions that it began with, of those that have one
	redrawn  bool                             // the assignment has changed: this attempt ends with a last checkpoint, and the next one has the new partitions
	finished bool                             // all inputs have ended
	halting  bool                             // it ends with a savepoint, and the work with it; without the savepoint the work goes on
	lasting  bool                             // the last checkpoint has been asked for
	draining bool                             // the last checkpoint waits until nothing is on a feedback edge
	patience <-chan time.Time                 // that wait is over
	retry    <-chan time.Time                 // a checkpoint was given up: look whether tasks wait for the next one
	early    bool                             // a task has asked for one meanwhile, and none was triggered since

	joining     *intake                           // partitions on their way in; one intake at a time
	joined      chan *intake                      // the same when its goroutine is done with it
	left        map[element.TopicPartition]uint64 // ownership epochs that are over: tasks have left with them, or none came
	revocations []*revocation                     // that wait for tasks to leave

	feed   *feeder
	source Source
	sink   Sink
	stopIn context.CancelFunc // stops the source alone

	co        *checkpoint.Coordinator
	pending   []*pending              // the checkpoints in flight, oldest first
	released  *step                   // the last change of what is held back: behind the last committed barrier it has flowed on
	resuming  *step                   // the last time that barriers were taken back; over unless they are being taken back now
	discarded <-chan struct{}         // closed when the files of all checkpoints that were given up are gone
	last      *snapshot.RootRef       // newest committed root of this instance
	origin    []snapshot.SavepointRef // that the state began with
	originAt  element.CheckpointID    // of the root that says it
	imports   bool                    // tasks come from the savepoint, and nothing of them is committed yet
	claiming  bool
	merge     mergeState
	quiet     *time.Timer          // until housekeeping without a commit
	startID   element.CheckpointID // names what is merged at the start; no checkpoint has it
	events    chan event
	wg        sync.WaitGroup // everything the attempt starts
	// distrust: a file is missing, and it may be one of a merged run.
	distrust atomic.Bool
}

// owned is a task and what the loop knows of its snapshots.
type owned struct {
	*task
	epoch      uint64                  // the ownership epoch of its partition
	fresh      bool                    // has no committed offset yet
	fed        bool                    // records come to it
	sources    []snapshot.TaskEntry    // those tasks
	rescaled   bool                    // its state was read from other tasks of the checkpoint: nothing on disk is its own yet
	over       bool                    // no record comes to it any more
	halted     bool                    // it was told to take no records any more
	farewells  atomic.Int32            // it has left; its goroutine has ended: see closeLeft
	quit       func()                  // ends its goroutine
	letGo      element.CheckpointID    // state up to that checkpoint, of the committed offset or in the store, is let go
	allGo      bool                    // and so is that of all others
	recovered  bool                    // starts on the store's word: its committed offset is gone or of no use
	whole      bool                    // the state is all of the committed entry, not a restore that broke off
	spoiled    atomic.Bool             // a checkpoint could not read whole states, this one among them: the next attempt reads it from the last one
	imported   bool                    // its state comes from the savepoint that the application starts from
	leaves     *snapshot.RootRef       // the root that it was read from although it has no chain there
	savepoints []snapshot.SavepointRef // cut at the barrier of the root that it was restored from
	origin     []snapshot.SavepointRef // of that root, or the savepoint
	committed  snapshot.TaskEntry      // as of the last commit
	root       *snapshot.RootRef       // the root that names it; nil while there is only checkpoint 0
}

// taskStats are counters that other goroutines read.
type taskStats struct {
	records, emitted, skipped atomic.Int64
	uncommitted               atomic.Int64 // bytes of state
}

// run is the attempt's life. It returns errStopped after a graceful stop.
func (a *attempt) run() error {
	// Until the first record there is nothing that a stop would have to commit.
	abandon := context.AfterFunc(a.stop, func() { a.cancel(errStopped) })
	err := a.prepare()
	if !abandon() && fault.RecoveryOf(err) != fault.Stop {
		return errStopped
	}
	if err != nil {
		return err
	}
	if err := a.startAll(); err != nil {
		return err
	}
	a.announce()
	if err := a.beginImported(); err != nil {
		return err
	}
	a.r.policy.Running(a.now())
	a.r.running.Store(a)
	a.r.live(Running, a.number, nil)
	a.mergeAtStart()
	if a.r.granted.Load() {
		a.seeToClaim()
	}
	return a.loop()
}

// prepare makes the transactional ids ours, reads what is committed, restores it, and commits checkpoint 0 for
// partitions that have no committed offset.
//
// The order matters. A predecessor of the same name may have died with a transaction open; were the offsets read first,
// that read would wait for the broker to time the transaction out.
func (a *attempt) prepare() error {
	if err := a.r.ports.Committer.Init(a.ctx); err != nil {
		return fmt.Errorf("initialise transactional ids: %w", err)
	}
	in := a.newIntake(a.asg.Since)
	defer in.cancel()
	defer in.closeFrom()
	decisions, err := in.resolve()
	if err != nil {
		return err
	}
	if a.sink, err = a.r.ports.NewSink(); err != nil {
		return fmt.Errorf("open sinks: %w", err)
	}
	a.lastID, a.ends = max(a.lastID, in.lastID), in.ends
	maps.DeleteFunc(a.kept, func(id element.TaskID, k *keptState) bool { // before others are read in its place
		return decisions[id].Root != k.root
	})
	a.r.closeUnkept()
	err = in.build(decisions)
	a.kept, a.r.kept = nil, nil // used or of no use any more
	a.tasks, a.byTP = map[element.TaskID]*owned{}, map[element.TopicPartition]element.TaskID{}
	used := map[State]bool{}
	for _, t := range in.tasks {
		a.admit(t)
		used[t.state] = true
	}
	a.r.states.closeOthers(func(st State) bool { return used[st] })
	if a.brake != nil && err == nil {
		a.wire()
		if err = in.replayAll(decisions); fault.CodeOf(err) == fault.Corrupt {
			err = in.stillRefused(err)
		}
	}
	a.forgetLost() // also when some could not be restored: this attempt has what the next one compares with
	if err != nil {
		return err
	}
	a.cleanFailed(in)
	if len(a.due()) > 0 {
		a.lastID++
		a.startID = a.lastID
	}
	a.co = checkpoint.New(a.r.cfg.checkpointing(), a.lastID)
	return a.commitStart()
}

// forgetLost lets go what was kept of tasks that the last attempt had and that went to other instances. Merged runs go also
// when their tasks have come back: while this process was out of the group others took it for gone, or it was replaced, and
// who decided then that a run which no root names may go can be slow to delete it.
func (a *attempt) forgetLost() {
	lost := func(id element.TaskID, epoch uint64) bool { return a.tasks[id] == nil || a.tasks[id].epoch != epoch }
	all := false // subtasks behind exchanges have no epoch, and move with all others
	for id, epoch := range a.r.had {
		all = all || a.brake != nil && lost(id, epoch)
		if a.tasks[id] == nil && a.r.ports.Local != nil {
			a.r.ports.Local.Left(id)
		}
	}
	for id := range a.merge.full {
		if all || lost(id, a.r.had[id]) {
			a.forgetMerged(id)
		}
	}
	maps.DeleteFunc(a.merge.bad, func(id element.TaskID, _ *unmerged) bool { return a.tasks[id] == nil })
	a.r.had = nil
}

// startAll starts one goroutine per task and one for the source.
func (a *attempt) startAll() error {
	positions := make([]element.Position, 0, len(a.order))
	for _, id := range a.order {
		if t := a.tasks[id]; !t.exchange {
			positions = append(positions, t.position)
		}
	}
	var err error
	if len(a.ends) == 0 {
		a.source, err = a.r.ports.NewSource(positions)
	} else if a.source, err = a.r.ports.NewSource(nil); err == nil {
		a.source.SetEnds(a.ends)
		err = a.source.Add(positions...)
	}
	if err != nil {
		return fmt.Errorf("open source: %w", err)
	}
	a.feed.pause, a.feed.resume = a.source.Pause, a.source.Resume
	for _, id := range a.order {
		t := a.tasks[id]
		if t.fed = true; !t.exchange {
			a.feed.add(t.position.TopicPartition, t.inbox)
		}
		a.startTask(t)
	}
	feedCtx, stop := context.WithCancel(a.ctx)
	a.stopIn = stop
	a.spawn(func() {
		err := a.source.Run(feedCtx, a.feed.deliver)
		switch {
		case feedCtx.Err() != nil:
			a.report(event{kind: evDrained})
		case err != nil:
			a.report(event{kind: evFailed, err: fmt.Errorf("source: %w", err)})
		default:
			a.report(event{kind: evFailed, err: errors.New("source ended by itself")})
		}
	})
	return nil
}

// startTask starts the goroutine of a task. It ends with the attempt, or when the task has left.
func (a *attempt) startTask(t *owned) {
	var ctx context.Context
	ctx, t.quit = context.WithCancel(a.ctx)
	t.resume = a.source.Resume
	t.claim() // before it runs: timers that came due meanwhile
	a.spawn(func() {
		if err := t.run(ctx); err != nil {
			a.report(event{kind: evFailed, task: t.id, err: err})
		}
		t.quit()
		a.closeLeft(t)
	})
}

// closeLeft closes a task that has left and whose goroutine has ended: the second of both does it. Of those that stay to the end
// tearDown closes the user code.
func (a *attempt) closeLeft(t *owned) {
	if t.farewells.Add(1) == 2 {
		t.closeChain(a.r.lis)
		a.r.states.close(t.state)
	}
}

// spawn runs f in a goroutine that tearDown waits for.
func (a *attempt) spawn(f func()) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		f()
	}()
}

// report hands an event to the loop. When the attempt is over nobody listens any more and the event is dropped.
func (a *attempt) report(e event) {
	select {
	case a.events <- e:
	case <-a.ctx.Done():
	}
}

// now is the time that the coordinator knows.
func (a *attempt) now() time.Duration { return time.Since(a.r.start) }

// tearDown ends everything that the attempt started and waits for it, aborts the open transaction and keeps the state
// whose last commit is known. What was frozen or changed after that commit is rolled back by the next attempt.
func (a *attempt) tearDown() {
	a.r.live(Ending, a.number, nil)
	a.r.running.Store(nil)
	a.cancel(errAttemptOver)
	if a.sink != nil {
		a.sink.Discard()
	}
	a.wg.Wait()
	a.discardPending()
	if a.source != nil {
		a.source.Close()
	}
	// The abort must not be cut short by the shutdown that may have caused it, nor hang: a transaction that cannot be
	// aborted now is fenced by the next Init, or times out.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), abortTimeout)
	defer cancel()
	if err := a.r.ports.Committer.Abort(ctx); err != nil {
		a.r.untidy = true
		a.r.lis.abortFailed(err)
	}
	a.leaveMerges()
	for _, id := range a.order {
		a.tasks[id].closeChain(a.r.lis)
	}
	select {
	case in := <-a.joined: // its report was not heard
		in.close()
	default:
	}
	a.keepStates()
	a.r.closeUnkept()
}

// announce tells the listener and the local copy where the attempt starts, and adds the tasks to the checkpoints.
func (a *attempt) announce() {
	info := AttemptInfo{Attempt: a.number, Tasks: len(a.order), Took: time.Since(a.began)}
	var tasks []*owned
	for _, id := range a.order {
		t := a.tasks[id]
		a.co.AddTask(a.now(), id)
		tasks = append(tasks, t)
		if t.root == nil {
			switch {
			case t.imported:
				info.Imported++
			case t.leaves != nil: // its state was moved, or some of it was let go
				info.Checkpoint = max(info.Checkpoint, t.leaves.Name.ID)
			case !t.rescaled:
				info.Fresh++
			}
			continue
		}
		info.Checkpoint = max(info.Checkpoint, t.root.Name.ID)
	}
	if a.r.lis.AttemptStarted != nil {
		a.r.lis.AttemptStarted(info)
	}
	a.tellLocal(tasks)
}

const abortTimeout = 10 * time.Second

// drained: the final checkpoint is committed.
func (a *attempt) drained() error {
	goesOn := a.stop.Err() == nil && !a.r.Halted()
	switch {
	case a.redrawn && goesOn:
		return errRedrawn
	case a.finished:
		return errFinished
	case a.halting && goesOn:
		return errUnsaved
	}
	return errStopped
}

// ending reports that no partitions are taken in any more.
func (a *attempt) ending() bool { return a.stop.Err() != nil || a.halting }

var errAttemptOver = errors.New("attempt over")

// keepStates leaves the states in memory to the next attempt, rolled back to the last commit that is sure. Every
// goroutine has ended, so the states are this one's now. An attempt that ended before it had tasks leaves what it found:
// a broker that cannot be reached for a while must not cost the states.
func (a *attempt) keepStates() {
	a.r.lastID = max(a.r.lastID, a.lastID)
	if a.tasks == nil {
		return
	}
	a.r.kept, a.r.had = map[element.TaskID]*keptState{}, map[element.TaskID]uint64{}
	for id, t := range a.tasks {
		a.r.had[id] = t.epoch
		if !t.whole || t.root == nil || t.spoiled.Load() {
			continue
		}
		// The commit notice may not have reached the task before the end.
		t.state.Commit(t.root.Name.ID)
		if t.state.Rollback(); t.state.Err() != nil {
			continue // it is of no use any more
		}
		a.r.kept[id] = &keptState{state: t.state, states: t.stateInfo, root: *t.root}
	}
}
