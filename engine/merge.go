package engine

import (
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// mergeState belongs to the loop. full holds, per task, a full run that covers the beginning of the committed chain and
// replaces it from the next root on.
type mergeState struct {
	doing *mergeResult // the round that runs; its goroutine fills it in
	full  map[element.TaskID]snapshot.RunRef
}

// mergeResult is what a round of housekeeping reports.
type mergeResult struct {
	task element.TaskID
	run  snapshot.RunRef // File is empty when nothing was merged
	runs int
	took time.Duration
	err  error
}

// nextMerge picks the task with the longest chain above the limit.
func (a *attempt) nextMerge() (snapshot.TaskEntry, bool) {
	var pick snapshot.TaskEntry
	for _, id := range a.order {
		if _, has := a.merge.full[id]; has {
			continue // its last merge waits for the next root
		}
		if c := a.tasks[id].committed; len(c.Runs) > a.r.cfg.MaxChain && len(c.Runs) > len(pick.Runs) {
			pick = c
		}
	}
	return pick, len(pick.Runs) > 0
}

// onMerged keeps the full run for the next root. A merge that failed is tried again after the next checkpoint: the
// chain it would have replaced is intact, only long.
func (a *attempt) onMerged(e event) {
	a.merge.doing = nil
	res := e.merged
	if res.err != nil || res.run.IsZero() {
		if res.err != nil {
			a.r.lis.merged(res)
		}
		return
	}
	if a.merge.full == nil {
		a.merge.full = map[element.TaskID]snapshot.RunRef{}
	}
	a.merge.full[res.task] = res.run
	a.r.lis.merged(res)
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
	if res := a.merge.doing; res != nil && !res.run.IsZero() {
		a.r.ports.Checkpoints.Forget(res.run)
	}
	for _, run := range a.merge.full {
		a.r.ports.Checkpoints.Forget(run)
	}
}
