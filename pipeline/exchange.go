package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// exchangeSuffix makes the name of the exchange in front of an aggregate of that of the step. Checkpoints know the
// exchange by its name, so the suffix is never changed.
const exchangeSuffix = "-by"

// exchangeKeys belong to steps that give records to other tasks.
var exchangeKeys = []string{"exchange", "parallelism", "key", "key-schema"}

// exchangeDecl is what a step says of an exchange.
type exchangeDecl struct {
	// exchangeName is that of the exchange in front of the step's aggregate; empty when there is none.
	exchangeName string
	groupBy      *yamlx.Node
	parallelism  int
	// newKey is the format of the new key, without a name when the key stays as it is.
	newKey  format
	keyNode *yamlx.Node // where messages about it belong
}

// readExchange reads group-by, rebalance and broadcast with what belongs to them.
func (b *builder) readExchange(o *yamlx.Object, s *stream) {
	d := s.step
	d.groupBy = o.Get("group-by")
	switch kind := o.Get("exchange"); {
	case d.groupBy != nil && d.kind != "" && d.kind != "aggregate" && d.kind != "group-by":
		d.groupBy.Errorf("group-by stands alone or with an aggregate, but this step has %s", d.kind)
	case d.groupBy != nil && kind == nil && d.groupBy.Is("key"):
		// The records of a key are together already.
		if d.kind == "group-by" {
			d.groupBy.Errorf("the records have that key already; with exchange: local beside it they are spread by it anew, else leave the step out")
		}
		refuse(o, "belongs to an exchange, but group-by: key needs none; write exchange: local beside it, or leave it out", "parallelism", "key", "key-schema")
	case d.groupBy != nil:
		b.readGroupBy(o, s, kind)
	case d.kind == "rebalance" || d.kind == "broadcast":
		readWhere(d.body)
		readParallelism(o, d)
		refuse(o, "belongs to group-by; "+d.kind+" says itself where it happens, and keeps the key", "exchange", "key", "key-schema")
	default:
		refuse(o, "belongs to group-by; this step has none", "exchange", "key", "key-schema")
		refuse(o, "belongs to group-by, rebalance and broadcast; other steps run in the tasks of what they read", "parallelism")
	}
}

// refuse notes a mistake at each of the keys that is there.
func refuse(o *yamlx.Object, why string, keys ...string) {
	for _, k := range o.Has(keys...) {
		o.Get(k).Errorf("%s", why)
	}
}

// readGroupBy reads a group-by with an exchange.
func (b *builder) readGroupBy(o *yamlx.Object, s *stream, kind *yamlx.Node) {
	d := s.step
	if kind != nil {
		readWhere(kind)
	} else if _, ok := d.groupBy.Text(); ok {
		d.groupBy.Errorf("a new key needs an exchange: write exchange: local beside it; through a topic, which will be the default, is not available yet")
	}
	readParallelism(o, d)
	d.keyNode = d.groupBy
	switch key := o.Get("key"); {
	case key != nil:
		d.keyNode = key
		d.newKey, _ = readFormat(o, "key", b.baseDir)
	case o.Get("key-schema") != nil:
		o.Get("key-schema").Errorf("a schema belongs to the format avro; write key: avro beside it")
	case !d.groupBy.Is("key"):
		d.newKey, _ = plainFormat("string")
	}
	if d.kind == "aggregate" {
		d.exchangeName = s.name + exchangeSuffix
	}
}

// readWhere reads where an exchange happens.
func readWhere(n *yamlx.Node) {
	if n.Is("topic") {
		n.Errorf("an exchange through a topic is not available yet; allowed: local")
		return
	}
	n.Enum("local")
}

func readParallelism(o *yamlx.Object, d *stepDecl) {
	if n := o.Get("parallelism"); n != nil {
		p, _ := n.Int(1, element.DefaultMaxParallelism) // the number of key groups; there is no setting for it
		d.parallelism = int(p)
	}
}

// buildExchange adds the exchange of a step under a name, and gives what comes out of it.
func (b *builder) buildExchange(s *stream, name string, in flow) flow {
	d := s.step
	out := in
	out.stages, out.out = []*stream{s}, topology.Stream[wireKey, any]{}
	var values serde.Serde[any] = flightValue{}
	if in.raw != nil {
		values = in.raw
	}
	parallel := topology.Parallelism(d.parallelism)
	switch d.kind {
	case "rebalance":
		out.out = topology.Rebalance(in.out, name, sourceKey{in.key}, values, parallel)
		return out
	case "broadcast":
		out.out = topology.Broadcast(in.out, name, sourceKey{in.key}, values, parallel)
		return out
	}
	e := compileNode(d.groupBy, in.environment())
	if d.newKey.name != "" {
		out.key, out.keyOf = d.newKey, s
	}
	if e == nil || out.key.codec == nil {
		out.sound = false
		return out
	}
	if kind := kindOfResult(e); d.newKey.name != "" && !out.key.accepts(kind) {
		d.keyNode.Errorf("format %s cannot hold %s, which is what %s gives; write key: with another format, or convert it", out.key.name, kind, d.groupBy.Shown())
	}
	key := newKeyer(e, d.newKey)
	out.out = topology.GroupByRec(in.out, name, sourceKey{out.key}, values, key.key, parallel)
	return out
}

