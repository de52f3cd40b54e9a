package json

import (
	"bytes"
	stdjson "encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// values draws what Any decodes to, without whole floats, which come back as integers.
func values() *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil),
		rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any {
			if v == math.Trunc(v) {
				return 0.5
			}
			return v
		}),
		rapid.Map(rapid.StringMatching(`-?[1-9][0-9]{19,30}`), func(v string) any { return Number(v) }),
	)
	return deep(leaf, 3)
}

func deep(leaf *rapid.Generator[any], levels int) *rapid.Generator[any] {
	if levels == 0 {
		return leaf
	}
	inner := deep(leaf, levels-1)
	return rapid.OneOf(
		leaf,
		rapid.Map(rapid.SliceOfN(inner, 0, 4), func(v []any) any { return append([]any{}, v...) }),
		rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 4), func(v map[string]any) any { return v }),
	)
}

func TestAnyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := values().Draw(t, "value")
		b, err := Any().Append([]byte("before"), v)
		require.NoError(t, err)
		require.Equal(t, "before", string(b[:6]))
		got, err := Any().Decode(b[6:])
		require.NoError(t, err)
		require.Equal(t, v, got)
	})
}

func TestAnyWritesAndReadsLikeEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := values().Draw(t, "value")
		ours, err := Any().Append(nil, v)
		require.NoError(t, err)
		theirs, err := Of[any]().Append(nil, v)
		require.NoError(t, err)
		require.Equal(t, string(theirs), string(ours))

		indented := new(bytes.Buffer)
		require.NoError(t, stdjson.Indent(indented, ours, " ", "\t"))
		got, err := Any().Decode(indented.Bytes())
		require.NoError(t, err)
		require.Equal(t, v, got)
	})
}

func TestAnyDecodes(t *testing.T) {
	for in, want := range map[string]any{
		`null`:                      nil,
		` true `:                    true,
		"\t\r\nfalse":               false,
		`9223372036854775807`:       int64(math.MaxInt64),
		`-9223372036854775808`:      int64(math.MinInt64),
		`9223372036854775808`:       Number("9223372036854775808"),
		`-9223372036854775809`:      Number("-9223372036854775809"),
		`0`:                         int64(0),
		`1.10`:                      1.1,
		`1e2`:                       100.0,
		`1e400`:                     Number("1e400"),
		`-1E+400`:                   Number("-1E+400"),
		`""`:                        "",
		`"é\u00e9\ud83d\ude00\/\b"`: "éé😀/\b",
		`"\u2028<>&"`:               "\u2028<>&",
		`{}`:                        map[string]any{},
		`[]`:                        []any{},
		`{"a":1,"a":2}`:             map[string]any{"a": int64(2)},
		`[1, {"x":[null]},"y"]`:     []any{int64(1), map[string]any{"x": []any{nil}}, "y"},
		strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth): nested(MaxDepth),
	} {
		got, err := Any().Decode([]byte(in))
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	got, err := Any().Decode([]byte(`-0`))
	require.NoError(t, err)
	require.True(t, math.Signbit(got.(float64)))
}

func nested(n int) any {
	v := any([]any{})
	for range n - 1 {
		v = []any{v}
	}
	return v
}

