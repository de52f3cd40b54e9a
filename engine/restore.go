package engine

import (
	"context"
	"errors"
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

// resolve reads what the group has committed and decides how every task of the assignment starts.
func (a *attempt) resolve() (map[element.TaskID]snapshot.Decision, error) {
	facts, err := a.readFacts()
	if err != nil {
		return nil, err
	}
	a.facts = facts
	in := snapshot.ResolveInput{
		Application: a.r.cfg.Application,
		ClusterID:   a.r.cfg.ClusterID,
		StoreID:     a.r.ports.Checkpoints.StoreID(),
		Tasks:       facts,
		States:      map[string][]snapshot.StateInfo{},
	}
	for _, s := range a.r.plan.States {
		in.States[s.Source] = append(in.States[s.Source], snapshot.StateInfo{Name: s.ID(), KeyCodec: s.KeyCodec, Codec: s.Codec})
	}
	a.lastID = max(a.r.lastID, snapshot.NextID(facts)-1)
	if a.r.cfg.RecoverFromStore {
		return a.resolveOrRecover(in)
	}
	if in.Roots, err = a.r.ports.Checkpoints.LoadRoots(a.ctx, snapshot.NamedRoots(facts)); err != nil {
		return nil, fmt.Errorf("read the committed roots: %w", err)
	}
	if in.Listing, err = a.r.ports.Checkpoints.CommittedAfter(a.ctx, snapshot.OldestID(facts)); err != nil {
		return nil, fmt.Errorf("look for newer checkpoints: %w", err)
	}
	if snapshot.NeedsStored(facts) {
		if in.Stored, err = a.r.ports.Checkpoints.Stored(a.ctx); err != nil {
			return nil, fmt.Errorf("look for older checkpoints: %w", err)
		}
	}
	decisions, err := snapshot.Resolve(in)
	if err != nil {
		return nil, a.stillRefused(facts, err)
	}
	return decisions, nil
}

// stillRefused looks at the offsets again before a refusal ends the process. A process that was frozen, and whose place was
// taken meanwhile, may have read the offsets before its successor committed and the checkpoint directory after that:
// what it sees does not fit together, and the advice of the refusal, to put offsets back, would do harm.
func (a *attempt) stillRefused(facts []snapshot.TaskFacts, refused error) error {
	stable, err := a.r.ports.Offsets.Stable(a.ctx, a.asg.Partitions)
	if err != nil {
		return fmt.Errorf("read the committed offsets again: %w", err)
	}
	for _, f := range facts {
		for _, in := range f.Inputs {
			if c := stable[in.TopicPartition]; c.Found != in.Found || c.Offset != in.Offset || c.Metadata != in.Metadata {
				return fault.New(fault.Rejoin, fault.Failed, "another process committed %s while this one read the offsets", in.TopicPartition)
			}
		}
	}
	return refused
}

// readFacts collects the tasks of the assignment and what the cluster knows of their inputs.
func (a *attempt) readFacts() ([]snapshot.TaskFacts, error) {
	var names []string
	source := map[string]string{} // by topic
	for _, s := range a.r.plan.Sources {
		names = append(names, s.Topic)
		source[s.Topic] = s.Name
	}
	topics, err := a.r.ports.Offsets.Topics(a.ctx, names)
	if err != nil {
		return nil, err
	}
	stable, err := a.r.ports.Offsets.Stable(a.ctx, a.asg.Partitions)
	if err != nil {
		return nil, fmt.Errorf("read the committed offsets: %w", err)
	}
	var facts []snapshot.TaskFacts
	a.byTP = map[element.TopicPartition]element.TaskID{}
	for _, tp := range a.asg.Partitions {
		src, ok := source[tp.Topic]
		if !ok {
			return nil, fmt.Errorf("the group assigned %s, which no source reads", tp)
		}
		id := element.TaskID{Source: src, Partition: tp.Partition}
		a.byTP[tp] = id
		c := stable[tp]
		facts = append(facts, snapshot.TaskFacts{Task: id, Inputs: []snapshot.InputFacts{{
			TopicPartition: tp, TopicID: topics[tp.Topic].ID, Partitions: topics[tp.Topic].Partitions,
			Found: c.Found, Offset: c.Offset, Metadata: c.Metadata,
		}}})
	}
	if err := a.freshPositions(facts, stable); err != nil {
		return nil, err
	}
	return facts, nil
}

// freshPositions resolves where partitions without a committed offset start. When others of the source have one, they
// were added to the topic since: such a partition starts at its beginning whatever the source says, or what was written
// to it before this instance knew of it would be lost.
func (a *attempt) freshPositions(facts []snapshot.TaskFacts, stable map[element.TopicPartition]Committed) error {
	a.starts = map[element.TaskID]element.Position{}
	for _, src := range a.r.plan.Sources {
		var missing []element.TopicPartition
		start := src.Start
		for tp, id := range a.byTP {
			switch {
			case id.Source != src.Name:
			case stable[tp].Found:
				start = topology.Earliest()
			default:
				missing = append(missing, tp)
			}
		}
		if len(missing) == 0 {
			continue
		}
		offsets, err := a.r.ports.Offsets.Start(a.ctx, start, missing)
		if err != nil {
			return fmt.Errorf("start position of source %s: %w", src.Name, err)
		}
		for _, f := range facts {
			in := f.Inputs[0]
			if off, ok := offsets[in.TopicPartition]; ok {
				a.starts[f.Task] = element.Position{TopicPartition: in.TopicPartition, TopicID: in.TopicID, PartitionCount: in.Partitions, Offset: off, LeaderEpoch: -1}
			}
		}
	}
	return nil
}

// buildTasks makes the tasks in the order of their ids and restores their states, several at a time.
func (a *attempt) buildTasks(decisions map[element.TaskID]snapshot.Decision) error {
	sink, err := a.r.ports.NewSink()
	if err != nil {
		return fmt.Errorf("open sinks: %w", err)
	}
	a.sink = sink
	a.order = slices.SortedFunc(maps.Keys(decisions), element.TaskID.Compare)
	a.tasks = make(map[element.TaskID]*owned, len(a.order))
	a.feed = newFeeder(nil)
	maps.DeleteFunc(a.r.kept, func(id element.TaskID, k *keptState) bool { // before others are read in its place
		return decisions[id].Root != k.root
	})
	g, ctx := errgroup.WithContext(a.ctx)
	g.SetLimit(restoreParallel)
	for _, id := range a.order {
		t := &owned{task: &task{
			id: id, inbox: newInbox(a.r.cfg.InboxRecords), feed: a.feed, out: sink.Writer(id), report: a.report,
			limit: max(1, a.r.cfg.UncommittedLimit/int64(len(a.order))), stats: &taskStats{},
		}}
		a.tasks[id] = t
		d := decisions[id]
		g.Go(func() error { return a.restoreTask(ctx, t, d) })
	}
	err = g.Wait()
	a.r.kept = nil // used or of no use any more
	if err != nil {
		return err
	}
	return a.openChains()
}

// restoreTask gives a task the state and the position of its decision.
func (a *attempt) restoreTask(ctx context.Context, t *owned, d snapshot.Decision) error {
	switch d.Kind {
	case snapshot.Fresh:
		t.fresh = true
		t.position = a.starts[t.id]
	case snapshot.StartEmpty:
		t.position = d.Positions[0]
	case snapshot.Restore, snapshot.Recovered:
		t.recovered = d.Kind == snapshot.Recovered
		t.position = d.Positions[0]
		t.committed = d.Entry
		root := d.Root
		t.root = &root
		if k := a.r.kept[t.id]; k != nil && k.root == d.Root {
			t.state, t.stateInfo, t.whole = k.state, k.states, true
			if a.r.lis.Reused != nil {
				a.r.lis.Reused(t.id, d.Root)
			}
			return nil
		}
	default:
		return fmt.Errorf("task %s: decision %s", t.id, d.Kind)
	}
	return a.readState(ctx, t)
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

// loadState fills a task's store from the local copy or, where that is of no use, from the files.
func (a *attempt) loadState(ctx context.Context, t *owned) (snapshot.Stats, error) {
	if a.r.ports.Local != nil {
		if stats, ok := a.r.ports.Local.Restore(ctx, *t.root, t.committed, t.state.Load); ok {
			return stats, nil
		}
		if err := a.newState(t); err != nil { // what was loaded is thrown away
			return snapshot.Stats{}, err
		}
	}
	return a.r.ports.Checkpoints.Restore(ctx, t.committed, t.state.Load)
}

// newState makes an empty store with all states of a task registered.
func (a *attempt) newState(t *owned) error {
	t.state = a.r.ports.NewState(t.id)
	for _, s := range t.stateInfo {
		if _, err := t.state.Table(s.Name, s.Codec); err != nil {
			return err
		}
	}
	return nil
}

// openChains makes the operators of every task; user code is new in every attempt.
func (a *attempt) openChains() error {
	for _, id := range a.order {
		t := a.tasks[id]
		chain, err := a.r.plan.NewTask(id.Source, id.Partition, &taskEnv{ctx: a.ctx, t: t.task, lis: a.r.lis})
		if err != nil {
			return err
		}
		t.chain = chain
		a.feed.inboxes[t.position.TopicPartition] = t.inbox
		if t.root != nil && (a.last == nil || a.last.Name.ID < t.root.Name.ID) {
			a.last = t.root
		}
	}
	a.co = checkpoint.New(a.r.cfg.checkpointing(), a.lastID)
	return nil
}

// commitStart commits checkpoint 0: the start positions of partitions that have none, with a handle that says that no
// state belongs to them, and those of tasks recovered from the store, with the handle of a root written for them.
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
		if !t.fresh && !t.recovered {
			continue
		}
		h := a.newHandle(t.position)
		if t.recovered {
			h.Kind, h.Root = snapshot.HandleCheckpoint, *recovered
		}
		text, err := h.Encode()
		if err != nil {
			return fault.Stopf(fault.Failed, "handle of the start position of %s: %w", t.position.TopicPartition, err)
		}
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Epoch: a.asg.Since[t.position.TopicPartition], Position: t.position, Metadata: text})
	}
	if len(c.Offsets) > 0 {
		failpoint.Hit(failpoint.StartCommitBefore)
		if err := a.r.ports.Committer.CommitInitial(a.ctx, c); err != nil {
			return fmt.Errorf("commit the start positions of %d partitions: %w", len(c.Offsets), err)
		}
		failpoint.Hit(failpoint.StartCommitAfter)
	}
	if recovered != nil {
		a.last = recovered
		a.markCommitted(*recovered)
	}
	a.r.cfg.RecoverFromStore = false // the wish is for the start, not for what happens later
	return nil
}

// closeChains ends user code; called when the tasks' goroutines have ended.
func (a *attempt) closeChains() error {
	var errs []error
	for _, id := range a.order {
		if c := a.tasks[id].chain; c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

var _ topology.Env = (*taskEnv)(nil)
