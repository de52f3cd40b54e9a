package serde

import (
	"encoding/json"
	"math"
)

// AsInt64 gives the integer that v is: any Go integer, a whole float, or a json.Number. ok is false when v is no number,
// has a fraction, or is out of range.
func AsInt64(v any) (n int64, ok bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case uint:
		return int64(v), uint64(v) <= math.MaxInt64
	case uint64:
		return int64(v), v <= math.MaxInt64
	case float32:
		return AsInt64(float64(v))
	case float64:
		// The upper bound is 2^63, which a float64 holds exactly and an int64 does not.
		if v == math.Trunc(v) && v >= math.MinInt64 && v < math.MaxInt64 {
			return int64(v), true
		}
	case json.Number:
		n, err := v.Int64()
		return n, err == nil
	}
	return 0, false
}

// AsFloat64 gives the float that v is: any float, or an integer that a float64 holds exactly. ok is false otherwise.
func AsFloat64(v any) (f float64, ok bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case float32:
		return float64(v), true
	}
	n, ok := AsInt64(v)
	if !ok {
		return 0, false
	}
	f = float64(n)
	// MaxInt64 rounds up to 2^63; converting that back would not be defined.
	return f, f < math.MaxInt64 && int64(f) == n
}
