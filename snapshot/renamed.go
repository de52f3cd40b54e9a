package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// A source may be called another name than it was when a checkpoint was taken. What the checkpoint has of it is found by what
// it reads: positions, and the ids of its checkpoints, go on under the new name. Its state does not, for a state is a source's
// by its name.

// reader gives the entry of the source task that a partition is an input of, nil when there is none.
func (r *Root) reader(tp element.TopicPartition) *TaskEntry {
	i := slices.IndexFunc(r.Tasks, func(e TaskEntry) bool {
		return e.Parallelism == 0 && e.reads(tp)
	})
	if i < 0 {
		return nil
	}
	return &r.Tasks[i]
}

// at gives the entry's position in a partition, nil when it does not read it.
func (e *TaskEntry) at(tp element.TopicPartition) *element.Position {
	i := slices.IndexFunc(e.Positions, func(p element.Position) bool { return p.TopicPartition == tp })
	if i < 0 {
		return nil
	}
	return &e.Positions[i]
}

// readsFrom reports that the entry has positions in a topic.
func (e *TaskEntry) readsFrom(topic string) bool {
	return slices.ContainsFunc(e.Positions, func(p element.Position) bool { return p.Topic == topic })
}

// readBy reports that a source of the plan, whatever its name, reads what the entry's does.
func (e *TaskEntry) readBy(sources map[string]string) bool {
	for _, topic := range sources {
		if e.readsFrom(topic) {
			return true
		}
	}
	return false
}

// planned reports that a source of the plan has the entry's name, and one reads what it reads. That these are two is a matter
// of checkRenamed.
func (e *TaskEntry) planned(sources map[string]string) bool {
	_, named := sources[e.Task.Source]
	return named && e.readBy(sources)
}

// insteadOf says what the plan has in place of a source that is gone, and what to do.
func insteadOf(name string, sources map[string]string) string {
	if topic, named := sources[name]; named {
		return fmt.Sprintf("the topology's source of this name reads %s; give it back its topic", topic)
	}
	return "the topology has no such source; restore the source or its name"
}

func (e *TaskEntry) reads(tp element.TopicPartition) bool { return e.at(tp) != nil }

// entryOf gives the entry of the source task that reads what a task reads, whatever its name, and else that of its name, which
// reads something else; nil when there is neither.
func (r *Root) entryOf(t *TaskFacts) *TaskEntry {
	named := r.Task(t.Task)
	if named != nil && named.Parallelism > 0 {
		named = nil
	}
	for i := range t.Inputs {
		tp := t.Inputs[i].TopicPartition
		if named != nil && named.reads(tp) {
			return named
		}
		if e := r.reader(tp); e != nil && e.Task.Partition == t.Task.Partition {
			return e
		}
	}
	return named
}

// holding is a part of a savepoint that holds a task, as entryOf gives it.
type holding struct {
	savepoint *Savepoint
	entry     *TaskEntry
}

// heldBy gives the parts that hold a task: one, unless they are not of one savepoint. What reads something else under the task's
// name counts only when no part reads what the task reads.
func (t *TaskFacts) heldBy(from []*Savepoint) []holding {
	var reads, named []holding
	for _, s := range from {
		e := s.Root.entryOf(t)
		switch {
		case e == nil:
		case t.isRead(e):
			reads = append(reads, holding{s, e})
		default:
			named = append(named, holding{s, e})
		}
	}
	if len(reads) > 0 {
		return reads
	}
	return named
}

