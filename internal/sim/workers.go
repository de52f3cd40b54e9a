package sim

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/txn"
)

// stop says that a worker of a checkpoint is cancelled.
func (a *attempt) stop(p *pending) func() bool {
	return func() bool { return p.stopped || p.back || a.over }
}

// done ends a worker: its event goes to the loop, the tear down may go on.
func (a *attempt) done(e event) {
	a.running--
	a.report(e)
	a.finish()
}

// io is a worker that calls the repository and then makes what it wrote durable, step by step. stop, asked between the
// steps, is the end of its context.
func (a *attempt) io(stop func() bool, call func() error, done func(error)) {
	a.running++
	p, w := a.p, a.p.w
	w.do(p, w.lag(300*time.Microsecond), kWrite, func() {
		if stop() {
			done(context.Canceled)
			return
		}
		err := call()
		ops := p.view.take()
		switch {
		case err != nil:
			done(err)
		case w.cfg.Bug == CommitBeforeFsync && len(ops) > 0 && ops[0].kind == kFsync:
			p.link(ops)
			done(nil)
		default:
			a.ops(ops, stop, done)
		}
	})
}

// ops executes what a call of the repository has staged.
func (a *attempt) ops(ops []diskOp, stop func() bool, done func(error)) {
	w := a.p.w
	if len(ops) > 0 && ops[0].kind == kSyncDir && w.cfg.Bug == NoDirSync {
		ops = ops[1:]
	}
	if len(ops) == 0 {
		done(nil)
		return
	}
	w.do(a.p, w.disk.lag(), ops[0].kind, func() {
		if stop() && ops[0].kind != kSyncDir {
			done(context.Canceled) // what has no name yet is gone
			return
		}
		if err := w.disk.do(ops[0]); err != nil {
			done(fault.Restartf(fault.CheckpointDir, "%w", err))
			return
		}
		a.ops(ops[1:], stop, done)
	})
}

// link is the planted bug: the name is there at once, and durability comes when it comes.
func (p *process) link(ops []diskOp) {
	for _, op := range ops {
		if op.kind == kLink {
			_ = p.w.disk.do(op) // the name is new
			continue
		}
		p.w.do(p, 10*time.Millisecond+p.w.lag(20*time.Millisecond), op.kind, func() { _ = p.w.disk.do(op) })
	}
}

// lag is how long a step on the disk takes.
func (d *disk) lag() time.Duration {
	if d.slow > 0 {
		d.slow--
		return 10*time.Millisecond + d.w.lag(60*time.Millisecond)
	}
	return d.w.lag(400 * time.Microsecond)
}

// persist makes the frozen changes of all tasks durable in one file.
func (a *attempt) persist(id element.CheckpointID) {
	p := a.flight(id)
	var deltas []snapshot.TaskDelta
	for _, t := range a.tasks {
		ack, ok := p.acks[t.id]
		if !ok {
			continue
		}
		if a.p.w.cfg.Bug == LeakPastBarrier {
			ack.frozen.leak(t.state)
		}
		d := snapshot.TaskDelta{
			Task: t.id, States: t.states(), From: a.chainEnd(t, p), To: id, Len: len(ack.frozen.vals), Entries: sorted(ack.frozen.vals),
		}
		if p.whole[t.id] {
			d.From, d.Full, d.Len, d.Entries = 0, true, len(ack.frozen.full), sorted(ack.frozen.full)
		}
		d.Full = d.Full || d.From == 0 && t.rescaled
		if len(ack.inflight) > 0 {
			d.InFlight = a.p.w.x.encodeParcels(ack.inflight)
		}
		deltas = append(deltas, d)
	}
	a.whenRoom(p, func() { a.write(p, deltas) })
}

