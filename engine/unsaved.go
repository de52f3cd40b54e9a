package engine

import (
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// Without checkpoints (Config.NoSnapshots) positions are committed and no state. What state the group's handles lead to is of
// no use from the first commit on. So it is let go when that is allowed, at once and for all tasks together: a commit of some
// positions only would leave tasks behind an exchange with the state of a checkpoint that others have gone on from. The handles
// say from then on that there was state, for the start that has checkpoints again.

// resolveWithout is resolve for a start without checkpoints.
func (in *intake) resolveWithout(input snapshot.ResolveInput) (map[element.TaskID]snapshot.Decision, error) {
	a := in.a
	var held []snapshot.HeldState
	if named := snapshot.NamedRoots(in.facts); len(named) > 0 {
		var err error
		if input.Roots, err = a.r.ports.Checkpoints.LoadRoots(in.ctx, named); err != nil {
			return nil, fmt.Errorf("read the committed roots: %w", err)
		}
		held = input.HeldStates()
	}
	input.Tasks = withoutState(in.facts)
	forgotten, err := in.forget(&input)
	if err != nil {
		return nil, err
	}
	decisions, err := snapshot.Resolve(input)
	if err == nil && !input.DropStates {
		err = snapshot.RefuseHeld(held)
	}
	if why := snapshot.RefusalOf(err); why != nil && (why.Has(snapshot.ReasonOffsetsExpired) || why.Has(snapshot.ReasonUnreadable)) {
		err = fmt.Errorf("%w; or, as checkpointing.interval is disabled, begin where the sources start with --allow-dropped-state", err)
	}
	if err != nil {
		return nil, in.stillRefused(err)
	}
	in.letGo = len(held) > 0
	for _, h := range slices.Concat(held, forgotten) {
		if a.r.lis.LetGo != nil {
			a.r.lis.LetGo(h)
		}
	}
	return decisions, nil
}

// forget looks for tasks of which the store knows and the group does not. Like state they are let go when that is allowed, and
// refused otherwise.
func (in *intake) forget(input *snapshot.ResolveInput) ([]snapshot.HeldState, error) {
	if !snapshot.NeedsStored(in.facts) {
		return nil, nil
	}
	var err error
	if input.Stored, err = in.a.r.ports.Checkpoints.List(in.ctx); err != nil {
		return nil, fmt.Errorf("look for older checkpoints: %w", err)
	}
	forgotten := in.above(input)
	if input.DropStates {
		input.Stored = nil
	}
	return forgotten, nil
}

// above lists the tasks without a committed offset that the store knows. Those of them that begin anew commit their start with an
// id as high as any in the store: after a crash a lower one would be refused as one that went back.
func (in *intake) above(input *snapshot.ResolveInput) []snapshot.HeldState {
	in.raise(input)
	forgotten := input.Forgotten()
	if len(forgotten) > 0 {
		in.forgot = in.lastID
	}
	return forgotten
}

// raise has new checkpoints go above what the store has.
func (in *intake) raise(input *snapshot.ResolveInput) {
	for _, info := range slices.Concat(input.Stored, input.Listing) {
		in.lastID = max(in.lastID, info.Ref.Name.ID)
	}
}

// withoutState gives the facts as if no state belonged to any position.
func withoutState(facts []snapshot.TaskFacts) []snapshot.TaskFacts {
	out := slices.Clone(facts)
	for i := range out {
		out[i].Inputs = slices.Clone(out[i].Inputs)
		for k := range out[i].Inputs {
			input := &out[i].Inputs[k]
			h, err := snapshot.ParseHandle(input.Metadata)
			if err != nil || !input.Found {
				continue
			}
			if h.Kind != snapshot.HandleEmpty {
				h.Root.Name.Incarnation = 0 // the application has gone on from there all the same
			}
			if text, err := h.WithoutState(h.Life).Encode(); err == nil {
				input.Metadata = text
			}
		}
	}
	return out
}

// tellUnsaved says which tasks begin without the state that they had when checkpoints were disabled.
func (in *intake) tellUnsaved(decisions map[element.TaskID]snapshot.Decision) {
	a := in.a
	if a.r.lis.Unsaved == nil || a.r.cfg.NoSnapshots {
		return
	}
	var tasks []element.TaskID
	var last element.CheckpointName
	for id, d := range decisions {
		if !d.Unsaved || !a.ofState(id) {
			continue
		}
		if tasks = append(tasks, id); d.Root.Name.ID > last.ID {
			last = d.Root.Name
		}
	}
	if len(tasks) > 0 {
		slices.SortFunc(tasks, element.TaskID.Compare)
		a.r.lis.Unsaved(tasks, last)
	}
}

// ofState reports that state belongs to the positions of a source's task: its own, or that of what is behind an exchange.
func (a *attempt) ofState(id element.TaskID) bool {
	return slices.ContainsFunc(a.r.plan.States, func(s topology.StatePlan) bool { return s.Source == id.Source || a.r.plan.HasExchange() })
}
