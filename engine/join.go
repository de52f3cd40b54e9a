package engine

import (
	"fmt"
	"slices"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// reconcile compares what the attempt has with what the group gives it now. What was gained is taken in beside the
// running tasks. What is gone without having left in order ends the attempt: its output may be in the open transaction.
func (a *attempt) reconcile() error {
	if err := a.r.ports.Group.Err(); err != nil {
		return err
	}
	cur := a.r.ports.Group.Current()
	for _, id := range a.order {
		t := a.tasks[id]
		if !t.exchange && cur.Since[t.position.TopicPartition] != t.epoch {
			return fault.New(fault.Rejoin, fault.Failed, "the group took %s away before its last checkpoint", t.position.TopicPartition)
		}
	}
	if in := a.joining; in != nil {
		for tp, since := range in.since {
			if cur.Since[tp] != since {
				in.cancel() // evJoined comes, and with it the next look
			}
		}
		return nil
	}
	gained := map[element.TopicPartition]uint64{}
	for _, tp := range cur.Partitions {
		if since := cur.Since[tp]; a.byTP[tp] == (element.TaskID{}) && a.left[tp] != since {
			gained[tp] = since
		}
	}
	switch {
	case a.finished: // who gets them is seen when this attempt is over: see Runner.finish
	case len(gained) > 0 && !a.ending() && a.brake != nil:
		a.redraw()
	case len(gained) > 0 && !a.ending():
		a.join(gained)
	case len(cur.Partitions) == 0 && len(a.order) == 0:
		return errStandBy
	}
	return nil
}

// redraw ends the attempt with a last checkpoint because its partitions change. Tasks that exchange records with each other
// come and go together.
func (a *attempt) redraw() {
	if !a.redrawn {
		a.redrawn = true
		a.stopIn()
	}
}

// join takes partitions in, in the background: the tasks that run go on.
func (a *attempt) join(since map[element.TopicPartition]uint64) {
	in := a.newIntake(since)
	a.joining = in
	a.spawn(func() {
		err := in.prepare()
		a.joined <- in // capacity 1, and there is one at a time: tearDown finds it there
		a.report(event{kind: evJoined, err: err})
	})
}

// prepare does for partitions that come later what an attempt does for its first ones, up to the commit of checkpoint 0:
// that of these partitions is the next checkpoint. The own transactional ids are in use and stay as they are.
func (in *intake) prepare() error {
	// The last owner may have died with a transaction open, and the stable read would wait for the broker to end it.
	in.a.r.ports.Committer.FenceGone(in.ctx)
	defer in.closeFrom()
	decisions, err := in.resolve()
	if err != nil {
		return err
	}
	return in.build(decisions)
}

// onJoined makes the tasks of an intake part of the attempt.
//
// While barriers are being taken back the transaction may be sealed still, and there is none left behind which a new task
// could hold back what it makes. So it comes when that is over.
func (a *attempt) onJoined(err error) error {
	if resuming := a.resuming; !isClosed(resuming.over) {
		a.spawn(func() {
			_ = resuming.wait(a.ctx)
			a.report(event{kind: evJoined, err: err})
		})
		return nil
	}
	if err := a.resumed(); err != nil {
		return err
	}
	in := <-a.joined
	a.joining = nil
	defer in.cancel()
	cur := a.r.ports.Group.Current()
	for tp, since := range in.since {
		if cur.Since[tp] != since || a.left[tp] == since || a.ending() || a.finished {
			in.close() // given and taken away again, or about to be, or too late: whatever came of it is of no use, not even the error
			return a.reconcile()
		}
	}
	if err != nil {
		in.close()
		return fmt.Errorf("take in %d partitions: %w", len(in.since), err)
	}
	failpoint.Hit(failpoint.JoinBefore)
	if err := a.takeAllIn(in); err != nil {
		in.close() // the rest
		return err
	}
	failpoint.Hit(failpoint.JoinAfter)
	return a.reconcile()
}

// takeAllIn starts the tasks of an intake, which after an error has those left that were not started.
func (a *attempt) takeAllIn(in *intake) error {
	a.lastID = max(a.lastID, in.lastID)
	if err := a.execute(a.co.Raise(a.now(), in.lastID)); err != nil {
		return err
	}
	if len(in.ends) > 0 {
		a.source.SetEnds(in.ends)
	}
	early, tasks := false, in.tasks
	for _, t := range tasks {
		// As in onJoined, when the task before this one brought a checkpoint to its timeout.
		if err := a.resumed(); err != nil {
			return err
		}
		in.tasks = in.tasks[1:]
		if err := a.takeIn(t); err != nil {
			return err
		}
		early = early || t.fresh || t.imported
	}
	if early || a.crowded() {
		if err := a.execute(a.co.RequestCheckpoint(a.now(), checkpoint.Early)); err != nil {
			return err
		}
	}
	a.tellJoined(in.partitions(), tasks)
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// takeIn starts one task beside the others. The coordinator may trigger at each input, also with a part of an intake only,
// so its actions are executed before the next one: the tasks that follow then see a checkpoint in flight that does not
// cover them. Kept back to the end, such a trigger would come after they were taken for covered, and what they emit would
// be in its transaction without their positions.
func (a *attempt) takeIn(t *owned) error {
	a.admit(t)
	a.startTask(t)
	if err := a.execute(a.co.AddTask(a.now(), t.id)); err != nil {
		return err
	}
	if !t.fresh {
		if err := a.feedTask(t); err != nil || !t.imported && t.letGo == 0 {
			return err
		}
		return a.execute(a.co.Moved(a.now(), t.id))
	}
	// No record of it is processed before its start position is committed, and that comes with the next checkpoint.
	return a.execute(a.co.Moved(a.now(), t.id))
}

// tellJoined tells listener and local copy what was taken in.
func (a *attempt) tellJoined(tps []element.TopicPartition, tasks []*owned) {
	if a.r.lis.Joined != nil {
		a.r.lis.Joined(tps)
	}
	a.tellLocal(tasks)
}

// tellLocal tells the local copy what is committed of tasks.
func (a *attempt) tellLocal(tasks []*owned) {
	if a.r.ports.Local == nil {
		return
	}
	committed := map[snapshot.RootRef][]snapshot.TaskEntry{}
	for _, t := range tasks {
		if t.root != nil {
			committed[*t.root] = append(committed[*t.root], t.committed)
		}
	}
	for root, entries := range committed {
		a.r.ports.Local.Committed(root, entries)
	}
}

// admit enters a task into the attempt.
func (a *attempt) admit(t *owned) {
	a.tasks[t.id] = t
	if !t.exchange {
		a.byTP[t.position.TopicPartition] = t.id
	}
	i, _ := slices.BinarySearchFunc(a.order, t.id, element.TaskID.Compare)
	a.order = slices.Insert(a.order, i, t.id)
	// What a task emits while a checkpoint is in flight that does not cover it belongs to the next one: it has passed
	// that barrier, so to speak.
	var behind []element.CheckpointID
	for _, p := range a.pending {
		behind = append(behind, p.name.ID)
	}
	t.out = a.sink.Writer(t.id, behind...)
	for _, root := range []*snapshot.RootRef{t.root, t.leaves} {
		if root != nil && (a.last == nil || a.last.Name.ID < root.Name.ID) {
			a.last = root
		}
	}
	a.origins(t)
	a.share()
}

// share gives every task its part of the limit of uncommitted state.
func (a *attempt) share() {
	for _, t := range a.tasks {
		t.limit.Store(max(1, a.r.cfg.UncommittedLimit/int64(len(a.tasks))))
	}
}

// feedTask lets records come to a task.
func (a *attempt) feedTask(t *owned) error {
	a.feed.add(t.position.TopicPartition, t.inbox)
	t.fed = true
	return a.source.Add(t.position)
}

// begin lets records come to the tasks whose start position has been committed by checkpoint p.
func (a *attempt) begin(p *pending) error {
	for id := range p.acks {
		if t := a.tasks[id]; !t.fed && !t.halted {
			if err := a.feedTask(t); err != nil {
				return err
			}
		}
	}
	return nil
}
