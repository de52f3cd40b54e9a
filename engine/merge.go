package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// mergeState belongs to the loop; it goes from attempt to attempt, for an attempt may be over before the next root. full
// holds, per task, a full run that covers the beginning of the committed chain and replaces it from the next root on. It
// stays there until a root that names it is committed.
type mergeState struct {
	doing *mergeRound       // the round that runs; its goroutine fills it in
	late  *snapshot.RootRef // was committed meanwhile: there is another round for it
	full  map[element.TaskID]snapshot.RunRef
	bad   map[element.TaskID]*unmerged
}

// mergeRound is what a round of housekeeping reports.
type mergeRound struct{ merges []*mergeResult }

// mergeResult tells of one merge.
type mergeResult struct {
	task  element.TaskID
	run   snapshot.RunRef // zero when it failed
	first snapshot.RunRef // of the chain
	runs  int
	took  time.Duration
	err   error
}

// roundTime is how long a round of housekeeping goes on to merge. A round has at least one merge; where states are
// small it has many, so that chains stay short however many tasks there are: each of them grows by a run per
// checkpoint.
const roundTime = 100 * time.Millisecond

// due lists the tasks whose chains are above the limit, the longest first.
func (a *attempt) due() []snapshot.TaskEntry {
	var due []snapshot.TaskEntry
	for _, id := range a.order {
		if _, has := a.merge.full[id]; has {
			continue // its last merge waits for the next root
		}
		c := a.tasks[id].committed
		if bad := a.merge.bad[id]; bad != nil && bad.damage {
			continue // a checkpoint makes a new chain: one that is in flight, or a later one
		}
		if len(c.Runs) > a.r.cfg.MaxChain {
			due = append(due, c)
		}
	}
	slices.SortStableFunc(due, func(a, b snapshot.TaskEntry) int { return cmp.Compare(len(b.Runs), len(a.Runs)) })
	return due
}

// mergeAll merges chains one after the other until the time is over. It runs in the round's goroutine. When the attempt
// ends, a merge may take roundTime more: else an instance whose attempts end soon after their first commit would never get
// one done, and its chains would grow from attempt to attempt.
func (a *attempt) mergeAll(round *mergeRound, name element.CheckpointName, due []snapshot.TaskEntry) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	defer cancel()
	defer context.AfterFunc(a.ctx, func() { time.AfterFunc(roundTime, cancel) })()
	for began := time.Now(); len(due) > 0; due = due[1:] {
		if len(round.merges) > 0 && (time.Since(began) >= roundTime || a.ctx.Err() != nil) {
			return
		}
		res := &mergeResult{task: due[0].Task, first: due[0].Runs[0], runs: len(due[0].Runs)}
		start := time.Now()
		res.run, res.err = a.r.ports.Checkpoints.Merge(ctx, name, due[0])
		res.took = time.Since(start)
		round.merges = append(round.merges, res)
	}
}

// mergeAtStart merges the chains that are long when an attempt starts, without waiting for a checkpoint: there may be none
// for long, or none may succeed. The merged runs get an id of their own, for a name is used once.
func (a *attempt) mergeAtStart() {
	due := a.due()
	if len(due) == 0 || a.startID == 0 {
		return
	}
	round, name := &mergeRound{}, element.CheckpointName{ID: a.startID, Incarnation: a.r.cfg.Incarnation}
	a.merge.doing = round
	a.spawn(func() {
		a.mergeAll(round, name, due)
		a.report(event{kind: evMerged, merged: round})
	})
}

// onMerged keeps the full runs for the next root. A merge that failed is tried again after the next checkpoint, or made
// needless by it: see renew.
//
// What was committed meanwhile is cleaned up behind then. It must not wait for the next commit, which may never come: more
// checkpoints than are to be retained would lie there for as long as nothing changes.
func (a *attempt) onMerged(e event) {
	a.keepMerged(e.merged)
	for _, res := range e.merged.merges {
		a.r.lis.merged(res)
	}
	if late := a.merge.late; late != nil {
		a.merge.late = nil
		a.round(*late, nil)
	}
}

func (a *attempt) keepMerged(round *mergeRound) {
	a.merge.doing = nil
	for _, res := range round.merges {
		a.noteMerge(res)
		if res.err == nil && a.tasks != nil && a.tasks[res.task] == nil {
			a.r.ports.Checkpoints.Forget(res.run) // the task has left meanwhile
		} else if res.err == nil {
			if a.merge.full == nil {
				a.merge.full = map[element.TaskID]snapshot.RunRef{}
			}
			a.merge.full[res.task] = res.run
		}
	}
}

// chainOf gives the runs that make up a task's committed state, the newest merged run in place of what it covers.
//
// The merge ran beside the checkpoints: since it read the chain up to run k, runs k+1… may have been committed. They
// follow the full run, whose To is k's. A chain whose beginning is not the one that was merged (it ends elsewhere) is
// left as it is.
func (a *attempt) chainOf(id element.TaskID) []snapshot.RunRef {
	runs := append([]snapshot.RunRef(nil), a.tasks[id].committed.Runs...)
	full, ok := a.merge.full[id]
	if !ok {
		return runs
	}
	for i, run := range runs {
		if run.To == full.To {
			return append([]snapshot.RunRef{full}, runs[i+1:]...)
		}
	}
	a.forgetMerged(id)
	return runs
}

// adopted notes that a chain is committed: a merged run that it begins with needs no more care.
func (a *attempt) adopted(entry snapshot.TaskEntry) {
	if full, ok := a.merge.full[entry.Task]; ok && len(entry.Runs) > 0 && entry.Runs[0] == full {
		delete(a.merge.full, entry.Task)
	}
}

func (a *attempt) forgetMerged(id element.TaskID) {
	if _, has := a.merge.full[id]; !has {
		return
	}
	a.r.ports.Checkpoints.Forget(a.merge.full[id])
	delete(a.merge.full, id)
}

// leaveMerges hands the full runs that no committed root names yet to the next attempt, also those of a round whose
// report nobody has heard. It is over, as everything is that the attempt started. When a file is missing it may be one of
// these: none is used any more, or the next attempt would fail like this one, and all that follow.
func (a *attempt) leaveMerges() {
	for _, p := range a.pending {
		a.renewLater(p)
	}
	if a.merge.doing != nil {
		a.keepMerged(a.merge.doing)
	}
	if a.distrust.Load() {
		for id := range a.merge.full {
			a.forgetMerged(id)
		}
	}
	a.r.merged, a.r.unmerged = a.merge.full, a.merge.bad
}
