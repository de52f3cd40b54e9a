package snapshot

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// ResolveSavepoints decides how tasks start from a savepoint, whatever the group has committed: that is the caller's to
// judge. Where several instances took part in it, it is the directories of all of them. sources are all of the plan with
// their topics; in.Tasks may be a part of their partitions. It is pure. Of in it reads Application, ClusterID, Tasks, Stages,
// States and DropStates.
//
// A task that is in a directory is Imported: it starts at Positions with what Sources hold, read with KeepKeys and
// KeepInFlight by Restore and RestoreInFlight of the Savepoint that Root.Path names. Entry is zero, for a savepoint is no
// part of a chain: the first run is full. A task whose partitions another source read, of another name, takes up where that
// one stood, without its state, which is refused as any that nothing takes up. A partition that was added to its topic since is
// in none and is Fresh, but under keyed state of its source those that were there are refused; a stage behind an exchange that is
// in none is StartEmpty and New. A source that keeps its name and reads something else now is refused, and Fresh with DropStates. When partitions that were there at the savepoint are in none, a part of it was left out: that is refused, see CoverageOf. State that nothing in the plan takes up is
// refused, unless DropStates; see DroppedOf.
func ResolveSavepoints(in ResolveInput, from []*Savepoint, sources map[string]string) (map[element.TaskID]Decision, error) {
	if err := SameRequest(from...); err != nil {
		return nil, err
	}
	if err := complete(from, sources, in.Tasks); err != nil {
		return nil, err
	}
	in.Sources = nil // what is gone of them is said in the words of a savepoint
	r := &importing{in: in, out: make(map[element.TaskID]Decision, len(in.Tasks))}
	r.in.Roots = map[RootRef]LoadedRoot{}
	infos := make([]RootInfo, len(from))
	for i, s := range from {
		r.in.Roots[s.root()] = LoadedRoot{Root: s.Root}
		infos[i] = RootInfo{Ref: s.root(), Root: s.Root, Committed: true}
	}
	r.in.Unbound = r.in.unboundIn(infos)
	for i := range in.Tasks {
		r.task(&in.Tasks[i], from)
	}
	for _, s := range from {
		if !in.DropStates {
			r.goneSources(s, from, sources)
			r.refused = append(r.refused, r.in.refuseGone([]RootRef{s.root()})...)
		}
	}
	if len(r.refused) == 0 {
		r.stages(from)
	}
	if len(r.refused) > 0 {
		slices.SortStableFunc(r.refused, func(a, b Refusal) int { return a.Task.Compare(b.Task) })
		return nil, fault.Stopf(r.refused[0].Reason.code(), "%w", &RefusedError{Refusals: r.refused})
	}
	r.in.rebind(r.out)
	for id, d := range r.out {
		d.Entry = TaskEntry{}
		r.out[id] = d
	}
	return r.out, nil
}

// root names a savepoint as if it were a root.
func (s *Savepoint) root() RootRef {
	return RootRef{Name: s.Root.Name, Path: s.Ref.Path, Digest: s.Ref.Digest}
}

// importing is a resolution.
type importing struct {
	in      ResolveInput
	out     map[element.TaskID]Decision
	refused []Refusal
}

func (r *importing) refuse(task element.TaskID, no *Refusal) {
	no.Task = task
	r.refused = append(r.refused, *no)
}

// task decides on one that reads partitions.
func (r *importing) task(t *TaskFacts, from []*Savepoint) {
	r.out[t.Task] = Decision{Kind: Fresh}
	held := t.heldBy(from)
	switch {
	case len(held) == 0:
		return
	case len(held) > 1:
		r.refuse(t.Task, refuse(ReasonMixedRoots, element.TopicPartition{}, "task %s is in %s and in %s: they are not one savepoint", t.Task, held[0].savepoint.Ref.Path, held[1].savepoint.Ref.Path))
		return
	}
	s, entry := held[0].savepoint, held[0].entry
	if r.in.letsGo(t, s, entry) {
		return
	}
	c := &recovery{in: r.in}
	if no := c.fits(t, &RootInfo{Ref: s.root(), Root: s.Root}, entry); no != nil {
		if r.in.elsewhere(t, s, entry) {
			no.Message = strings.TrimSuffix(no.Message, otherName) + ", or " + beginsAnew
		}
		r.refuse(t.Task, no)
		return
	}
	d := t.takeUp(Imported, s.root(), entry)
	if d.Renamed == "" {
		d.Sources = []TaskEntry{*entry}
	}
	r.out[t.Task] = d
}

