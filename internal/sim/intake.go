package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// intake mirrors engine.intake: partitions on their way into an attempt.
type intake struct {
	a       *attempt
	parts   mask
	since   [maxPartitions]uint64
	dropped bool // given up or lost meanwhile: what comes of it is of no use

	facts  []committed
	lastID element.CheckpointID
	roots  map[snapshot.RootRef]snapshot.LoadedRoot // that the handles name
	origin []snapshot.SavepointRef                  // the savepoint that tasks start from
	tasks  []*task                                  // what comes of it, in the order of their ids
	done   func(error)
}

func (a *attempt) newIntake(parts mask) *intake {
	return &intake{a: a, parts: parts, since: a.p.since}
}

// then goes on with a step, unless it came to nothing.
func (in *intake) then(f func() error) func(error) {
	return func(err error) {
		if in.a.over {
			return
		}
		if err == nil {
			err = f()
		}
		if err != nil {
			in.done(err)
		}
	}
}

// drop lets it come to nothing. The planted bug looks only in the end, and only whether the partitions are owned.
func (in *intake) drop() { in.dropped = in.a.p.w.cfg.Bug != StaleClaim }

func (in *intake) run(done func(error)) {
	in.done = done
	in.then(in.fetchOffsets)(nil)
}

// fetchOffsets is the stable read. It waits as long as a transaction is open on the offsets.
func (in *intake) fetchOffsets() error {
	p, w := in.a.p, in.a.p.w
	if w.cfg.Bug == AbortAfterUnknown && p.trustMemory && p.memory != nil {
		p.trustMemory = false
		return in.resolve(p.memory)
	}
	in.stable(func(offsets []committed) error { return in.resolve(offsets) })
	return nil
}

func (in *intake) stable(got func([]committed) error) {
	p, w := in.a.p, in.a.p.w
	stable := w.cfg.Bug != UnstableFetch
	w.call(p, kApplyFetchOffsets, func() reply { return w.broker.group.fetch(in.parts, stable) }, func(r reply) {
		if r.lost || retriableCode(r.code) {
			w.do(p, w.lag(4e6), kSend, func() { in.then(func() error { in.stable(got); return nil })(nil) })
			return
		}
		in.then(func() error { return got(r.committed) })(nil)
	})
}

// resolve decides how every task starts.
func (in *intake) resolve(offsets []committed) error {
	in.facts = offsets
	in.a.p.learn(in.parts, offsets)
	if !in.a.p.w.fine {
		return in.resolved(in.decide())
	}
	var decisions map[element.TaskID]snapshot.Decision
	var err error
	in.a.fiber(func() bool { return in.a.over }, func(*fiber) { decisions, err = in.decide() }, func() {
		in.then(func() error { return in.resolved(decisions, err) })(nil)
	})
	return nil
}

// decide reads what the directory knows and resolves. A refusal comes as what it is; everything else that fails is not
// one.
func (in *intake) decide() (map[element.TaskID]snapshot.Decision, error) {
	ctx, p := context.Background(), in.a.p
	facts := factsOf(in.facts, in.parts)
	input := snapshot.ResolveInput{
		Application: application, ClusterID: clusterID, StoreID: p.repo.StoreID(), Tasks: facts,
		States: map[string][]snapshot.StateInfo{p.w.statedStage(): stateInfo}, Stages: p.stageFacts(), Repeats: p.w.plain,
	}
	in.lastID = snapshot.NextID(facts) - 1
	if p.recover || p.w.cfg.Bug == OlderUnasked && p.from == nil {
		return in.resolveOrRecover(input)
	}
	var err error
	if input.Roots, err = p.repo.LoadRoots(ctx, snapshot.NamedRoots(facts)); err != nil {
		return nil, fmt.Errorf("read the committed roots: %w", err)
	}
	if input.Listing, err = p.repo.CommittedAfter(ctx, snapshot.OldestID(facts)); err != nil {
		return nil, fmt.Errorf("look for newer checkpoints: %w", err)
	}
	in.roots = input.Roots
	if p.from != nil {
		return in.resolveFrom(input)
	}
	if snapshot.NeedsStored(facts) {
		if input.Stored, err = p.repo.List(ctx); err != nil {
			return nil, fmt.Errorf("look for older checkpoints: %w", err)
		}
	}
	decisions, err := snapshot.Resolve(input)
	if p.w.plain {
		for _, d := range decisions {
			in.lastID = max(in.lastID, d.Behind)
		}
		for _, info := range append(input.Stored, input.Listing...) {
			if p.w.x != nil { // all checkpoints are of one history
				in.lastID = max(in.lastID, info.Ref.Name.ID)
			}
		}
	}
	return decisions, err
}

