package avro

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/millweir/millweir/serde"
)

// mismatch says that a value cannot be encoded as a type.
func mismatch(v any, want string) error {
	switch v := v.(type) {
	case nil:
		return fmt.Errorf("null is no %s", want)
	case string:
		return fmt.Errorf("the string %.40q is no %s", v, want)
	case bool, float32, float64, json.Number, int, int64, int32, uint32, uint64:
		return fmt.Errorf("%v (%T) is no %s", v, v, want)
	}
	return fmt.Errorf("a %T is no %s", v, want)
}

// toNative turns a value into the form that goavro has for the schema, which appendNative takes. It never changes v.
func toNative(v any, s *schema, depth int) (any, error) {
	if depth > MaxValueDepth {
		return nil, errDepth
	}
	switch s.kind {
	case kArray:
		return arrayToNative(v, s, depth)
	case kMap:
		return mapToNative(v, s, depth)
	case kRecord:
		return recordToNative(v, s, depth)
	case kUnion:
		b, err := branch(v, s)
		if err != nil || b.kind == kNull {
			return nil, err
		}
		inner, err := toNative(v, b, depth) // never a union itself
		if err != nil {
			return nil, err
		}
		return map[string]any{b.branchName(): inner}, nil
	}
	return scalarToNative(v, s)
}

func scalarToNative(v any, s *schema) (any, error) {
	switch s.kind {
	case kNull:
		if v == nil {
			return nil, nil
		}
	case kBoolean:
		if b, ok := v.(bool); ok {
			return b, nil
		}
	case kInt:
		if n, ok := serde.AsInt64(v); ok && n == int64(int32(n)) {
			return int32(n), nil
		}
	case kLong:
		if n, ok := serde.AsInt64(v); ok {
			return n, nil
		}
	case kFloat:
		if f, ok := toDouble(v); ok {
			if g := float32(f); math.IsInf(f, 0) || !math.IsInf(float64(g), 0) {
				return g, nil
			}
		}
	case kDouble:
		if f, ok := toDouble(v); ok {
			return f, nil
		}
	case kString:
		if t, ok := v.(string); ok {
			return t, nil
		}
	case kEnum:
		if t, ok := v.(string); ok && s.symbol(t) {
			return t, nil
		}
	case kBytes, kFixed:
		return bytesToNative(v, s)
	}
	return nil, mismatch(v, s.String())
}

func (s *schema) symbol(t string) bool {
	for _, sym := range s.symbols {
		if sym == t {
			return true
		}
	}
	return false
}

func bytesToNative(v any, s *schema) (any, error) {
	if s.decimal != nil {
		return boxed(s.decimal.bytes(v, s.size))
	}
	var b []byte
	switch v := v.(type) {
	case []byte:
		b = v
	case string:
		b = []byte(v)
	default:
		return nil, mismatch(v, s.String())
	}
	if s.kind == kFixed && len(b) != s.size {
		return nil, fmt.Errorf("%d bytes are no %s of %d", len(b), s, s.size)
	}
	return b, nil
}

// toDouble also takes a Number whose digits a float64 gives back.
func toDouble(v any) (float64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return serde.AsFloat64(v)
	}
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil {
		return 0, false
	}
	digits, exp, err := parseDecimal(string(n))
	back, backExp, err2 := parseDecimal(strconv.FormatFloat(f, 'e', -1, 64))
	return f, err == nil && err2 == nil && digits == back && (exp == backExp || digits == "")
}

func arrayToNative(v any, s *schema, depth int) (any, error) {
	a, ok := v.([]any)
	if !ok {
		return nil, mismatch(v, s.String())
	}
	out := make([]any, len(a))
	var err error
	for i := range a {
		if out[i], err = toNative(a[i], s.items, depth+1); err != nil {
			return nil, within(fmt.Sprintf("item %d", i), err)
		}
	}
	return out, nil
}

func mapToNative(v any, s *schema, depth int) (any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, mismatch(v, s.String())
	}
	out := make(map[string]any, len(m))
	var err error
	for key, item := range m {
		if out[key], err = toNative(item, s.items, depth+1); err != nil {
			return nil, within(key, err)
		}
	}
	return out, nil
}

func recordToNative(v any, s *schema, depth int) (any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, mismatch(v, s.String())
	}
	out := make(map[string]any, len(s.fields))
	found := 0
	for _, f := range s.fields {
		item, ok := m[f.name]
		if !ok {
			if !f.hasFallback {
				return nil, fmt.Errorf("%s: the field %s is missing and has no default", s, f.name)
			}
			out[f.name] = f.fallback
			continue
		}
		found++
		native, err := toNative(item, f.typ, depth+1)
		if err != nil {
			return nil, within(f.name, err)
		}
		out[f.name] = native
	}
	if found < len(m) {
		return nil, fmt.Errorf("%s has no field %q", s, s.strange(m))
	}
	return out, nil
}

// strange gives the first key, in the order of their bytes, that is no field.
func (s *schema) strange(m map[string]any) string {
	first, found := "", false
	for key := range m {
		if !s.hasField(key) && (!found || key < first) {
			first, found = key, true
		}
	}
	return first
}

func (s *schema) hasField(name string) bool {
	for i := range s.fields {
		if s.fields[i].name == name {
			return true
		}
	}
	return false
}
