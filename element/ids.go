package element

import (
	"cmp"
	"fmt"
	"strconv"
)

// TopicPartition names one partition of one Kafka topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String gives topic/partition, as messages print it.
func (tp TopicPartition) String() string { return tp.Topic + "/" + strconv.Itoa(int(tp.Partition)) }

// Claim says that a partition is owned, and since which ownership epoch. A partition that was lost and came back has
// another epoch: what was begun under the old claim must not be committed under the new one.
type Claim struct {
	TopicPartition
	Epoch uint64
}

// Compare orders by topic, then partition.
func (tp TopicPartition) Compare(o TopicPartition) int {
	return cmp.Or(cmp.Compare(tp.Topic, o.Topic), cmp.Compare(tp.Partition, o.Partition))
}

// TaskID names a task: one sub-topology on one partition. The sub-topology is named by its source.
type TaskID struct {
	Source    string
	Partition int32
}

// String gives source-partition, as logs, metrics and file formats name a task.
func (t TaskID) String() string { return t.Source + "-" + strconv.Itoa(int(t.Partition)) }

// Compare orders by source, then partition.
func (t TaskID) Compare(o TaskID) int {
	return cmp.Or(cmp.Compare(t.Source, o.Source), cmp.Compare(t.Partition, o.Partition))
}

// CheckpointID numbers the checkpoints of an application, from 1 upwards; 0 is the checkpoint that stands before the
// first one and has no state.
type CheckpointID uint64

// Incarnation is drawn at random once per process start. With it two processes that both believe to be at
// checkpoint 7 never write the same file.
type Incarnation uint64

// String gives 16 lower-case hex digits.
func (i Incarnation) String() string {
	var b [16]byte
	return string(i.append(b[:0]))
}

func (i Incarnation) append(dst []byte) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[i>>shift&15])
	}
	return dst
}

// CheckpointName is the unique name of a checkpoint: its id and the incarnation that took it.
type CheckpointName struct {
	ID          CheckpointID
	Incarnation Incarnation
}

// String gives <id>-<incarnation>, the form used in file names.
func (n CheckpointName) String() string {
	var b [20 + 1 + 16]byte
	return string(n.Incarnation.append(append(strconv.AppendUint(b[:0], uint64(n.ID), 10), '-')))
}

// TopicID is Kafka's 16-byte id of a topic. A topic that is deleted and created again has another one.
type TopicID [16]byte

// IsZero reports that the id is not known.
func (id TopicID) IsZero() bool { return id == TopicID{} }

// String gives 32 lower-case hex digits.
func (id TopicID) String() string { return fmt.Sprintf("%x", id[:]) }

// Position is the place in one source partition up to which a snapshot covers the data: S_n of Flink's model.
type Position struct {
	TopicPartition
	TopicID TopicID
	// PartitionCount is the number of partitions the topic had when the position was taken. Keyed state is bound to it.
	PartitionCount int32
	// Offset is the next offset to read.
	Offset int64
	// LeaderEpoch is the epoch of the last offset below Offset, or a later one; -1 if not known. With an earlier one the broker
	// says that the epoch ended below Offset, which is the sign of a log that was cut back.
	LeaderEpoch int32
}

// Barrier separates the records of a checkpoint from those of the next one. It travels in band with the records.
type Barrier struct {
	ID CheckpointID
}
