package avro

import (
	"errors"
	"fmt"

	"github.com/linkedin/goavro/v2"
)

// addDefault notes the default of a field, to be read when all types are known.
func (b *builder) addDefault(record *schema, i int, def any) {
	b.defaults = append(b.defaults, func() error {
		f := &record.fields[i]
		native, err := nativeDefault(def, f.typ)
		if err != nil {
			return fmt.Errorf("%s field %s: default: %w", record, f.name, err)
		}
		if weigh(native, maxDefaultParts) < 0 {
			return fmt.Errorf("%s field %s: default: more than %d parts", record, f.name, maxDefaultParts)
		}
		f.fallback, f.hasFallback = native, true
		return nil
	})
}

// maxDefaultParts bounds what one default stands for. Defaults of records hold those of their fields, so a short schema
// could ask for one of any size.
const maxDefaultParts = 1 << 16

// weigh gives what is left of a budget after the parts of a value, below 0 when it does not suffice.
func weigh(v any, budget int) int {
	budget--
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if budget < 0 {
				break
			}
			budget = weigh(item, budget)
		}
	case map[string]any:
		for _, item := range v {
			if budget < 0 {
				break
			}
			budget = weigh(item, budget)
		}
	}
	return budget
}

// nativeDefault turns a default as schemas write it into goavro's form. It is not the form of values: bytes are strings of
// the characters 0 to 255, and a decimal's default is its bytes.
func nativeDefault(def any, t *schema) (any, error) {
	switch t.kind {
	case kBytes, kFixed:
		return bytesDefault(def, t)
	case kUnion:
		for _, b := range t.branches {
			if native, err := nativeDefault(def, b); err == nil {
				return goavro.Union(b.branchName(), native), nil
			}
		}
		return nil, mismatch(def, t.members())
	case kArray:
		a, ok := def.([]any)
		if !ok {
			return nil, mismatch(def, t.String())
		}
		out := make([]any, len(a))
		var err error
		for i := range a {
			if out[i], err = nativeDefault(a[i], t.items); err != nil {
				return nil, err
			}
		}
		return out, nil
	case kMap:
		m, ok := def.(map[string]any)
		if !ok {
			return nil, mismatch(def, t.String())
		}
		out := make(map[string]any, len(m))
		var err error
		for key, item := range m {
			if out[key], err = nativeDefault(item, t.items); err != nil {
				return nil, err
			}
		}
		return out, nil
	case kRecord:
		return recordDefault(def, t)
	}
	return scalarToNative(def, t)
}

func bytesDefault(def any, t *schema) (any, error) {
	text, ok := def.(string)
	if !ok {
		return nil, mismatch(def, t.String())
	}
	out := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return nil, fmt.Errorf("the character %q is no byte", r)
		}
		out = append(out, byte(r))
	}
	if t.kind == kFixed && len(out) != t.size {
		return nil, fmt.Errorf("%d bytes are no %s of %d", len(out), t, t.size)
	}
	if t.decimal != nil {
		if _, err := t.decimal.text(out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func recordDefault(def any, t *schema) (any, error) {
	m, ok := def.(map[string]any)
	if !ok {
		return nil, mismatch(def, t.String())
	}
	out := make(map[string]any, len(t.fields))
	for _, f := range t.fields {
		item, ok := m[f.name]
		switch {
		case ok:
			native, err := nativeDefault(item, f.typ)
			if err != nil {
				return nil, err
			}
			out[f.name] = native
		case f.hasFallback:
			out[f.name] = f.fallback
		default:
			return nil, fmt.Errorf("the field %s is missing", f.name)
		}
	}
	if len(m) > len(t.fields) || t.strange(m) != "" {
		return nil, errors.New("it has a key that is no field")
	}
	return out, nil
}
