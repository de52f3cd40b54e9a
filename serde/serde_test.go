package serde

import (
	"encoding/json"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// roundTrip checks what every serde promises, for values that gen draws.
func roundTrip[T any](t *testing.T, s Serde[T], gen *rapid.Generator[T], equal func(a, b T) bool) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		v := gen.Draw(t, "value")
		prefix := rapid.SliceOf(rapid.Byte()).Draw(t, "prefix")
		b, err := s.Append(append([]byte{}, prefix...), v)
		require.NoError(t, err)
		require.Equal(t, string(prefix), string(b[:len(prefix)]))
		enc := b[len(prefix):]
		if n, fixed := FixedSize(s); fixed {
			require.Len(t, enc, n)
		}
		got, err := s.Decode(enc)
		require.NoError(t, err)
		require.True(t, equal(v, got), "%v became %v", v, got)
	})
}

func same[T comparable](a, b T) bool { return a == b }

func sameBits(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

func anyFloat() *rapid.Generator[float64] {
	return rapid.Map(rapid.Uint64(), math.Float64frombits)
}

func TestRoundTrips(t *testing.T) {
	t.Run("string", func(t *testing.T) { roundTrip(t, String(), rapid.String(), same[string]) })
	t.Run("int64", func(t *testing.T) { roundTrip(t, Int64(), rapid.Int64(), same[int64]) })
	t.Run("double", func(t *testing.T) { roundTrip(t, Double(), anyFloat(), sameBits) })
	t.Run("bytes", func(t *testing.T) {
		roundTrip(t, Bytes(), rapid.SliceOf(rapid.Byte()), func(a, b []byte) bool { return string(a) == string(b) })
	})
}

func TestBytesOnTheWireAreKafkas(t *testing.T) {
	b, err := Int64().Append(nil, -2)
	require.NoError(t, err)
	require.Equal(t, []byte{255, 255, 255, 255, 255, 255, 255, 254}, b)
	b, err = Double().Append(nil, 1.5)
	require.NoError(t, err)
	require.Equal(t, []byte{0x3f, 0xf8, 0, 0, 0, 0, 0, 0}, b)
}

func TestWrongLengthIsAnError(t *testing.T) {
	for _, n := range []int{0, 1, 7, 9, 16} {
		_, err := Int64().Decode(make([]byte, n))
		var length *LengthError
		require.ErrorAs(t, err, &length)
		require.Equal(t, LengthError{Codec: "int64", Want: 8, Got: n}, *length)
		_, err = Double().Decode(make([]byte, n))
		require.ErrorAs(t, err, &length)
	}
	_, err := Int64().Decode([]byte{1, 2, 3})
	require.EqualError(t, err, "int64 needs 8 bytes, got 3")
}

func TestStringAndBytesAliasAndKeepEmpty(t *testing.T) {
	in := []byte("abc")
	s, err := String().Decode(in)
	require.NoError(t, err)
	require.Same(t, unsafe.SliceData(in), unsafe.StringData(s))
	b, err := Bytes().Decode([]byte{})
	require.NoError(t, err)
	require.NotNil(t, b)
	s, err = String().Decode([]byte{})
	require.NoError(t, err)
	require.Empty(t, s)
}

func TestFixedSize(t *testing.T) {
	for _, format := range Formats() {
		s, err := Dynamic(format)
		require.NoError(t, err)
		n, fixed := FixedSize(s)
		require.Equal(t, format == "int64" || format == "double", fixed, format)
		if fixed {
			require.Equal(t, 8, n)
		}
	}
	_, fixed := FixedSize(String())
	require.False(t, fixed)
}

func TestDynamicConvertsWithoutLossOrRefuses(t *testing.T) {
	for _, c := range []struct {
		format string
		in     any
		want   any    // what comes back
		err    string // or why not
	}{
		{"string", "a", "a", ""},
		{"string", []byte("a"), "a", ""},
		{"string", json.Number("228930314431312345"), "228930314431312345", ""},
		{"string", int64(1), nil, "string cannot hold the int64 1"},
		{"string", nil, nil, "string cannot hold null"},
		{"int64", 7, int64(7), ""},
		{"int64", int32(-7), int64(-7), ""},
		{"int64", uint32(7), int64(7), ""},
		{"int64", uint64(math.MaxInt64), int64(math.MaxInt64), ""},
		{"int64", uint64(math.MaxInt64) + 1, nil, "int64 cannot hold a value of type uint64"},
		{"int64", -3.0, int64(-3), ""},
		{"int64", float64(math.MinInt64), int64(math.MinInt64), ""},
		{"int64", float64(math.MaxInt64), nil, "int64 cannot hold the float64 9.223372036854776e+18"},
		{"int64", 0.5, nil, "int64 cannot hold the float64 0.5"},
		{"int64", math.NaN(), nil, "int64 cannot hold the float64 NaN"},
		{"int64", json.Number("12"), int64(12), ""},
		{"int64", json.Number("9223372036854775808"), nil, "int64 cannot hold the json.Number 9223372036854775808"},
		{"int64", "1", nil, "int64 cannot hold a value of type string"},
		{"double", 0.1, 0.1, ""},
		{"double", float32(0.5), 0.5, ""},
		{"double", int64(1) << 53, float64(1 << 53), ""},
		{"double", int64(1)<<53 + 1, nil, "double cannot hold the int64 9007199254740993"},
		{"double", int64(math.MaxInt64), nil, "double cannot hold the int64 9223372036854775807"},
		{"double", true, nil, "double cannot hold a value of type bool"},
		{"bytes", []byte("a"), []byte("a"), ""},
		{"bytes", "a", []byte("a"), ""},
		{"bytes", []byte(nil), nil, "bytes cannot hold a value of type []uint8"},
	} {
		s, err := Dynamic(c.format)
		require.NoError(t, err)
		require.Equal(t, c.format, s.Name())
		b, err := s.Append([]byte("x"), c.in)
		if c.err != "" {
			require.EqualError(t, err, c.err)
			require.Equal(t, "x", string(b))
			continue
		}
		require.NoError(t, err)
		got, err := s.Decode(b[1:])
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	s, err := Dynamic("int64")
	require.NoError(t, err)
	v, err := s.Decode([]byte{1})
	require.Error(t, err)
	require.Nil(t, v)
}

func TestUnknownFormatNamesTheAllowed(t *testing.T) {
	_, err := Dynamic("proto")
	require.EqualError(t, err, `unknown format "proto"; allowed: string, int64, double, bytes`)
}
