package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// The files of checkpoints that failed.
//
// After a commit Clean removes them. But they take the room that the next checkpoint needs, and where that is the last there
// was no commit ever comes. So they go when they failed, or before the next one is tried:
//
//	given up before the Permit, the attempt goes on   -> removed when its writers have ended; the next one's wait for that
//	given up before the Permit, the attempt ends      -> removed when all that it started has ended
//	had its Permit                                    -> the commit may have happened, whatever the answer was. It is left
//	                                                     alone until the next attempt has made the transactional ids its
//	                                                     own and has read what is committed (cleanFailed)
//	had its Permit, and the commit was surely refused -> removed when all that the attempt started has ended
//	of a process that was killed                      -> as above, at the first attempt of the next process
//
// That a checkpoint without a Permit may go at once needs no broker: its handle is made with the commit, and has not left
// this process. Those that follow it in its chain were given up with it. Its savepoints go with it: who asked for them is told
// that there are none, or gets those of the next one. So do those of one that had its Permit, if the group's word says in the next
// attempt that it failed.

// cleanFailed removes what failed checkpoints have left, now that the group's word is known. Without transactions a commit
// that is on its way may still arrive: only data without a root goes. What failed without a refusal is left to Clean, after the
// next one that succeeds, and what an earlier process has left, where nothing is committed for a while, to CleanIdle after its grace.
// While a person has the state recovered from the store nothing goes before a commit.
func (a *attempt) cleanFailed(in *intake) {
	left := a.r.unsure
	a.r.unsure = nil
	cfg, files := &a.r.cfg, a.r.ports.Checkpoints
	if cfg.NoSnapshots || cfg.RecoverFromStore {
		return
	}
	var report snapshot.CleanReport
	var err error
	if cfg.AtLeastOnce {
		report, err = files.CleanUnrooted(a.ctx, in.facts, a.r.ports.GroupRoots)
	} else {
		for _, u := range left {
			if u.failed(in) {
				a.dispose(u.root.Name, u.cut)
			}
		}
		report, err = files.CleanFailed(a.ctx, in.facts, a.r.ports.GroupRoots, in.origin...)
	}
	if a.ctx.Err() == nil && (report.Deleted > 0 || err != nil) {
		a.r.lis.cleaned(report, err)
	}
}

// unsure is a checkpoint whose commit may have happened, and has savepoints. The next attempt knows what became of it, where it has one
// of its tasks; else they stay.
type unsure struct {
	root *snapshot.Root
	cut  []snapshot.SavepointRef
}

// failed reports whether it is surely not committed: what the group names for one of its tasks is older. For the others that is so,
// too, see CleanFailed.
func (u *unsure) failed(in *intake) bool {
	for i := range u.root.Tasks {
		for _, p := range u.root.Tasks[i].Positions {
			k := slices.IndexFunc(in.facts, func(f snapshot.TaskFacts) bool { return f.Inputs[0].TopicPartition == p.TopicPartition })
			if k < 0 || !in.facts[k].Inputs[0].Found {
				continue
			}
			h, err := snapshot.ParseHandle(in.facts[k].Inputs[0].Metadata)
			if err == nil && h.StoreID == in.a.r.ports.Checkpoints.StoreID() {
				return h.Root.Name.ID < u.root.Name.ID
			}
		}
	}
	return false
}

// noteRefused takes a commit that has not happened, and will not, for one that was never begun.
func (a *attempt) noteRefused(e event) {
	if p := a.inFlight(e.id); p != nil && errors.As(e.err, new(*checkpoint.RefusedError)) {
		p.permitted = false
	}
}

// discardLater removes the files of a checkpoint that is given up while the attempt goes on.
func (a *attempt) discardLater(p *pending) {
	if p.permitted || a.r.cfg.NoSnapshots {
		return
	}
	before, done := a.discarded, make(chan struct{})
	a.discarded = done
	a.spawn(func() {
		defer close(done)
		p.writers.Wait() // they have been cancelled
		<-before
		a.discard(p)
	})
}

// discardPending does it at the end of the attempt. Nothing of it runs any more.
func (a *attempt) discardPending() {
	for _, p := range a.pending {
		switch {
		case a.r.cfg.NoSnapshots:
		case !p.permitted:
			a.discard(p)
		case len(p.cut) > 0:
			a.r.unsure = append(a.r.unsure, unsure{p.root, p.cut})
		}
	}
}

func (a *attempt) discard(p *pending) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), discardTimeout)
	defer cancel()
	if _, err := a.r.ports.Checkpoints.Discard(ctx, p.name); err != nil {
		a.r.lis.cleaned(snapshot.CleanReport{}, fmt.Errorf("remove the files of checkpoint %s, which was given up: %w", p.name, err))
	}
	a.dispose(p.name, p.cut)
}

// dispose removes the savepoints of a checkpoint.
func (a *attempt) dispose(of element.CheckpointName, cut []snapshot.SavepointRef) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), discardTimeout)
	defer cancel()
	for _, s := range cut {
		if err := a.r.ports.DisposeSavepoint(ctx, s.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.r.lis.cleaned(snapshot.CleanReport{}, fmt.Errorf("remove savepoint %s of checkpoint %s, which was given up: %w", s.Path, of, err))
		}
	}
}

// discardTimeout bounds the removal of the files of one checkpoint, and that of its savepoints.
const discardTimeout = 5 * time.Second