// resolved goes on with the decisions.
func (in *intake) resolved(decisions map[element.TaskID]snapshot.Decision, err error) error {
	if snapshot.RefusalOf(err) != nil {
		in.stillRefused(err)
		return nil
	}
	if err != nil {
		return err
	}
	in.parts.each(func(i int) {
		id := taskID(i)
		in.tasks = append(in.tasks, newTask(in.a, id, in.since[i], decisions[id]))
	})
	for _, t := range in.tasks {
		t.origin = in.originOf(t)
	}
	for _, s := range in.a.p.stageFacts() {
		for i := range s.Parallelism {
			in.tasks = append(in.tasks, newTask(in.a, subtaskID(i), 0, decisions[subtaskID(i)]))
		}
	}
	if in.a.p.w.cfg.Bug == JoinUnrestored && in == in.a.joining {
		in.joinUnrestored()
		return nil
	}
	in.restoreFrom(0)
	return nil
}

// stillRefused reads the offsets again before a refusal ends the process: one that was replaced may have read them before
// its successor committed, and the files after that.
func (in *intake) stillRefused(refused error) {
	in.stable(func(offsets []committed) error {
		same := true
		in.parts.each(func(i int) { same = same && offsets[i] == in.facts[i] })
		if !same {
			in.a.p.w.counts.SecondReads++
			return fault.New(fault.Rejoin, fault.Failed, "another process committed while this one read the offsets")
		}
		return refused
	})
}

// learn keeps what was read, for the planted bug that trusts its memory.
func (p *process) learn(parts mask, offsets []committed) {
	if len(p.facts) == 0 {
		p.facts = make([]committed, len(offsets))
	}
	p.facts = slices.Clone(p.facts)
	parts.each(func(i int) { p.facts[i] = offsets[i] })
	p.memory = p.facts
}

// factsOf describes the tasks as the cluster knows them.
func factsOf(offsets []committed, parts mask) []snapshot.TaskFacts {
	var facts []snapshot.TaskFacts
	parts.each(func(p int) {
		c := offsets[p]
		facts = append(facts, snapshot.TaskFacts{Task: element.TaskID{Source: sourceName, Partition: int32(p)}, Inputs: []snapshot.InputFacts{{
			TopicPartition: element.TopicPartition{Topic: inTopic, Partition: int32(p)}, TopicID: inTopicID, Partitions: int32(len(offsets)),
			Found: c.found, Offset: c.offset, Metadata: c.metadata,
		}}})
	})
	return facts
}

// restoreFrom restores the tasks one after the other, and resolves the start of those that nobody knows yet.
func (in *intake) restoreFrom(i int) {
	p, w := in.a.p, in.a.p.w
	if i == len(in.tasks) {
		in.replayFrom(0)
		return
	}
	t := in.tasks[i]
	if t.decision.Kind == snapshot.Fresh {
		part := int(t.id.Partition)
		w.call(p, kApplyStart, func() reply { return w.broker.startOf(part) }, func(r reply) {
			in.then(func() error {
				if r.failed() {
					in.restoreFrom(i)
					return nil
				}
				t.begin(p.startsAsBefore(part, r.next))
				in.restoreFrom(i + 1)
				return nil
			})(nil)
		})
		return
	}
	w.do(p, w.lag(4e5), kRestore, func() {
		in.then(func() error {
			if err := t.restore(); fault.CodeOf(err) == fault.Corrupt {
				in.stillRefused(err)
				return nil
			} else if err != nil {
				return err
			}
			in.restoreFrom(i + 1)
			return nil
		})(nil)
	})
}

