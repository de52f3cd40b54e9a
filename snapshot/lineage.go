package snapshot

import (
	"encoding/binary"

	"github.com/millweir/millweir/element"
)

// lineage tells checkpoints apart that have nothing to do with each other: of two clusters, or of what other tasks read. It is by
// the partitions that a task reads, and the ids of their topics: a topic that was made again is another one, and a source that
// has another name now is the same. Checkpoint ids grow within a lineage; between two they say nothing.
type lineage struct {
	cluster string
	inputs  string // topic id and partition of each, one after the other
}

// lineageOf gives the lineage that a root's entry of a task belongs to.
func (r *Root) lineageOf(e *TaskEntry) lineage {
	inputs := make([]byte, 0, len(element.TopicID{})+4)
	for i := range e.Positions {
		inputs = appendInput(inputs, e.Positions[i].TopicID, e.Positions[i].Partition)
	}
	return lineage{cluster: r.ClusterID, inputs: string(inputs)}
}

// lineage gives that of the task that committed a handle, which reads one partition.
func (h *Handle) lineage() lineage {
	return lineage{cluster: h.ClusterID, inputs: string(appendInput(nil, h.TopicID, h.Partition))}
}

func appendInput(b []byte, topic element.TopicID, partition int32) []byte {
	return binary.BigEndian.AppendUint32(append(b, topic[:]...), uint32(partition))
}

// own reports whether a root's entry of a task belongs to the cluster, and to the topics that the task reads now.
func (in *ResolveInput) own(t *TaskFacts, r *Root, e *TaskEntry) bool {
	if r.ClusterID != in.ClusterID || e.Parallelism > 0 {
		return false
	}
	for i := range e.Positions {
		p := &e.Positions[i]
		known := false
		for j := range t.Inputs {
			known = known || t.Inputs[j].TopicPartition == p.TopicPartition && t.Inputs[j].TopicID == p.TopicID
		}
		if !known {
			return false
		}
	}
	return true
}
