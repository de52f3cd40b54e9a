package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// mergeResult tells of one merge.
type mergeResult struct {
	task element.TaskID
	run  snapshot.RunRef
}

// house removes what nothing needs and merges chains that have grown too long.
func (a *attempt) house(ref snapshot.RootRef) {
	if a.merging {
		if a.p.w.later != nil {
			a.late = &ref
		}
		return
	}
	a.roundOf(ref, a.due())
}

// due lists the tasks whose chains are too long, the longest first.
func (a *attempt) due() []snapshot.TaskEntry {
	var due []snapshot.TaskEntry
	for _, t := range a.tasks {
		if _, has := a.full[t.id]; !has && len(t.committed.Runs) > maxChain {
			due = append(due, t.committed)
		}
	}
	slices.SortStableFunc(due, func(a, b snapshot.TaskEntry) int { return cmp.Compare(len(b.Runs), len(a.Runs)) })
	return due
}

func (a *attempt) roundOf(ref snapshot.RootRef, due []snapshot.TaskEntry) {
	a.merging = true
	then := func() { a.cleanGroup(ref.Name, due) }
	if a.p.w.fine && a.p.w.cfg.Bug != CleanNeeded && a.p.w.cfg.Bug != CleanBlind {
		a.clean("Clean", func(f *fiber) {
			_, _ = a.p.repo.Clean(context.Background(), []snapshot.RootRef{ref}, a.p.w.groupRoots(f))
		}, then)
		return
	}
	a.io(func() bool { return a.over }, func() error {
		switch a.p.w.cfg.Bug {
		case CleanNeeded:
			a.cleanByAge(ref)
			return nil
		case CleanBlind:
			return a.cleanBlind(ref)
		}
		_, err := a.p.repo.Clean(context.Background(), []snapshot.RootRef{ref}, a.p.w.groupRoots(nil))
		return err
	}, func(error) {
		a.running--
		then()
	})
}

// mergeAll merges chains one after the other.
func (a *attempt) mergeAll(name element.CheckpointName, due []snapshot.TaskEntry) {
	if len(due) == 0 || a.over {
		a.running++
		a.done(event{kind: evMerged})
		return
	}
	var full snapshot.RunRef
	a.io(func() bool { return a.over }, func() (err error) {
		full, err = a.p.repo.Merge(context.Background(), name, due[0])
		return err
	}, func(err error) {
		switch {
		case err == nil:
			a.round = append(a.round, mergeResult{due[0].Task, full})
			a.p.w.counts.Merged++
		case !full.IsZero():
			a.p.repo.Forget(full)
		}
		a.running--
		a.mergeAll(name, due[1:])
	})
}

// cleanByAge is the planted bug: data files of checkpoints before the last two go, whoever still needs them.
func (a *attempt) cleanByAge(ref snapshot.RootRef) {
	v := a.p.view
	for _, name := range v.d.names() {
		var id uint64
		if n, _ := fmt.Sscanf(name, application+"/"+a.p.name+"/chk-%d-", &id); n == 1 && id+2 <= uint64(ref.Name.ID) {
			_ = v.Delete(context.Background(), name)
		}
	}
}

// cleanBlind is the planted bug: own files go that no retained root of this instance names, whatever the roots of others
// name.
func (a *attempt) cleanBlind(ref snapshot.RootRef) error {
	infos, err := a.p.repo.List(context.Background())
	if err != nil {
		return err
	}
	needed := map[string]bool{}
	kept := 0
	for _, info := range infos {
		if info.Instance != a.p.name || info.Root == nil {
			continue
		}
		if info.Ref.Name.ID <= ref.Name.ID {
			if kept++; kept > 2 {
				continue
			}
		}
		needed[info.Ref.Path] = true
		for _, e := range info.Root.Tasks {
			for _, run := range e.Runs {
				needed[run.File] = true
			}
		}
	}
	v := a.p.view
	for _, name := range v.d.names() {
		var id uint64
		n, _ := fmt.Sscanf(name, application+"/"+a.p.name+"/chk-%d-", &id)
		if n == 1 && id <= uint64(ref.Name.ID) && !needed[name] && (strings.HasSuffix(name, ".data") || strings.HasSuffix(name, ".root")) {
			_ = v.Delete(context.Background(), name)
		}
	}
	return nil
}

// keepMerged keeps the full runs for the next root.
func (a *attempt) keepMerged() {
	a.merging = false
	for _, m := range a.round {
		if a.co != nil && a.task(m.task) == nil { // it has left
			a.p.repo.Forget(m.run)
			continue
		}
		if a.full == nil {
			a.full = map[element.TaskID]snapshot.RunRef{}
		}
		a.full[m.task] = m.run
	}
	a.round = nil
}

// chainOf gives the runs of a task's committed state, a merged run in place of what it covers.
func (a *attempt) chainOf(t *task) []snapshot.RunRef {
	runs := append([]snapshot.RunRef(nil), t.committed.Runs...)
	full, ok := a.full[t.id]
	if !ok {
		return runs
	}
	for i, run := range runs {
		if run.To == full.To {
			return append([]snapshot.RunRef{full}, runs[i+1:]...)
		}
	}
	a.p.repo.Forget(full)
	delete(a.full, t.id)
	return runs
}

// leaveMerges hands the full runs that no committed root names yet to the next attempt.
func (a *attempt) leaveMerges() {
	a.keepMerged()
	a.p.merged = a.full
}
