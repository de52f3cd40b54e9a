package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// State that changes its place. A task mostly goes on with the state that it had: the runs of its checkpoint are its chain,
// and what it changes comes behind. Sometimes it cannot: its stage has another parallelism, the state is a savepoint's, or
// some of it is let go. Then it has no chain. What is read counts as committed, though no root names it as this task's yet: it
// is on disk where it was read from, so memory need not hold it, and a rollback goes back to it. Its first checkpoint has the
// whole state, and so has the one after a first one that was given up.

// moves reports that the state of a task does not stay where it is.
func (a *attempt) moves(t *owned, d snapshot.Decision) bool {
	switch d.Kind {
	case snapshot.Imported:
		return true
	case snapshot.Restore, snapshot.Recovered:
		return d.Renamed != "" || t.exchange && d.Entry.Parallelism == 0 || slices.ContainsFunc(d.Entry.States, func(s snapshot.StateInfo) bool { return !a.planned(t.id, s) })
	}
	return false
}

// planned reports that a step of the plan owns a state.
func (a *attempt) planned(id element.TaskID, info snapshot.StateInfo) bool {
	return slices.ContainsFunc(a.r.plan.States, func(s topology.StatePlan) bool {
		return s.Source == id.Source && s.ID() == info.Name
	})
}

// reader is what a decision is carried out from.
type reader interface {
	Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error)
	RestoreInFlight(ctx context.Context, entry snapshot.TaskEntry, keep func(group int) bool, apply func(group int, data []byte) error) (int64, error)
}

// reads gives the checkpoints, or the savepoint that a decision names.
func (in *intake) reads(d snapshot.Decision) reader {
	if d.Kind == snapshot.Imported {
		for _, o := range in.from {
			if o.ref.Path == d.Root.Path {
				return o
			}
		}
	}
	return in.a.r.ports.Checkpoints
}

// restoreMoved gives a task its part of the state of other tasks, or of itself elsewhere.
func (in *intake) restoreMoved(ctx context.Context, t *owned, d snapshot.Decision) error {
	a := in.a
	t.rescaled, t.recovered, t.imported, t.sources = true, d.Kind == snapshot.Recovered, d.Kind == snapshot.Imported, d.Sources
	if len(t.sources) == 0 {
		t.sources = []snapshot.TaskEntry{d.Entry}
	}
	if t.origin = in.origin; !t.imported {
		root := d.Root
		t.leaves = &root
		if r := in.roots[d.Root].Root; r != nil {
			t.origin = r.Origin
		}
	}
	if err := a.readState(ctx, t); err != nil { // no root: an empty store with the states of the plan
		return err
	}
	for _, entry := range t.sources {
		tables := make([]int, len(entry.States)) // -1: let go
		for i, s := range entry.States {
			if tables[i] = -1; !a.planned(t.id, s) {
				a.r.lis.dropped(snapshot.DroppedStage{Stage: t.id.Source, Root: d.Root, Subtasks: 1, States: []string{s.Name}})
				continue
			}
			if _, err := t.state.Table(s.Name, s.Codec); err != nil { // another codec
				return err
			}
			tables[i] = slices.IndexFunc(t.stateInfo, func(o snapshot.StateInfo) bool { return o.Name == s.Name })
		}
		began := time.Now()
		stats, err := in.reads(d).Restore(ctx, entry, d.KeepKeys(), func(e snapshot.Entry) error {
			if e.State = tables[e.State]; e.State < 0 {
				return nil
			}
			return t.state.Load(e)
		})
		if err != nil {
			return fmt.Errorf("restore task %s from task %s of checkpoint %s: %w", t.id, entry.Task, d.Root.Name, err)
		}
		if a.r.lis.Restored != nil {
			a.r.lis.Restored(t.id, d.Root, stats, time.Since(began))
		}
	}
	return nil
}
