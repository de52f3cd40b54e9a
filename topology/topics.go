package topology

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
)

// patternMax bounds the text of a pattern.
const patternMax = 1024

// FromTopics reads several topics as one stream. There is a source for each of them, named <name>.<topic>, also when the
// list has one topic, so that it may grow; name is that of the merge behind them. Records of one topic's partition keep
// their order, between others there is none. Keyed state behind it needs a GroupBy, as behind every merge: a key may be in
// several of the topics.
func FromTopics[K, V any](b *Builder, name string, topics []string, k serde.Serde[K], v serde.Serde[V], opts ...SourceOption) Stream[K, V] {
	if len(topics) == 0 {
		b.problem(kindSource, name, "no topic is named")
		return Stream[K, V]{}
	}
	streams := make([]Stream[K, V], len(topics))
	for i, topic := range topics {
		streams[i] = FromTopic(b, TopicSource(name, topic), topic, k, v, opts...)
	}
	return Merge(name, streams[0], streams[1:]...)
}

// FromPattern is FromTopics with all topics whose whole name matches a regular expression when the application starts
// (Plan.Resolve); one that comes later is taken in at the next start, from the start position that the source names.
// Topics that the application writes, or reads by another source, never match, nor do internal ones. There must be one
// at least.
func FromPattern[K, V any](b *Builder, name, pattern string, k serde.Serde[K], v serde.Serde[V], opts ...SourceOption) Stream[K, V] {
	n := newSource(b, name, k, v, opts)
	n.pattern = pattern
	n.asMerge = newMergeOp[K, V]
	return Stream[K, V]{b: b, n: n}
}

// TopicSource gives the name of the source that FromTopics or FromPattern make of one topic.
func TopicSource(name, topic string) string { return name + "." + topic }

// unresolved says that the topics of a source are not known yet.
func (n *node) unresolved() bool { return n.kind == kindSource && n.pattern != "" && n.topic == "" }

// reads says what a source reads.
func (n *node) reads() string {
	if n.unresolved() {
		return "/" + n.pattern + "/"
	}
	return n.topic
}

// CheckPattern gives what is wrong with a pattern of FromPattern, nil when nothing is.
func CheckPattern(pattern string) error {
	_, err := compilePattern(pattern)
	return err
}

func compilePattern(pattern string) (*regexp.Regexp, error) {
	if len(pattern) > patternMax {
		return nil, fmt.Errorf("it has %d bytes, at most %d are allowed", len(pattern), patternMax)
	}
	if _, err := regexp.Compile(pattern); err != nil { // alone, else a bracket too many would go unnoticed
		return nil, err
	}
	return regexp.Compile(`^(?:` + pattern + `)$`)
}

// HasPattern says that some source reads the topics that match a pattern and is not resolved: such a plan cannot run.
func (p *Plan) HasPattern() bool { return p.pending != nil }

// Match gives the topics that each unresolved source reads, of those that there are, by the source's name. internal topics
// are to be left out by the caller; those whose names begin with two underscores are here. besides are further ones that the
// application has for itself.
func (p *Plan) Match(topics []string, besides ...string) map[string][]string {
	taken := map[string]bool{}
	for _, t := range besides {
		taken[t] = true
	}
	for _, s := range p.Sinks {
		taken[s.Topic] = true
	}
	for _, s := range p.Sources {
		taken[s.Topic] = true
	}
	out := map[string][]string{}
	for _, s := range p.Sources {
		if s.Pattern == "" || s.Topic != "" {
			continue
		}
		re, err := compilePattern(s.Pattern)
		for _, t := range topics {
			if err == nil && !taken[t] && !strings.HasPrefix(t, "__") && re.MatchString(t) {
				out[s.Name] = append(out[s.Name], t)
			}
		}
		slices.Sort(out[s.Name])
		out[s.Name] = slices.Compact(out[s.Name])
	}
	return out
}

// Resolve gives the plan with each source that has a pattern replaced by one per topic, of those that are named for it.
// It is for what Match gives. A plan without patterns is given as it is.
func (p *Plan) Resolve(topics map[string][]string) (*Plan, error) {
	if !p.HasPattern() {
		return p, nil
	}
	b := p.pending.twin()
	for _, n := range slices.Clone(b.sources) {
		if !n.unresolved() {
			continue
		}
		if len(topics[n.name]) == 0 {
			return nil, fault.Stopf(fault.UnknownTopic, "source %s: no topic matches %q: create one, or correct the pattern (it must match the whole name; output topics, topics of other sources and internal ones do not count)", n.name, n.pattern)
		}
		b.expand(n, topics[n.name])
	}
	return b.Plan()
}

// twin copies a builder with its graph.
func (b *Builder) twin() *Builder {
	c := &Builder{application: b.application, nodes: b.clone()}
	for _, n := range c.nodes {
		if n.kind == kindSource {
			c.sources = append(c.sources, n)
		}
	}
	return c
}

// expand makes a merge of a source, behind one source per topic.
func (b *Builder) expand(n *node, topics []string) {
	var sources []*node
	for _, topic := range topics {
		s := *n
		s.name, s.topic, s.kids = TopicSource(n.name, topic), topic, []*node{n}
		s.root = &s
		sources = append(sources, &s)
	}
	n.kind, n.compile, n.parents = kindMerge, n.asMerge, sources
	n.sourceConfig, n.pattern = sourceConfig{}, ""
	for _, other := range b.nodes {
		if other.root == n {
			other.root = sources[0]
		}
	}
	replace := func(list []*node, with ...*node) []*node {
		i := slices.Index(list, n)
		return slices.Replace(slices.Clone(list), i, i+1, with...)
	}
	b.sources = replace(b.sources, sources...)
	b.nodes = replace(b.nodes, append(slices.Clone(sources), n)...)
}

// checkPatterns wants patterns that can be used, and no keyed state behind one: a key may be in several topics, if not
// today then when another one matches.
func (b *Builder) checkPatterns(reach map[*node][]*node, note noteFunc) {
	for _, n := range b.sources {
		if !n.unresolved() {
			continue
		}
		if _, err := compilePattern(n.pattern); err != nil {
			note(n.kind, n.name, "pattern %q: %v", n.pattern, err)
		}
	}
	for _, n := range b.nodes {
		if len(n.states) == 0 {
			continue
		}
		patterns := map[string]bool{}
		for _, root := range reach[n] {
			if root.pattern != "" {
				patterns[root.pattern] = true
			}
		}
		for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
			note(n.kind, n.name, "it keeps state by key directly behind a source of all topics that match %q: a key may be in several of them; put a group-by between", pattern)
		}
	}
}
