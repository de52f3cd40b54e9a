package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// The handles of an application with exchanges name one root, unless
//
//	offsets were set back by a tool: refused
//	records may repeat, and offsets were committed in part: all begin at the newer root (level)
//	a topic was taken out of the application and is back (takeBack)
//
// A topic may be taken out of an application with exchanges and come back. Its committed offsets then name the last checkpoint
// that had it, and those of the other topics a newer one, which the application stands at, with all stages. What was read of
// the topic is in the stages since, and its outputs were committed with the offset. So the topic goes on at its offset, if
//
//	its tasks have no state of their own in the older checkpoint, or that may go (DropStates)
//	the newer checkpoint knows nothing of the topic: else the offsets were set back
//	the newer one went on from the older one: they have an input in common, and none went back; or the older one has nothing in
//	its stages, so that nothing could be missing, or what it has there may go (DropStates), as where all sources were replaced
//
// Everything else stays a mixture of checkpoints and is refused.

// current gives the root that the application stands at: the newest with stages that a handle names; nil when there is none.
func (in *ResolveInput) current() (ref RootRef, root *Root) {
	for r, loaded := range in.Roots {
		if loaded.Root == nil || !loaded.Root.hasStages() {
			continue
		}
		if c := compareNames(r.Name, ref.Name); root == nil || c > 0 || c == 0 && r.Path > ref.Path {
			ref, root = r, loaded.Root
		}
	}
	return ref, root
}

// absent reports that the application has exchanges and stands at a root that knows nothing of what a task reads.
func (in *ResolveInput) absent(t *TaskFacts) bool {
	if len(in.Stages) == 0 {
		return false
	}
	_, root := in.current()
	return root != nil && !slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return root.readsFrom(f.Topic) })
}

// readsFrom reports that a source task of the root has positions in a topic.
func (r *Root) readsFrom(topic string) bool {
	return slices.ContainsFunc(r.Tasks, func(e TaskEntry) bool { return e.readsFrom(topic) })
}

// takeBack has tasks that were absent go on at their committed offsets.
func (in *ResolveInput) takeBack(out map[element.TaskID]Decision) (refused []Refusal) {
	refs := restoredRoots(out)
	if len(in.Stages) == 0 || len(refs) < 2 {
		return nil
	}
	current, _ := in.current()
	back := in.precede(current, refs)
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d := out[t.Task]
		if d.Kind != Restore || !in.absent(t) || in.knownSince(t, d.Root, refs) {
			continue
		}
		apart := !slices.Contains(back, d.Root) && !in.Roots[d.Root].Root.bare()
		if no := in.refuseBack(t, d.Root, current, apart); no != nil {
			no.Task = t.Task
			refused = append(refused, *no)
			continue
		}
		out[t.Task] = Decision{Kind: StartEmpty, Positions: d.Positions, Root: RootRef{Name: d.Root.Name}, Left: d.Root, apart: apart, Behind: d.Behind}
	}
	return refused
}

// refuseBack refuses to let go what the checkpoint that a task was left at has and the one that the application stands at has not:
// state of the task itself and, where that one did not go on from it (apart), what the stages had.
func (in *ResolveInput) refuseBack(t *TaskFacts, left, current RootRef, apart bool) *Refusal {
	root := in.Roots[left].Root
	none, own := element.TopicPartition{}, root.entryOf(t).hasState()
	switch {
	case in.DropStates || !own && !apart:
		return nil
	case apart:
		var stages []string
		for _, d := range root.stagesWhere(left, (*TaskEntry).hasState) {
			stages = append(stages, d.Stage)
		}
		return refuse(ReasonMixedRoots, none, "task %s stands at checkpoint %s (%s), whose state (%s) is not in checkpoint %s (%s), where the application stands: that one did not go on from it; "+
			"put the offsets of one checkpoint back, with their metadata, take its topic out again, let that state go with --allow-dropped-state, so that it goes on at its committed offset beside the state of checkpoint %s, or start under another application name",
			t.Task, left.Name, left.Path, strings.Join(stages, ", "), current.Name, current.Path, current.Name)
	}
	return refuse(ReasonMixedRoots, none, "task %s has state at checkpoint %s (%s), and the application has gone on without it to checkpoint %s (%s): "+
		"take its topic out again, let its state go with --allow-dropped-state, so that it goes on at its committed offset, or start under another application name",
		t.Task, left.Name, left.Path, current.Name, current.Path)
}

// bare reports that no stage behind an exchange has anything: what its sources had read was put out with their offsets, and binds
// them to nothing.
func (r *Root) bare() bool {
	return !slices.ContainsFunc(r.Tasks, func(e TaskEntry) bool { return e.Parallelism > 0 && e.hasState() })
}

