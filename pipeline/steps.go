package pipeline

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

func (b *builder) buildSource(t *topology.Builder, s *stream) {
	d := s.source
	s.stages, s.keyOf, s.key = []*stream{s}, s, d.key
	if !d.ok {
		return
	}
	s.sound, s.kind = true, d.value.kind()
	s.raw = d.value.codec
	if s.shape != nil {
		d.picked = &sourceValue{Serde: s.raw, shape: s.shape}
		s.raw = d.picked
	}
	var topics []string
	for _, n := range d.topics {
		topic, _ := n.Text()
		topics = append(topics, topic)
	}
	switch key := (sourceKey{d.key}); {
	case d.pattern != nil:
		pattern, _ := d.pattern.Text()
		s.out = topology.FromPattern(t, s.name, pattern, key, s.raw, d.options...)
	case d.several:
		s.out = topology.FromTopics(t, s.name, topics, key, s.raw, d.options...)
	default:
		s.out = topology.FromTopic(t, s.name, topics[0], key, s.raw, d.options...)
	}
}

func (b *builder) buildStep(s *stream) {
	in := s.parents[0].flow
	if s.step.exchangeName != "" {
		in = b.buildExchange(s, s.step.exchangeName, in)
	}
	s.flow = flow{sound: in.sound, stages: in.stages, key: in.key, keyOf: in.keyOf}
	switch s.step.kind {
	case "filter":
		s.flow = in
		s.out = topology.Stream[wireKey, any]{}
		if e := compileNode(s.step.body, in.environment()); e != nil {
			b.buildFilter(s, in, e)
		}
	case "map":
		b.buildMap(s, in)
	case "aggregate":
		b.checkKeyed(s, in)
		b.buildAggregate(s, in)
	case "merge":
		b.buildMerge(s)
	case "group-by", "rebalance", "broadcast":
		s.flow = b.buildExchange(s, s.name, in)
	}
}

// environment is what expressions on the records can name.
func (f flow) environment() environment {
	return environment{value: f.kind, key: f.key.codec, shape: f.shape}
}

// compileNode compiles the expression at a place in the file; nil when it has a mistake, which is noted.
func compileNode(n *yamlx.Node, in environment) *expression {
	text, ok := n.Text()
	if !ok {
		return nil
	}
	e, err := compile(text, in)
	if err != nil {
		noteExpression(n, err)
		return nil
	}
	return e
}

func noteExpression(n *yamlx.Node, err error) { n.Errorf("%v, in %s", err, n.Shown()) }

// buildFilter keeps the records for which the expression is true. A tombstone passes untouched, as in package topology,
// unless the expression asks about tombstones.
func (b *builder) buildFilter(s *stream, in flow, e *expression) {
	if e.result != reflect.Interface && e.result != reflect.Bool {
		s.step.body.Errorf("a filter is true or false, but the expression gives %s", kindOfResult(e))
		return
	}
	asks := e.names["tombstone"]
	s.out = topology.FilterRec(in.out, s.name, func(r *record) (bool, error) {
		if r.Tombstone && !asks {
			return true, nil
		}
		var v json.Value
		if err := e.evalInto(r, &v); err != nil {
			return false, topology.Permanent(err)
		}
		if v.Kind() != json.KindBool {
			return false, topology.Permanent(fmt.Errorf("%s: a filter is true or false, but the expression gives %s", e.source, describe(v.Any())))
		}
		return v.Bool(), nil
	})
}

// buildMap reads map: EXPRESSION or map: {field: EXPRESSION, …}.
func (b *builder) buildMap(s *stream, in flow) {
	if !s.step.body.IsMapping() {
		if s.step.body.IsList() {
			s.step.body.Errorf("expected an expression, or a mapping of fields to expressions, found a list")
			return
		}
		if e := compileNode(s.step.body, in.environment()); e != nil {
			s.kind = kindOfResult(e)
			b.mapTo(s, in, e.names["tombstone"], e.eval)
		}
		return
	}
	b.buildMapOfFields(s, in)
}

// mapField is one output field of a map.
type mapField struct {
	name string
	slot int
	e    *expression
}

func (b *builder) buildMapOfFields(s *stream, in flow) {
	s.kind = objectKind
	entries := s.step.body.Entries()
	s.fields = checkFields(s.step.body, entries, checkMapField)
	shape, ok := shapeOfFields(s)
	var fields []mapField
	asks := false
	for _, entry := range entries {
		if e := compileNode(entry.Value, in.environment()); e != nil {
			fields = append(fields, mapField{name: entry.Name, e: e})
			asks = asks || e.names["tombstone"]
		}
	}
	if len(fields) < len(entries) || !ok {
		return
	}
	s.shape = shape
	for i := range fields {
		fields[i].slot = shape.slot(fields[i].name)
	}
	b.mapTo(s, in, asks, func(r *record) (any, error) {
		out := newRow(shape)
		for i := range fields {
			f := &fields[i]
			if err := f.e.evalInto(r, &out.fields[f.slot]); err != nil {
				return nil, fmt.Errorf("field %s: %w", f.name, err)
			}
		}
		return out, nil
	})
}

