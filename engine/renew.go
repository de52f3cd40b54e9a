package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// A chain that cannot be merged grows with each checkpoint, up to snapshot.MaxRuns: no root takes more. Before that a
// checkpoint has the whole state of the task, out of memory, in place of the chain:
//
//	runs 1 … k, one of them damaged          merge of 1 … k fails
//	checkpoint n: frozen in full             chain of the root n: run (0, n]
//
// The damaged file is then as old as any other, and goes with the last root that names it.

// unmerged is a chain of which the last merge failed.
type unmerged struct {
	err    error
	damage bool // a file is damaged or missing: another try is of no use
	lost   bool // a file is missing: no root can name the chain any more
	again  int  // runs of the chain from which on the whole state is written; 0 at first, more after each failure
}

const (
	// farBeyond and muchTooLong are multiples of Config.MaxChain: chains that long are renewed when merges fail, and when
	// they only do not keep up.
	farBeyond   = 4
	muchTooLong = 64
)

// needsRenewal decides whether the next checkpoint has the whole state of a task with so many committed runs, and inFlight
// checkpoints that may add one each. bad is nil when the last merge did not fail.
func needsRenewal(runs, inFlight, maxChain int, bad *unmerged) bool {
	switch {
	case runs+inFlight >= snapshot.MaxRuns, bad != nil && bad.lost:
		return true // with the chain as it is there can be no root
	case runs <= maxChain:
		return false
	case bad == nil:
		return runs >= min(muchTooLong*maxChain, snapshot.MaxRuns/2)
	case runs < bad.again:
		return false
	}
	return bad.damage || runs > min(farBeyond*maxChain, snapshot.MaxRuns/2)
}

// noteMerge keeps what the last merge of a task came to. One that the end of the attempt cut short tells nothing, nor does
// that of a chain which is another one by now.
func (a *attempt) noteMerge(res *mergeResult) {
	if res.err == nil {
		delete(a.merge.bad, res.task)
		return
	}
	t := a.tasks[res.task]
	if errors.Is(res.err, context.Canceled) || t == nil || len(t.committed.Runs) == 0 || t.committed.Runs[0] != res.first {
		return
	}
	bad := a.unmerged(res.task)
	bad.err, bad.damage = res.err, damaged(res.err)
}

// noteLost looks at a root that was not written since a file is gone. When it is one of a committed chain all states are written
// anew, for others may have gone with it. Whether this is damage, or this process was frozen and replaced, and its
// successor has cleaned up, only a stable read can tell: the next attempt keeps the states in memory only if the offsets
// name the checkpoint that they are of.
func (a *attempt) noteLost(err error) {
	var gone *snapshot.CorruptError
	if !errors.As(err, &gone) {
		return
	}
	named := false
	for _, id := range a.order {
		if full, ok := a.merge.full[id]; ok && full.File == gone.File {
			a.forgetMerged(id)
		}
		named = named || slices.ContainsFunc(a.tasks[id].committed.Runs, func(r snapshot.RunRef) bool { return r.File == gone.File })
	}
	for _, id := range a.order {
		if named && len(a.tasks[id].committed.Runs) > 0 {
			a.unmerged(id).lost = true
			a.merge.bad[id].err, a.merge.bad[id].damage = err, true
		}
	}
}

// unmerged gives what is known of a task's chain, and makes room for it.
func (a *attempt) unmerged(id element.TaskID) *unmerged {
	if a.merge.bad == nil {
		a.merge.bad = map[element.TaskID]*unmerged{}
	}
	if a.merge.bad[id] == nil {
		a.merge.bad[id] = &unmerged{}
	}
	return a.merge.bad[id]
}

// damaged tells what a file holds from what hinders its reading.
func damaged(err error) bool {
	return errors.As(err, new(*snapshot.CorruptError)) || fault.CodeOf(err) == fault.StateMismatch
}

// renew decides of which tasks a checkpoint has the whole state: all for a savepoint, those whose chains need it, and those
// that have none since they were read in from others. It is called before the barrier is sent.
func (a *attempt) renew(p *pending, tasks []element.TaskID) {
	whole := map[element.TaskID]bool{}
	for _, id := range tasks {
		t := a.tasks[id]
		if t == nil || a.wholes.always || a.r.cfg.NoSnapshots || a.underRenewal(id) {
			continue
		}
		if t.rescaled && t.root == nil {
			if p.firsts == nil {
				p.firsts = map[element.TaskID]bool{}
			}
			whole[id], p.firsts[id] = true, true
			continue
		}
		if runs := len(t.committed.Runs); needsRenewal(runs, len(a.pending)-1, a.r.cfg.MaxChain, a.merge.bad[id]) {
			if p.renewed == nil {
				p.renewed = map[element.TaskID]int{}
			}
			whole[id], p.renewed[id] = true, runs
		}
	}
	if len(p.wanted) > 0 {
		a.wholes.add(p.name.ID, nil)
	} else if len(whole) > 0 {
		a.wholes.add(p.name.ID, whole)
	}
}

// underRenewal reports that a checkpoint in flight has the whole state of a task already.
func (a *attempt) underRenewal(id element.TaskID) bool {
	for _, p := range a.pending {
		if _, ok := p.renewed[id]; ok || p.firsts[id] {
			return true
		}
	}
	return false
}

// whole reports whether the run of a task in a checkpoint takes the place of its chain, or begins one with all that it was
// read in from.
func (a *attempt) whole(p *pending, id element.TaskID) bool {
	_, renewed := p.renewed[id]
	return renewed || a.wholes.always || p.firsts[id]
}

// renewed notes that the chain of a task was replaced.
func (a *attempt) renewed(p *pending, id element.TaskID) {
	runs, ok := p.renewed[id]
	if !ok {
		return
	}
	var cause error
	if bad := a.merge.bad[id]; bad != nil {
		cause = bad.err
	}
	delete(a.merge.bad, id)
	if a.r.lis.Renewed != nil {
		a.r.lis.Renewed(id, runs, cause)
	}
}

// renewLater is for a checkpoint that came to nothing. That may be so because it had whole states, which are large: the next
// ones go without, until the chain is half as long again. It does so more and more rarely, and always before the limit.
func (a *attempt) renewLater(p *pending) {
	for id, runs := range p.renewed {
		bad := a.unmerged(id)
		if bad.err == nil {
			bad.err = errors.New("merges do not keep up with the checkpoints")
		}
		bad.again = max(runs+a.r.cfg.MaxChain, runs+runs/2)
	}
}

// whyRenewed says, for an error, that a checkpoint has whole states and why: when they cannot be written, what prevents the
// merge is what has to be cured.
func (a *attempt) whyRenewed(p *pending) string {
	for _, id := range a.order {
		if runs, ok := p.renewed[id]; ok {
			why := "they are too many"
			if bad := a.merge.bad[id]; bad != nil {
				why = bad.err.Error()
			}
			return fmt.Sprintf(" (with the whole state of task %s, whose %d runs, of at most %d, could not be merged: %s)", id, runs, snapshot.MaxRuns, why)
		}
	}
	return ""
}
