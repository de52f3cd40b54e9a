package sim

import (
	"errors"
	"slices"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/txn"
	"github.com/twmb/franz-go/pkg/kerr"
)

var (
	errStopped = errors.New("stopped")
	errStandBy = errors.New("nothing is owned any more")
)

var stateInfo = []snapshot.StateInfo{{Name: "count", KeyCodec: "string", Codec: "int64"}}

const sourceName = "in"

// attempt mirrors engine.attempt: the same steps in the same order, cut into pieces where the engine's goroutines could
// be interrupted.
type attempt struct {
	p      *process
	number int
	stage  string

	tasks       []*task               // in the order of their ids
	left        [maxPartitions]uint64 // the epoch under which a task has left
	first       *intake               // the partitions that it begins with
	joining     *intake               // those that are taken in beside the running tasks
	revocations []*revocation
	lastID      element.CheckpointID

	co        *checkpoint.Coordinator
	flights   []*pending // oldest first
	sinkBusy  bool       // held-back output flows, the transaction is sealed, or taken back
	sinkQueue []func()   // what waits for that to end, in order
	back      []span     // checkpoints that were given up
	broken    error      // what became of the last seal, if it failed
	resuming  int        // how many times it is still to be taken back
	last      *snapshot.RootRef
	origin    []snapshot.SavepointRef // the savepoint that the application began with
	originAt  element.CheckpointID
	given     []*pending // given up, and their files are not gone yet
	room      []waiting  // for that
	merging   bool
	late      *snapshot.RootRef    // committed meanwhile: there is another round for it
	startID   element.CheckpointID // of what is merged at the start
	round     []mergeResult        // of the round of housekeeping that runs
	full      map[element.TaskID]snapshot.RunRef

	events  []event
	looping bool // a turn of the loop is queued
	ready   bool // the loop has begun
	ticks   int  // numbers the timer, so that an old one is known
	over    bool // cancelled: everything ends, nobody listens to events
	stopIn  bool // the source has been stopped
	redrawn bool // the partitions have changed: it ends with a last checkpoint
	err     error
	running int // goroutines that tearDown waits for
}

func (p *process) newAttempt() {
	p.restarts++
	p.w.counts.Attempts++
	a := &attempt{p: p, number: p.restarts, full: p.merged}
	p.attempt = a
	p.w.tracef(p, "attempt %d of %04b under epoch %d", a.number, p.owned(), p.epoch)
	a.forgetForeign()
	a.first = a.newIntake(p.owned())
	a.prepare()
}

// forgetForeign gives up merged runs of partitions that went away, and all of them when the membership was lost: then
// they may have been cleaned away as those of an instance that is gone.
func (a *attempt) forgetForeign() {
	for id, run := range a.full {
		foreign := id.Source == sourceName && !a.p.owned().has(int(id.Partition))
		if a.p.strange || foreign || (id.Source == stageName && int(id.Partition) >= a.p.parallelism) {
			a.p.repo.Forget(run)
			delete(a.full, id)
		}
	}
	a.p.strange = false
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

// prepare: own ids first, then those of instances that are gone, then the stable read, the restore, and checkpoint 0.
func (a *attempt) prepare() {
	a.stage = "init"
	take := a.then("take in", func() error {
		a.first.run(a.then("open", func() error {
			a.p.kept = nil
			a.tasks = a.first.tasks
			a.open()
			commit := a.then("commit start", a.commitStart)
			if a.p.recover { // nothing goes before a commit
				commit(nil)
				return nil
			}
			a.cleanFailed(a.first.facts, commit)
			return nil
		}))
		return nil
	})
	fence := a.then("fence", func() error { a.fenceGone(func() { take(nil) }); return nil })
	if a.p.w.cfg.Bug == CommitOutOfOrder {
		a.p.spare.drive(txn.Event{Kind: txn.EvInit}, job{}, func(error) {
			a.p.mgr.drive(txn.Event{Kind: txn.EvInit}, job{}, fence)
		})
		return
	}
	begin := a.then("init", func() error { a.p.mgr.drive(txn.Event{Kind: txn.EvInit}, job{}, fence); return nil })
	if a.p.w.cfg.Bug == CleanUnread && a.p.memory != nil {
		a.cleanFailed(a.p.memory, begin)
		return
	}
	begin(nil)
}

// open makes the coordinator.
func (a *attempt) open() {
	a.lastID = max(a.p.lastID, a.first.lastID)
	if a.p.unsure != 0 && a.p.unsure == a.first.lastID {
		a.p.w.counts.LateCommits++
	}
	a.p.unsure = 0
	a.wire()
	for _, t := range a.tasks {
		a.follow(t)
	}
	if a.p.w.later != nil && len(a.due()) > 0 {
		a.lastID++
		a.startID = a.lastID
	}
	a.co = checkpoint.New(checkpoint.Config{
		Interval: a.p.w.interval, First: a.p.w.interval / 2, Timeout: checkpointTimeout,
		MinPause: a.p.w.minPause(), MaxConcurrent: a.p.w.concurrent, TolerableFailures: a.p.w.tolerable, TransactionTimeout: transactionLimit,
	}, a.lastID)
}

// follow makes the root of a task the predecessor of the next one, if it is the newest.
func (a *attempt) follow(t *task) {
	a.origins(t)
	if t.root != nil && (a.last == nil || a.last.Name.ID < t.root.Name.ID) {
		a.last = t.root
	}
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
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Position: t.position, Metadata: text, Epoch: t.epoch})
	}
	if slices.ContainsFunc(a.tasks, func(t *task) bool { return t.recovered }) {
		a.writeRecovered(c)
		return nil
	}
	a.p.recover = false
	if len(c.Offsets) == 0 {
		return a.startTasks()
	}
	a.commitInitial(c, func() {})
	return nil
}

