package pipeline

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
)

// declare enters a source or step under its name.
func (b *builder) declare(s *stream) {
	if other := b.streams[s.name]; other != nil {
		s.at.Errorf("the name %s is taken by the one on line %d; sources and steps share their names", s.name, other.at.Pos().Line)
		return
	}
	b.streams[s.name] = s
}

// checkExchangeNames wants names of their own for the exchanges in front of aggregates.
func (b *builder) checkExchangeNames() {
	for _, s := range b.steps {
		name := s.step.exchangeName
		if name == "" {
			continue
		}
		if other := b.streams[name]; other != nil {
			s.at.Errorf("the exchange of its group-by is called %s, a name that is taken by the one on line %d", name, other.at.Pos().Line)
		}
		if namePattern.MatchString(s.name) && !namePattern.MatchString(name) {
			s.at.Errorf("the exchange of its group-by is called %s, which is too long for a name; at most %d characters are possible here", name, 128-len(exchangeSuffix))
		}
	}
}

// find resolves a from. Any further use of it is not an error of its own when the named one has mistakes.
func (b *builder) find(from *yamlx.Node) *stream {
	if from == nil {
		return nil
	}
	if from.IsList() {
		from.Errorf("expected the name of one source or step; several are put together by a step of their own: merge: [%s]", strings.Join(namesOf(from.List()), ", "))
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

// namesOf gives the texts of a list as they are, for a message.
func namesOf(list []*yamlx.Node) []string {
	var out []string
	for _, n := range list {
		if n.IsScalar() {
			out = append(out, strings.Trim(n.Shown(), `"`))
		}
	}
	return out
}

// resolve connects steps and sinks to what they read, and reports cycles.
func (b *builder) resolve() {
	for _, s := range b.steps {
		s.rooted = len(s.from) > 0
		for _, from := range s.from {
			p := b.find(from)
			switch {
			case p == nil:
				s.rooted = false
			case slices.Contains(s.parents, p):
				from.Errorf("%s is in the list already", from.Shown())
			default:
				s.parents = append(s.parents, p)
			}
		}
	}
	for _, s := range b.sinks {
		s.parent = b.find(s.from)
	}
	for _, s := range b.sources {
		s.rooted, s.state = true, resolved
	}
	for _, s := range b.steps {
		b.findRoots(s, nil)
	}
}

// findRoots walks up to the sources. A step that is met again on the way closes a cycle. way are the steps from the first
// one to the one before s.
func (b *builder) findRoots(s *stream, way []*stream) {
	switch s.state {
	case resolved:
		return
	case underway:
		names := []string{s.name}
		for i := len(way) - 1; i >= 0; i-- {
			names = append(names, way[i].name)
			if way[i] == s {
				break
			}
		}
		s.reads().Errorf("the steps form a cycle: %s; write through a topic instead", strings.Join(names, " -> "))
		s.rooted = false
		return
	}
	s.state = underway
	way = append(way, s)
	for _, p := range s.parents {
		b.findRoots(p, way)
		s.rooted = s.rooted && p.rooted
	}
	s.state = resolved
}

// reads is where the file says what a step reads.
func (s *stream) reads() *yamlx.Node {
	if s.step.kind == "merge" {
		return s.step.body
	}
	return s.from[0]
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

// inOrder gives the steps whose every way up ends at a source, parents before children, otherwise as in the file.
func inOrder(steps []*stream) []*stream {
	var out []*stream
	done := map[*stream]bool{}
	var visit func(s *stream)
	visit = func(s *stream) {
		if s.step == nil || !s.rooted || done[s] {
			return
		}
		done[s] = true
		for _, p := range s.parents {
			visit(p)
		}
		out = append(out, s)
	}
	for _, s := range steps {
		visit(s)
	}
	return out
}

// shareShapes gives every source of JSON the shape of its rows. Sources whose rows come together in a merge get one, so
// that expressions behind it find fields in the same place whatever source a row is of. steps are in order.
func (b *builder) shareShapes(steps []*stream) {
	origins := map[*stream][]*stream{} // of the rows that a stream passes on as they are
	for _, s := range b.sources {
		if s.source.ok && s.source.value.name == "json" {
			s.shape = &shape{source: true}
			origins[s] = []*stream{s}
		}
	}
	for _, s := range steps {
		if s.step.kind == "map" || s.step.kind == "aggregate" {
			continue
		}
		for _, p := range s.parents {
			origins[s] = append(origins[s], origins[p]...)
		}
		for _, other := range origins[s] {
			first, was := origins[s][0].shape, other.shape
			for _, src := range b.sources {
				if src.shape == was {
					src.shape = first
				}
			}
		}
		slices.SortFunc(origins[s], func(x, y *stream) int { return strings.Compare(x.name, y.name) })
		origins[s] = slices.Compact(origins[s])
	}
}
