package avro

import (
	"encoding/json"
	"fmt"
	"strings"
)

// branch chooses the branch of a union that a value is encoded as. It looks at the value itself, not at what is in it,
// so the cost does not grow with the nesting.
func branch(v any, s *schema) (*schema, error) {
	if v == nil {
		for _, b := range s.branches {
			if b.kind == kNull {
				return b, nil
			}
		}
		return nil, mismatch(v, s.members())
	}
	if b := s.onlyOther(); b != nil {
		return b, nil // its own error says more than "no branch"
	}
	for _, b := range s.branches {
		if isOf(v, b) {
			return b, nil
		}
	}
	for _, b := range s.branches {
		if b.composite() || b.kind == kNull {
			continue
		}
		if _, err := scalarToNative(v, b); err == nil {
			return b, nil
		}
	}
	return nil, mismatch(v, s.members())
}

// onlyOther gives the branch beside null when there is exactly one.
func (s *schema) onlyOther() *schema {
	var other *schema
	for _, b := range s.branches {
		if b.kind == kNull {
			continue
		}
		if other != nil {
			return nil
		}
		other = b
	}
	return other
}

func (s *schema) composite() bool { return s.kind == kRecord || s.kind == kArray || s.kind == kMap }

// members lists the branches, for messages.
func (s *schema) members() string {
	names := make([]string, len(s.branches))
	for i, b := range s.branches {
		names[i] = b.String()
	}
	return fmt.Sprintf("member of the union [%s]", strings.Join(names, ", "))
}

// isOf says that a value is of the type that the branch decodes to, and within its range.
func isOf(v any, b *schema) bool {
	switch v := v.(type) {
	case bool:
		return b.kind == kBoolean
	case string:
		return b.kind == kString || b.kind == kEnum && b.symbol(v)
	case []byte:
		return b.decimal == nil && (b.kind == kBytes || b.kind == kFixed && b.size == len(v))
	case float64:
		return b.kind == kDouble || b.kind == kFloat && (float64(float32(v)) == v || v != v)
	case float32:
		return b.kind == kFloat || b.kind == kDouble
	case json.Number:
		if b.decimal == nil {
			return false
		}
		_, err := b.decimal.bytes(v, b.size)
		return err == nil
	case []any:
		return b.kind == kArray
	case map[string]any:
		return b.kind == kMap || b.kind == kRecord && b.hasKeys(v)
	case int64, int, int32, int16, int8, uint, uint64, uint32, uint16, uint8:
		if b.kind != kInt && b.kind != kLong {
			return false
		}
		_, err := scalarToNative(v, b)
		return err == nil
	}
	return false
}

// hasKeys says that a record has every key of the map as a field, and a default for every field that is not in it.
func (s *schema) hasKeys(m map[string]any) bool {
	found := 0
	for _, f := range s.fields {
		if _, ok := m[f.name]; ok {
			found++
		} else if !f.hasFallback {
			return false
		}
	}
	return found == len(m)
}
