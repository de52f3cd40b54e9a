package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// restoreParallel is how many tasks are restored at once.
const restoreParallel = 4

// firstCheckpoint is when the first checkpoint of an attempt comes at the latest: readers have waited for the restart
// and see new output soon.
const firstCheckpoint = 100 * time.Millisecond

// build makes the tasks in the order of their ids, restores their states, several at a time, and makes their operators.
// After an error the tasks that were made so far are there, to be closed.
func (in *intake) build(decisions map[element.TaskID]snapshot.Decision) error {
	a := in.a
	in.tellUnsaved(decisions)
	g, ctx := errgroup.WithContext(in.ctx)
	g.SetLimit(restoreParallel)
	for _, id := range slices.SortedFunc(maps.Keys(decisions), element.TaskID.Compare) {
		t := &owned{task: &task{
			id: id, inbox: newInbox(a.r.cfg.InboxRecords), feed: a.feed, report: a.report, stats: &taskStats{},
		}}
		t.bell = t.inbox.bell
		if a.asSubtask(t.task); t.exchange {
			t.in = &input{timeout: a.r.cfg.AlignedTimeout}
		}
		in.tasks = append(in.tasks, t)
		d := decisions[id]
		g.Go(func() error { return in.restoreTask(ctx, t, d) })
	}
	if err := g.Wait(); err != nil {
		if fault.CodeOf(err) == fault.Corrupt {
			return in.stillRefused(err)
		}
		return err
	}
	for _, t := range in.tasks {
		if !t.exchange {
			t.epoch = in.since[t.position.TopicPartition]
		}
		chain, err := a.r.plan.NewTask(t.id.Source, t.id.Partition, &taskEnv{ctx: a.ctx, t: t.task, lis: a.r.lis, par: a.par})
		if err != nil {
			return err
		}
		t.chain = chain
		if err := t.state.Err(); err != nil { // timers were read
			return fmt.Errorf("task %s: %w", t.id, err)
		}
	}
	return nil
}

// close ends the user code of tasks that are not taken in after all.
func (in *intake) close() {
	for _, t := range in.tasks {
		t.closeChain(in.a.r.lis)
		in.a.r.states.close(t.state)
	}
}

// restoreTask gives a task the state and the position of its decision.
func (in *intake) restoreTask(ctx context.Context, t *owned, d snapshot.Decision) error {
	switch {
	case t.exchange:
	case d.Kind == snapshot.Fresh:
		t.position = in.starts[t.id]
	default:
		t.position = d.Positions[0]
	}
	if in.a.moves(t, d) {
		return in.restoreMoved(ctx, t, d)
	}
	return in.restoreOwn(ctx, t, d)
}

// restoreOwn gives a task the state that it had itself.
func (in *intake) restoreOwn(ctx context.Context, t *owned, d snapshot.Decision) error {
	switch d.Kind {
	case snapshot.Fresh:
		t.fresh, t.origin, t.letGo, t.allGo = true, in.origin, in.forgot, in.allGo
	case snapshot.StartEmpty:
		a := in.a
		if at := d.Root.Name; at.ID > 0 && !t.exchange {
			if in.letGo {
				t.letGo = at.ID
			}
			switch {
			case d.Unsaved, a.r.cfg.NoSnapshots:
			case d.Left.Path != "":
				if a.r.lis.TakenBack != nil {
					a.r.lis.TakenBack(t.id, d.Left)
				}
			case a.r.lis.StartsEmpty != nil:
				a.r.lis.StartsEmpty(t.id, at)
			}
		}
		t.origin = in.origin
	case snapshot.Restore, snapshot.Recovered:
		t.recovered = d.Kind == snapshot.Recovered
		t.committed = d.Entry
		root := d.Root
		t.root = &root
		if r := in.roots[root].Root; r != nil {
			t.savepoints, t.origin = r.Savepoints, r.Origin
		}
		a := in.a
		if k := a.kept[t.id]; k != nil && k.root == d.Root {
			t.state, t.stateInfo, t.whole = k.state, k.states, true
			if a.r.lis.Reused != nil {
				a.r.lis.Reused(t.id, d.Root)
			}
			return nil
		}
	default:
		return fmt.Errorf("task %s: decision %s", t.id, d.Kind)
	}
	return in.a.readState(ctx, t)
}

// readState makes the task's store and reads the runs of its committed entry into it.
//
// States are registered in the order of the checkpoint, new ones behind: runs written earlier number the states in that
// order, and they stay part of the chain.
func (a *attempt) readState(ctx context.Context, t *owned) error {
	t.stateInfo = slices.Clone(t.committed.States)
	for _, s := range a.r.plan.States {
		info := snapshot.StateInfo{Name: s.ID(), KeyCodec: s.KeyCodec, Codec: s.Codec}
		if s.Source == t.id.Source && !slices.Contains(t.stateInfo, info) {
			t.stateInfo = append(t.stateInfo, info)
		}
	}
	if err := a.newState(t); err != nil {
		return err
	}
	if t.root == nil {
		t.whole = true
		return nil
	}
	began := time.Now()
	if err := failpoint.Err(failpoint.RestoreBefore); err != nil {
		return err
	}
	stats, err := a.loadState(ctx, t)
	if err == nil {
		err = failpoint.Err(failpoint.RestoreAfter)
	}
	if err != nil {
		return fmt.Errorf("restore task %s from checkpoint %s: %w", t.id, t.root.Name, err)
	}
	t.whole = true
	if a.r.lis.Restored != nil {
		a.r.lis.Restored(t.id, *t.root, stats, time.Since(began))
	}
	return nil
}

