package pipeline

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/topology"
)

// readForms are the keys of a source that say what it reads; it has one of them.
var readForms = []string{"topic", "topics", "pattern"}

// inputs is what a source reads, as the file says it.
type inputs struct {
	topics  []*yamlx.Node // of topic and topics
	several bool          // topics: there is a source per topic, also of one
	pattern *yamlx.Node
}

// readInputs reads topic, topics or pattern; ok says that it can be used.
func (b *builder) readInputs(e yamlx.Entry, o *yamlx.Object) (in inputs, ok bool) {
	switch have := o.Has(readForms...); {
	case len(have) == 0 && e.Value.IsMapping():
		e.Key.Errorf("reads nothing; a source has one of: %s", strings.Join(readForms, ", "))
	case len(have) > 1:
		e.Key.Errorf("has %s; a source has one of: %s", strings.Join(have, " and "), strings.Join(readForms, ", "))
	case len(have) == 1 && have[0] == "topics":
		return b.readTopics(e.Name, o.Get("topics"))
	case len(have) == 1 && have[0] == "pattern":
		n := o.Get("pattern")
		pattern, ok := n.Text()
		if !ok {
			return in, false
		}
		if err := topology.CheckPattern(pattern); err != nil {
			n.Errorf("%s is not a pattern for the whole name of a topic: %v", n.Shown(), err)
			return in, false
		}
		return inputs{pattern: n}, true
	case len(have) == 1:
		n := o.Get("topic")
		return inputs{topics: []*yamlx.Node{n}}, b.checkTopic(n)
	}
	return in, false
}

// readTopics reads a list of topics, each of which makes a source of its own.
func (b *builder) readTopics(source string, n *yamlx.Node) (inputs, bool) {
	in := inputs{several: true}
	elements, ok := n.Elements()
	seen := map[string]bool{}
	for _, t := range elements {
		if !b.checkTopic(t) {
			ok = false
			continue
		}
		topic, _ := t.Text()
		name := topology.TopicSource(source, topic)
		switch {
		case seen[topic]:
			t.Errorf("topic %s is in the list already", topic)
			ok = false
			continue
		case namePattern.MatchString(source) && !namePattern.MatchString(name):
			t.Errorf("the source of this topic is called %s, which is too long for a name; at most 128 characters are possible", name)
			ok = false
		}
		seen[topic] = true
		in.topics = append(in.topics, t)
	}
	return in, ok
}

// checkTopic checks the name of a topic.
func (b *builder) checkTopic(n *yamlx.Node) bool {
	t, ok := n.Text()
	switch {
	case !ok:
		return false
	case !topicPattern.MatchString(t) || t == "." || t == "..":
		n.Errorf("%s is not a topic: 1 to 249 letters, digits, dots, underscores or hyphens", n.Shown())
		return false
	case t == b.application+"-checkpoints" || t == b.application+"-control":
		n.Errorf("topic %s belongs to the service itself", n.Shown())
		return false
	}
	return true
}

// topic reads the topic of a sink.
func (b *builder) topic(o *yamlx.Object) *yamlx.Node {
	if n := o.Require("topic"); n != nil && b.checkTopic(n) {
		return n
	}
	return nil
}

// manyTopics says that the stream has a source per topic, so that one key may be in several of them.
func (s *stream) manyTopics() bool {
	return s.source != nil && (s.source.pattern != nil || len(s.source.topics) > 1)
}

// checkTopicNames wants names of their own for the sources of a list of topics.
func (b *builder) checkTopicNames() {
	for _, s := range b.sources {
		for _, t := range s.source.topics {
			topic, _ := t.Text()
			if other := b.streams[topology.TopicSource(s.name, topic)]; s.source.several && other != nil {
				t.Errorf("the source of this topic is called %s, a name that is taken by the one on line %d", other.name, other.at.Pos().Line)
			}
		}
	}
}

// checkTopics wants one source per topic, and no sink that feeds a source of the same service unless that is said to be
// meant. What goes round such a loop must be readable.
func (b *builder) checkTopics() {
	read := map[string]*stream{}
	for _, s := range b.sources {
		for _, n := range s.source.topics {
			topic, _ := n.Text()
			if first := read[topic]; first != nil {
				n.Errorf("topic %s is read by source %s already; several steps can have from: %s", topic, first.name, first.name)
				continue
			}
			read[topic] = s
		}
	}
	for _, s := range b.sinks {
		if s.topic == nil {
			continue
		}
		topic, _ := s.topic.Text()
		src := read[topic]
		switch {
		case src != nil && !s.loop:
			s.topic.Errorf("topic %s is read by source %s of this service: a loop; write loop: true beside it if that is meant", topic, src.name)
		case src == nil && s.loop && slices.ContainsFunc(b.sources, func(s *stream) bool { return s.source.pattern != nil }):
			s.loopNode.Errorf("no source names topic %s, and a pattern never matches what the service writes; name it in a source with topic or topics, or leave loop out", topic)
		case src == nil && s.loop:
			s.loopNode.Errorf("no source reads topic %s; leave loop out", topic)
		case src != nil && src.source.ok && s.keyOK && s.valOK:
			s.checkLoop(src)
		}
	}
}

func (s *sinkDecl) checkLoop(src *stream) {
	if src.source.bounded {
		s.loopNode.Errorf("source %s, which reads the loop, has an end: what goes round would lie behind it", src.name)
	}
	if w, r := s.key, src.source.key; w.codec.Name() != r.codec.Name() {
		s.keyNode.Errorf("source %s, which reads the loop, has key: %s; the sink writes %s", src.name, r.name, w.name)
	}
	if w, r := s.value, src.source.value; w.codec.Name() != r.codec.Name() {
		s.valueNode.Errorf("source %s, which reads the loop, has value: %s; the sink writes %s", src.name, r.name, w.name)
	}
}