// resolveUnknown decides on a task without a committed offset.
func (in *ResolveInput) resolveUnknown(t *TaskFacts) (Decision, *Refusal) {
	info := in.stored(t)
	if info == nil {
		return Decision{Kind: Fresh}, nil
	}
	absent, old, read, none := in.absent(t), in.recreated(t, info), in.namesake(t, info), element.TopicPartition{}
	switch {
	case info.Root == nil && !(absent && in.DropStates):
		return Decision{}, in.refuseUnread(t, info, absent)
	case in.DropStates && (absent || old != nil || read != ""), read != "" && in.replaced() != nil: // refuseReplaced says what goes
		return Decision{Kind: Fresh}, nil
	case read != "":
		return Decision{}, refuse(ReasonOtherInputs, none, "task %s: group %s has no committed offset of %s, and checkpoint %s (%s) holds a task of this name that read %s: give the source back its topic, %s, or start under another application name",
			t.Task, in.Application, t.Inputs[0].Topic, info.Ref.Name, info.Ref.Path, read, beginsAnew)
	case old != nil:
		cure := beginsAnew
		if in.replaced() != nil {
			cure += ", which lets the state behind the exchanges go as well, since no offset leads to it any more"
		}
		return Decision{}, refuse(ReasonTopicRecreated, none, "task %s: checkpoint %s (%s) stands in topic id %s of %s, the topic now has %s: it was deleted and created again; %s",
			t.Task, info.Ref.Name, info.Ref.Path, old.TopicID, old.Topic, t.Inputs[0].TopicID, cure)
	}
	holds := "holds the task"
	if e := info.Root.entryOf(t); e.Task != t.Task && in.own(t, info.Root, e) {
		if no := in.checkRenamed(t, info.Ref, e); no != nil {
			return Decision{}, no
		}
		holds += " as " + e.Task.String()
	}
	cure := "the offsets expired or were deleted, or another service of this name reads another topic or cluster: recover from the store explicitly, or move the checkpoint directory away and delete the group's offsets to start empty"
	if absent {
		cure = "the application has gone on without it since, and the offsets expired or were deleted: put them and their metadata back, or " + beginsAnew
	}
	return Decision{}, refuse(ReasonOffsetsExpired, none, "task %s: group %s has no committed offset, but checkpoint %s in the store %s (%s); %s",
		t.Task, in.Application, info.Ref.Name, holds, info.Ref.Path, cure)
}

// beginsAnew is the cure for a task whose topic was created anew or is another one, or which was absent and has lost its offset.
const beginsAnew = "begin it where its source starts with --allow-dropped-state"

// recreated gives a root's position in a topic of the cluster that had the name of one that a task reads. nil when there is none,
// or another root is of what the task reads.
func (in *ResolveInput) recreated(t *TaskFacts, info *RootInfo) *element.Position {
	if info.Root == nil || info.Root.ClusterID != in.ClusterID || slices.ContainsFunc(in.Stored, func(i RootInfo) bool {
		return i.Root != nil && in.holds(i.Root, t)
	}) {
		return nil
	}
	e := info.Root.entryOf(t)
	for i := range t.Inputs {
		if p := e.at(t.Inputs[i].TopicPartition); p != nil && p.TopicID != t.Inputs[i].TopicID {
			return p
		}
	}
	return nil
}

// namesake gives the topic that a task of this name read by a root of the cluster, when that is another one; "" otherwise.
func (in *ResolveInput) namesake(t *TaskFacts, info *RootInfo) string {
	if info.Root == nil || info.Root.ClusterID != in.ClusterID {
		return ""
	}
	e := info.Root.entryOf(t)
	if slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return e.readsFrom(f.Topic) }) {
		return ""
	}
	return e.Positions[0].Topic
}

// readsThis reports that a task of the root has a position in the topic of an input, and not in one of its name.
func (r *Root) readsThis(f InputFacts) bool {
	return slices.ContainsFunc(r.Tasks, func(e TaskEntry) bool {
		return slices.ContainsFunc(e.Positions, func(p element.Position) bool { return p.Topic == f.Topic && p.TopicID == f.TopicID })
	})
}

