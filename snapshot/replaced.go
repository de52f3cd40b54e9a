package snapshot

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// All sources of an application with exchanges may be replaced at once by ones that read other topics. No committed offset of
// theirs then leads to the checkpoint that the application stands at, with the state of all stages: they would start empty, or at
// an older checkpoint that another one's offset names. That is refused, as for any state that goes. Where one source stays beside
// the new ones until a checkpoint is complete, all of them have it.

// replaced gives the newest committed root with stages, if nothing that the plan reads is in it, it is newer than whatever the
// handles stand at, and it holds anything; nil otherwise. It is looked for in Stored and Listing.
func (in *ResolveInput) replaced() *RootInfo {
	if len(in.Stages) == 0 {
		return nil
	}
	infos := slices.Concat(in.Stored, in.Listing)
	for _, i := range newestFirst(infos) {
		info := &infos[i]
		if info.Root == nil || !info.Committed || info.Root.ClusterID != in.ClusterID || !info.Root.hasStages() {
			continue
		}
		holds := slices.ContainsFunc(info.Root.Tasks, func(e TaskEntry) bool { return e.hasState() })
		if in.reads(info.Root) || !holds || info.Ref.Name.ID <= StandsAt(in.Tasks) {
			return nil
		}
		return info
	}
	return nil
}

// StandsAt is the highest id of a checkpoint that a handle leads to, or that was gone on from without any. The handle of a start position
// says nothing of that: its id is as high as any in the store where something else was let go for it, or that of the checkpoint at
// which a partition came to a running application, and the state is that of the others. But where all was let go it has no incarnation.
func StandsAt(tasks []TaskFacts) (id element.CheckpointID) {
	for _, h := range handlesOf(tasks) {
		if h.Kind != HandleEmpty || h.Root.Name.Incarnation == 0 {
			id = max(id, h.Root.Name.ID)
		}
	}
	return id
}

// Doubtful gives the partitions whose committed offsets tell whether a root was committed that replaced would give then: a process may
// have been killed between the commit and the marker, and no source of the plan reads what the root has. What their handles name is for
// Confirm, of Stored and Listing. None: there is no such root.
func (in *ResolveInput) Doubtful() (out []element.TopicPartition) {
	if len(in.Stages) == 0 {
		return nil
	}
	at, infos := StandsAt(in.Tasks), slices.Concat(in.Stored, in.Listing)
	for _, i := range newestFirst(infos) {
		info := &infos[i]
		switch {
		case info.Root == nil || info.Ref.Name.ID <= at || info.Root.ClusterID != in.ClusterID || !info.Root.hasStages() || in.reads(info.Root):
			continue
		case info.Committed:
			return out
		}
		for _, p := range info.Root.positions() {
			if !slices.Contains(out, p.TopicPartition) {
				out = append(out, p.TopicPartition)
			}
		}
	}
	return out
}

// reads reports that something that the plan reads is in a root.
func (in *ResolveInput) reads(root *Root) bool {
	return slices.ContainsFunc(in.Tasks, func(t TaskFacts) bool { return in.holds(root, &t) })
}

// LetsAllGo reports that a start lets all go that the sources were read into which were replaced, and begins with nothing.
func (in *ResolveInput) LetsAllGo(decisions map[element.TaskID]Decision) bool {
	return in.replaced() != nil && len(restoredRoots(decisions)) == 0
}

// refuseReplaced refuses to let go what all sources of the application were read into.
func (in *ResolveInput) refuseReplaced() (out []Refusal) {
	info := in.replaced()
	if info == nil || in.DropStates {
		return nil
	}
	var sources []string
	for i := range info.Root.Tasks {
		if e := &info.Root.Tasks[i]; e.Parallelism == 0 && !slices.Contains(sources, e.Task.Source) {
			sources = append(sources, e.Task.Source)
		}
	}
	for _, d := range info.Root.stagesWhere(info.Ref, (*TaskEntry).hasState) {
		reason, what := d.reasonFor()
		no := refuse(reason, element.TopicPartition{}, "stage %s: checkpoint %s (%s) holds %s of it, and nothing of what the topology reads now; give the topology one of its sources back (%s), beside the others, "+
			"until a checkpoint is complete, let it go with --allow-dropped-state, or start under another application name", d.Stage, info.Ref.Name, info.Ref.Path, what, strings.Join(sources, ", "))
		no.Task = element.TaskID{Source: d.Stage}
		out = append(out, *no)
	}
	return out
}

// refuseReplaced refuses to go back behind what all sources were replaced by, with what the stages have had since.
func (c *recovery) refuseReplaced() []Refusal {
	in := c.in
	in.Stored, in.Listing = c.infos, nil
	return in.refuseReplaced()
}

// apart says of a task that no checkpoint holds all of them together, and which sources are to wait: those that the newest whole one
// which holds any does not have. nil when there is none.
func (c *recovery) apart(t *TaskFacts) *Refusal {
	for _, i := range newestFirst(c.infos) {
		info := &c.infos[i]
		if !info.usable() {
			continue
		}
		var wait []string
		held := false
		for j := range c.in.Tasks {
			o := &c.in.Tasks[j]
			switch {
			case c.refused[o.Task] == "":
			case c.in.holds(info.Root, o):
				held = true
			case !c.known(o) && c.in.added(o, info.Root.positions()): // begins at its beginning
			case !c.known(o) && o.addedTo(info.Root.positions()):
				return refuse(ReasonPartitionCount, o.Inputs[0].TopicPartition, "task %s: %s was added since checkpoint %s (%s), the newest whole one to go back to, and source %s has steps with state: "+
					"run the topology without these steps for this start, and with them when a checkpoint is complete; or start under another application name", t.Task, o.Inputs[0], info.Ref.Name, info.Ref.Path, o.Task.Source)
			case !slices.Contains(wait, o.Task.Source):
				wait = append(wait, o.Task.Source)
			}
		}
		if held {
			return refuse(c.rec.Reason, element.TopicPartition{}, "task %s: no committed checkpoint that is whole holds all that the topology reads, and an application with exchanges goes back to one; checkpoint %s (%s) is the newest that holds any of it: "+
				"take what it does not hold out of the topology for this start (%s), and put it back when a checkpoint is complete", t.Task, info.Ref.Name, info.Ref.Path, strings.Join(wait, ", "))
		}
	}
	return nil
}
