package json

import (
	stdjson "encoding/json"
	"sync"

	"github.com/millweir/millweir/serde"
)

// name is the codec id of all JSON codecs: they read each other's bytes.
const name = "json"

// Of gives the JSON codec of a Go type, by the rules and struct tags of encoding/json: fields that the type does not
// have are ignored, keys match without regard to case, the last of repeated keys wins, null gives the zero value.
//
// A field of type any receives float64 for every number; where integers above 2^53 matter, give the field the type
// int64 or Number.
func Of[T any]() serde.Serde[T] { return typed[T]{} }

type typed[T any] struct{}

func (typed[T]) Name() string { return name }

func (typed[T]) Decode(b []byte) (T, error) {
	var v T
	if err := stdjson.Unmarshal(b, &v); err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

func (typed[T]) Append(dst []byte, v T) ([]byte, error) { return appendStd(dst, &v) }

// writer is an encoder of encoding/json that appends to a slice. Marshal would escape <, > and &.
type writer struct {
	buf []byte
	enc *stdjson.Encoder
}

func (w *writer) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	return len(p), nil
}

var writers = sync.Pool{New: func() any {
	w := &writer{}
	w.enc = stdjson.NewEncoder(w)
	w.enc.SetEscapeHTML(false)
	return w
}}

// appendStd encodes with encoding/json. A writer that meets a panic of user code is not used again.
func appendStd(dst []byte, v any) ([]byte, error) {
	w := writers.Get().(*writer)
	w.buf = dst
	err := w.enc.Encode(v)
	out := w.buf
	w.buf = nil
	writers.Put(w)
	if err != nil {
		return dst, err
	}
	return out[:len(out)-1], nil // Encode ends with a line feed
}