func (a *attempt) write(p *pending, deltas []snapshot.TaskDelta) {
	runs := map[element.TaskID]snapshot.Persisted{}
	a.io(a.stop(p), func() error {
		if w := a.p.w; w.cfg.script.declines() || w.declines(a.p) {
			return fault.Restartf(fault.CheckpointDir, "no space for a moment")
		}
		written, err := a.p.repo.Persist(context.Background(), p.name, deltas)
		for i := range written {
			runs[deltas[i].Task] = written[i]
		}
		return err
	}, func(err error) {
		a.wrote(p)
		a.done(event{kind: evPersisted, id: p.name.ID, runs: runs, err: err})
	})
}

// writeRoot writes the file that names everything the checkpoint consists of.
func (a *attempt) writeRoot(id element.CheckpointID) {
	p := a.flight(id)
	root := &snapshot.Root{Name: p.name, Predecessor: a.last, Application: application, Instance: a.p.name, ClusterID: clusterID, StoreID: a.p.repo.StoreID(), Origin: a.origin}
	for _, t := range a.tasks {
		ack, ok := p.acks[t.id]
		if !ok || p.starts(t) {
			continue
		}
		var runs []snapshot.RunRef
		if !p.whole[t.id] {
			runs = a.chainOf(t)
		}
		if run := p.runs[t.id].Run; !run.IsZero() && (a.p.w.cfg.Bug != ChainHole || id%3 != 0) {
			runs = append(runs, run)
		}
		root.Tasks = append(root.Tasks, a.entry(p, t, ack, runs))
	}
	p.root = root
	p.writing++
	var ref snapshot.RootRef
	a.io(a.stop(p), func() (err error) {
		ref, err = a.p.repo.WriteRoot(context.Background(), root)
		return err
	}, func(err error) {
		if fault.CodeOf(err) == fault.Corrupt {
			a.p.w.counts.ChainsGone++
			// A file of the chain is gone: damaged, or cleaned by a successor. The offsets tell the next attempt.
			err = fault.New(fault.Restart, fault.Corrupt, "write root of checkpoint %s: %w", root.Name, err)
		}
		a.wrote(p)
		a.done(event{kind: evRoot, id: id, root: ref, err: err})
	})
}

// declines reports that the changes of a checkpoint cannot be written, where that is tolerated. Now and then its flush
// fails, too.
func (w *world) declines(p *process) bool {
	if w.tolerable == 0 || w.healed || !w.chance(12) {
		return false
	}
	if w.chance(20) {
		w.arm(netFault{kind: netLoseReply, match: kApplyProduce, count: maxTries + 1, p: p})
	}
	return true
}

// entry is what the root says of a task.
func (a *attempt) entry(p *pending, t *task, ack taskAck, runs []snapshot.RunRef) snapshot.TaskEntry {
	e := snapshot.TaskEntry{Task: t.id, States: t.states(), Runs: runs}
	if t.in == nil {
		e.Positions = []element.Position{ack.position}
		return e
	}
	e.Parallelism, e.MaxParallelism = a.p.parallelism, a.p.w.x.groups
	if run := p.runs[t.id].InFlight; !run.IsZero() {
		e.InFlight = []snapshot.RunRef{run}
	}
	return e
}

// starts reports that a checkpoint is the one that commits the start position of a task, which has not taken a record yet.
// It gets a handle that says "empty" and no entry in the root: a root is written before its commit, and if that came to
// nothing, whoever owns the partition next would find it in the store without a committed offset, which looks like an
// offset that has expired.
func (p *pending) starts(t *task) bool { return t.fresh && !t.fed }

