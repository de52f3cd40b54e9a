package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/txn"
	"github.com/twmb/franz-go/pkg/kerr"
)

var errStopped = errors.New("stopped")

var stateInfo = []snapshot.StateInfo{{Name: "count", KeyCodec: "string", Codec: "int64"}}

const sourceName = "in"

// attempt mirrors engine.attempt: the same steps in the same order, cut into pieces where the engine's goroutines could
// be interrupted.
type attempt struct {
	p      *process
	number int
	stage  string
	epoch  uint64 // of the assignment

	tasks  []*task // in the order of their ids; all partitions belong to one instance
	lastID element.CheckpointID

	co        *checkpoint.Coordinator
	pending   *pending
	released  bool
	distrust  bool // a file of the chain is gone: the next attempt reads the states from the files
	onRelease []func()
	last      *snapshot.RootRef
	merging   bool
	round     []mergeResult // of the round of housekeeping that runs
	full      map[element.TaskID]snapshot.RunRef

	events  []event
	looping bool // a turn of the loop is queued
	ready   bool // the loop has begun
	ticks   int  // numbers the timer, so that an old one is known
	over    bool // cancelled: everything ends, nobody listens to events
	stopIn  bool // the source has been stopped
	err     error
	running int // goroutines that tearDown waits for
}

func (p *process) newAttempt() {
	p.restarts++
	p.w.counts.Attempts++
	a := &attempt{p: p, number: p.restarts, epoch: p.epoch, released: true, full: p.merged}
	p.attempt = a
	p.w.tracef(p, "attempt %d under epoch %d", a.number, a.epoch)
	a.prepare()
}

// then goes on with a step of the preparation, or ends the attempt.
func (a *attempt) then(stage string, f func() error) func(error) {
	return func(err error) {
		if a.p.draining && fault.RecoveryOf(err) != fault.Stop {
			err = errStopped // until the first record there is nothing that a stop would have to commit
		}
		if err == nil {
			a.stage = stage
			err = f()
		}
		if err != nil {
			a.end(err)
		}
	}
}

// prepare: own ids first, then the stable read, then the restore, then checkpoint 0.
func (a *attempt) prepare() {
	a.stage = "init"
	if a.p.w.cfg.Bug == CommitOutOfOrder {
		a.p.spare.drive(txn.Event{Kind: txn.EvInit}, job{}, func(error) {
			a.p.mgr.drive(txn.Event{Kind: txn.EvInit}, job{}, a.then("offsets", a.fetchOffsets))
		})
		return
	}
	a.p.mgr.drive(txn.Event{Kind: txn.EvInit}, job{}, a.then("offsets", a.fetchOffsets))
}

// fetchOffsets is the stable read. It waits as long as a transaction is open on the offsets.
func (a *attempt) fetchOffsets() error {
	w := a.p.w
	if w.cfg.Bug == AbortAfterUnknown && a.p.trustMemory && a.p.memory != nil {
		a.p.trustMemory = false
		return a.resolve(a.p.memory)
	}
	stable := w.cfg.Bug != UnstableFetch
	w.call(a.p, kApplyFetchOffsets, func() reply { return w.broker.group.fetch(stable) }, func(r reply) {
		if r.lost || retriableCode(r.code) {
			w.do(a.p, w.lag(4e6), kSend, func() { a.then("offsets", a.fetchOffsets)(nil) })
			return
		}
		a.then("resolve", func() error { return a.resolve(r.committed) })(nil)
	})
	return nil
}

