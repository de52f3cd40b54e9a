package pipeline

import (
	"errors"
	"slices"

	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
)

// maxSlots bounds the fields that are picked out of a source's values; with more, values are decoded as a whole.
const maxSlots = 64

// shape lists the fields of a stream's objects. Rows of the shape hold them by their place in that list.
//
// The shape of an aggregate or map has all fields, sorted. The shape of a source has those that the expressions behind it
// name; it grows while they are compiled and is not changed later.
type shape struct {
	names []string
	// keys are the names in JSON with their quotes, the brace or comma before and the colon behind. Only a complete
	// shape has them.
	keys []string
	// source says that rows hold a part of the fields only.
	source bool
	// whole says that something needs more than rows of a source hold: there are none then.
	whole bool
}

// completeShape gives the shape of objects with exactly these fields.
func completeShape(names []string) (*shape, error) {
	s := &shape{names: slices.Sorted(slices.Values(names))}
	before := byte('{')
	for _, n := range s.names {
		v := json.TextValue(n)
		b, err := json.AppendValue([]byte{before}, &v)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, string(append(b, ':')))
		before = ','
	}
	return s, nil
}

// slot gives the place of a field, -1 when the objects have no such field.
func (s *shape) slot(name string) int {
	i := slices.Index(s.names, name)
	if i >= 0 || !s.source {
		return i
	}
	if len(s.names) == maxSlots {
		s.needWhole()
		return -1
	}
	s.names = append(s.names, name)
	return len(s.names) - 1
}

// needWhole says that whole values are needed.
func (s *shape) needWhole() {
	if s != nil && s.source {
		s.whole = true
	}
}

// row is an object of a known shape. It is a value in streams only: an expression sees it as a map.
type row struct {
	shape  *shape
	fields []json.Value
}

// newRow makes row and fields in one piece.
func newRow(s *shape) *row {
	switch n := len(s.names); {
	case n <= 2:
		r := &struct {
			row
			room [2]json.Value
		}{}
		r.row = row{s, r.room[:n:n]}
		return &r.row
	case n <= 4:
		r := &struct {
			row
			room [4]json.Value
		}{}
		r.row = row{s, r.room[:n:n]}
		return &r.row
	case n <= 8:
		r := &struct {
			row
			room [8]json.Value
		}{}
		r.row = row{s, r.room[:n:n]}
		return &r.row
	default:
		return &row{s, make([]json.Value, n)}
	}
}

// object gives the row as a map of its own.
func (r *row) object() map[string]any {
	m := make(map[string]any, len(r.fields))
	for i := range r.fields {
		if r.fields[i].Kind() != json.KindMissing {
			m[r.shape.names[i]] = r.fields[i].Any()
		}
	}
	return m
}

// sourceValue is the codec of a source's values in JSON. It decodes the fields that are named, unless all are needed. The
// rest of a value is checked all the same, so what is no JSON is found.
type sourceValue struct {
	serde.Serde[any]
	shape  *shape
	fields *json.Fields // set when the shape is complete; nil means to decode whole values
}

// seal ends the growth of the shape.
func (s *sourceValue) seal() {
	if !s.shape.whole {
		s.fields = json.NewFields(s.shape.names...)
	}
}

func (s *sourceValue) Decode(b []byte) (any, error) {
	if s.fields == nil {
		return s.Serde.Decode(b)
	}
	r := newRow(s.shape)
	object, err := s.fields.Decode(b, r.fields)
	switch {
	case err != nil:
		return nil, err
	case !object:
		return s.Serde.Decode(b)
	}
	return r, nil
}

var errPartOfValue = errors.New("only a part of the value was decoded")

// sinkValue is the codec of a sink's values. It takes rows too.
type sinkValue struct{ format }

func (s sinkValue) Name() string { return s.codec.Name() }

func (s sinkValue) Decode(b []byte) (any, error) { return s.codec.Decode(b) }

func (s sinkValue) Append(dst []byte, v any) ([]byte, error) {
	r, ok := v.(*row)
	switch {
	case !ok:
		return s.codec.Append(dst, v)
	case r.shape.source:
		return dst, errPartOfValue // the bytes of the record pass, or the shape is whole: see builder.buildSink
	case s.name == "json":
		return r.appendJSON(dst)
	}
	return s.codec.Append(dst, r.object())
}

// appendJSON writes what package json writes for the same object as a map.
func (r *row) appendJSON(dst []byte) ([]byte, error) {
	out, err := dst, error(nil)
	for i := range r.fields {
		out = append(out, r.shape.keys[i]...)
		if out, err = json.AppendValue(out, &r.fields[i]); err != nil {
			return dst, err
		}
	}
	return append(out, '}'), nil
}