// precede gives those of the roots that the application has gone on from to its current one. One without stages has nothing but
// what its tasks have themselves, so it may be of any instance.
func (in *ResolveInput) precede(current RootRef, refs []RootRef) (out []RootRef) {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b RootRef) int { return cmp.Compare(b.Name.ID, a.Name.ID) })
	since := []*Root{in.Roots[current].Root}
	for _, ref := range refs {
		root := in.Roots[ref].Root
		switch {
		case ref == current || since[0] == nil:
			continue
		case !root.hasStages():
		case !slices.ContainsFunc(since, func(s *Root) bool { return s.continues(root) }):
			continue
		default:
			since = append(since, root)
		}
		out = append(out, ref)
	}
	return out
}

// continues reports that a root went on from an older one.
func (r *Root) continues(old *Root) bool {
	if len(r.Origin) != len(old.Origin) || len(r.Origin) > 0 && !SameOrigin(r.Origin, old.Origin) {
		return false // it went back to a savepoint since
	}
	common := false
	for i := range old.Tasks {
		for _, then := range old.Tasks[i].Positions {
			e := r.reader(then.TopicPartition)
			if e == nil {
				continue
			}
			now := e.at(then.TopicPartition)
			if now.TopicID != then.TopicID {
				continue
			}
			if now.Offset < then.Offset {
				return false
			}
			common = true
		}
	}
	return common
}

// knownSince reports that a root that is newer than a task's knows what the task reads: the task's offset went back, or another
// one's did.
func (in *ResolveInput) knownSince(t *TaskFacts, at RootRef, refs []RootRef) bool {
	tp := t.Inputs[0].TopicPartition
	return slices.ContainsFunc(refs, func(ref RootRef) bool {
		root := in.Roots[ref].Root
		return ref.Name.ID > at.Name.ID && (root.reader(tp) != nil || root.hasStages() && root.readsFrom(tp.Topic))
	})
}

// leavesBehind refuses to go back behind what was read of a topic that was taken out since: its offset stays, and should it come
// back, what lies between would be missing in the stages. Where another recovery has put that offset back before, it would be in
// them twice.
func (c *recovery) leavesBehind() *Refusal {
	if !c.common || c.at < 0 || c.in.DropStates {
		return nil
	}
	to := &c.infos[c.at]
	for i := range to.Root.Tasks {
		for _, p := range to.Root.Tasks[i].Positions {
			if slices.ContainsFunc(c.in.Tasks, func(t TaskFacts) bool { return t.Inputs[0].Topic == p.Topic }) {
				continue
			}
			info, at := c.since(to, p)
			has, would := fmt.Sprintf("has read up to %d", at), "missing in the state"
			switch {
			case info == nil || at == p.Offset:
				continue
			case at < p.Offset:
				has, would = fmt.Sprintf("has gone back to %d", at), "in the state twice"
			}
			no := refuse(c.rec.Reason, p.TopicPartition, "checkpoint %s (%s) stands at offset %d of %s, which the topology does not read any more and checkpoint %s (%s) %s: should it come back, what lies between would be %s; "+
				"give the topology its source back for this start, or go back all the same with --allow-dropped-state", to.Ref.Name, to.Ref.Path, p.Offset, p.TopicPartition, info.Ref.Name, info.Ref.Path, has, would)
			no.Task = to.Root.Tasks[i].Task
			return no
		}
	}
	return nil
}

// since gives the newest checkpoint that was committed after another one and reads a partition, and where it stands.
func (c *recovery) since(to *RootInfo, p element.Position) (*RootInfo, int64) {
	for _, k := range newestFirst(c.infos) {
		info := &c.infos[k]
		if info.Root == nil || !info.Committed || compareNames(info.Ref.Name, to.Ref.Name) <= 0 {
			continue
		}
		if e := info.Root.reader(p.TopicPartition); e != nil {
			if q := e.at(p.TopicPartition); q.TopicID == p.TopicID {
				return info, q.Offset
			}
		}
	}
	return nil, 0
}

func (e *TaskEntry) hasState() bool { return len(e.Runs) > 0 || len(e.InFlight) > 0 }

