package engine

import (
	"context"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// house removes what no retained checkpoint needs and merges chains that have grown too long. None of it is on the way
// of the next checkpoint and none of it can fail one; only one round runs at a time. What was committed meanwhile has the
// removal after it; its chains are looked at after the next commit.
func (a *attempt) house(ref snapshot.RootRef) {
	if a.merge.doing != nil {
		a.merge.late = &ref
		return
	}
	a.round(ref, a.due())
}

func (a *attempt) round(ref snapshot.RootRef, due []snapshot.TaskEntry) {
	ports := a.r.ports
	own := func(ctx context.Context) (snapshot.CleanReport, error) {
		return ports.Checkpoints.Clean(ctx, []snapshot.RootRef{ref}, ports.GroupRoots)
	}
	a.startRound(own, func(round *mergeRound) { a.mergeAll(round, ref.Name, due) })
}

// houseQuiet removes what nothing needs where nothing was committed for a while, since no record comes: what instances that
// are gone have left, what other instances have superseded, and what was merged for a task that has left.
func (a *attempt) houseQuiet() {
	a.quiet.Reset(a.r.cfg.CleanGroupInterval)
	if cfg := &a.r.cfg; a.merge.doing != nil || cfg.NoSnapshots || cfg.RecoverFromStore || a.r.ports.CleanIdle == nil {
		return
	}
	own := func(ctx context.Context) (snapshot.CleanReport, error) { return a.r.ports.CleanIdle(ctx, true) }
	a.startRound(own, func(*mergeRound) {})
}

// startRound starts a round of housekeeping: own cleans this instance's directory, then whoever's turn it is cleans those of
// the group.
func (a *attempt) startRound(own func(context.Context) (snapshot.CleanReport, error), then func(*mergeRound)) {
	round, group := &mergeRound{}, a.groupCleaner()
	a.merge.doing = round
	a.quiet.Reset(a.r.cfg.CleanGroupInterval)
	a.spawn(func() {
		if report, err := own(a.ctx); a.ctx.Err() == nil {
			a.r.lis.cleaned(report, err)
		}
		if group != nil {
			if report, err := group(a.ctx); a.ctx.Err() == nil {
				a.r.lis.cleaned(report, err)
			}
		}
		then(round)
		a.report(event{kind: evMerged, merged: round})
	})
}

// groupCleaner gives what removes the files of instances that are gone, when it is this instance's turn: one of the group
// does it, the owner of the first source's first partition, and not after every checkpoint.
func (a *attempt) groupCleaner() func(context.Context) (snapshot.CleanReport, error) {
	first := element.TaskID{Source: a.r.plan.Sources[0].Name}
	if a.r.ports.CleanGroup == nil || a.tasks[first] == nil || time.Since(a.r.cleanedGroup) < a.r.cfg.CleanGroupInterval {
		return nil
	}
	a.r.cleanedGroup = time.Now()
	return a.r.ports.CleanGroup
}
