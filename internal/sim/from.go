package sim

import (
	"context"
	"fmt"
	"maps"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// resolveFrom is decide for a start from a savepoint, as engine has it.
func (in *intake) resolveFrom(input snapshot.ResolveInput) (map[element.TaskID]snapshot.Decision, error) {
	s, repo, ctx := in.a.p.from, in.a.p.repo, context.Background()
	want := snapshot.StartInput{From: s.parts, Again: s.left != keptNothing, Sources: map[string]string{sourceName: inTopic}}
	var err error
	if want.Again || snapshot.NeedsStored(input.Tasks) {
		if want.All, err = repo.List(ctx); err != nil {
			return nil, fmt.Errorf("look for older checkpoints: %w", err)
		}
	}
	start, err := snapshot.ResolveFrom(input, want)
	if err != nil {
		return nil, err
	}
	in.lastID = max(in.lastID, start.LastID)
	if want.Again {
		for _, info := range append(want.All, input.Listing...) {
			in.lastID = max(in.lastID, info.Ref.Name.ID)
		}
	}
	in.origin = start.Origin
	if len(in.origin) == 0 && len(in.roots) == 0 {
		in.origin = snapshot.OriginOf(s.parts)
	}
	in.a.p.w.counts.SavepointKnown += len(start.Known)
	return start.Decisions, nil
}

// restoreImported gives a task what the savepoint has of it. No root names it as this task's yet: to the first checkpoint all of
// it has changed.
func (t *task) restoreImported() error {
	p := t.a.p
	s := p.from.saved[t.id.Partition]
	p.w.counts.Imports++
	t.position, t.imported, t.rescaled, t.whole = t.decision.Positions[0], true, true, true
	t.state = newState()
	to := t.state.active
	switch p.w.cfg.Bug {
	case ImportKeepsOffset:
		t.position.Offset = max(t.position.Offset, p.facts[t.id.Partition].offset)
	case ImportDelta:
		to = t.state.base
	}
	maps.Copy(to, s.state)
	return nil
}

// originOf is the savepoint that a task comes from.
func (in *intake) originOf(t *task) []snapshot.SavepointRef {
	if d := t.decision; d.Kind == snapshot.Restore || d.Kind == snapshot.Recovered {
		if r := in.roots[d.Root].Root; r != nil {
			return r.Origin
		}
		return nil
	}
	return in.origin
}

// origins notes what a task that is taken in says of the attempt's beginning, as engine does.
func (a *attempt) origins(t *task) {
	at := element.CheckpointID(0)
	switch {
	case len(t.origin) == 0 || a.p.w.cfg.Bug == OriginForgotten:
		return
	case t.imported:
		at = ^at
	case t.root != nil:
		at = t.root.Name.ID
	}
	if at >= a.originAt {
		a.origin, a.originAt = t.origin, at
	}
}

// beginImported asks for a checkpoint of a task whose state is a savepoint's.
func (a *attempt) beginImported(t *task, beside bool) error {
	if !t.imported {
		return nil
	}
	if err := a.execute(a.co.Moved(a.p.w.now, t.id)); err != nil || !beside {
		return err
	}
	return a.execute(a.co.RequestCheckpoint(a.p.w.now, checkpoint.Early))
}
