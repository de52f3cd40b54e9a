package topology

import (
	"fmt"

	"github.com/millweir/millweir/serde"
)

// Builder collects the sources, steps and sinks of one application. Mistakes are collected too and reported by Plan, all
// at once. A Builder is used by one goroutine; it is not changed by Plan.
type Builder struct {
	application string
	sources     []*node
	nodes       []*node // all, in the order of definition: parents before children
	problems    []Problem
}

// New starts the topology of an application. The name is part of the consumer group, of transactional ids and of
// checkpoint files; it matches ^[A-Za-z0-9._-]{1,128}$.
func New(application string) *Builder { return &Builder{application: application} }

// Stream is the output of a source or step. Several steps may consume it; each sees all records. The zero Stream belongs
// to no topology: what is built on it is part of none.
type Stream[K, V any] struct {
	b *Builder
	n *node
}

// Policy says what is done with a record that cannot be processed.
type Policy uint8

// The policies. Fail is the default.
const (
	// Fail ends the task with a RecordError, and the process with it: a restart would meet the same record.
	Fail Policy = iota
	// Skip leaves the record out of the failing step and of what follows that step; other branches are not affected.
	// It is counted through Env.Skipped. State that the step would have changed for it stays as it was.
	Skip
)

// String names the policy as configuration does.
func (p Policy) String() string {
	switch p {
	case Fail:
		return "fail"
	case Skip:
		return "skip"
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// SourceOption changes a source.
type SourceOption func(*sourceConfig)

type sourceConfig struct {
	start     Start
	end       End
	onMissing Missing
	onDecode  Policy
	onError   Policy
}

// OnDecodeError says what happens to a record of the source whose key or value cannot be decoded. The default is Fail.
func OnDecodeError(p Policy) SourceOption { return func(c *sourceConfig) { c.onDecode = p } }

// OnError says what happens to a record of the source that a step or sink behind it cannot process: an error or panic
// of a user function, a null key in a keyed step, an overflow, a value that cannot be encoded. The default is Fail.
func OnError(p Policy) SourceOption { return func(c *sourceConfig) { c.onError = p } }

// SinkOption changes a sink.
type SinkOption func(*sinkConfig)

type sinkConfig struct{ dropHeaders, loop bool }

// WithoutHeaders makes the sink write records without headers. By default all headers pass, in order and with repeats.
func WithoutHeaders() SinkOption { return func(c *sinkConfig) { c.dropHeaders = true } }

// Loop lets the sink write into a topic that a source of the same topology reads, so that records go round through Kafka:
// the form of an iteration that stays exactly-once. What the sink writes is part of the checkpoint's transaction, so each
// round begins when the checkpoint of the round before it is complete, and takes about one checkpoint interval. It is for
// the topology to see to it that a record leaves the loop some day. Without the option such a topic is a mistake, and so is
// the option where there is no loop.
func Loop() SinkOption { return func(c *sinkConfig) { c.loop = true } }

// kind tells the nodes of the graph apart; it is printed.
type kind string

const (
	kindSource kind = "source"
	kindSink   kind = "sink"
)

// node is a source, step, exchange or sink of the logical graph. The types of its records live in compile only.
type node struct {
	kind kind
	name string
	// root is the source or exchange that its stage begins with: itself for these, the first of them for what stands
	// behind a merge of several stages.
	root    *node
	parents []*node // none for a source, several for a merge only
	kids    []*node
	// keyCodec and valueCodec are serde ids: for sources, exchanges and sinks what they read and write, for steps what
	// the bytes carried along beside the output are in. An empty valueCodec says that there are none; an empty keyCodec,
	// that they are in several codecs.
	keyCodec, valueCodec string

	topic   string // sources and sinks; "" for a source whose topics are not known yet
	pattern string // sources: what topic was matched by, or topics are to be
	sourceConfig
	sinkConfig
	exchangeConfig
	sinkIndex  int
	stageIndex int // sources and exchanges
	states     []state
	timers     bool // the last of states holds timers
	keySerde   any  // sources and exchanges: the serde.Serde of their keys

	// compile makes the operator of one task. down holds the operators of kids, in order; each is a port of this
	// node's output type, and so is what compile returns of its input type. For a source it is a root. For an exchange it
	// is the sending side, which has no kids in its stage.
	compile func(c *compiler, n *node, down []any) (any, error)
	// asMerge is compile for a source with a pattern that is made a merge of one source per topic.
	asMerge func(c *compiler, n *node, down []any) (any, error)
	// compileRoot makes the receiving side of an exchange, a root.
	compileRoot func(c *compiler, n *node, down []any) (any, error)
}

// parent is the first one; only a merge has more. It must not be called for a source.
func (n *node) parent() *node { return n.parents[0] }

// state is one keyed state of a step.
type state struct{ name, codec string }

// problem notes a mistake.
func (b *Builder) problem(k kind, name, format string, args ...any) {
	b.problems = append(b.problems, Problem{Kind: k.group(), Name: name, Text: fmt.Sprintf(format, args...)})
}

// group gives the word that problems use: source, step or sink.
func (k kind) group() string {
	if k == kindSource || k == kindSink || k == "application" {
		return string(k)
	}
	return "step"
}

// FromTopic reads a topic. name is the name of the source: tasks, their state and their metrics carry it.
//
// A record whose value is null is not decoded: it travels as a tombstone. A null key is not decoded either.
func FromTopic[K, V any](b *Builder, name, topic string, k serde.Serde[K], v serde.Serde[V], opts ...SourceOption) Stream[K, V] {
	n := newSource(b, name, k, v, opts)
	n.topic = topic
	return Stream[K, V]{b: b, n: n}
}

// newSource makes a source that reads nothing yet.
func newSource[K, V any](b *Builder, name string, k serde.Serde[K], v serde.Serde[V], opts []SourceOption) *node {
	n := &node{kind: kindSource, name: name}
	n.root, n.keySerde = n, k
	for _, o := range opts {
		o(&n.sourceConfig)
	}
	n.keyCodec = codecName(b, n, "key", k)
	n.valueCodec = codecName(b, n, "value", v)
	n.compile = func(c *compiler, n *node, down []any) (any, error) {
		return newSourceOp(c, n, k, v, joinPorts[K, V](down)), nil
	}
	b.sources = append(b.sources, n)
	b.nodes = append(b.nodes, n)
	return n
}

// ToTopic writes a stream to a topic. name is the name of the sink.
//
// Headers and timestamp pass as they are; a tombstone is written as null, an empty encoding as empty, a null key as
// null. Bytes are not encoded again where that is not needed: the key keeps its wire bytes when k has the name of the
// source's key serde, the value when no step changed it and v has the name of the source's value serde.
func ToTopic[K, V any](s Stream[K, V], name, topic string, k serde.Serde[K], v serde.Serde[V], opts ...SinkOption) {
	if s.b == nil {
		return
	}
	n := &node{kind: kindSink, name: name, topic: topic}
	for _, o := range opts {
		o(&n.sinkConfig)
	}
	n.keyCodec = codecName(s.b, n, "key", k)
	n.valueCodec = codecName(s.b, n, "value", v)
	n.compile = func(c *compiler, n *node, _ []any) (any, error) {
		return newSinkOp(c, n, k, v), nil
	}
	s.b.attach(n, s.n)
}

// codecName gives the name of a serde; a serde that is missing or panics is a problem of the node.
func codecName[T any](b *Builder, n *node, role string, s serde.Serde[T]) (name string) {
	if s == nil {
		b.problem(n.kind, n.name, "the %s serde is nil", role)
		return ""
	}
	defer func() {
		if p := recover(); p != nil {
			b.problem(n.kind, n.name, "the %s serde panics when asked for its name: %v", role, p)
		}
	}()
	if name = s.Name(); name == "" {
		b.problem(n.kind, n.name, "the %s serde has an empty name", role)
	}
	return name
}

// attach hangs a step, exchange or sink under its parent.
func (b *Builder) attach(n, parent *node) {
	n.parents, n.root = []*node{parent}, parent.root
	if n.kind.isExchange() {
		n.root = n
	}
	parent.kids = append(parent.kids, n)
	b.nodes = append(b.nodes, n)
}

// addStep hangs a step under a stream and gives its output.
func addStep[K, V, W any](s Stream[K, V], n *node) Stream[K, W] {
	if s.b == nil {
		return Stream[K, W]{}
	}
	n.keyCodec = s.n.keyCodec
	s.b.attach(n, s.n)
	return Stream[K, W]{b: s.b, n: n}
}
