package snapshot

import "slices"

// nextAfter reports that the newest of the checkpoints which hold a task, and are newer than its handle, was the next one after that of
// the handle. A root names as its predecessor the newest of all its tasks: that of this one, or, when it is the first that they
// are in together, of other ones. A handle without state names no root: what follows it may also follow none, or an older one.
func (in *ResolveInput) nextAfter(t *TaskFacts, h Handle, newer []*RootInfo) bool {
	next := newer[0].Root
	if next == nil {
		return false
	}
	pred, checkpoint := next.Predecessor, h.Kind == HandleCheckpoint
	switch {
	case checkpoint && pred != nil && *pred == h.Root:
		return true
	case len(newer) > 1:
		return false
	case pred == nil || pred.Name.ID <= h.Root.Name.ID && !checkpoint:
		return !checkpoint
	}
	return slices.ContainsFunc(in.Listing, func(i RootInfo) bool {
		return i.Ref == *pred && i.Root != nil && !i.mayHold(in, t, h)
	})
}