// resolve decides how every task starts.
func (a *attempt) resolve(offsets []committed) error {
	ctx := context.Background()
	a.p.facts, a.p.memory = offsets, offsets
	facts := factsOf(offsets, len(a.p.w.broker.in))
	in := snapshot.ResolveInput{
		Application: application, ClusterID: clusterID, StoreID: a.p.repo.StoreID(), Tasks: facts,
		States: map[string][]snapshot.StateInfo{sourceName: stateInfo},
	}
	var err error
	if in.Roots, err = a.p.repo.LoadRoots(ctx, snapshot.NamedRoots(facts)); err != nil {
		return fmt.Errorf("read the committed roots: %w", err)
	}
	if in.Listing, err = a.p.repo.CommittedAfter(ctx, snapshot.OldestID(facts)); err != nil {
		return fmt.Errorf("look for newer checkpoints: %w", err)
	}
	if snapshot.NeedsStored(facts) {
		if in.Stored, err = a.p.repo.Stored(ctx); err != nil {
			return fmt.Errorf("look for older checkpoints: %w", err)
		}
	}
	a.lastID = max(a.p.lastID, snapshot.NextID(facts)-1)
	if a.p.unsure != 0 && a.p.unsure == snapshot.NextID(facts)-1 {
		a.p.w.counts.LateCommits++
	}
	a.p.unsure = 0
	decisions, err := snapshot.Resolve(in)
	if err != nil {
		a.stillRefused(offsets, err)
		return nil
	}
	for p := range a.p.w.broker.in {
		id := element.TaskID{Source: sourceName, Partition: int32(p)}
		a.tasks = append(a.tasks, newTask(a, id, decisions[id]))
	}
	a.restoreFrom(0)
	return nil
}

// stillRefused reads the offsets again before a refusal ends the process: one that was replaced may have read them before
// its successor committed, and the files after that.
func (a *attempt) stillRefused(offsets []committed, refused error) {
	w := a.p.w
	w.call(a.p, kApplyFetchOffsets, func() reply { return w.broker.group.fetch(w.cfg.Bug != UnstableFetch) }, func(r reply) {
		if r.lost || retriableCode(r.code) {
			w.do(a.p, w.lag(4e6), kSend, func() { a.stillRefused(offsets, refused) })
			return
		}
		a.then("resolve", func() error {
			if !slices.Equal(r.committed, offsets) {
				w.counts.SecondReads++
				return fault.New(fault.Rejoin, fault.Failed, "another process committed while this one read the offsets")
			}
			return refused
		})(nil)
	})
}

// factsOf describes the tasks as the cluster knows them.
func factsOf(offsets []committed, partitions int) []snapshot.TaskFacts {
	var facts []snapshot.TaskFacts
	for p := range partitions {
		c := offsets[p]
		facts = append(facts, snapshot.TaskFacts{Task: element.TaskID{Source: sourceName, Partition: int32(p)}, Inputs: []snapshot.InputFacts{{
			TopicPartition: element.TopicPartition{Topic: inTopic, Partition: int32(p)}, TopicID: inTopicID, Partitions: int32(partitions),
			Found: c.found, Offset: c.offset, Metadata: c.metadata,
		}}})
	}
	return facts
}

// restoreFrom restores the tasks one after the other.
func (a *attempt) restoreFrom(i int) {
	a.p.w.do(a.p, a.p.w.lag(4e5), kRestore, a.step("restore", func() error {
		if i == len(a.tasks) {
			a.p.kept = nil
			a.open()
			return a.commitStart()
		}
		if err := a.tasks[i].restore(); fault.CodeOf(err) == fault.Corrupt {
			a.stillRefused(a.p.facts, err)
			return nil
		} else if err != nil {
			return err
		}
		a.restoreFrom(i + 1)
		return nil
	}))
}

func (a *attempt) step(stage string, f func() error) func() {
	g := a.then(stage, f)
	return func() { g(nil) }
}

// open makes the coordinator.
func (a *attempt) open() {
	for _, t := range a.tasks {
		if t.root != nil && (a.last == nil || a.last.Name.ID < t.root.Name.ID) {
			a.last = t.root
		}
	}
	a.co = checkpoint.New(checkpoint.Config{Interval: interval, First: interval / 2, Timeout: checkpointTimeout}, a.lastID)
}