// reconcile compares what the attempt has with what the group gives it now. What was gained is taken in beside the running
// tasks. What is gone without having left in order ends the attempt.
func (a *attempt) reconcile() error {
	p := a.p
	if p.fatal != nil {
		return p.fatal
	}
	for _, t := range a.tasks {
		if t.in == nil && !p.holds(t.id.Partition, t.epoch) {
			return fault.New(fault.Rejoin, fault.Failed, "the group took %v away before its last checkpoint (epoch %d, now %d)", t.id, t.epoch, p.since[t.id.Partition])
		}
	}
	if in := a.joining; in != nil {
		in.parts.each(func(i int) {
			if !p.holds(int32(i), in.since[i]) {
				in.drop()
			}
		})
		return nil
	}
	var gained mask
	p.owned().each(func(i int) {
		if a.task(taskID(i)) == nil && a.left[i] != p.since[i] && !a.revoking(i) {
			gained |= bit(i)
		}
	})
	switch {
	case gained != 0 && !a.stopIn && p.w.x != nil:
		a.redraw()
	case gained != 0 && !a.stopIn:
		a.join(gained)
	case len(a.tasks) == 0 && p.owned() == 0:
		return errStandBy
	}
	return nil
}

// onTheWay gives the partitions that are being taken in.
func (a *attempt) onTheWay() mask {
	switch {
	case a == nil || a.over:
		return 0
	case !a.ready:
		return a.first.parts
	case a.joining != nil:
		return a.joining.parts
	}
	return 0
}

func taskID(part int) element.TaskID {
	return element.TaskID{Source: sourceName, Partition: int32(part)}
}

// join takes partitions in, in the background. The own transactional ids are in use and stay as they are.
func (a *attempt) join(parts mask) {
	in := a.newIntake(parts)
	a.joining = in
	a.p.w.tracef(a.p, "  takes in %04b", parts)
	in.done = func(err error) { a.report(event{kind: evJoined, err: err}) }
	a.fenceGone(func() { in.then(in.fetchOffsets)(nil) })
}

// onJoined makes the tasks of an intake part of the attempt.
func (a *attempt) onJoined(err error) ([]checkpoint.Action, error) {
	in := a.joining
	if in == nil {
		return nil, nil
	}
	a.joining = nil
	in.parts.each(func(i int) { in.dropped = in.dropped || !a.p.holds(int32(i), in.since[i]) })
	switch {
	case in.dropped || a.stopIn:
		a.p.w.counts.JoinsDropped++
		return nil, a.reconcile()
	case err != nil:
		return nil, fmt.Errorf("take in %04b: %w", in.parts, err)
	}
	for _, t := range in.tasks {
		if err := a.admit(in, t); err != nil {
			return nil, err
		}
	}
	return nil, a.reconcile()
}

