package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// worker runs f in a goroutine under a context that the end of the pending checkpoint ends, and reports its event. What fails
// when the attempt is over, at the end of the shutdown timeout say, says nothing of the work: it was cut short.
func (a *attempt) worker(p *pending, f func(ctx context.Context) event) { a.workerUnder(&p.stop, f) }

func (a *attempt) workerUnder(stop *func(), f func(ctx context.Context) event) {
	ctx, cancel := context.WithCancel(a.ctx)
	prev := *stop
	*stop = func() { cancel(); prev() }
	a.spawn(func() {
		defer cancel()
		if e := f(ctx); e.err == nil || a.ctx.Err() == nil {
			a.report(e)
		}
	})
}

// persist makes the frozen changes of all tasks durable in one file. It is the asynchronous part of the checkpoint: the
// tasks go on meanwhile.
func (a *attempt) persist(id element.CheckpointID) {
	p := a.inFlight(id)
	if a.r.cfg.NoSnapshots {
		a.worker(p, func(context.Context) event { return event{kind: evPersisted, id: id} })
		return
	}
	deltas := make([]snapshot.TaskDelta, 0, len(p.acks))
	var all []Frozen
	var owners []*owned
	var before []int64 // bytes of the runs that the deltas follow
	for _, tid := range a.order {
		ack, ok := p.acks[tid]
		if !ok {
			continue
		}
		all, owners = append(all, ack.frozen), append(owners, a.tasks[tid])
		before = append(before, a.tasks[tid].committed.RunBytes())
		deltas = append(deltas, a.delta(p, tid, ack))
	}
	name, store, cut, why, room := p.name, a.r.ports.Checkpoints, a.savepointsOf(p), a.whyRenewed(p), a.discarded
	p.writers.Add(1)
	a.worker(p, func(ctx context.Context) event {
		defer p.writers.Done()
		e := event{kind: evPersisted, id: id, runs: map[element.TaskID]snapshot.Persisted{}}
		select {
		case <-room: // what was given up may take the room that this needs
		case <-ctx.Done():
		}
		written, err := store.Persist(ctx, name, deltas)
		torn := false
		for i, f := range all { // before the savepoints: what they cannot read is not missing here
			if unread := f.Err(); unread != nil {
				err, torn = errors.Join(unread, err), torn || deltas[i].Full
			}
		}
		for i, t := range owners { // the first is all that one hears of: others may lack the same, room on disk say
			if torn && deltas[i].Full && ctx.Err() == nil {
				t.spoiled.Store(true)
			}
		}
		if err != nil {
			e.err = fmt.Errorf("write changes of checkpoint %s%s: %w", name, why, err)
			return e
		}
		e.savepoints = cut(ctx)
		for _, s := range e.savepoints {
			if s.err == nil && !slices.Contains(p.cut, s.ref) {
				p.cut = append(p.cut, s.ref)
			}
		}
		for i, w := range written {
			e.runs[deltas[i].Task] = w
			e.count(w.Run)
			e.count(w.InFlight)
			if !deltas[i].Full {
				e.persist.FullBytes += before[i]
			}
		}
		return e
	})
}

// count adds a run to what was written.
func (e *event) count(run snapshot.RunRef) {
	if run.IsZero() {
		return
	}
	e.persist.Bytes += run.Length
	e.persist.FullBytes += run.Length
	e.persist.Entries += run.Entries
	if !run.IsInline() {
		e.persist.Files = 1 // one pack file holds them all
	}
}

// delta describes what a task changed for a checkpoint. It follows the run of the checkpoint before it, which may be in
// flight still: then that one is committed before this one's root is written, or both are given up.
func (a *attempt) delta(p *pending, tid element.TaskID, ack taskAck) snapshot.TaskDelta {
	d := snapshot.TaskDelta{Task: tid, States: ack.states, From: a.tasks[tid].committed.ChainEnd(), To: p.name.ID, Len: ack.frozen.Len(), Entries: ack.frozen.Sorted()}
	if a.whole(p, tid) {
		d.From, d.Full, d.Len, d.Entries = 0, true, ack.frozen.FullLen(), ack.frozen.Full()
	}
	if len(ack.inflight) > 0 {
		d.InFlight = encodeParcels(ack.inflight)
	}
	for _, before := range a.pending {
		if before == p || d.Full {
			break
		}
		earlier, ok := before.acks[tid]
		switch {
		case ok && a.whole(before, tid) && earlier.frozen.FullLen() == 0:
			d.From = 0 // its chain has no run
		case ok && (a.whole(before, tid) || earlier.frozen.Len() > 0):
			d.From = before.name.ID
		}
	}
	d.Full = d.Full || d.From == 0 && a.tasks[tid].rescaled
	return d
}

