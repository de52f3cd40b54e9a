package pipeline

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
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
	at   *yamlx.Node // the key that names it
	from *yamlx.Node // steps
	used bool

	source *sourceDecl // sources
	step   *stepDecl   // steps

	parent *stream
	state  resolveState
	root   *stream // the source that it hangs from, nil when that is not known
	kind   valueKind
	fields []string // of an object when they are known
	shape  *shape   // of the rows among its values, nil when there are none
	out    topology.Stream[wireKey, any]
}

type resolveState int

const (
	untouched resolveState = iota
	underway
	resolved
)

type sourceDecl struct {
	topic      *yamlx.Node
	key, value format
	options    []topology.SourceOption
	ok         bool
	picked     *sourceValue // in place of value, when only some fields need to be decoded
}

type stepDecl struct {
	kind string // filter, map or aggregate
	body *yamlx.Node
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

// topic reads and checks the name of a topic.
func (b *builder) topic(o *yamlx.Object) *yamlx.Node {
	n := o.Require("topic")
	if n == nil {
		return nil
	}
	t, ok := n.Text()
	switch {
	case !ok:
		return nil
	case !topicPattern.MatchString(t) || t == "." || t == "..":
		n.Errorf("%s is not a topic: 1 to 249 letters, digits, dots, underscores or hyphens", n.Shown())
		return nil
	case t == b.application+"-checkpoints" || t == b.application+"-control":
		n.Errorf("topic %s belongs to the service itself", n.Shown())
		return nil
	}
	return n
}

// declare enters a source or step under its name.
func (b *builder) declare(s *stream) {
	if other := b.streams[s.name]; other != nil {
		s.at.Errorf("the name %s is taken by the one on line %d; sources and steps share their names", s.name, other.at.Pos().Line)
		return
	}
	b.streams[s.name] = s
}

// find resolves a from. Any further use of it is not an error of its own when the named one has mistakes.
func (b *builder) find(from *yamlx.Node) *stream {
	if from == nil {
		return nil
	}
	if from.IsList() {
		from.Errorf("a list (merge) is not available yet; allowed: the name of one source or step")
		for _, n := range from.List() {
			if s := b.find(n); s != nil {
				s.used = true
			}
		}
		return nil
	}
	name, ok := from.Text()
	if !ok {
		return nil
	}
	if s := b.streams[name]; s != nil {
		s.used = true
		return s
	}
	var names []string
	for _, s := range slices.Concat(b.sources, b.steps) {
		names = append(names, s.name)
	}
	switch near := yamlx.Suggest(name, names); {
	case slices.ContainsFunc(b.sinks, func(s *sinkDecl) bool { return s.name == name }):
		from.Errorf("%s is a sink; a sink gives nothing to read from", from.Shown())
	case near != "":
		from.Errorf("there is no source or step %s; did you mean %s?", from.Shown(), near)
	default:
		from.Errorf("there is no source or step %s; there are: %s", from.Shown(), strings.Join(names, ", "))
	}
	return nil
}

// resolve connects steps and sinks to what they read, and reports cycles.
func (b *builder) resolve() {
	for _, s := range b.steps {
		s.parent = b.find(s.from)
	}
	for _, s := range b.sinks {
		s.parent = b.find(s.from)
	}
	for _, s := range b.sources {
		s.root, s.state = s, resolved
	}
	for _, s := range b.steps {
		b.findRoot(s)
	}
}

// findRoot walks up to the source. A step that is met again on the way closes a cycle.
func (b *builder) findRoot(s *stream) {
	var way []*stream
	for at := s; at != nil && at.state != resolved; at = at.parent {
		if at.state == underway {
			names := []string{at.name}
			for i := len(way) - 1; i >= 0; i-- {
				names = append(names, way[i].name)
				if way[i] == at {
					break
				}
			}
			at.from.Errorf("the steps form a cycle: %s; write through a topic instead", strings.Join(names, " -> "))
			break
		}
		at.state = underway
		way = append(way, at)
	}
	for i := len(way) - 1; i >= 0; i-- {
		way[i].state = resolved
		if p := way[i].parent; p != nil && p.state == resolved {
			way[i].root = p.root
		}
	}
}

// checkUsed reports what nothing reads: it would do its work for nobody, and most often a from is misspelt.
func (b *builder) checkUsed() {
	for _, s := range b.sources {
		if !s.used && b.streams[s.name] == s {
			s.at.Errorf("source %s is not used: no step or sink has from: %s", s.name, s.name)
		}
	}
	for _, s := range b.steps {
		if !s.used && b.streams[s.name] == s {
			s.at.Errorf("step %s is not used: no step or sink has from: %s", s.name, s.name)
		}
	}
}

// checkTopics wants one source per topic and no sink that feeds a source of the same service.
func (b *builder) checkTopics() {
	read := map[string]*stream{}
	for _, s := range b.sources {
		if s.source.topic == nil {
			continue
		}
		topic, _ := s.source.topic.Text()
		if first := read[topic]; first != nil {
			s.source.topic.Errorf("topic %s is read by source %s already; several steps can have from: %s", topic, first.name, first.name)
			continue
		}
		read[topic] = s
	}
	for _, s := range b.sinks {
		if s.topic == nil {
			continue
		}
		topic, _ := s.topic.Text()
		if src := read[topic]; src != nil {
			s.topic.Errorf("topic %s is read by source %s of this service: a loop", topic, src.name)
		}
	}
}

// plan builds the topology. Steps are compiled even when other parts have mistakes, so that theirs are reported too.
func (b *builder) plan() *topology.Plan {
	t := topology.New(b.application)
	for _, s := range b.sources {
		b.buildSource(t, s)
	}
	for _, s := range inOrder(b.steps) {
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
	return b.root
}

// inOrder gives the steps that hang from a source, parents before children, otherwise as in the file.
func inOrder(steps []*stream) []*stream {
	var out []*stream
	done := map[*stream]bool{}
	var visit func(s *stream)
	visit = func(s *stream) {
		if s.step == nil || s.root == nil || done[s] {
			return
		}
		done[s] = true
		visit(s.parent)
		out = append(out, s)
	}
	for _, s := range steps {
		visit(s)
	}
	return out
}