// admit lets a task take part. Any input may make the coordinator trigger, so what it asks for is done before the next
// one: only then is it known whether a checkpoint is in flight that does not cover the task.
func (a *attempt) admit(in *intake, t *task) error {
	w := a.p.w
	w.counts.Joined++
	a.lastID = max(a.lastID, in.lastID)
	if err := a.execute(a.co.Raise(w.now, in.lastID)); err != nil {
		return err
	}
	i, _ := slices.BinarySearchFunc(a.tasks, t.id, func(t *task, id element.TaskID) int { return t.id.Compare(id) })
	a.tasks = slices.Insert(a.tasks, i, t)
	a.follow(t)
	if n := len(a.flights); w.plain {
		// nothing is held back
	} else if n > 0 { // it has passed the newest barrier, so to speak
		t.queues = append(t.queues, heldQueue{after: a.flights[n-1].name.ID})
		w.counts.JoinedInFlight++
	} else if a.resuming > 0 { // the transaction may be sealed still
		t.queues = append(t.queues, heldQueue{})
		a.release(0)
	}
	if err := a.execute(a.co.AddTask(w.now, t.id)); err != nil {
		return err
	}
	if !t.fresh || w.cfg.Bug == ReadBeforeStart {
		if t.whole {
			t.feed()
		}
		return a.beginImported(t, true)
	}
	// No record of it is taken before its start position is committed, and that comes with the next checkpoint.
	w.counts.JoinedFresh++
	if err := a.execute(a.co.Moved(w.now, t.id)); err != nil {
		return err
	}
	return a.execute(a.co.RequestCheckpoint(w.now, checkpoint.Early))
}

// joinUnrestored is the planted bug: the tasks take part in checkpoints while their restore still runs.
func (in *intake) joinUnrestored() {
	entries := make([]snapshot.TaskEntry, len(in.tasks))
	for i, t := range in.tasks {
		if err := t.restore(); err != nil {
			in.stillRefused(err)
			return
		}
		if t.decision.Kind == snapshot.Fresh {
			t.begin(0)
			continue
		}
		entries[i] = t.committed
		t.committed.Runs, t.whole = nil, false
		in.a.p.w.do(in.a.p, 15*time.Millisecond, kRestore, func() {
			t.whole = true
			if len(t.committed.Runs) == 0 {
				t.committed = entries[i]
			}
			if !in.a.over && !t.gone && !t.halting {
				t.feed()
			}
		})
	}
	in.done(nil)
}

// fenceGone ends the transactions of instances that have left files and are not in the group, as processor and
// txn.Manager do. Nothing but time depends on it, so what goes wrong is passed over.
func (a *attempt) fenceGone(done func()) {
	p, w := a.p, a.p.w
	known, err := p.repo.Instances(context.Background())
	known = slices.DeleteFunc(known, func(name string) bool { return name == p.name })
	if err != nil || len(known) == 0 || w.chance(25) {
		done()
		return
	}
	w.call(p, kApplyListTxns, func() reply { return w.broker.openTxns() }, func(r reply) {
		ids := slices.DeleteFunc(r.names, func(id string) bool { return !slices.Contains(known, ownerOf(id)) })
		if r.failed() || len(ids) == 0 {
			done()
			return
		}
		w.call(p, kApplyDescribe, func() reply { return w.broker.group.describe() }, func(r reply) {
			if r.failed() {
				done()
				return
			}
			a.fenceIDs(slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(r.names, ownerOf(id)) }), 0, done)
		})
	})
}

// ownerOf gives the instance of a transactional id.
func ownerOf(id string) string {
	parts := strings.Split(id, "-")
	if len(parts) != 3 {
		return ""
	}
	return parts[1]
}

func (a *attempt) fenceIDs(ids []string, tries int, done func()) {
	p, w := a.p, a.p.w
	if len(ids) == 0 || tries > 5 || a.over {
		done()
		return
	}
	w.call(p, kApplyInit, func() reply { return w.broker.initProducer(ids[0]) }, func(r reply) {
		if retriableCode(r.code) {
			w.do(p, w.lag(2*time.Millisecond), kSend, func() { a.fenceIDs(ids, tries+1, done) })
			return
		}
		w.counts.FencedGone++
		for _, o := range w.procs {
			if o.name == ownerOf(ids[0]) && o.attempt != nil {
				w.counts.FencedLiving++
			}
		}
		w.tracef(p, "  ended the transaction of %s", ids[0])
		a.fenceIDs(ids[1:], 0, done)
	})
}
