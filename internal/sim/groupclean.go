package sim

import (
	"context"
	"errors"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// cleanGrace is how old a file of an instance that is gone has to be of which nothing tells that it is superseded.
const cleanGrace = max(2*transactionLimit, sessionTimeout)

// epochStart is when a run begins, for those who want a date.
var epochStart = time.Unix(1_700_000_000, 0)

func (w *world) clock() time.Time { return epochStart.Add(w.now) }

// cleanGroup deletes what instances that are gone have left and nothing needs: the leader's work, which is the instance
// that has the first partition. Then it merges.
func (a *attempt) cleanGroup(name element.CheckpointName, due []snapshot.TaskEntry) {
	then := func() { a.mergeAll(name, due) }
	if a.over || a.p.since[0] == 0 || a.p.w.cfg.Bug == GoneUncleaned {
		then()
		return
	}
	a.clean("CleanGone", func(f *fiber) { _, _ = a.p.repo.CleanGone(context.Background(), a.p.goneInput(f)) }, then)
}

// clean runs a cleaner in steps.
func (a *attempt) clean(cleaner string, call func(*fiber), then func()) {
	a.fiber(func() bool { return a.over }, call, then).cleaner = cleaner
}

// goneInput tells a cleaner that runs in a fiber what the group knows.
func (p *process) goneInput(f *fiber) snapshot.GoneInput {
	w := p.w
	return snapshot.GoneInput{
		Live: func(context.Context) ([]string, error) {
			r, err := f.ask(kApplyDescribe, func() reply { return w.broker.group.describe() })
			return r.names, err
		},
		Committed: w.groupRoots(f), Grace: w.grace, Now: w.clock(),
	}
}

// groupRoots asks the group what its committed handles name; without a fiber the answer comes in the same step.
func (w *world) groupRoots(f *fiber) snapshot.GroupRoots {
	return func(context.Context) ([]snapshot.RootRef, error) {
		all := mask(1<<len(w.broker.in) - 1)
		fetch := func() reply { return w.broker.group.fetch(all, true) }
		var r reply
		if f == nil {
			if r = fetch(); r.failed() {
				return nil, errors.New("no answer")
			}
		} else {
			var err error
			if r, err = f.ask(kApplyFetchOffsets, fetch); err != nil {
				return nil, err
			}
		}
		return snapshot.NamedRoots(factsOf(r.committed, all)), nil
	}
}
