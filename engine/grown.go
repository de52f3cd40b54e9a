package engine

import (
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// unbound looks for topics that grew before a source over them had keyed state. All partitions must have committed offsets: what
// the handles say of the number in the beginning is needed for those that have none.
func (in *intake) unbound() (map[string]bool, error) {
	out := map[string]bool{}
	for _, src := range in.a.r.plan.Sources {
		i := slices.IndexFunc(in.facts, func(f snapshot.TaskFacts) bool { return f.Task.Source == src.Name && grew(&f.Inputs[0]) })
		if i < 0 || !src.Stateful {
			continue
		}
		now := in.facts[i].Inputs[0]
		named, all, err := in.handlesOf(now)
		if err != nil {
			return nil, err
		}
		if !all {
			continue
		}
		infos, err := in.a.r.ports.Checkpoints.List(in.ctx)
		if err != nil {
			return nil, fmt.Errorf("look for state by another number of partitions: %w", err)
		}
		snapshot.Confirm(infos, named)
		out[src.Topic] = !snapshot.StateBinds(infos, in.a.r.cfg.ClusterID, now)
	}
	return out, nil
}

// grew reports that a committed offset is of a time when the topic had another number of partitions.
func grew(f *snapshot.InputFacts) bool {
	h, err := snapshot.ParseHandle(f.Metadata)
	return f.Found && err == nil && h.PartitionCount != f.Partitions
}

// handlesOf gives the roots that the offsets of a topic name, and whether all its partitions have one with a handle.
func (in *intake) handlesOf(topic snapshot.InputFacts) (named []snapshot.RootRef, all bool, err error) {
	tps := make([]element.TopicPartition, topic.Partitions)
	for p := range tps {
		tps[p] = element.TopicPartition{Topic: topic.Topic, Partition: int32(p)}
	}
	committed, err := in.a.readOthers(in.ctx, tps)
	if err != nil {
		return nil, false, err
	}
	for _, tp := range tps {
		c := committed[tp]
		h, err := snapshot.ParseHandle(c.Metadata)
		if !c.Found || err != nil {
			return nil, false, nil
		}
		if h.Kind == snapshot.HandleCheckpoint {
			named = append(named, h.Root)
		}
	}
	return named, true, nil
}