// commit commits outputs, positions and handles.
func (a *attempt) commit(act checkpoint.CommitAction) error {
	p := a.flight(act.ID)
	c := checkpoint.Commit{Name: p.name, Permit: act.Permit}
	for _, t := range p.root.Tasks {
		for _, pos := range t.Positions {
			h := a.newHandle(pos)
			h.Kind, h.Root = snapshot.HandleCheckpoint, p.ref
			text, err := h.Encode()
			if err != nil {
				return err
			}
			c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Position: pos, Metadata: text, Epoch: a.task(t.Task).epoch})
		}
	}
	for _, t := range a.tasks {
		if _, ok := p.acks[t.id]; !ok || !p.starts(t) {
			continue
		}
		text, err := a.newHandle(t.position).Encode()
		if err != nil {
			return err
		}
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{Position: t.position, Metadata: text, Epoch: t.epoch})
	}
	if !act.Permit.Allows(p.name.ID) {
		a.p.w.violation("driver", "commit of %v without a permit", p.name)
	}
	p.offsets, p.permitted = c.Offsets, true
	w, mgr := a.p.w, a.p.mgr
	ev := txn.Event{Kind: txn.EvCommit, Checkpoint: p.name.ID, Partitions: len(c.Offsets), Pieces: a.p.w.cfg.piecesOf(c), HandleBytes: handleBytes(c)}
	run := func(done func(error)) { mgr.drive(ev, job{commit: &c}, done) }
	if w.cfg.Bug == CommitOutOfOrder && a.p.held == nil && w.chance(40) {
		// The planted bug: this one's commit waits in a corner while the next checkpoint uses other ids.
		a.p.held = func() { run(func(error) { a.p.held = nil }) }
		a.p.mgr, a.p.spare = a.p.spare, a.p.mgr
		a.report(event{kind: evCommitted, id: p.name.ID})
		return nil
	}
	a.running++
	w.do(a.p, w.lag(300*time.Microsecond), kCommit, func() {
		run(func(err error) {
			if a.p.held != nil {
				a.p.held()
			}
			a.done(event{kind: evCommitted, id: p.name.ID, err: err})
		})
	})
	return nil
}

// complete makes the committed checkpoint the one that everything falls back to. What those who leave with it hold back
// is dropped before anything of the others is released: their position is the barrier's.
func (a *attempt) complete(id element.CheckpointID, leaving []element.TaskID) {
	p := a.flights[0]
	a.flights = a.flights[1:]
	ref := p.ref
	a.last = &ref
	a.p.w.check.completed(a, p)
	a.p.w.saves.cut(a, p)
	a.p.remember(p.offsets)
	a.p.rejoined = false
	for _, entry := range p.root.Tasks {
		t := a.task(entry.Task)
		root := ref
		t.committed, t.root, t.fresh = entry, &root, false
		t.commit(id)
		if full, ok := a.full[entry.Task]; ok && len(entry.Runs) > 0 && entry.Runs[0] == full {
			delete(a.full, entry.Task) // adopted
		}
	}
	for _, t := range a.tasks {
		if _, ok := p.acks[t.id]; ok && p.starts(t) {
			t.fresh = false
			t.commit(id)
			if !t.halting {
				t.feed()
			}
		}
	}
	for _, id := range leaving {
		if t := a.task(id); a.p.w.cfg.Bug != LeaveReleases {
			t.forget()
		}
	}
	a.release(id)
	a.mark(ref)
	a.house(ref)
}

// mark writes the committed marker. The real call looks whether the root is still there when the marker is, and takes it
// back if not; here the call is over before its writes are carried out, so that part is made up for by a second one.
func (a *attempt) mark(ref snapshot.RootRef) {
	a.io(never, func() error { return a.p.repo.MarkCommitted(context.Background(), ref) }, func(error) {
		if a.p.w.disk.files[ref.Path] == nil && a.p.w.disk.files[strings.TrimSuffix(ref.Path, ".root")+".committed"] != nil {
			a.mark(ref)
		}
		a.running--
		a.finish()
	})
}

// remember keeps what is known to be committed, for the planted bug that trusts it instead of reading it again.
func (p *process) remember(offsets []checkpoint.OffsetCommit) {
	p.memory = slices.Clone(p.memory)
	for _, o := range offsets {
		p.memory[o.Position.Partition] = committed{found: true, offset: o.Position.Offset, metadata: o.Metadata}
	}
}
