package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/fault"
)

const (
	// reservedName is the file in a checkpoint directory beside the directories of its applications.
	reservedName = "millweir-store-id"
	nameRule     = "a name matches ^[A-Za-z0-9._-]{1,128}$"
	codecRule    = "a codec of state has a name of 1 to 512 printable ASCII characters without blanks"
	topicRule    = "a topic name matches ^[A-Za-z0-9._-]{1,249}$ and is not . or .."
	// nodesMax bounds the sources, steps and sinks of one topology.
	nodesMax = 4096
)

var (
	nameRE  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	codecRE = regexp.MustCompile(`^([!-~]{1,256}){1,2}$`) // a count in a pattern is at most 1000 in all
	topicRE = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
)

func validName(s string) bool { return nameRE.MatchString(s) }

func validTopic(s string) bool { return topicRE.MatchString(s) && s != "." && s != ".." }

// Plan is a checked topology: what the engine runs, and what is compared with a checkpoint at a restore. It does not
// change, and may be used by several goroutines.
type Plan struct {
	Application string
	// Sources are in the order of definition, and so are the others.
	Sources []SourcePlan
	Steps   []StepPlan
	Sinks   []SinkPlan
	States  []StatePlan
	// Stages are what tasks run: sources first, then exchanges.
	Stages []StagePlan

	roots   []*node  // of the stages
	pending *Builder // a copy of the graph while topics of sources are not known; nil otherwise
}

// SourcePlan is one source: a task per partition of its topic.
type SourcePlan struct {
	Name, Topic string
	// Pattern is what the topic was matched by, "" for a topic that was named. While Topic is "" it is not resolved.
	Pattern              string
	Start                Start
	OnMissing            Missing
	End                  End
	Stateful             bool // some step of its stage keeps state
	KeyCodec, ValueCodec string
	OnDecodeError        Policy
	OnError              Policy
}

// StepPlan is one step between a source and the sinks. Exchanges and merges are steps too.
type StepPlan struct {
	Name string
	// Kind is filter, map, aggregate, count, sum, min, max, last, process, merge, group-by, rebalance, broadcast or
	// feedback.
	Kind string
	// Source is the name of the stage that it belongs to: the first one in the order of definition when there are
	// several, its own for an exchange.
	Source string
	// From is the name of the source or step that it consumes.
	From string
	// More names the others, for a merge.
	More []string
}

// SinkPlan is one sink. Index is what Env.Emit is called with: its place in Plan.Sinks.
type SinkPlan struct {
	Index                int
	Name, Topic          string
	Source               string // the stage, the first one when there are several
	From                 string // the source or step that it consumes
	KeyCodec, ValueCodec string
}

// StatePlan is one keyed state. Source is the stage that it belongs to. A state that was restored under the same source, step and name must have the same codecs.
type StatePlan struct {
	Source, Step, Name string
	KeyCodec, Codec    string
}

// ID names the state within its task: step/name.
func (s StatePlan) ID() string { return s.Step + "/" + s.Name }

// String gives step/name@codec, as messages name a state.
func (s StatePlan) String() string { return s.ID() + "@" + s.Codec }

// Plan checks the topology and makes the plan. The error is a *PlanError with all problems, classed to end the process.
// A later change of the Builder does not change the plan.
func (b *Builder) Plan() (*Plan, error) {
	if err := planError(b.application, slices.Concat(b.problems, b.check())); err != nil {
		return nil, err
	}
	p := &Plan{Application: b.application}
	nodes := b.clone()
	for _, n := range nodes {
		p.add(n)
	}
	p.addStages(nodes)
	if slices.ContainsFunc(b.sources, (*node).unresolved) {
		p.pending = b.twin()
	}
	return p, nil
}

// planError gives nil when there is no problem.
func planError(application string, ps []Problem) error {
	if len(ps) == 0 {
		return nil
	}
	return fault.Stopf(fault.BadFile, "%w", &PlanError{Application: application, Problems: ps})
}

// add enters a node.
func (p *Plan) add(n *node) {
	switch n.kind {
	case kindSource:
		p.Sources = append(p.Sources, SourcePlan{
			Name: n.name, Topic: n.topic, Pattern: n.pattern, Start: n.start, OnMissing: n.onMissing, End: n.end, KeyCodec: n.keyCodec, ValueCodec: n.valueCodec,
			OnDecodeError: n.onDecode, OnError: n.onError,
		})
	case kindSink:
		n.sinkIndex = len(p.Sinks)
		p.Sinks = append(p.Sinks, SinkPlan{
			Index: n.sinkIndex, Name: n.name, Topic: n.topic, Source: n.root.name, From: n.parent().name,
			KeyCodec: n.keyCodec, ValueCodec: n.valueCodec,
		})
	default:
		step := StepPlan{Name: n.name, Kind: string(n.kind), Source: n.root.name, From: n.parent().name}
		for _, more := range n.parents[1:] {
			step.More = append(step.More, more.name)
		}
		p.Steps = append(p.Steps, step)
	}
	for _, s := range n.states {
		p.States = append(p.States, StatePlan{
			Source: n.root.name, Step: n.name, Name: s.name, KeyCodec: n.parent().keyCodec, Codec: s.codec,
		})
		for i := range p.Sources {
			p.Sources[i].Stateful = p.Sources[i].Stateful || p.Sources[i].Name == n.root.name
		}
	}
}

