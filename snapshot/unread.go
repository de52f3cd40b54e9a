package snapshot

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// A root that cannot be read may hold any task. As long as the committed handles lead past it nobody needs it. But a task without a
// committed offset may be one that has lost it, and one whose handle is older than the root may have had a newer one: what the root
// would say of them is not known, so they are refused, until a person says that there is nothing.

// surpassed reports that a root which cannot be read has nothing of a task that no later one has: it is older than a committed root of
// all of the application, which has exchanges and so moves as a whole, and that one reads the topic without the task's partition.
func (in *ResolveInput) surpassed(t *TaskFacts, info *RootInfo) bool {
	later := func(ref RootRef, root *Root) bool {
		return root != nil && root.ClusterID == in.ClusterID && root.hasStages() && ref.Name.ID > info.Ref.Name.ID &&
			slices.ContainsFunc(t.Inputs, root.readsThis) && !slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return root.reader(f.TopicPartition) != nil })
	}
	for ref, loaded := range in.Roots {
		if later(ref, loaded.Root) {
			return true
		}
	}
	return slices.ContainsFunc(slices.Concat(in.Stored, in.Listing), func(i RootInfo) bool { return i.Committed && later(i.Ref, i.Root) })
}

// refuseUnread refuses a task without a committed offset for a root that cannot be read.
func (in *ResolveInput) refuseUnread(t *TaskFacts, info *RootInfo, absent bool) *Refusal {
	cure := in.moveAway(info, "where nothing of "+t.Inputs[0].String()+" has been processed yet")
	if absent {
		cure += ", or, since the application has gone on without the task, " + beginsAnew
	}
	return refuse(ReasonUnreadable, element.TopicPartition{}, "task %s: group %s has no committed offset of %s, and checkpoint %s may hold the task: %w; nothing was overwritten: put the file back from a backup%s",
		t.Task, in.Application, t.Inputs[0], info.Ref.Name, info.Err, cure)
}

// moveAway is the cure for a root that cannot be read and that no handle names; where one does it is of no use.
func (in *ResolveInput) moveAway(info *RootInfo, when string) string {
	if slices.ContainsFunc(NamedRoots(in.Tasks), func(ref RootRef) bool { return ref.Path == info.Ref.Path }) {
		return ""
	}
	return ", or, " + when + ", move the file and its marker away (" + info.Ref.Path + ")"
}
