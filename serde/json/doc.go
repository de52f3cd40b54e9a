// Package json has the JSON codecs: Of[T] for Go types, Any for values whose type is known at run time only, and for those
// who need a few fields of such values only, Fields.
//
// Both have the name "json". Both read exactly one JSON value: anything but white space behind it is an error, and so is
// empty input. Both write without white space, object keys of maps sorted by their bytes, and <, > and & as they are.
// NaN and infinities have no form in JSON: encoding them is an error.
//
// Invariants:
//
//	I1  Equal values give equal bytes.
//	I2  Any keeps every integer: as int64 when it fits, else digit by digit as Number. It never rounds one.
//	I3  Any keeps text or refuses it: invalid UTF-8 and half surrogate pairs are errors, never replacement characters.
//	I4  Nesting is limited to MaxDepth in both directions; memory grows linearly with the input.
//	I5  Bytes of any content give a value or an error, never a panic.
//
// Files:
//
//	typed.go    Of: encoding/json with a pool of encoders
//	any.go      Any: the codec, and which Go types stand for what
//	decode.go   the parser behind Any
//	encode.go   the writer behind Any
//	value.go    Value: what Any decodes to without memory of its own for scalars
//	fields.go   Fields: some fields of an object, the rest checked only
package json
