package avro

import "fmt"

// fromNative turns what goavro decoded into plain values, in place. The depth was checked by the scan.
func fromNative(v any, s *schema) (any, error) {
	switch s.kind {
	case kInt:
		return int64(v.(int32)), nil
	case kFloat:
		return float64(v.(float32)), nil
	case kBytes, kFixed:
		if s.decimal == nil {
			return v, nil
		}
		return boxed(s.decimal.text(v.([]byte)))
	case kArray:
		a := v.([]any)
		for i := range a {
			item, err := fromNative(a[i], s.items)
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", i, err)
			}
			a[i] = item
		}
		return a, nil
	case kMap:
		m := v.(map[string]any)
		for key, item := range m {
			item, err := fromNative(item, s.items)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			m[key] = item
		}
		return m, nil
	case kRecord:
		m := v.(map[string]any)
		for _, f := range s.fields {
			item, err := fromNative(m[f.name], f.typ)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.name, err)
			}
			m[f.name] = item
		}
		return m, nil
	case kUnion:
		return unwrap(v, s)
	}
	return v, nil // null, boolean, long, double, string, enum
}

// unwrap takes a value of a union out of goavro's map of one key, the name of its branch.
func unwrap(v any, s *schema) (any, error) {
	if v == nil {
		return nil, nil
	}
	for name, item := range v.(map[string]any) {
		for _, b := range s.branches {
			if b.branchName() == name {
				return fromNative(item, b)
			}
		}
	}
	return nil, fmt.Errorf("no branch of the union is known for %v", v)
}

// boxed keeps a typed zero value out of an interface when there is an error.
func boxed[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