// checkKeyed wants all records of a key in one place, in front of a step with state. Package topology checks it, too; here
// is known what to write.
func (b *builder) checkKeyed(s *stream, in flow) {
	if len(in.stages) > 1 {
		var from []string
		for _, at := range in.stages {
			from = append(from, at.title())
		}
		s.at.Errorf("keeps state by key behind a merge of %s, in each of which a key may be; write group-by: key and exchange: local", strings.Join(from, ", "))
		return
	}
	if at := in.stages[0]; at.manyTopics() {
		s.at.Errorf("keeps state by key behind source %s of several topics, in each of which a key may be; write group-by: key and exchange: local", at.name)
	} else if at.step != nil && (at.step.kind == "rebalance" || at.step.kind == "broadcast") {
		s.at.Errorf("keeps state by key behind %s %s, which gives a key to several tasks; write group-by: key and exchange: local", at.step.kind, at.name)
	}
}

// buildMerge puts streams together. What their values have in common is known of all.
func (b *builder) buildMerge(s *stream) {
	first := s.parents[0]
	s.flow = first.flow
	s.stages, s.out = nil, topology.Stream[wireKey, any]{}
	var outs []topology.Stream[wireKey, any]
	for _, p := range s.parents {
		s.join(p.flow)
		outs = append(outs, p.out)
	}
	if s.sound {
		for _, p := range s.parents[1:] {
			if p.key.codec.Name() != s.key.codec.Name() {
				s.step.body.Errorf("the keys differ: %s has %s, %s has %s; give one of them the other's with group-by and key: before", first.name, first.key.name, p.name, p.key.name)
			}
		}
	}
	if s.shape == nil {
		for _, p := range s.parents {
			p.shape.needWhole()
		}
	}
	s.out = topology.Merge(s.name, outs[0], outs[1:]...)
}

// join leaves in f what also holds for in.
func (f *flow) join(in flow) {
	f.sound = f.sound && in.sound
	for _, at := range in.stages {
		if !slices.Contains(f.stages, at) {
			f.stages = append(f.stages, at)
		}
	}
	if f.raw == nil || in.raw == nil || f.raw.Name() != in.raw.Name() {
		f.raw = nil
	}
	if f.kind != in.kind {
		f.kind = unknownKind
	}
	if !slices.Equal(f.fields, in.fields) {
		f.fields = nil
	}
	if f.shape != in.shape {
		f.shape = nil
	}
}

// keyer gives records their new key.
type keyer struct {
	e      *expression
	format format // without a name when the key stays as it is
	// tombstones says that they have a key, too: the expression does not need their value, or asks about them.
	tombstones bool
	rooms      sync.Pool // of *keyRoom
}

func newKeyer(e *expression, f format) *keyer {
	k := &keyer{e: e, format: f, tombstones: e.names["tombstone"] || !e.names["value"]}
	k.rooms.New = func() any { return new(keyRoom) }
	return k
}

// key implements the function of topology.GroupByRec.
func (k *keyer) key(r *record) (key wireKey, null bool, err error) {
	if r.Tombstone && !k.tombstones {
		return nil, false, topology.ErrTombstone
	}
	if k.format.name == "" {
		return r.Key, r.RawKey == nil, nil
	}
	room := k.rooms.Get().(*keyRoom)
	defer k.rooms.Put(room)
	defer room.forget()
	if err := k.e.evalInto(r, &room.value); err != nil {
		return nil, false, topology.Permanent(err)
	}
	if kind := room.value.Kind(); kind == json.KindNull || kind == json.KindMissing {
		return nil, true, nil
	}
	b, err := k.append(room.begin(), &room.value)
	if err != nil {
		return nil, false, topology.Permanent(fmt.Errorf("%s: encode key as %s: %w", k.e.source, k.format.name, err))
	}
	return room.end(b), false, nil
}

func (k *keyer) append(dst []byte, v *json.Value) ([]byte, error) {
	if k.format.name == "string" && v.Kind() == json.KindText {
		return append(dst, v.Text()...), nil
	}
	return k.format.codec.Append(dst, v.Any())
}

// keyRoom is memory for keys, taken in pieces: a key is never written again.
type keyRoom struct {
	piece []byte
	value json.Value // of the expression, during a call
}

func (r *keyRoom) forget() { r.value = json.Value{} }

// The size of a piece, and what must be left of it for another key to begin there.
const (
	keyPiece = 16 << 10
	keyLeft  = 64
)

// begin gives an empty slice to append a key to.
func (r *keyRoom) begin() []byte {
	if cap(r.piece)-len(r.piece) < keyLeft {
		r.piece = make([]byte, 0, keyPiece)
	}
	return r.piece[len(r.piece):]
}

// end keeps what was appended. A key that did not fit has memory of its own by then.
func (r *keyRoom) end(b []byte) []byte {
	if len(b) <= cap(r.piece)-len(r.piece) {
		r.piece = r.piece[:len(r.piece)+len(b)]
	}
	return slices.Clip(b)
}