// clone copies the graph, so that the plan stays as it is when the builder goes on.
func (b *Builder) clone() []*node {
	twin := make(map[*node]*node, len(b.nodes))
	out := make([]*node, len(b.nodes))
	for i, n := range b.nodes {
		c := *n
		c.states = slices.Clone(n.states)
		twin[n], out[i] = &c, &c
	}
	twins := func(ns []*node) []*node {
		var out []*node
		for _, n := range ns {
			out = append(out, twin[n])
		}
		return out
	}
	for _, c := range out {
		c.root, c.parents, c.kids = twin[c.root], twins(c.parents), twins(c.kids)
	}
	return out
}

// check gives the problems of the graph as a whole.
func (b *Builder) check() []Problem {
	var ps []Problem
	note := func(k kind, name, format string, args ...any) {
		ps = append(ps, Problem{Kind: k.group(), Name: name, Text: fmt.Sprintf(format, args...)})
	}
	if !validName(b.application) {
		note("application", b.application, "%s", nameRule)
	}
	if b.application == reservedName {
		note("application", b.application, "the name is reserved: every checkpoint directory has a file of this name")
	}
	if len(b.sources) == 0 {
		note("application", b.application, "there is no source")
	}
	if len(b.nodes) > nodesMax {
		note("application", b.application, "%d sources, steps and sinks; at most %d are allowed", len(b.nodes), nodesMax)
	}
	b.checkNames(note)
	b.checkTopics(note)
	b.checkStages(note)
	for _, n := range b.sources {
		checkOptions(n, note)
	}
	return ps
}

type noteFunc func(k kind, name, format string, args ...any)

// checkNames wants valid names, unique among sources and steps (which streams and states are named by) and among sinks.
func (b *Builder) checkNames(note noteFunc) {
	streams, sinks := map[string]*node{}, map[string]*node{}
	for _, n := range b.nodes {
		if !validName(n.name) {
			note(n.kind, n.name, "%s", nameRule)
			continue
		}
		names := streams
		if n.kind == kindSink {
			names = sinks
		}
		if other := names[n.name]; other != nil {
			note(n.kind, n.name, "the name is taken by another %s", other.kind)
			continue
		}
		names[n.name] = n
	}
}

// checkTopics wants valid topics, one source per topic, and no sink that feeds a source unless that is said to be meant.
func (b *Builder) checkTopics(note noteFunc) {
	read := map[string]*node{}
	for _, n := range b.sources {
		if n.unresolved() {
			continue
		}
		if first := read[n.topic]; first != nil {
			note(n.kind, n.name, "topic %q is already read by source %q; let several steps consume that source", n.topic, first.name)
			continue
		}
		read[n.topic] = n
	}
	for _, n := range b.nodes {
		if n.kind != kindSource && n.kind != kindSink || n.unresolved() {
			continue
		}
		if !validTopic(n.topic) {
			note(n.kind, n.name, "topic %q: %s", n.topic, topicRule)
		}
		if n.kind == kindSink {
			switch src := read[n.topic]; {
			case src != nil && !n.loop:
				note(n.kind, n.name, "topic %q is read by source %q: a loop; where that is meant, say so with Loop()", n.topic, src.name)
			case src != nil && src.end.Bounded():
				note(n.kind, n.name, "source %q, which reads the loop, has an end: what goes round would lie behind it", src.name)
			case src == nil && n.loop:
				note(n.kind, n.name, "it has Loop(), but no source reads topic %q", n.topic)
			}
		}
	}
}

func checkOptions(n *node, note noteFunc) {
	for _, p := range []Policy{n.onDecode, n.onError} {
		if p > Skip {
			note(n.kind, n.name, "%s: allowed are %s", p, strings.Join([]string{Fail.String(), Skip.String()}, " and "))
		}
	}
	if wrong := n.start.check(); wrong != "" {
		note(n.kind, n.name, "%s", wrong)
	}
	if wrong := n.end.check(); wrong != "" {
		note(n.kind, n.name, "%s", wrong)
	}
	if n.onMissing > MissingLatest {
		note(n.kind, n.name, "%s: allowed are fail, earliest and latest", n.onMissing)
	}
}