// shapeOfFields gives the shape of the objects that a step makes.
func shapeOfFields(s *stream) (*shape, bool) {
	shape, err := completeShape(s.fields)
	if err != nil {
		s.step.body.Errorf("%v", err)
		return nil, false
	}
	return shape, true
}

// mapTo adds the step. A result of nil makes the record a tombstone, as in Kafka Streams. A tombstone passes untouched
// unless an expression asks about tombstones.
func (b *builder) mapTo(s *stream, in flow, asks bool, eval func(*record) (any, error)) {
	s.out = topology.MapRec(in.out, s.name, func(in, out *record) error {
		if in.Tombstone && !asks {
			out.Tombstone = true
			return nil
		}
		v, err := eval(in)
		if err != nil {
			return topology.Permanent(err)
		}
		out.Value, out.Tombstone = v, v == nil
		return nil
	})
}

// buildAggregate reads aggregate: {field: FUNCTION(EXPRESSION), …}.
func (b *builder) buildAggregate(s *stream, in flow) {
	s.kind = objectKind
	entries := s.step.body.Entries()
	s.fields = checkFields(s.step.body, entries, checkAggregateField)
	shape, ok := shapeOfFields(s)
	a := &aggregate{shape: shape}
	for _, entry := range entries {
		text, ok := entry.Value.Text()
		if !ok {
			continue
		}
		f, err := parseAggregate(entry.Name, text, in.environment())
		if err != nil {
			noteExpression(entry.Value, err)
			continue
		}
		a.tombstones = a.tombstones || f.arg != nil && f.arg.names["tombstone"]
		a.fields = append(a.fields, f)
	}
	if len(a.fields) < len(entries) || !ok {
		return
	}
	s.shape = shape
	slices.SortFunc(a.fields, func(x, y aggField) int { return strings.Compare(x.name, y.name) })
	s.out = topology.AggregateEncoded(in.out, s.name, a.encoded())
}

// checkFields wants at least one output field and names that check accepts, and gives the names.
func checkFields(n *yamlx.Node, entries []yamlx.Entry, check func(string) string) []string {
	if n.IsMapping() && (len(entries) == 0 || len(entries) > maxFields) {
		n.Errorf("has %d fields; from 1 to %d are possible", len(entries), maxFields)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
		if mistake := check(e.Name); mistake != "" {
			e.Key.Errorf("%s", mistake)
		}
	}
	return names
}

// checkAggregateField wants names that can be listed in the id of the state's codec.
func checkAggregateField(name string) string {
	if !namePattern.MatchString(name) {
		return "not a field of an aggregate: 1 to 128 letters, digits, dots, underscores or hyphens"
	}
	return ""
}

func checkMapField(name string) string {
	if len(name) > 128 || strings.ContainsFunc(name, unicode.IsControl) {
		return "not a field: at most 128 bytes without control characters"
	}
	return ""
}

func (b *builder) buildSink(s *sinkDecl) {
	if s.parent == nil || s.topic == nil || !s.keyOK || !s.valOK || !s.parent.rooted || !s.parent.sound {
		return
	}
	from := s.parent.key
	if !s.key.accepts(from.kind()) {
		s.keyNode.Errorf("format %s cannot hold the key of %s, which is %s", s.key.name, s.parent.keyOf.title(), from.name)
		return
	}
	if !s.value.accepts(s.parent.kind) || s.value.shape != nil && s.parent.kind != unknownKind && s.parent.kind != objectKind {
		s.valueNode.Errorf("format %s cannot hold %s, which is what %s gives", s.value.name, s.parent.kind, s.parent.name)
		return
	}
	if mistake := s.value.shape.mismatch(s.parent.fields); mistake != "" {
		s.valueNode.Errorf("the fields of step %s do not fit the schema: it %s", s.parent.name, mistake)
		return
	}
	if s.parent.raw == nil || s.value.codec.Name() != s.parent.raw.Name() {
		s.parent.shape.needWhole() // otherwise the bytes of the record pass
	}
	var options []topology.SinkOption
	if s.loop {
		options = append(options, topology.Loop())
	}
	topic, _ := s.topic.Text()
	topology.ToTopic(s.parent.out, s.name, topic, sinkKey{from, s.key}, sinkValue{s.value}, options...)
}

// title says what a stream is, for messages.
func (s *stream) title() string {
	if s.source != nil {
		return "source " + s.name
	}
	return "step " + s.name
}
