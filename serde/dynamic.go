package serde

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Formats names the formats that Dynamic knows, in the order in which messages list them.
func Formats() []string { return []string{"string", "int64", "double", "bytes"} }

// Dynamic gives the codec of a format for values of type any: "string", "int64", "double" or "bytes", under the same
// names and with the same bytes as the typed ones.
//
// Decode gives string, int64, float64 or []byte. Append takes that type and those that convert without loss: "string"
// also []byte and json.Number, "int64" also other integers and whole floats, "double" also integers that a float64
// holds exactly, "bytes" also string. Anything else is an error.
func Dynamic(format string) (Serde[any], error) {
	switch format {
	case "string":
		return dynamic[string]{String(), toString}, nil
	case "int64":
		return fixedDynamic[int64]{dynamic[int64]{Int64(), AsInt64}}, nil
	case "double":
		return fixedDynamic[float64]{dynamic[float64]{Double(), AsFloat64}}, nil
	case "bytes":
		return dynamic[[]byte]{Bytes(), toBytes}, nil
	}
	return nil, fmt.Errorf("unknown format %q; allowed: %s", format, strings.Join(Formats(), ", "))
}

type dynamic[T any] struct {
	typed Serde[T]
	to    func(any) (T, bool)
}

func (d dynamic[T]) Name() string { return d.typed.Name() }

func (d dynamic[T]) Append(dst []byte, v any) ([]byte, error) {
	t, ok := d.to(v)
	if !ok {
		return dst, fmt.Errorf("%s cannot hold %s", d.typed.Name(), describe(v))
	}
	return d.typed.Append(dst, t)
}

func (d dynamic[T]) Decode(b []byte) (any, error) {
	v, err := d.typed.Decode(b)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// fixedDynamic adds the size that int64 and double have.
type fixedDynamic[T any] struct{ dynamic[T] }

func (d fixedDynamic[T]) FixedSize() int { return 8 }

func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case float64, int64, int, json.Number:
		return fmt.Sprintf("the %T %v", v, v)
	}
	return fmt.Sprintf("a value of type %T", v)
}

func toString(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case json.Number:
		return string(v), true
	}
	return "", false
}

func toBytes(v any) ([]byte, bool) {
	switch v := v.(type) {
	case []byte:
		return v, v != nil
	case string:
		return []byte(v), true
	}
	return nil, false
}
