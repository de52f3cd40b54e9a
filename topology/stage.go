package topology

import (
	"fmt"
	"slices"
	"strings"
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

// keyed says that a record goes where the group of its key belongs, so that keyed state may stand behind it.
func (k StageKind) keyed() bool { return k == HashStage || k == FeedbackStage }

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

// CheckParallelism gives a *PlanError when an exchange asks for more subtasks than there are key groups.
func (p *Plan) CheckParallelism(maxParallelism int) error {
	var ps []Problem
	for _, s := range p.Stages {
		if s.Parallelism > maxParallelism {
			ps = append(ps, Problem{Kind: "step", Name: s.Name, Text: fmt.Sprintf(
				"parallelism %d is above the max parallelism, %d, which is the number of key groups", s.Parallelism, maxParallelism)})
		}
	}
	return planError(p.Application, ps)
}

// walkStage visits what stands behind a source or exchange up to the next exchanges, these included, each node once.
func (n *node) walkStage(visit func(*node)) {
	seen := map[*node]bool{}
	var walk func(*node)
	walk = func(n *node) {
		for _, kid := range n.kids {
			if seen[kid] {
				continue
			}
			seen[kid] = true
			visit(kid)
			if !kid.kind.isExchange() {
				walk(kid)
			}
		}
	}
	walk(n)
}

// roots gives the sources, then the exchanges, each in the order of definition.
func roots(nodes []*node) []*node {
	var out []*node
	for _, n := range nodes {
		if n.kind == kindSource {
			out = append(out, n)
		}
	}
	for _, n := range nodes {
		if n.kind.isExchange() {
			out = append(out, n)
		}
	}
	return out
}

// addStages enters the stages. The nodes are in the plan already.
func (p *Plan) addStages(nodes []*node) {
	p.roots = roots(nodes)
	for i, root := range p.roots {
		root.stageIndex = i
		p.Stages = append(p.Stages, StagePlan{
			Name: root.name, Kind: root.kind.stage(), Index: i, Parallelism: root.parallelism,
			KeyCodec: root.keyCodec, ValueCodec: root.valueCodec,
		})
	}
	for i, root := range p.roots {
		stage := &p.Stages[i]
		root.walkStage(func(n *node) {
			switch {
			case n.kind == kindSink:
				stage.Sinks = append(stage.Sinks, n.sinkIndex)
			case n.kind.isExchange():
				stage.Sends = append(stage.Sends, n.stageIndex)
				to := &p.Stages[n.stageIndex]
				to.From = append(to.From, root.name)
			}
			stage.Stateful = stage.Stateful || len(n.states) > 0
			stage.Timers = stage.Timers || n.timers
		})
		slices.Sort(stage.Sinks)
		slices.Sort(stage.Sends)
	}
	for i := range p.Stages {
		slices.Sort(p.Stages[i].From)
	}
}

// checkStages wants exchanges that make sense, and records of one key in one place wherever there is keyed state.
func (b *Builder) checkStages(note noteFunc) {
	reach := map[*node][]*node{}
	for _, root := range roots(b.nodes) {
		if len(root.kids) == 0 {
			note(root.kind, root.name, "nothing consumes it")
		}
		root.walkStage(func(n *node) { reach[n] = append(reach[n], root) })
		if root.parallelism < 0 || root.parallelism > ParallelismMax {
			note(root.kind, root.name, "parallelism %d: allowed are 1 to %d, and 0 for the default", root.parallelism, ParallelismMax)
		}
		if len(root.parents) == 0 && root.kind == kindFeedback {
			note(root.kind, root.name, "no stream is fed back: From was not called with a stream of this topology")
		}
	}
	b.checkPatterns(reach, note)
	for _, n := range b.nodes {
		if len(n.states) == 0 {
			continue
		}
		n.checkCodecs(note)
		switch stages := reach[n]; {
		case len(stages) > 1:
			note(n.kind, n.name, "it keeps state by key behind a merge of the stages %s, in each of which a key may be; put a group-by between", stageNames(stages))
		case len(stages) == 1 && stages[0].kind == kindBroadcast:
			note(n.kind, n.name, "it keeps state by key behind broadcast %q, which gives a key to every subtask; put a group-by between", stages[0].name)
		case len(stages) == 1 && stages[0].kind == kindRebalance:
			note(n.kind, n.name, "it keeps state by key behind rebalance %q, which gives a key to any subtask; put a group-by between", stages[0].name)
		}
	}
}

// checkCodecs wants names of codecs that checkpoints can hold.
func (n *node) checkCodecs(note noteFunc) {
	refuse := func(what, name string) {
		if name != "" && !codecRE.MatchString(name) { // an empty one has its problem
			note(n.kind, n.name, "the name %.80q of the codec of %s is not stored in checkpoints: %s", name, what, codecRule)
		}
	}
	refuse("its keys", n.parent().keyCodec)
	for _, s := range n.states {
		refuse("its state "+s.name, s.codec)
	}
}

// stageNames gives quoted names, sorted.
func stageNames(stages []*node) string {
	names := make([]string, len(stages))
	for i, s := range stages {
		names[i] = fmt.Sprintf("%q", s.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