// commitInitial commits start positions, and starts the tasks.
func (a *attempt) commitInitial(c checkpoint.Commit, then func()) {
	a.p.mgr.drive(txn.Event{Kind: txn.EvSeal}, job{}, a.then("commit start", func() error {
		ev := txn.Event{Kind: txn.EvCommit, Partitions: len(c.Offsets), Pieces: a.p.w.cfg.piecesOf(c), HandleBytes: handleBytes(c)}
		a.p.mgr.drive(ev, job{commit: &c}, a.then("run", func() error {
			a.p.recover = false // the wish is for the start
			then()
			return a.startTasks()
		}))
		return nil
	}))
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
		t.feed()
		if err := a.execute(a.co.AddTask(a.p.w.now, t.id)); err != nil {
			return err
		}
	}
	for _, t := range a.tasks {
		if err := a.beginImported(t, false); err != nil {
			return err
		}
	}
	a.ready = true
	a.wakeLoop()
	a.quietLater()
	a.mergeAtStart()
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
	for queue := a.sinkQueue; len(queue) > 0; queue = queue[1:] {
		queue[0]()
	}
	a.sinkQueue = nil
	for _, r := range a.revocations {
		r.done()
	}
	for _, e := range a.events {
		if e.kind == evRevoke {
			e.revoke.done()
		}
	}
	a.finish()
}

// finish goes on when the last worker has ended.
func (a *attempt) finish() {
	if !a.over || a.running > 0 {
		return
	}
	if a.discardPending() {
		return
	}
	a.running = -1 // once
	over := func(err error) {
		a.p.untidy = err != nil || !errors.Is(a.err, errStandBy) && !errors.Is(a.err, errRedrawn)
		a.leaveMerges()
		a.keepStates()
		a.p.ended(a.err, errors.Is(a.err, errStopped))
	}
	if a.p.w.cfg.Bug == AbortForgotten {
		over(nil)
		return
	}
	a.p.mgr.drive(txn.Event{Kind: txn.EvAbort}, job{}, over)
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
		if !t.whole || t.root == nil {
			continue
		}
		t.state.commit(t.root.Name.ID)
		t.state.rollback()
		a.p.kept[t.id] = &keptState{state: t.state, root: *t.root}
	}
}

// task gives a task that is here, nil for one that is not (any more).
func (a *attempt) task(id element.TaskID) *task {
	i := slices.IndexFunc(a.tasks, func(t *task) bool { return t.id == id })
	if i < 0 {
		return nil
	}
	return a.tasks[i]
}

// fetchCode tells whether the source can go on.
func fetchCode(c int16) error {
	if c == kerr.OffsetOutOfRange.Code {
		return fault.Stopf(fault.OffsetGone, "the position is not in the log")
	}
	return nil
}
