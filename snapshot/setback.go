package snapshot

import "slices"

// nextAfter reports that a checkpoint which holds a task was the next one after that of the task's handle. A handle without
// state names no root: what follows it follows none, or one that is older, or one of other tasks.
func (in *ResolveInput) nextAfter(t *TaskFacts, h Handle, next *RootInfo) bool {
	if next.Root == nil {
		return false
	}
	pred := next.Root.Predecessor
	if h.Kind == HandleCheckpoint {
		return pred != nil && *pred == h.Root
	}
	return pred == nil || pred.Name.ID <= h.Root.Name.ID || slices.ContainsFunc(in.Listing, func(i RootInfo) bool {
		return i.Ref == *pred && i.Root != nil && !i.mayHold(in, t, h)
	})
}