// commitStart commits checkpoint 0 of partitions without a committed offset.
func (a *attempt) commitStart() error {
	c := checkpoint.Commit{Name: element.CheckpointName{Incarnation: a.p.inc}}
	for _, t := range a.tasks {
		if !t.fresh {
			continue
		}
		text, err := a.newHandle(t.position).Encode()
		if err != nil {
			return err
		}
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Position: t.position, Metadata: text})
	}
	if len(c.Offsets) == 0 {
		return a.startTasks()
	}
	a.p.mgr.drive(txn.Event{Kind: txn.EvSeal}, job{}, a.then("commit start", func() error {
		ev := txn.Event{Kind: txn.EvCommit, Partitions: len(c.Offsets), HandleBytes: handleBytes(c)}
		a.p.mgr.drive(ev, job{commit: &c, epoch: a.epoch}, a.then("run", a.startTasks))
		return nil
	}))
	return nil
}

func handleBytes(c checkpoint.Commit) int {
	n := 0
	for _, o := range c.Offsets {
		n = max(n, len(o.Metadata))
	}
	return n
}

func (a *attempt) newHandle(pos element.Position) snapshot.Handle {
	return snapshot.Handle{
		Kind: snapshot.HandleEmpty, Root: snapshot.RootRef{Name: element.CheckpointName{Incarnation: a.p.inc}},
		Partition: pos.Partition, Offset: pos.Offset, LeaderEpoch: pos.LeaderEpoch, ClusterID: clusterID,
		TopicID: pos.TopicID, PartitionCount: pos.PartitionCount, StoreID: a.p.repo.StoreID(),
	}
}

// startTasks starts the sources and the loop.
func (a *attempt) startTasks() error {
	for _, t := range a.tasks {
		t.fetch()
		a.execute(a.co.AddTask(a.p.w.now, t.id))
	}
	a.ready = true
	a.wakeLoop()
	return nil
}

// end is the tear down: cancel, wait for whatever runs, abort, keep what is sure.
func (a *attempt) end(err error) {
	if a.over {
		return
	}
	a.p.w.tracef(a.p, "attempt %d ends (%s): %v", a.number, fault.RecoveryOf(err), err)
	a.over, a.err, a.stage = true, err, "tear down"
	if fault.RecoveryOf(err) == fault.Unconfirmed {
		a.p.unsure = a.lastID
	}
	for _, t := range a.tasks {
		t.queues = nil
	}
	a.p.cancelled()
	for _, f := range a.onRelease {
		f()
	}
	a.finish()
}

// finish goes on when the last worker has ended.
func (a *attempt) finish() {
	if !a.over || a.running > 0 {
		return
	}
	a.running = -1 // once
	a.p.mgr.drive(txn.Event{Kind: txn.EvAbort}, job{}, func(error) {
		a.leaveMerges()
		a.keepStates()
		a.p.ended(a.err, errors.Is(a.err, errStopped))
	})
}

// keepStates leaves the states to the next attempt, rolled back to the last commit that is sure.
func (a *attempt) keepStates() {
	a.p.lastID = max(a.p.lastID, a.lastID)
	if len(a.tasks) == 0 {
		return
	}
	a.p.kept = map[element.TaskID]*keptState{}
	for _, t := range a.tasks {
		a.p.reached[t.id] = t.position.Offset
		if !t.whole || t.root == nil || a.distrust {
			continue
		}
		t.state.commit(t.root.Name.ID)
		t.state.rollback()
		a.p.kept[t.id] = &keptState{state: t.state, root: *t.root}
	}
}

// ownershipLost reports that the group has taken the assignment away or replaced it.
func (a *attempt) ownershipLost() error {
	if a.p.fatal != nil {
		return a.p.fatal
	}
	if a.p.epoch != a.epoch {
		return fault.New(fault.Rejoin, fault.Failed, "the group changed the assignment (epoch %d, now %d)", a.epoch, a.p.epoch)
	}
	return nil
}

// fetchCode tells whether the source can go on.
func fetchCode(c int16) error {
	if c == kerr.OffsetOutOfRange.Code {
		return fault.Stopf(fault.OffsetGone, "the position is not in the log")
	}
	return nil
}
