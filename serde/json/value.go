package json

import (
	"math"
	"strconv"
)

// Kind tells the kinds of a Value apart.
type Kind uint8

// The kinds. Missing is that of the zero Value: a field that an object does not have.
const (
	KindMissing Kind = iota
	KindNull
	KindBool
	KindInt
	KindFloat
	KindText
	KindNumber // a number that neither int64 nor float64 can hold, as its text
	KindOther  // an array, an object, or a Go value that JSON has no kind for
)

// Value is a dynamic value in the terms of Any, with scalars held without a pointer to memory of their own. Texts may
// alias what they were decoded from.
type Value struct {
	// Kind says which of the methods gives the value.
	Kind  Kind
	bits  uint64
	text  string
	other any
}

// NullValue is null.
func NullValue() Value { return Value{Kind: KindNull} }

// IntValue is a whole number.
func IntValue(n int64) Value { return Value{Kind: KindInt, bits: uint64(n)} }

// FloatValue is a floating point number.
func FloatValue(f float64) Value { return Value{Kind: KindFloat, bits: math.Float64bits(f)} }

// TextValue is a text.
func TextValue(s string) Value { return Value{Kind: KindText, text: s} }

// ValueOf gives the Value of what Any decodes to. Any other type is KindOther.
func ValueOf(v any) Value {
	switch v := v.(type) {
	case nil:
		return NullValue()
	case bool:
		return boolValue(v)
	case int64:
		return IntValue(v)
	case float64:
		return FloatValue(v)
	case string:
		return TextValue(v)
	case Number:
		return Value{Kind: KindNumber, text: string(v)}
	}
	return Value{Kind: KindOther, other: v}
}

func boolValue(b bool) Value {
	v := Value{Kind: KindBool}
	if b {
		v.bits = 1
	}
	return v
}

// Int is the number of a KindInt.
func (v *Value) Int() int64 { return int64(v.bits) }

// Float is the number of a KindFloat.
func (v *Value) Float() float64 { return math.Float64frombits(v.bits) }

// Bool is the value of a KindBool.
func (v *Value) Bool() bool { return v.bits != 0 }

// Text is the text of a KindText, and the digits of a KindNumber.
func (v *Value) Text() string { return v.text }

// Other is the value of a KindOther.
func (v *Value) Other() any { return v.other }

// Any gives the value as Any decodes it; nil when it is missing.
func (v *Value) Any() any {
	switch v.Kind {
	case KindBool:
		return v.bits != 0
	case KindInt:
		return v.Int()
	case KindFloat:
		return v.Float()
	case KindText:
		return v.text
	case KindNumber:
		return Number(v.text)
	case KindOther:
		return v.other
	}
	return nil
}

// AppendValue appends the encoding that Any gives v.Any(), without an allocation for scalars. On an error it returns dst
// as it was.
func AppendValue(dst []byte, v *Value) ([]byte, error) {
	out, err := dst, error(nil)
	switch v.Kind {
	case KindInt:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case KindFloat:
		out, err = appendFloat(dst, v.Float())
	case KindText:
		out, err = appendString(dst, v.text)
	case KindNumber:
		out, err = appendNumber(dst, Number(v.text))
	default:
		out, err = appendAny(dst, v.Any(), 0)
	}
	if err != nil {
		return dst, err
	}
	return out, nil
}
