package snapshot

import (
	"github.com/millweir/millweir/element"
)

// lineage tells tasks of one name apart that have nothing to do with each other: of two clusters, or of two topics that
// sources of one name read, be it in two service files or because the topic was made again. Checkpoint ids grow within a
// lineage; between two they say nothing.
type lineage struct {
	task    element.TaskID
	cluster string
	topics  string // the ids of the topics that it reads, one after the other
}

// lineageOf gives the lineage that a root's entry of a task belongs to.
func (r *Root) lineageOf(e *TaskEntry) lineage {
	topics := make([]byte, 0, len(element.TopicID{}))
	for i := range e.Positions {
		topics = append(topics, e.Positions[i].TopicID[:]...)
	}
	return lineage{task: e.Task, cluster: r.ClusterID, topics: string(topics)}
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