func encodeParcels(ps []topology.Parcel) func(add func(group int, data []byte) error) error {
	return func(add func(group int, data []byte) error) error {
		for _, p := range ps {
			if err := p.Encode(add); err != nil {
				return err
			}
		}
		return nil
	}
}

// seal flushes the transaction. Every task has passed the barrier, so nothing is added to it any more.
func (a *attempt) seal(id element.CheckpointID) {
	sink, released, done := a.sink, a.released, make(chan struct{})
	a.inFlight(id).sealing = done
	// A checkpoint that is given up does not end it: a flush that is cut short takes the transaction with it, and what is in it
	// belongs to the next checkpoint.
	a.workerUnder(&a.inFlight(id).stopSeal, func(ctx context.Context) event {
		defer close(done)
		// What was held back behind the previous barrier belongs to this transaction.
		if err := released.wait(ctx); err != nil {
			return event{kind: evSealed, id: id, err: err}
		}
		return event{kind: evSealed, id: id, err: sink.Seal(ctx, id)}
	})
}

// writeRoot writes the file that names everything the checkpoint consists of.
func (a *attempt) writeRoot(id element.CheckpointID) {
	p, cfg := a.inFlight(id), a.r.cfg
	if cfg.NoSnapshots {
		p.root = &snapshot.Root{}
		a.worker(p, func(context.Context) event { return event{kind: evRoot, id: id} })
		return
	}
	root := &snapshot.Root{
		Name:             p.name,
		Predecessor:      p.follows,
		Application:      cfg.Application,
		Instance:         cfg.Instance,
		ClusterID:        cfg.ClusterID,
		StoreID:          a.r.ports.Checkpoints.StoreID(),
		CreatedUnixMilli: time.Now().UnixMilli(),
		Origin:           a.origin,
	}
	for _, tid := range a.order {
		ack, ok := p.acks[tid]
		if !ok || a.tasks[tid].starts() {
			continue
		}
		var runs []snapshot.RunRef
		if !a.whole(p, tid) {
			runs = a.chainOf(tid)
		}
		if run := p.runs[tid].Run; !run.IsZero() {
			runs = append(runs, run)
		}
		root.Tasks = append(root.Tasks, a.entry(p, tid, ack, runs))
	}
	for _, name := range p.wanted {
		if s := p.savepoints[name]; s.err == nil && !slices.Contains(root.Savepoints, s.ref) {
			root.Savepoints = append(root.Savepoints, s.ref)
		}
	}
	p.root = root
	store := a.r.ports.Checkpoints
	p.writers.Add(1)
	a.worker(p, func(ctx context.Context) event {
		defer p.writers.Done()
		ref, err := store.WriteRoot(ctx, root)
		if fault.CodeOf(err) == fault.Corrupt {
			// A file of the chain is gone: see noteLost.
			a.distrust.Store(true)
			err = fault.New(fault.Restart, fault.Corrupt, "write root of checkpoint %s: %w", root.Name, err)
		} else if err != nil {
			err = fmt.Errorf("write root of checkpoint %s: %w", root.Name, err)
		}
		return event{kind: evRoot, id: id, root: ref, err: err}
	})
}

// entry is what the root says of a task.
func (a *attempt) entry(p *pending, tid element.TaskID, ack taskAck, runs []snapshot.RunRef) snapshot.TaskEntry {
	e := snapshot.TaskEntry{Task: tid, States: ack.states, Runs: runs}
	if t := a.tasks[tid]; t.exchange {
		e.Parallelism, e.MaxParallelism = t.parallelism, a.par.most
		if run := p.runs[tid].InFlight; !run.IsZero() {
			e.InFlight, e.Exchange = []snapshot.RunRef{run}, exchangeKind(a.stageOf(tid).Kind)
		}
	} else {
		e.Positions = []element.Position{ack.position}
	}
	return e
}

// starts reports that a checkpoint which covers the task is the one that commits its start position. The task has not
// taken a record yet, so it gets what checkpoint 0 gives: a handle that says "no state", and no entry in the root. A root is
// written before its commit. Did that come to nothing, whoever owns the partition next would find it in the store without
// a committed offset, which is what an offset that has expired looks like.
func (t *owned) starts() bool { return t.fresh && !t.fed }