// loadState fills a task's store from a savepoint that was cut at the same barrier, if there is one and it is wanted, from the
// local copy or, where these are of no use, from the files of the checkpoint.
func (a *attempt) loadState(ctx context.Context, t *owned) (snapshot.Stats, error) {
	if !a.r.cfg.PreferCheckpoint && a.r.ports.OpenSavepoint != nil {
		for _, ref := range t.savepoints {
			stats, err := a.fromSavepoint(ctx, t, ref)
			if err == nil {
				return stats, nil
			}
			if ctx.Err() != nil {
				return stats, err
			}
			if a.r.lis.SavepointUnusable != nil {
				a.r.lis.SavepointUnusable(t.id, ref, err)
			}
			if err := a.newState(t); err != nil {
				return stats, err
			}
		}
	}
	if a.r.ports.Local != nil {
		if stats, ok := a.r.ports.Local.Restore(ctx, *t.root, t.committed, t.state.Load); ok {
			return stats, nil
		}
		if err := a.newState(t); err != nil { // what was loaded is thrown away
			return snapshot.Stats{}, err
		}
	}
	return a.r.ports.Checkpoints.Restore(ctx, t.committed, nil, t.state.Load)
}

// fromSavepoint fills a task's store from the savepoint that a root names as its twin.
func (a *attempt) fromSavepoint(ctx context.Context, t *owned, ref snapshot.SavepointRef) (snapshot.Stats, error) {
	s, err := a.r.ports.OpenSavepoint(ctx, ref)
	if err != nil {
		return snapshot.Stats{}, err
	}
	defer s.Close()
	entry := s.Contents().Task(t.id)
	if entry == nil {
		return snapshot.Stats{}, fmt.Errorf("it does not hold task %s", t.id)
	}
	tables := make([]int, len(entry.States))
	for i, state := range entry.States {
		if tables[i] = slices.Index(t.stateInfo, state); tables[i] < 0 {
			return snapshot.Stats{}, fmt.Errorf("it holds state %s, which the checkpoint does not", state.Name)
		}
	}
	return s.Restore(ctx, *entry, nil, func(e snapshot.Entry) error {
		e.State = tables[e.State]
		return t.state.Load(e)
	})
}

// newState makes an empty store with all states of a task registered.
func (a *attempt) newState(t *owned) error {
	a.r.states.close(t.state) // what it has is of no use
	t.state = a.r.ports.NewState(t.id)
	a.r.states.add(t.state)
	for _, s := range t.stateInfo {
		if _, err := t.state.Table(s.Name, s.Codec); err != nil {
			return err
		}
	}
	return nil
}

// commitStart commits checkpoint 0: the start positions of partitions that have none, with a handle that says that no
// state belongs to them, those of tasks whose state is let go, and those of tasks recovered from the store, with the handle of a root written for them.
// No record of such a partition is processed before its start is committed: else a crash could resolve another start
// (latest has moved on) for records whose effects are already visible.
func (a *attempt) commitStart() error {
	recovered, err := a.writeRecovered()
	if err != nil {
		return err
	}
	c := checkpoint.Commit{Name: element.CheckpointName{Incarnation: a.r.cfg.Incarnation}}
	for _, id := range a.order {
		t := a.tasks[id]
		if t.exchange || !t.fresh && !t.recovered && t.letGo == 0 {
			continue
		}
		h := a.newHandle(t.position)
		if t.letGo > 0 { // not checkpoint 0: the store knows that later ones were committed
			if h.Root.Name.ID = t.letGo; t.allGo {
				h.Root.Name.Incarnation = 0
			}
			if a.r.cfg.NoSnapshots {
				h.Kind = snapshot.HandleUnsaved
			}
		}
		if t.recovered {
			h.Kind, h.Root = snapshot.HandleCheckpoint, *recovered
		}
		text, err := h.Encode()
		if err != nil {
			return fault.Stopf(fault.Failed, "handle of the start position of %s: %w", t.position.TopicPartition, err)
		}
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Epoch: t.epoch, Position: t.position, Metadata: text})
	}
	if len(c.Offsets) > 0 {
		failpoint.Hit(failpoint.StartCommitBefore)
		if err := a.r.ports.Committer.CommitInitial(a.ctx, c); err != nil {
			return fmt.Errorf("commit the start positions of %d partitions: %w", len(c.Offsets), err)
		}
		failpoint.Hit(failpoint.StartCommitAfter)
		if err := a.othersShareTheStore(a.byTP); err != nil {
			return err
		}
	}
	if recovered != nil {
		a.last = recovered
		a.markCommitted(*recovered)
	}
	a.r.cfg.RecoverFromStore, a.r.parted = false, false // the wish is for the start, not for what happens later
	return nil
}

// closeChain ends the user code of a task, once. Its goroutine has ended or never began.
func (t *owned) closeChain(lis *Listener) {
	if t.chain == nil {
		return
	}
	if err := t.chain.Close(); err != nil {
		lis.closeFailed(err)
	}
	t.chain = nil
}

var _ topology.Env = (*taskEnv)(nil)
