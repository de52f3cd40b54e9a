package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// resolveOrRecover is resolve for a start that may take the store's word. Since a checkpoint with a damaged run is a
// reason to go back, the runs that the committed handles lead to are verified before anything is decided.
func (in *intake) resolveOrRecover(input snapshot.ResolveInput) (map[element.TaskID]snapshot.Decision, error) {
	var err error
	store := in.a.r.ports.Checkpoints
	if input.Roots, err = store.LoadVerified(in.ctx, snapshot.NamedRoots(input.Tasks)); err != nil {
		return nil, fmt.Errorf("verify the committed checkpoints: %w", err)
	}
	listing, err := store.List(in.ctx)
	if err != nil {
		return nil, fmt.Errorf("list the checkpoints: %w", err)
	}
	input.Listing, input.Stored = listing, listing
	in.roots = maps.Clone(input.Roots)
	for _, info := range listing {
		in.roots[info.Ref] = snapshot.LoadedRoot{Root: info.Root, Err: info.Err}
	}
	if err := in.confirm(&input); err != nil {
		return nil, err
	}
	decisions, err := snapshot.Resolve(input)
	refused := snapshot.RefusalOf(err)
	if refused == nil {
		if err == nil && len(listing) == 0 && in.newHere() {
			err = fault.Stopf(fault.HandleMismatch, "--recover-from-store: the group has no committed offsets, and checkpoint directory %s has no checkpoint of application %s: there is nothing to go back to; is it the right directory (state.checkpoints.dir, or data-dir)? Without the flag the application begins anew",
				store.Location(), in.a.r.cfg.Application)
		}
		if err == nil {
			in.dropped(&input, decisions)
		}
		return decisions, err
	}
	if err := in.together(); err != nil {
		return nil, err
	}
	if listing, err = store.Survey(in.ctx); err != nil {
		return nil, fmt.Errorf("verify the checkpoints of the store: %w", err)
	}
	snapshot.Confirm(listing, in.named)
	decisions, rec, err := snapshot.Recover(input, refused, listing)
	if err != nil {
		return nil, err
	}
	for _, d := range decisions {
		if d.Kind == snapshot.Recovered {
			in.back = append(in.back, d.Positions...)
		}
	}
	if err := in.startPositions(func(f *snapshot.TaskFacts) bool { return decisions[f.Task].Kind == snapshot.Fresh }); err != nil {
		return nil, err
	}
	input.Listing = listing
	in.dropped(&input, decisions)
	in.lastID = max(in.lastID, rec.LastID) + 1 // that of the root which writeRecovered writes
	in.forgot = in.lastID                      // what begins anew may be in a checkpoint that is passed over
	if in.a.r.lis.Recovering != nil {
		in.a.r.lis.Recovering(*rec)
	}
	return decisions, nil
}

// newHere says that no task has a committed offset.
func (in *intake) newHere() bool {
	return !slices.ContainsFunc(in.facts, func(f snapshot.TaskFacts) bool {
		return slices.ContainsFunc(f.Inputs, func(i snapshot.InputFacts) bool { return i.Found })
	})
}

// writeRecovered gives the recovered tasks a root of their own, nil when there are none. It says what the roots say that
// they go back to, under an id above all that lie in the store: the checkpoints that were passed over stay older than
// what is committed, whatever becomes known of them.
func (a *attempt) writeRecovered() (*snapshot.RootRef, error) {
	root := &snapshot.Root{
		Name:      element.CheckpointName{ID: a.lastID, Incarnation: a.r.cfg.Incarnation},
		ClusterID: a.r.cfg.ClusterID, CreatedUnixMilli: time.Now().UnixMilli(), Origin: a.origin,
	}
	some := false
	for _, id := range a.order {
		t := a.tasks[id]
		entries := []snapshot.TaskEntry{t.committed}
		switch {
		case !t.recovered && t.exchange: // of a stage that was not there: without it the root may look like one of before all exchanges
			entries = []snapshot.TaskEntry{{Task: id, Parallelism: t.parallelism, MaxParallelism: a.par.most}}
		case !t.recovered:
			continue
		case t.rescaled:
			entries = t.sources // what the next attempt needs if this one commits no more than its start
		}
		some = some || t.recovered
		for _, e := range entries {
			if !slices.ContainsFunc(root.Tasks, func(o snapshot.TaskEntry) bool { return o.Task == e.Task }) {
				root.Tasks = append(root.Tasks, e)
			}
		}
		if t.rescaled || !t.recovered {
			continue
		}
		if root.Predecessor == nil || root.Predecessor.Name.ID < t.root.Name.ID {
			root.Predecessor = t.root
		}
	}
	if !some {
		return nil, nil
	}
	ref, err := a.r.ports.Checkpoints.WriteRoot(a.ctx, root)
	if err != nil {
		return nil, fmt.Errorf("write the root of the recovered tasks: %w", err)
	}
	for _, id := range a.order {
		if t := a.tasks[id]; t.recovered && !t.rescaled {
			t.root = &ref
		}
	}
	return &ref, nil
}
