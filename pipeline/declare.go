package pipeline

import (
	"slices"
	"strings"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/topology"
)

// Keys that are known and not built yet. They get a message of their own, so that nobody looks for a slip.
var (
	laterSourceKeys = []string{"timestamp", "watermark", "alignment", "partitions"}
	laterStepKeys   = []string{"window", "join", "flat-map", "on-error", "ttl", "late", "iterate"}
	laterSinkKeys   = []string{"headers", "partition-by", "on-error", "timestamp"}
)

func later(keys []string) func(string) string {
	return func(key string) string {
		if slices.Contains(keys, key) {
			return "not available yet; leave it out"
		}
		return ""
	}
}

func (b *builder) readSources(section *yamlx.Node) {
	for _, e := range section.Entries() {
		checkName(e)
		o := e.Value.Object(later(laterSourceKeys), "topic", "topics", "pattern", "key", "value", "key-schema", "value-schema", "on-error", "start", "end", "on-missing")
		d := &sourceDecl{}
		var readOK, keyOK, valueOK bool
		d.inputs, readOK = b.readInputs(e, o)
		d.key, keyOK = readFormat(o, "key", b.baseDir)
		d.value, valueOK = readFormat(o, "value", b.baseDir)
		d.ok = readOK && keyOK && valueOK
		d.bounded = o.Get("end") != nil && !o.Get("end").Is("none")
		d.options = slices.Concat(readOnError(o.Get("on-error")), readStart(o.Get("start")), readEnd(o.Get("end")), readOnMissing(o.Get("on-missing")))
		s := &stream{name: e.Name, at: e.Key, source: d}
		b.sources = append(b.sources, s)
		b.declare(s)
	}
}

// readOnError reads what happens to records that cannot be decoded, or that a step or sink behind the source cannot
// process.
func readOnError(n *yamlx.Node) []topology.SourceOption {
	if n == nil {
		return nil
	}
	if n.Is("dlq") {
		n.Errorf("dlq is not available yet; allowed: fail, skip")
		return nil
	}
	if v, ok := n.Enum("fail", "skip"); ok && v == "skip" {
		return []topology.SourceOption{topology.OnDecodeError(topology.Skip), topology.OnError(topology.Skip)}
	}
	return nil
}

// stepKinds are what a step can do. A group-by may stand beside an aggregate, too.
var stepKinds = []string{"filter", "map", "aggregate", "group-by", "merge", "rebalance", "broadcast"}

func (b *builder) readSteps(section *yamlx.Node) {
	for _, e := range section.Entries() {
		checkName(e)
		o := e.Value.Object(later(laterStepKeys), append(append([]string{"from"}, stepKinds...), exchangeKeys...)...)
		s := &stream{name: e.Name, at: e.Key, step: &stepDecl{}}
		kinds := o.Has(stepKinds...)
		if len(kinds) > 1 {
			kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "group-by" })
		}
		switch {
		case len(kinds) == 1:
			s.step.kind, s.step.body = kinds[0], o.Get(kinds[0])
		case len(kinds) > 1:
			e.Key.Errorf("has %s; a step does one thing, make it %d steps", strings.Join(kinds, " and "), len(kinds))
		case e.Value.IsMapping():
			e.Key.Errorf("does nothing; a step has one of: %s", strings.Join(stepKinds, ", "))
		}
		s.from = readFrom(o, s.step)
		b.readExchange(o, s)
		b.steps = append(b.steps, s)
		b.declare(s)
	}
}

// readFrom gives what a step reads: from, or for a merge what it lists.
func readFrom(o *yamlx.Object, d *stepDecl) []*yamlx.Node {
	if d.kind != "merge" {
		if from := o.Require("from"); from != nil {
			return []*yamlx.Node{from}
		}
		return nil
	}
	if from := o.Get("from"); from != nil {
		from.Errorf("a merge reads what it lists; leave from out")
	}
	list := d.body.List()
	if d.body.IsList() && len(list) < 2 {
		d.body.Errorf("a merge needs two sources or steps at least")
	}
	return list
}

func (b *builder) readSinks(section *yamlx.Node) {
	for _, e := range section.Entries() {
		checkName(e)
		o := e.Value.Object(later(laterSinkKeys), "from", "topic", "key", "value", "key-schema", "value-schema", "loop")
		s := &sinkDecl{name: e.Name, at: e.Key, from: o.Require("from"), topic: b.topic(o), keyNode: o.Get("key"), valueNode: o.Get("value")}
		s.key, s.keyOK = readFormat(o, "key", b.baseDir)
		s.value, s.valOK = readFormat(o, "value", b.baseDir)
		if s.loopNode = o.Get("loop"); s.loopNode != nil {
			s.loop, _ = s.loopNode.Bool()
		}
		b.sinks = append(b.sinks, s)
	}
}