// elsewhere reports that a savepoint has a task only by its name, or by that of a topic which was made anew since.
func (in *ResolveInput) elsewhere(t *TaskFacts, s *Savepoint, e *TaskEntry) bool {
	return s.Root.ClusterID == in.ClusterID && !in.own(t, s.Root, e)
}

// letsGo reports that a task begins where its source starts although a savepoint has it by a name.
func (in *ResolveInput) letsGo(t *TaskFacts, s *Savepoint, e *TaskEntry) bool {
	return in.DropStates && in.elsewhere(t, s, e)
}

// goneSources refuses state of sources that the plan does not have.
func (r *importing) goneSources(s *Savepoint, from []*Savepoint, sources map[string]string) {
	for _, d := range s.goneSources(from, sources) {
		r.refuse(element.TaskID{Source: d.Stage}, refuse(ReasonStateDropped, element.TopicPartition{}, "source %s: savepoint %s (%s) holds state of it, %s, and %s, or let it go with --allow-dropped-state",
			d.Stage, s.Ref.ID, s.Ref.Path, strings.Join(d.States, ", "), insteadOf(d.Stage, sources)))
	}
}

// stages decides on the subtasks of exchanges. They are in one directory, for one instance has all of them.
func (r *importing) stages(from []*Savepoint) {
	var with *Savepoint
	for _, s := range from {
		switch {
		case !s.Root.hasStages():
		case with != nil:
			r.refuse(element.TaskID{}, refuse(ReasonMixedRoots, element.TopicPartition{}, "stages of exchanges are in %s and in %s: they are not one savepoint", with.Ref.Path, s.Ref.Path))
			return
		default:
			with = s
		}
	}
	switch {
	case len(from) == 0:
		r.in.startStages(r.out)
		return
	case with == nil:
		with = from[0]
	}
	r.refused = append(r.refused, r.in.stagesFrom(with.root(), with.Root, Imported, r.out)...)
}

// goneSources lists the sources with state that are not among the plan's. One that has kept its name and reads another topic is,
// where the savepoint holds that one, which is what the source goes on with; else its tasks are refused.
func (s *Savepoint) goneSources(from []*Savepoint, sources map[string]string) []DroppedStage {
	var out []DroppedStage
	for i := range s.Root.Tasks {
		e := &s.Root.Tasks[i]
		topic, named := sources[e.Task.Source]
		if e.Parallelism > 0 || len(e.States) == 0 || e.planned(sources) || named && !holdsTopic(from, topic) {
			continue
		}
		n := len(out)
		if n == 0 || out[n-1].Stage != e.Task.Source {
			out = append(out, DroppedStage{Stage: e.Task.Source, Root: s.root()})
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

// holdsTopic reports that a savepoint holds positions in a topic.
func holdsTopic(from []*Savepoint, topic string) bool {
	return slices.ContainsFunc(from, func(s *Savepoint) bool {
		return slices.ContainsFunc(s.Root.Tasks, func(e TaskEntry) bool { return e.readsFrom(topic) })
	})
}

// DroppedOf gives what ResolveSavepoints lets go with DropStates, having decided so: sources and stages as a whole, what a source
// had under a name that is another's now, and records in flight that cannot be moved. Single states that no step owns any more
// are not among them.
func DroppedOf(in ResolveInput, from []*Savepoint, sources map[string]string, decisions map[element.TaskID]Decision) []DroppedStage {
	var out []DroppedStage
	in.Sources = nil
	for _, s := range from {
		gone := s.goneSources(from, sources)
		out = append(out, gone...)
		out = append(out, renamed(decisions, s.root(), s.Root, gone)...)
		out = append(out, in.elsewhereIn(s, from, out)...)
		out = append(out, in.gone(s.root(), s.Root)...)
		out = append(out, in.scattered(s.root(), s.Root)...)
	}
	return out
}

// elsewhereIn lists the state in a savepoint of sources that keep their names and read something else now, but for those that are listed.
func (in *ResolveInput) elsewhereIn(s *Savepoint, from []*Savepoint, listed []DroppedStage) []DroppedStage {
	return s.Root.stagesWhere(s.root(), func(e *TaskEntry) bool {
		return e.Parallelism == 0 && len(e.States) > 0 &&
			slices.ContainsFunc(in.Tasks, func(t TaskFacts) bool {
				held := t.heldBy(from)
				return len(held) == 1 && held[0].entry == e && in.letsGo(&t, s, e)
			}) && !slices.ContainsFunc(listed, func(d DroppedStage) bool { return d.Stage == e.Task.Source && d.Root == s.root() })
	})
}
