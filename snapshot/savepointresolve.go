package snapshot

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// ResolveSavepoint decides how tasks start from a savepoint, whatever the group has committed: that is the caller's to
// judge. sources are all of the plan; in.Tasks may be a part of their partitions. It is pure. Of in it reads Application,
// ClusterID, Tasks, Stages, States and DropStates.
//
// A task that the savepoint has is Imported: it starts at Positions with what Sources hold, read with KeepKeys and
// KeepInFlight by Savepoint.Restore and RestoreInFlight. Entry is zero, for the savepoint is no part of a chain: the first
// run is full. A partition that it does not have is Fresh, a stage behind an exchange that it does not have StartEmpty and
// New. State that nothing in the plan takes up is refused, unless DropStates; see Savepoint.Dropped.
func ResolveSavepoint(in ResolveInput, s *Savepoint, sources []string) (map[element.TaskID]Decision, error) {
	ref := RootRef{Name: s.Root.Name, Path: s.Ref.Path, Digest: s.Ref.Digest}
	in.Roots = map[RootRef]LoadedRoot{ref: {Root: s.Root}}
	c := &recovery{in: in}
	info := &RootInfo{Ref: ref, Root: s.Root}
	out := make(map[element.TaskID]Decision, len(in.Tasks))
	var refused []Refusal
	for i := range in.Tasks {
		t := &in.Tasks[i]
		entry := s.Root.Task(t.Task)
		if entry == nil || entry.Parallelism > 0 {
			out[t.Task] = Decision{Kind: Fresh}
			continue
		}
		if no := c.fits(t, info, entry); no != nil {
			no.Task = t.Task
			refused = append(refused, *no)
			continue
		}
		out[t.Task] = Decision{Kind: Imported, Root: ref, Positions: slices.Clone(entry.Positions), Sources: []TaskEntry{*entry}}
	}
	if !in.DropStates {
		for _, d := range s.goneSources(sources) {
			no := refuse(ReasonStateDropped, element.TopicPartition{}, "source %s: savepoint %s (%s) holds state of it, %s, and the topology has no such source; "+
				"restore the source or its name, or allow dropped state", d.Stage, s.Ref.ID, s.Ref.Path, strings.Join(d.States, ", "))
			no.Task = element.TaskID{Source: d.Stage}
			refused = append(refused, *no)
		}
		refused = append(refused, in.refuseGone([]RootRef{ref})...)
	}
	if len(refused) == 0 {
		refused = in.stagesFrom(ref, s.Root, Imported, out)
	}
	if len(refused) > 0 {
		slices.SortStableFunc(refused, func(a, b Refusal) int { return a.Task.Compare(b.Task) })
		return nil, fault.Stopf(refused[0].Reason.code(), "%w", &RefusedError{Refusals: refused})
	}
	for id, d := range out {
		d.Entry = TaskEntry{}
		out[id] = d
	}
	return out, nil
}

// goneSources lists the sources with state that are not among the plan's.
func (s *Savepoint) goneSources(sources []string) []DroppedStage {
	var out []DroppedStage
	for i := range s.Root.Tasks {
		e := &s.Root.Tasks[i]
		if e.Parallelism > 0 || len(e.States) == 0 || slices.Contains(sources, e.Task.Source) {
			continue
		}
		n := len(out)
		if n == 0 || out[n-1].Stage != e.Task.Source {
			out = append(out, DroppedStage{Stage: e.Task.Source})
			n++
		}
		d := &out[n-1]
		d.Subtasks++
		for _, st := range e.States {
			if !slices.Contains(d.States, st.Name) {
				d.States = append(d.States, st.Name)
			}
		}
	}
	return out
}

// Dropped gives what ResolveSavepoint lets go with DropStates: sources and stages as a whole, and records in flight that
// cannot be moved. Single states that no step owns any more are not among them.
func (s *Savepoint) Dropped(in ResolveInput, sources []string) []DroppedStage {
	ref := RootRef{Name: s.Root.Name, Path: s.Ref.Path, Digest: s.Ref.Digest}
	out := s.goneSources(sources)
	for i := range out {
		out[i].Root = ref
	}
	out = append(out, in.gone(ref, s.Root)...)
	return append(out, in.scattered(ref, s.Root)...)
}
