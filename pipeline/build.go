package pipeline

import (
	"errors"
	"regexp"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// maxNodes bounds the sources, steps and sinks of one file.
const maxNodes = 1000

// Build makes the plan of the topology in a service file, whose root is given: its sections sources, steps and sinks.
// Schema files are relative to baseDir. Mistakes are noted in ps, all of them in one pass; the plan is nil when ps holds
// any, also from before.
func Build(application string, root *yamlx.Node, baseDir string, ps *yamlx.Problems) *topology.Plan {
	b := &builder{baseDir: baseDir, application: application, ps: ps, root: root, streams: map[string]*stream{}}
	for _, key := range []string{"sources", "sinks"} {
		if root.At(key) == nil {
			ps.Add(root.Pos(), key, "is required")
		}
	}
	b.readSources(root.At("sources"))
	b.readSteps(root.At("steps"))
	b.readSinks(root.At("sinks"))
	b.checkExchangeNames()
	b.checkTopicNames()
	if n := len(b.sources) + len(b.steps) + len(b.sinks); n > maxNodes {
		root.Errorf("%d sources, steps and sinks; at most %d are possible", n, maxNodes)
		return nil
	}
	b.resolve()
	b.checkUsed()
	b.checkTopics()
	return b.plan()
}

// builder reads the three sections into declarations, connects them by name and builds the topology along the way.
type builder struct {
	baseDir, application string
	ps                   *yamlx.Problems
	root                 *yamlx.Node

	streams map[string]*stream // sources and steps by name
	sources []*stream
	steps   []*stream
	sinks   []*sinkDecl
}

// stream is a declared source or step: what others can name in from.
type stream struct {
	name string
	at   *yamlx.Node   // the key that names it
	from []*yamlx.Node // of steps: what they read, several in a merge
	used bool

	source *sourceDecl // sources
	step   *stepDecl   // steps

	parents []*stream // those of from that are known, each once
	state   resolveState
	rooted  bool // every way up ends at a source

	flow
}

// flow is what is known of the records of a stream.
type flow struct {
	sound  bool      // no source on the way has a mistake that leaves formats unknown
	stages []*stream // what the records come from without an exchange between: sources, or exchanges
	key    format
	keyOf  *stream // the source or exchange that gave the keys their format
	// raw is the codec of the bytes that travel along with the values, nil when there are none.
	raw    serde.Serde[any]
	kind   valueKind
	fields []string // of an object when they are known
	shape  *shape   // of the rows among its values, nil when there are none or several
	out    topology.Stream[wireKey, any]
}

type resolveState int

const (
	untouched resolveState = iota
	underway
	resolved
)

type sourceDecl struct {
	inputs
	key, value format
	options    []topology.SourceOption
	bounded    bool // it has an end
	ok         bool
	picked     *sourceValue // in place of value, when only some fields need to be decoded
}

type stepDecl struct {
	kind string // the key of what it does, see stepKinds
	body *yamlx.Node
	exchangeDecl
}

type sinkDecl struct {
	name         string
	at           *yamlx.Node
	from         *yamlx.Node
	topic        *yamlx.Node
	key, value   format
	keyOK, valOK bool
	keyNode      *yamlx.Node
	valueNode    *yamlx.Node
	loop         bool
	loopNode     *yamlx.Node
	parent       *stream
}

var (
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	topicPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
)

// checkName checks the name of a declaration at its key.
func checkName(e yamlx.Entry) {
	if !namePattern.MatchString(e.Name) || e.Name == "." || e.Name == ".." {
		e.Key.Errorf("not a name: 1 to 128 letters, digits, dots, underscores or hyphens")
	}
}

// plan builds the topology. Steps are compiled even when other parts have mistakes, so that theirs are reported too.
func (b *builder) plan() *topology.Plan {
	t := topology.New(b.application)
	steps := inOrder(b.steps)
	b.shareShapes(steps)
	for _, s := range b.sources {
		b.buildSource(t, s)
	}
	for _, s := range steps {
		b.buildStep(s)
	}
	for _, s := range b.sinks {
		b.buildSink(s)
	}
	for _, s := range b.sources {
		if s.source.picked != nil {
			s.source.picked.seal()
		}
	}
	if b.ps.Len() > 0 {
		return nil
	}
	plan, err := t.Plan()
	var pe *topology.PlanError
	switch {
	case errors.As(err, &pe):
		for _, p := range pe.Problems {
			b.place(p).Errorf("%s", p.Text)
		}
		return nil
	case err != nil:
		b.root.Errorf("%v", err)
		return nil
	}
	return plan
}

// place finds the declaration that a problem of the topology is about.
func (b *builder) place(p topology.Problem) *yamlx.Node {
	for _, s := range b.sinks {
		if p.Kind == "sink" && s.name == p.Name {
			return s.at
		}
	}
	if s := b.streams[p.Name]; s != nil {
		return s.at
	}
	for _, s := range b.steps {
		if s.step.exchangeName == p.Name {
			return s.at
		}
	}
	return b.root
}
