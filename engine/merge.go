package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// mergeState belongs to the loop. full holds, per task, a full run that covers the beginning of the committed chain and
// replaces it from the next root on.
type mergeState struct {
	doing *mergeRound // the round that runs; its goroutine fills it in
	full  map[element.TaskID]snapshot.RunRef
}

// mergeRound is what a round of housekeeping reports.
type mergeRound struct{ merges []*mergeResult }

// mergeResult tells of one merge.
type mergeResult struct {
	task element.TaskID
	run  snapshot.RunRef // zero when it failed
	runs int
	took time.Duration
	err  error
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
		if c := a.tasks[id].committed; len(c.Runs) > a.r.cfg.MaxChain {
			due = append(due, c)
		}
	}
	slices.SortStableFunc(due, func(a, b snapshot.TaskEntry) int { return cmp.Compare(len(b.Runs), len(a.Runs)) })
	return due
}

// mergeAll merges chains one after the other until the time is over. It runs in the round's goroutine.
func (a *attempt) mergeAll(round *mergeRound, name element.CheckpointName, due []snapshot.TaskEntry) {
	for began := time.Now(); len(due) > 0 && time.Since(began) < roundTime && a.ctx.Err() == nil; due = due[1:] {
		res := &mergeResult{task: due[0].Task, runs: len(due[0].Runs)}
		start := time.Now()
		res.run, res.err = a.r.ports.Checkpoints.Merge(a.ctx, name, due[0])
		res.took = time.Since(start)
		round.merges = append(round.merges, res)
	}
}

// onMerged keeps the full runs for the next root. A merge that failed is tried again after the next checkpoint: the
// chain it would have replaced is intact, only long.
func (a *attempt) onMerged(e event) {
	a.merge.doing = nil
	for _, res := range e.merged.merges {
		if res.err == nil {
			if a.merge.full == nil {
				a.merge.full = map[element.TaskID]snapshot.RunRef{}
			}
			a.merge.full[res.task] = res.run
		}
		a.r.lis.merged(res)
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
	delete(a.merge.full, id)
	for i, run := range runs {
		if run.To == full.To {
			return append([]snapshot.RunRef{full}, runs[i+1:]...)
		}
	}
	a.r.ports.Checkpoints.Forget(full)
	return runs
}

// forgetMerges gives up the full runs that no root names yet; the attempt is over and so is the round that ran, whose
// report may not have been heard.
func (a *attempt) forgetMerges() {
	if round := a.merge.doing; round != nil {
		for _, res := range round.merges {
			if res.err == nil {
				a.r.ports.Checkpoints.Forget(res.run)
			}
		}
	}
	for _, run := range a.merge.full {
		a.r.ports.Checkpoints.Forget(run)
	}
}
