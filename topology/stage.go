package topology

import (
	"fmt"
	"slices"
)

// StageKind tells what a stage gets its records from.
type StageKind uint8

// The kinds of stages.
const (
	// SourceStage has one task per partition of a source's topic.
	SourceStage StageKind = iota
	// HashStage gets each record in the subtask that owns the group of its key.
	HashStage
	// RebalanceStage gets parcels in turn.
	RebalanceStage
	// BroadcastStage gets every record in every subtask.
	BroadcastStage
	// FeedbackStage gets each record as HashStage does, from further down the graph.
	FeedbackStage
)

// String gives the word that Describe uses for the exchange.
func (k StageKind) String() string {
	switch k {
	case SourceStage:
		return "source"
	case HashStage:
		return "group-by"
	case RebalanceStage:
		return "rebalance"
	case BroadcastStage:
		return "broadcast"
	case FeedbackStage:
		return "feedback"
	}
	return fmt.Sprintf("stage(%d)", uint8(k))
}

// StagePlan is what one task runs: the operators from a source or an exchange to the next exchanges and sinks.
type StagePlan struct {
	// Name is that of the source or exchange.
	Name string
	Kind StageKind
	// Index is its place in Plan.Stages, and what Env.Send and Env.Parallelism are called with.
	Index int
	// From names the stages that send to it, sorted; nil for sources.
	From []string
	// Parallelism is the number of subtasks as asked for, 0 when the engine decides. It is 0 for sources.
	Parallelism int
	// Stateful: some step in it keeps state. Timers: some step in it has timers.
	Stateful, Timers bool
	// Sinks are the indexes of the sinks that it feeds, rising.
	Sinks []int
	// Sends are the indexes of the stages that it sends to, rising.
	Sends []int
	// KeyCodec and ValueCodec are those that its records in flight are encoded with; for sources what they read.
	KeyCodec, ValueCodec string
}

// HasExchange says that records go from task to task within the process.
func (p *Plan) HasExchange() bool {
	return slices.ContainsFunc(p.Stages, func(s StagePlan) bool { return s.Kind != SourceStage })
}

// HasFeedback says that records may go back to a stage that they came through.
func (p *Plan) HasFeedback() bool {
	return slices.ContainsFunc(p.Stages, func(s StagePlan) bool { return s.Kind == FeedbackStage })
}
