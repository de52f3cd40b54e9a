package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/expr-lang/expr/types"
)

// maxValueDepth bounds the nesting of values.
const maxValueDepth = 64

var errTooDeep = fmt.Errorf("the value is nested deeper than %d levels", maxValueDepth)

// valueKind is what is known of the values of a stream when the file is checked.
type valueKind int

const (
	unknownKind valueKind = iota // may be anything
	textKind
	intKind
	floatKind
	boolKind
	bytesKind
	objectKind
	listKind
)

func (k valueKind) String() string {
	return [...]string{"a value", "a text", "a whole number", "a floating point number", "a boolean", "bytes", "an object", "a list"}[k]
}

// exprType is the type under which expressions see such values.
func (k valueKind) exprType() types.Type {
	switch k {
	case textKind:
		return types.String
	case intKind:
		return types.Int64
	case floatKind:
		return types.Float64
	case boolKind:
		return types.Bool
	case bytesKind:
		return types.TypeOf([]byte(nil))
	case objectKind:
		return types.TypeOf(map[string]any(nil))
	}
	return types.Any
}

// kindOfResult gives what is known of the results of an expression.
func kindOfResult(e *expression) valueKind {
	switch t := e.program.Node().Type(); e.result {
	case reflect.String:
		return textKind
	case reflect.Int, reflect.Int64:
		if t == reflect.TypeFor[time.Duration]() {
			return unknownKind
		}
		return intKind
	case reflect.Float64:
		return floatKind
	case reflect.Bool:
		return boolKind
	case reflect.Map:
		return objectKind
	case reflect.Slice:
		if t == reflect.TypeFor[[]byte]() {
			return bytesKind
		}
		return listKind
	}
	return unknownKind
}

// maxParts bounds the parts of a value that an expression makes, and copiedParts is how many of them one that has to be
// copied counts for. An expression can put one list into another twice, and that again, so that a few bytes of source
// stand for any number of parts.
const (
	maxParts    = 1 << 24
	copiedParts = 8
)

var errTooManyParts = errors.New("the value has too many parts")

// normalise gives the value in the types that formats and aggregates know. It copies only where something changes, so
// what came out of a record unchanged is shared with it.
func normalise(v any) (any, error) {
	n := normaliser{left: maxParts}
	return n.value(v, 0)
}

// normaliser counts what is left of maxParts.
type normaliser struct{ left int }

func (p *normaliser) value(v any, depth int) (any, error) {
	if depth > maxValueDepth {
		return nil, errTooDeep
	}
	if p.left--; p.left < 0 {
		return nil, errTooManyParts
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte, json.Number:
		return v, nil
	case int:
		return int64(v), nil
	case map[string]any:
		return p.object(v, depth)
	case []any:
		return p.list(v, depth)
	case time.Duration:
		return nil, errors.New("a duration is no value of a record; write duration(…).Milliseconds()")
	}
	return p.other(v, depth)
}

// other handles the narrow numbers and the typed lists that functions of the language give.
func (p *normaliser) other(v any, depth int) (any, error) {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32:
		return r.Int(), nil
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(r.Uint()), nil
	case reflect.Float32:
		return r.Float(), nil
	case reflect.Slice:
		p.left -= copiedParts * r.Len()
		out := make([]any, r.Len())
		for i := range out {
			e, err := p.value(r.Index(i).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = e
		}
		return out, nil
	}
	return nil, fmt.Errorf("%T is no value of a record", v)
}

func (p *normaliser) object(m map[string]any, depth int) (any, error) {
	var out map[string]any // nil as long as nothing changes
	for k, v := range m {
		n, err := p.value(v, depth+1)
		if err != nil {
			return nil, err
		}
		if same(v, n) {
			continue
		}
		if out == nil {
			p.left -= copiedParts * len(m)
			out = make(map[string]any, len(m))
			for k, v := range m {
				out[k] = v
			}
		}
		out[k] = n
	}
	if out == nil {
		return m, nil
	}
	return out, nil
}

func (p *normaliser) list(l []any, depth int) (any, error) {
	var out []any
	for i, v := range l {
		n, err := p.value(v, depth+1)
		if err != nil {
			return nil, err
		}
		if same(v, n) {
			continue
		}
		if out == nil {
			p.left -= copiedParts * len(l)
			out = append([]any(nil), l...)
		}
		out[i] = n
	}
	if out == nil {
		return l, nil
	}
	return out, nil
}

// same says that normalise gave back what it got.
func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		m, ok := b.(map[string]any)
		return ok && reflect.ValueOf(a).Pointer() == reflect.ValueOf(m).Pointer()
	case []any:
		l, ok := b.([]any)
		return ok && len(a) == len(l) && (len(a) == 0 || &a[0] == &l[0])
	case int, int8, int16, int32, uint8, uint16, uint32, float32:
		return false
	case nil, bool, int64, float64, string, []byte, json.Number:
		return true
	}
	return false
}