func TestAnyRefuses(t *testing.T) {
	for in, want := range map[string]string{
		``:                           "unexpected end, want a value at byte 0",
		`  `:                         "unexpected end, want a value at byte 2",
		`{} x`:                       "bytes left over behind the value at byte 3",
		`1 2`:                        "bytes left over behind the value at byte 2",
		`01`:                         "bytes left over behind the value at byte 1",
		`-`:                          "unexpected end, want a digit at byte 1",
		`1.`:                         "unexpected end, want a digit at byte 2",
		`1ex`:                        `unexpected 'x', want a digit at byte 2`,
		`+1`:                         `unexpected '+', want a value at byte 0`,
		`NaN`:                        `unexpected 'N', want a value at byte 0`,
		`tru`:                        "unknown word, want true at byte 0",
		`nulL`:                       "unknown word, want null at byte 0",
		`[1,]`:                       `unexpected ']', want a value at byte 3`,
		`[1 2]`:                      `unexpected '2', want a comma or ] at byte 3`,
		`{"a" 1}`:                    `unexpected '1', want a colon at byte 5`,
		`{"a":1,}`:                   `unexpected '}', want a key in quotes at byte 7`,
		`{"a":1`:                     "unexpected end, want a comma or } at byte 6",
		`{a:1}`:                      `unexpected 'a', want a key in quotes at byte 1`,
		`"abc`:                       "unexpected end, want a closing quote at byte 4",
		`"a\`:                        "unexpected end, want an escape at byte 3",
		`"a\x"`:                      `unexpected 'x', want an escape at byte 3`,
		`"\u12"`:                     `want four hex digits behind \u at byte 3`,
		`"\ud800"`:                   "half of a surrogate pair in a string at byte 7",
		`"\ud800\u0041"`:             "half of a surrogate pair in a string at byte 13",
		`"\udc00"`:                   "half of a surrogate pair in a string at byte 7",
		"\"a\nb\"":                   "control character 0x0a in a string at byte 2",
		"\"\\n\nb\"":                 "control character 0x0a in a string at byte 3",
		"\"\xff\"":                   "string is not UTF-8 at byte 2",
		"\"\\n\xff\"":                "string is not UTF-8 at byte 5",
		"\xef\xbb\xbf1":              `unexpected 'ï', want a value at byte 0`,
		strings.Repeat("[", 100_000): "nested deeper than 512 at byte 512",
		strings.Repeat(`{"a":`, 600): "nested deeper than 512 at byte 2560",
	} {
		_, err := Any().Decode([]byte(in))
		require.EqualError(t, err, want, "%.60q", in)
		var syntax *SyntaxError
		require.ErrorAs(t, err, &syntax)
	}
}

func TestAnyEncodes(t *testing.T) {
	type point struct {
		X int    `json:"x"`
		S string `json:"s"`
	}
	for _, c := range []struct {
		in   any
		want string
	}{
		{map[string]any{"b": int64(1), "a": []any{true, nil}, "": "<&>"}, `{"":"<&>","a":[true,null],"b":1}`},
		{[]byte{1, 2, 3}, `"AQID"`},
		{Number("1.10"), `1.10`},
		{Number("-327267367867168100000"), `-327267367867168100000`},
		{math.Copysign(0, -1), `-0`},
		{1e21, `1e+21`},
		{1e-7, `1e-7`},
		{100.0, `100`},
		{int32(-7), `-7`},
		{uint64(math.MaxUint64), `18446744073709551615`},
		{float32(0.1), `0.1`},
		{[]string{"<"}, `["<"]`},
		{point{1, "&"}, `{"x":1,"s":"&"}`},
		{"\u2028\u2029\x00\x1f\"\\\b\f\n\r\té\u20ac", "\"\\u2028\\u2029\\u0000\\u001f\\\"\\\\\\b\\f\\n\\r\\té€\""},
	} {
		got, err := Any().Append(nil, c.in)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
}

func TestAnyRefusesToEncode(t *testing.T) {
	loop := map[string]any{}
	loop["self"] = loop
	for want, in := range map[string]any{
		"NaN has no form in JSON":        math.NaN(),
		"-Inf has no form in JSON":       math.Inf(-1),
		`string "\xff" is not UTF-8`:     map[string]any{"\xff": 1},
		`Number "1x" is no number`:       Number("1x"),
		"an empty Number is no number":   []any{Number("")},
		"nested deeper than 512":         loop,
		"json: unsupported type: func()": func() {},
	} {
		dst := []byte("kept")
		out, err := Any().Append(dst, in)
		require.EqualError(t, err, want)
		require.Equal(t, "kept", string(out))
	}
}

type order struct {
	ID     int64          `json:"id"`
	Name   string         `json:"name,omitempty"`
	Labels map[string]int `json:"labels,omitempty"`
}

func TestOf(t *testing.T) {
	s := Of[order]()
	require.Equal(t, "json", s.Name())
	b, err := s.Append([]byte("x"), order{228930314431312345, "<b>", map[string]int{"z": 1, "a": 2}})
	require.NoError(t, err)
	require.Equal(t, `x{"id":228930314431312345,"name":"<b>","labels":{"a":2,"z":1}}`, string(b))
	v, err := s.Decode(b[1:])
	require.NoError(t, err)
	require.Equal(t, order{228930314431312345, "<b>", map[string]int{"z": 1, "a": 2}}, v)

	for _, in := range []string{``, `{"id":1} x`, `{"id":1.5}`, `{"id":"1"}`, `[`} {
		v, err := s.Decode([]byte(in))
		require.Error(t, err, in)
		require.Zero(t, v)
	}
	out, err := Of[float64]().Append([]byte("kept"), math.NaN())
	require.Error(t, err)
	require.Equal(t, "kept", string(out))
	// The pooled encoder is as good as new after an error.
	out, err = Of[float64]().Append(out, 1.5)
	require.NoError(t, err)
	require.Equal(t, "kept1.5", string(out))
}

// TestC40_DigitsOfLargeIntegersSurvive: integers beyond 2^53 and beyond 64 bits keep every digit.
func TestC40_DigitsOfLargeIntegersSurvive(t *testing.T) {
	const in = `{"big":327267367867168100000,"f":1.1,"id":228930314431312345,"n":1}`
	v, err := Any().Decode([]byte(in))
	require.NoError(t, err)
	m := v.(map[string]any)
	require.Equal(t, int64(228930314431312345), m["id"])
	m["n"] = int64(2)
	out, err := Any().Append(nil, m)
	require.NoError(t, err)
	require.Equal(t, strings.Replace(in, `"n":1`, `"n":2`, 1), string(out))
}

func FuzzJSONDecode(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0,1e400,"\ud83d\ude00",null]}`, `[[[]]]`, `"\u2028`, `{"a":1}{`, "\"\xff\"", `12345678901234567890`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		v, err := Any().Decode(in)
		require.Equal(t, before, in, "the input was changed")
		if err != nil {
			return
		}
		require.True(t, stdjson.Valid(in), "accepted what is not JSON")
		once, err := Any().Append(nil, v)
		require.NoError(t, err)
		again, err := Any().Decode(once)
		require.NoError(t, err)
		twice, err := Any().Append(nil, again)
		require.NoError(t, err)
		require.Equal(t, string(once), string(twice))
	})
}