// stored gives the newest root of the store that holds a task: what reads what the task reads, under any name. When there is none it
// gives the newest one that cannot be read and may hold it, or else what has its name; nil when there is none of these. What has only
// the name, or stood in a topic that had the name of this one, and has no state says nothing of a partition of a topic that was read:
// that one was added.
func (in *ResolveInput) stored(t *TaskFacts) *RootInfo {
	var unread, named *RootInfo
	known := false
	for _, i := range newestFirst(in.Stored) {
		info := &in.Stored[i]
		if info.Root == nil {
			if unread == nil && !in.surpassed(t, info) {
				unread = info
			}
			continue
		}
		switch e := info.Root.entryOf(t); {
		case e == nil:
		case in.own(t, info.Root, e):
			return info
		case named == nil:
			named = info
		}
		known = known || info.Root.ClusterID == in.ClusterID && slices.ContainsFunc(t.Inputs, info.Root.readsThis)
	}
	if named != nil && known && !named.Root.entryOf(t).hasState() {
		named = nil
	}
	return cmp.Or(unread, named)
}

// isRead reports that an entry reads what the task reads, by the names of topics.
func (t *TaskFacts) isRead(e *TaskEntry) bool {
	return slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return e.reads(f.TopicPartition) })
}

// takeUp is the decision to go on from a root's entry of a task.
func (t *TaskFacts) takeUp(kind DecisionKind, ref RootRef, e *TaskEntry) Decision {
	d := Decision{Kind: kind, Positions: slices.Clone(e.Positions), Root: ref, Entry: *e}
	if e.Task.Source != t.Task.Source {
		d.Entry, d.Renamed = TaskEntry{Task: t.Task, Positions: d.Positions}, e.Task.Source
	}
	return d
}

// checkEntry refuses states of a root's entry of a task that the task cannot take up and may not let go.
func (in *ResolveInput) checkEntry(t *TaskFacts, ref RootRef, e *TaskEntry) *Refusal {
	if e.Task.Source != t.Task.Source {
		return in.checkRenamed(t, ref, e)
	}
	return in.checkStates(t, ref, e)
}

// checkRenamed refuses to go on with an input whose state is another source's.
func (in *ResolveInput) checkRenamed(t *TaskFacts, ref RootRef, old *TaskEntry) *Refusal {
	if len(old.States) == 0 || in.DropStates {
		return nil
	}
	var names []string
	for _, s := range old.States {
		names = append(names, s.Name)
	}
	topic, hint := t.Inputs[0].Topic, ""
	if a, b := old.Task.Source, t.Task.Source; a == b+"."+topic || b == a+"."+topic {
		hint = " (topics and pattern make a source <name>.<topic> of each topic, topic makes <name>)"
	}
	return refuse(ReasonStateDropped, element.TopicPartition{}, "task %s: checkpoint %s holds state that belongs to source %s, which read %s: %s; the topology reads it as source %s now%s: "+
		"rename the source back, let the state go with --allow-dropped-state, or start under another application name",
		t.Task, ref.Name, old.Task.Source, topic, strings.Join(names, ", "), t.Task.Source, hint)
}

// renamed lists the sources of a root whose inputs other sources of the plan have now, but for those that are listed already.
func renamed(decisions map[element.TaskID]Decision, ref RootRef, root *Root, listed []DroppedStage) []DroppedStage {
	by := map[string]*DroppedStage{}
	for _, d := range decisions {
		if d.Renamed == "" || d.Root != ref || slices.ContainsFunc(listed, func(l DroppedStage) bool { return l.Stage == d.Renamed }) {
			continue
		}
		old := root.reader(d.Positions[0].TopicPartition)
		if old == nil || len(old.States) == 0 {
			continue
		}
		s := by[d.Renamed]
		if s == nil {
			s = &DroppedStage{Stage: d.Renamed, Root: ref}
			by[d.Renamed] = s
		}
		s.Subtasks++
		for _, state := range old.States {
			if !slices.Contains(s.States, state.Name) {
				s.States = append(s.States, state.Name)
			}
		}
	}
	var out []DroppedStage
	for _, s := range by {
		out = append(out, *s)
	}
	return out
}
