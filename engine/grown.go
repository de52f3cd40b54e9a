package engine

import (
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
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
		binds, err := in.stateBinds(now, named)
		if err != nil {
			return nil, err
		}
		out[src.Topic] = !binds
	}
	return out, nil
}

// stateBinds asks snapshot.StateBinds, with the roots that offsets of the topic name.
func (in *intake) stateBinds(now snapshot.InputFacts, named []snapshot.RootRef) (bool, error) {
	infos, err := in.a.r.ports.Checkpoints.List(in.ctx)
	if err != nil {
		return false, fmt.Errorf("look for state by another number of partitions: %w", err)
	}
	snapshot.Confirm(infos, named)
	return snapshot.StateBinds(infos, in.a.r.cfg.ClusterID, now), nil
}

// refuseGrown says that a source with state has partitions that nobody has read yet beside others. Where no state is bound to their
// number the steps with state only come too early: until all partitions have an offset, some instance may still begin by the old one.
func (in *intake) refuseGrown(src *topology.SourcePlan, first int32) error {
	topic := in.topics[src.Topic]
	now := snapshot.InputFacts{TopicPartition: element.TopicPartition{Topic: src.Topic}, TopicID: topic.ID, Partitions: topic.Partitions}
	named, _, err := in.handlesOf(now)
	if err != nil {
		return err
	}
	binds, err := in.stateBinds(now, named)
	if err != nil {
		return err
	}
	if !binds {
		return fault.Stopf(fault.StateMismatch, "topic %s had %d partitions when it was read first, now it has %d, some of which have no committed offset yet, and the topology has steps with state over source %s: "+
			"run the topology without these steps until a checkpoint is complete, and with them then; or start under another application name",
			src.Topic, first, topic.Partitions, src.Name)
	}
	return fault.Stopf(fault.StateMismatch, "topic %s had %d partitions when source %s began, now it has %d: "+snapshot.KeysMoved,
		src.Topic, first, src.Name, topic.Partitions)
}

// grew reports that a committed offset is of a time when the topic had another number of partitions.
func grew(f *snapshot.InputFacts) bool {
	h, err := snapshot.ParseHandle(f.Metadata)
	return f.Found && err == nil && h.PartitionCount != f.Partitions
}

// handlesOf gives the roots that the offsets of a topic name, and whether all its partitions have an offset with a handle.
func (in *intake) handlesOf(topic snapshot.InputFacts) (named []snapshot.RootRef, all bool, err error) {
	tps := make([]element.TopicPartition, topic.Partitions)
	for p := range tps {
		tps[p] = element.TopicPartition{Topic: topic.Topic, Partition: int32(p)}
	}
	committed, err := in.a.readOthers(in.ctx, tps)
	if err != nil {
		return nil, false, err
	}
	all = true
	for _, tp := range tps {
		c := committed[tp]
		h, err := snapshot.ParseHandle(c.Metadata)
		if !c.Found || err != nil {
			all = false
			continue
		}
		if h.Kind == snapshot.HandleCheckpoint {
			named = append(named, h.Root)
		}
	}
	return named, all, nil
}

// beganWith is firstCount of the topic of a source. Where nothing is left that says it the checkpoints do: the tasks that they hold,
// which may be of others, are refused then, and the application does not begin with what was added. With DropStates it does.
func (in *intake) beganWith(src *topology.SourcePlan) (int32, error) {
	topic := in.topics[src.Topic]
	first, known, err := in.firstCount(src.Topic, topic.Partitions)
	if err != nil || known || in.a.r.cfg.AllowDropped || src.Start.Kind == topology.StartEarliest {
		return first, err
	}
	infos, err := in.a.r.ports.Checkpoints.List(in.ctx)
	if err != nil {
		return 0, fmt.Errorf("look for the number of partitions that topic %s had: %w", src.Topic, err)
	}
	return snapshot.CountIn(infos, src.Topic, topic.ID, first), nil
}

// firstCount is the number of partitions that a topic had when the application began to read it; now it has count. known says that a
// handle has it, or what the tasks start from.
func (in *intake) firstCount(topic string, count int32) (first int32, known bool, err error) {
	first, known = in.countsOf(topic, count), len(in.from)+len(in.back) > 0
	look := func(found bool, metadata string) {
		if h, err := snapshot.ParseHandle(metadata); found && err == nil {
			first, known = min(first, h.PartitionCount), true
		}
	}
	mine := map[int32]bool{}
	for _, f := range in.facts {
		if i := &f.Inputs[0]; i.Topic == topic {
			mine[i.Partition] = true
			look(i.Found, i.Metadata)
		}
	}
	var others []element.TopicPartition
	for p := range count {
		if !mine[p] {
			others = append(others, element.TopicPartition{Topic: topic, Partition: p})
		}
	}
	if len(others) == 0 {
		return first, known, nil
	}
	committed, err := in.a.readOthers(in.ctx, others)
	for _, c := range committed {
		look(c.Found, c.Metadata)
	}
	return first, known, err
}