// commit commits the transaction: outputs, positions and, in each position's metadata, the handle of the root.
func (a *attempt) commit(act checkpoint.CommitAction) error {
	failpoint.Hit(failpoint.PermitAfter)
	p := a.inFlight(act.ID)
	p.permitted = true
	c := checkpoint.Commit{Name: p.name, Permit: act.Permit}
	for _, id := range a.order {
		t := a.tasks[id]
		ack, ok := p.acks[id]
		if !ok || t.exchange {
			continue
		}
		h := a.newHandle(ack.position)
		switch h.Root.Name = p.name; {
		case t.starts():
		case !a.r.cfg.NoSnapshots:
			h.Kind, h.Root = snapshot.HandleCheckpoint, p.ref
		case a.ofState(id):
			h.Kind = snapshot.HandleUnsaved
		}
		text, err := h.Encode()
		if err != nil {
			return fault.Stopf(fault.Failed, "handle of checkpoint %s for %s: %w", p.name, ack.position.TopicPartition, err)
		}
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Epoch: t.epoch, Position: ack.position, Metadata: text})
	}
	committer := a.r.ports.Committer
	// Not a worker of the pending checkpoint: nothing cancels a commit that has its Permit.
	a.spawn(func() {
		err := committer.Commit(context.WithoutCancel(a.ctx), c)
		if err != nil {
			err = fmt.Errorf("commit checkpoint %s: %w", c.Name, err)
		}
		a.report(event{kind: evCommitted, id: c.Name.ID, err: err})
	})
	return nil
}

// newHandle gives what all handles of a position have in common. As it is, it says that the task starts without state.
func (a *attempt) newHandle(pos element.Position) snapshot.Handle {
	return snapshot.Handle{
		Kind:           snapshot.HandleEmpty,
		Root:           snapshot.RootRef{Name: element.CheckpointName{Incarnation: a.r.cfg.Incarnation}},
		Partition:      pos.Partition,
		Offset:         pos.Offset,
		LeaderEpoch:    pos.LeaderEpoch,
		ClusterID:      a.r.cfg.ClusterID,
		TopicID:        pos.TopicID,
		PartitionCount: pos.PartitionCount,
		StoreID:        a.r.ports.Checkpoints.StoreID(),
		Life:           a.r.cfg.Life,
	}
}

// complete makes the committed checkpoint the one that everything falls back to; leaving are the tasks that leave with it. An error ends the attempt, which it does
// not report as others do: the loop must not wait for a place among the events that only it takes.
func (a *attempt) complete(id element.CheckpointID, leaving []element.TaskID) error {
	failpoint.Hit(failpoint.CompleteBefore)
	p := a.inFlight(id)
	a.pending = slices.DeleteFunc(a.pending, func(o *pending) bool { return o == p })
	a.r.losses, a.r.asked = 0, 0
	ref := p.ref
	if !a.r.cfg.NoSnapshots {
		a.last = &ref
		for _, o := range a.pending {
			o.follows = &ref
		}
	}
	for _, entry := range p.root.Tasks {
		t := a.tasks[entry.Task]
		t.committed, t.root, t.fresh = entry, &ref, false
		t.inbox.commit(id)
		a.adopted(entry)
		a.renewed(p, entry.Task)
	}
	a.wholes.forget(id)
	for task := range p.acks {
		if t := a.tasks[task]; t.starts() || a.r.cfg.NoSnapshots {
			t.fresh = false
			t.inbox.commit(id)
		}
	}
	failpoint.Hit(failpoint.CompleteAfter)
	a.dropLeaving(leaving)
	a.release(id)
	err := a.begin(p)
	if a.r.ports.Local != nil && !a.r.cfg.NoSnapshots {
		a.r.ports.Local.Committed(ref, p.root.Tasks)
	}
	last, _ := a.co.Stats().Of(id)
	if a.r.lis.CheckpointCompleted != nil {
		a.r.lis.CheckpointCompleted(last)
	}
	if n := p.looping(); n > 0 && a.r.lis.Looping != nil {
		a.r.lis.Looping(id, n, p.last)
	}
	a.completed(p, last)
	if !a.r.cfg.NoSnapshots {
		a.markCommitted(ref)
		a.house(ref)
		a.afterImport()
	}
	return err
}

// markCommitted writes the committed marker beside the root, by which tools tell committed roots from others. It is
// written even when this was the last checkpoint and the attempt is being torn down.
func (a *attempt) markCommitted(ref snapshot.RootRef) {
	store, lis := a.r.ports.Checkpoints, a.r.lis
	a.spawn(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), markTimeout)
		defer cancel()
		failpoint.Hit(failpoint.MarkerBefore)
		if err := store.MarkCommitted(ctx, ref); err != nil {
			lis.cleaned(snapshot.CleanReport{}, fmt.Errorf("mark checkpoint %s committed: %w", ref.Name, err))
		}
		failpoint.Hit(failpoint.MarkerAfter)
	})
}

// markTimeout bounds the writing of a committed marker.
const markTimeout = 5 * time.Second