// leftBehind lists what is let go of tasks that were absent: that of older roots. Where all that is read was absent, it is that of
// the newest one.
func (in *ResolveInput) leftBehind(decisions map[element.TaskID]Decision) (out []DroppedStage) {
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d := decisions[t.Task]
		ref, root := d.Left, in.Roots[d.Left].Root
		if d.Kind == Fresh {
			if info := in.stored(t); info != nil {
				ref, root = info.Ref, info.Root
			}
		}
		if root == nil {
			continue
		}
		if d.apart && !slices.ContainsFunc(out, func(s DroppedStage) bool {
			return s.Root == ref && len(root.stage(s.Stage)) > 0 && root.stage(s.Stage)[0].Parallelism > 0
		}) {
			out = append(out, root.stagesWhere(ref, func(e *TaskEntry) bool { return e.Parallelism > 0 && e.hasState() })...)
		}
		e := root.entryOf(t)
		if e == nil || !e.hasState() {
			continue
		}
		k := slices.IndexFunc(out, func(s DroppedStage) bool { return s.Stage == e.Task.Source && s.Root == ref })
		if k < 0 {
			k = len(out)
			out = append(out, DroppedStage{Stage: e.Task.Source, Root: ref})
		}
		out[k].Subtasks++
		out[k].add(e)
	}
	if info := in.replaced(); info != nil {
		out = append(out, info.Root.stagesWhere(info.Ref, (*TaskEntry).hasState)...)
	}
	return out
}

// level has all tasks of an application with exchanges begin at the newest of the checkpoints that their handles name, where
// records may repeat. It is a complete one: offsets are committed when everything that they cover is acknowledged and
// written. So nothing is left out, and the records between an older handle and it are not even repeated. A task that it does
// not hold begins at the newest one that does. So does one whose handle is still that of its start position.
func (in *ResolveInput) level(out map[element.TaskID]Decision) (refused []Refusal) {
	refs := restoredRoots(out)
	if len(in.Stages) == 0 || len(refs) == 0 {
		return nil
	}
	slices.SortStableFunc(refs, func(a, b RootRef) int { return cmp.Compare(b.Name.ID, a.Name.ID) })
	if !in.Roots[refs[0]].Root.hasStages() {
		return nil
	}
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d := out[t.Task]
		k := slices.IndexFunc(refs, func(ref RootRef) bool { return in.Roots[ref].Root.reader(t.Inputs[0].TopicPartition) != nil })
		if k < 0 || d.Root == refs[k] || d.Kind != Restore && (d.Kind != StartEmpty || d.Unsaved || d.Root.Name.ID >= refs[k].Name.ID) {
			continue
		}
		entry := in.Roots[refs[k]].Root.entryOf(t)
		if !in.follows(d.Positions, entry.Positions) {
			continue
		}
		if no := in.checkEntry(t, refs[k], entry); no != nil {
			no.Task = t.Task
			refused = append(refused, *no)
			continue
		}
		out[t.Task] = t.takeUp(Restore, refs[k], entry)
	}
	return refused
}

// follows reports that positions are of the same partitions of the same topics as those before them, and not behind them. The
// number of partitions is another one where keyed state has begun in between, see rebind.
func (in *ResolveInput) follows(before, then []element.Position) bool {
	return slices.EqualFunc(before, then, func(b, t element.Position) bool {
		return b.TopicPartition == t.TopicPartition && b.TopicID == t.TopicID && (b.PartitionCount == t.PartitionCount || in.Unbound[b.Topic]) && b.Offset <= t.Offset
	})
}

// refuseMixture refuses handles that name several roots: what the tasks sent to each other is in one of them only. Roots
// that know no exchange are an exception: the application had none when they were written.
func (in *ResolveInput) refuseMixture(refs []RootRef, out map[element.TaskID]Decision) []Refusal {
	know := slices.ContainsFunc(refs, func(ref RootRef) bool { return in.Roots[ref].Root.hasStages() })
	if no := in.refuseUnsaved(refs, out); know && no != nil {
		return []Refusal{*no}
	}
	if len(refs) < 2 || !know {
		return nil
	}
	tasks := make([]element.TaskID, 0, len(out))
	for id, d := range out {
		if d.Kind == Restore || d.Kind == Recovered {
			tasks = append(tasks, id)
		}
	}
	slices.SortFunc(tasks, element.TaskID.Compare)
	first := tasks[0]
	i := slices.IndexFunc(tasks, func(id element.TaskID) bool { return out[id].Root != out[first].Root })
	a, b := out[first].Root, out[tasks[i]].Root
	cure := "put the offsets of one checkpoint back, with their metadata, or reset the application"
	if !in.Repeats {
		cure += inPart
	}
	no := refuse(ReasonMixedRoots, element.TopicPartition{}, "task %s stands at checkpoint %s (%s), task %s at checkpoint %s (%s): an application with exchanges is restored from one checkpoint of all its tasks; %s",
		first, a.Name, a.Path, tasks[i], b.Name, b.Path, cure)
	no.Task = tasks[i]
	return []Refusal{*no}
}
