package json

import (
	"math"
	"strconv"
	"unsafe"
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
// alias what they were decoded from. It is half the size of what a field for each kind would take, since rows of them are
// made for every record.
type Value struct {
	kind Kind
	// bits are the number, or the length of the text.
	bits uint64
	// ptr is where the text is, or the *any of a KindOther.
	ptr unsafe.Pointer
}

// Kind says which of the methods gives the value.
func (v Value) Kind() Kind { return v.kind }

// NullValue is null.
func NullValue() Value { return Value{kind: KindNull} }

// IntValue is a whole number.
func IntValue(n int64) Value { return Value{kind: KindInt, bits: uint64(n)} }

// FloatValue is a floating point number.
func FloatValue(f float64) Value { return Value{kind: KindFloat, bits: math.Float64bits(f)} }

// TextValue is a text.
func TextValue(s string) Value { return textValue(KindText, s) }

func textValue(k Kind, s string) Value {
	return Value{kind: k, bits: uint64(len(s)), ptr: unsafe.Pointer(unsafe.StringData(s))}
}

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
		return textValue(KindNumber, string(v))
	}
	return otherValue(v)
}

func otherValue(v any) Value { return Value{kind: KindOther, ptr: unsafe.Pointer(&v)} }

func boolValue(b bool) Value {
	v := Value{kind: KindBool}
	if b {
		v.bits = 1
	}
	return v
}

// Int is the number of a KindInt.
func (v Value) Int() int64 { return int64(v.bits) }

// Float is the number of a KindFloat.
func (v Value) Float() float64 { return math.Float64frombits(v.bits) }

// Bool is the value of a KindBool.
func (v Value) Bool() bool { return v.bits != 0 }

// Text is the text of a KindText, and the digits of a KindNumber; of other kinds it is empty.
func (v Value) Text() string {
	if v.kind != KindText && v.kind != KindNumber {
		return ""
	}
	return unsafe.String((*byte)(v.ptr), int(v.bits))
}

// Other is the value of a KindOther; of other kinds it is nil.
func (v Value) Other() any {
	if v.kind != KindOther {
		return nil
	}
	return *(*any)(v.ptr)
}

// Any gives the value as Any decodes it; nil when it is missing.
func (v Value) Any() any {
	switch v.kind {
	case KindBool:
		return v.bits != 0
	case KindInt:
		return v.Int()
	case KindFloat:
		return v.Float()
	case KindText:
		return v.Text()
	case KindNumber:
		return Number(v.Text())
	case KindOther:
		return v.Other()
	}
	return nil
}

// AppendValue appends the encoding that Any gives v.Any(), without an allocation for scalars. On an error it returns dst
// as it was.
func AppendValue(dst []byte, v *Value) ([]byte, error) {
	out, err := dst, error(nil)
	switch v.kind {
	case KindInt:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case KindFloat:
		out, err = appendFloat(dst, v.Float())
	case KindText:
		out, err = appendString(dst, v.Text())
	case KindNumber:
		out, err = appendNumber(dst, Number(v.Text()))
	default:
		out, err = appendAny(dst, v.Any(), 0)
	}
	if err != nil {
		return dst, err
	}
	return out, nil
}
