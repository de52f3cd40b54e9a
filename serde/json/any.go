package json

import (
	stdjson "encoding/json"

	"github.com/millweir/millweir/serde"
)

// MaxDepth is how deep arrays and objects may be nested in the values of Any.
const MaxDepth = 512

// Number is a number kept as its text, for what neither int64 nor float64 can hold.
type Number = stdjson.Number

// Any gives the JSON codec for dynamic values. Decode gives
//
//	null, true, false     nil, bool
//	string                string (it, and the text of a Number, may alias the input)
//	integer               int64 when it fits; -0, which int64 lacks, as float64; larger ones as Number with all digits
//	other numbers         float64, rounded to the nearest; Number when outside of its range
//	array                 []any, never nil
//	object                map[string]any, never nil; the last of repeated keys wins
//
// Append takes these, all other Go integers and floats, and []byte (as standard base64, like encoding/json); any other
// type is encoded by encoding/json. A float64 is written with the fewest digits that give it back, in the form of
// encoding/json: whole floats without a fraction, so they come back as int64. A Number must be a JSON number and is
// written as it is.
func Any() serde.Serde[any] { return dynamic{} }

type dynamic struct{}

func (dynamic) Name() string { return name }

func (dynamic) Decode(b []byte) (any, error) {
	p := parser{in: b}
	return p.document()
}

func (dynamic) Append(dst []byte, v any) ([]byte, error) {
	out, err := appendAny(dst, v, 0)
	if err != nil {
		return dst, err
	}
	return out, nil
}
