package snapshot

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// A handle keeps the number of partitions that its topic had when the task began: by it, those that were added since are told
// from the others. Keyed state is bound to the number by which its keys came, which is the same one, unless a topic grew while
// nothing that reads it had state. Then a step with state may come later, and its tasks begin anew with the number of now.

// StateBinds reports that committed checkpoints have keyed state of what reads a topic by another number of partitions than it has
// now, or that one which cannot be read may have. The newest of each partition counts.
func StateBinds(infos []RootInfo, cluster string, now InputFacts) bool {
	seen := map[int32]bool{}
	for _, i := range newestFirst(infos) {
		info := &infos[i]
		switch {
		case len(seen) == int(now.Partitions):
			return false
		case info.Root == nil:
			return true
		case !info.Committed || info.Root.ClusterID != cluster:
			continue
		}
		for k := range info.Root.Tasks {
			e := &info.Root.Tasks[k]
			for _, p := range e.Positions {
				if p.Topic != now.Topic || p.TopicID != now.TopicID || seen[p.Partition] {
					continue
				}
				if seen[p.Partition] = true; len(e.Runs) > 0 && p.PartitionCount != now.Partitions {
					return true
				}
			}
		}
	}
	return false
}

// KeysMoved is why state that is bound to the number of partitions does not go on, and what can be done.
const KeysMoved = "keys have moved to other partitions than their state; put an exchange before the state (group-by: key, exchange: local), and read all anew with it under another application name"

// unboundIn gives the topics that tasks with state of their own read and that no keyed state in committed checkpoints binds.
func (in *ResolveInput) unboundIn(infos []RootInfo) map[string]bool {
	out := map[string]bool{}
	for i := range in.Tasks {
		t := &in.Tasks[i]
		for _, f := range t.Inputs {
			if _, known := out[f.Topic]; !known && len(in.States[t.Task.Source]) > 0 {
				out[f.Topic] = !StateBinds(infos, in.ClusterID, f)
			}
		}
	}
	return out
}

// CountIn gives the least number of partitions by which checkpoints have read a topic, committed or not: the newest of each partition
// counts, and those that cannot be read say nothing. It is now where there is none.
func CountIn(infos []RootInfo, topic string, id element.TopicID, now int32) int32 {
	seen := map[int32]bool{}
	first := now
	for _, i := range newestFirst(infos) {
		if infos[i].Root == nil {
			continue
		}
		for _, e := range infos[i].Root.Tasks {
			for _, p := range e.Positions {
				if p.Topic == topic && p.TopicID == id && !seen[p.Partition] {
					seen[p.Partition] = true
					first = min(first, p.PartitionCount)
				}
			}
		}
	}
	return first
}

// rebind has tasks whose state begins go on with the number of partitions that there are now.
func (in *ResolveInput) rebind(out map[element.TaskID]Decision) {
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d, ok := out[t.Task]
		if !ok || len(in.States[t.Task.Source]) == 0 {
			continue
		}
		d.Positions = slices.Clone(d.Positions)
		for k := range d.Positions {
			p := &d.Positions[k]
			j := slices.IndexFunc(t.Inputs, func(f InputFacts) bool { return f.TopicPartition == p.TopicPartition })
			if j >= 0 && in.Unbound[p.Topic] {
				p.PartitionCount = t.Inputs[j].Partitions
			}
		}
		if d.Kind == Recovered { // a root repeats the entry before the first checkpoint, and its handle has the positions
			d.Entry.Positions = slices.Clone(d.Positions)
		}
		out[t.Task] = d
	}
}
