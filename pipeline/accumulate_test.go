package pipeline

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	sjson "github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

func add(c *cell, f aggFunc, v any) error {
	value := sjson.ValueOf(v)
	return c.add(f, &value)
}

func result(c *cell, f aggFunc) any {
	v := c.result(f)
	return v.Any()
}

func TestSumsOfIntegersAreExactOrFail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c cell
		want := new(big.Int)
		for _, v := range rapid.SliceOf(rapid.Int64()).Draw(t, "values") {
			next := new(big.Int).Add(want, big.NewInt(v))
			err := add(&c, aggSum, v)
			require.Equal(t, next.IsInt64(), err == nil)
			if err != nil {
				require.ErrorIs(t, err, topology.ErrOverflow)
				return
			}
			want = next
			require.Equal(t, want.Int64(), result(&c, aggSum))
		}
	})
}

func TestASumIsAFloatFromTheFirstFloatOn(t *testing.T) {
	var c cell
	for _, v := range []any{int64(1), 0.5, int64(2)} {
		require.NoError(t, add(&c, aggSum, v))
	}
	require.Equal(t, 3.5, result(&c, aggSum))
	// Also when the value is whole again: the kind of the output does not flicker.
	require.NoError(t, add(&c, aggSum, 0.5))
	require.Equal(t, 4.0, result(&c, aggSum))
}

func TestASumThatLeavesTheRangeOfFloatsIsAnError(t *testing.T) {
	for _, f := range []aggFunc{aggSum, aggAvg} {
		for _, sign := range []float64{1, -1} {
			var c cell
			require.NoError(t, add(&c, f, sign*math.MaxFloat64))
			err := add(&c, f, sign*math.MaxFloat64)
			require.ErrorIs(t, err, topology.ErrOverflow)
			require.EqualError(t, err, "float64 overflow")
			require.NoError(t, add(&c, f, sign)) // too small to change it
		}
		var c cell
		require.NoError(t, add(&c, f, 1.5))
		require.NoError(t, add(&c, f, math.Inf(1))) // what came in infinite has an infinite sum
		require.Equal(t, math.Inf(1), result(&c, f))
	}
}

func TestExtremesCompareByExactValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(
			rapid.Map(rapid.Int64(), func(i int64) any { return i }),
			rapid.Map(rapid.Float64(), func(f float64) any { return f }),
			rapid.Map(rapid.Int64Range(1<<53-2, 1<<53+2), func(i int64) any { return i }),
			rapid.Map(rapid.Int64Range(1<<53-2, 1<<53+2), func(i int64) any { return float64(i) }),
		)
		values := rapid.SliceOfN(number, 1, 20).Draw(t, "values")
		var low, high cell
		for _, v := range values {
			require.NoError(t, add(&low, aggMin, v))
			require.NoError(t, add(&high, aggMax, v))
		}
		for _, v := range values {
			require.LessOrEqual(t, exact(low.v.Any()).Cmp(exact(v)), 0)
			require.GreaterOrEqual(t, exact(high.v.Any()).Cmp(exact(v)), 0)
		}
	})
}

func exact(v any) *big.Float {
	if i, ok := v.(int64); ok {
		return new(big.Float).SetInt64(i)
	}
	return big.NewFloat(v.(float64))
}

func TestWhatCannotBeFolded(t *testing.T) {
	for _, c := range []struct {
		fn   aggFunc
		old  any
		v    any
		want string
	}{
		{aggSum, nil, "x", "expected a number, found a text"},
		{aggSum, nil, true, "expected a number, found a boolean"},
		{aggSum, nil, json.Number("18446744073709551616"), "int64 overflow"},
		{aggAvg, nil, []any{}, "expected a number, found a list"},
		{aggMin, nil, map[string]any{}, "expected a number or a text, found an object"},
		{aggMax, nil, math.NaN(), "NaN has no order"},
		{aggMax, int64(1), "x", "a text cannot be compared with a number"},
		{aggMin, "x", 1.5, "a number cannot be compared with a text"},
	} {
		var cl cell
		if c.old != nil {
			cl.set(sjson.ValueOf(c.old))
		}
		require.ErrorContains(t, add(&cl, c.fn, c.v), c.want)
	}
	require.ErrorIs(t, add(&cell{n: math.MaxInt64}, aggCount, nil), topology.ErrOverflow)
}

func genValue(depth int) *rapid.Generator[any] {
	leaf := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }),
		rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(v []byte) any { return append([]byte{}, v...) }),
		rapid.Just[any](json.Number("18446744073709551616")),
	}
	if depth > 0 {
		leaf = append(leaf,
			rapid.Map(rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return genValue(depth - 1) }), 0, 4), func(v []any) any { return append([]any{}, v...) }),
			rapid.Map(rapid.MapOfN(rapid.String(), rapid.Deferred(func() *rapid.Generator[any] { return genValue(depth - 1) }), 0, 4), func(v map[string]any) any {
				if v == nil {
					v = map[string]any{}
				}
				return v
			}))
	}
	return rapid.OneOf(leaf...)
}

func TestStoredValuesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := genValue(3).Draw(t, "v")
		b, err := appendValue([]byte("x"), v, 0)
		require.NoError(t, err)
		d := decoder{b: b[1:]}
		require.Equal(t, v, d.value(0))
		require.False(t, d.bad)
		require.Empty(t, d.b)
		d = decoder{b: b[1:]}
		d.skip(0)
		require.False(t, d.bad)
		require.Empty(t, d.b)
		again, err := appendValue(nil, v, 0)
		require.NoError(t, err)
		require.Equal(t, b[1:], again)
	})
}

// The encoding is a format: state written by one version is read by all later ones.
func TestGoldenEncodings(t *testing.T) {
	for text, v := range map[string]any{
		"00": nil, "01": false, "02": true, "030000000000000007": int64(7), "03ffffffffffffffff": int64(-1), "043ff8000000000000": 1.5,
		"050261c3": "a\xc3", "060100": []byte{0}, "07013" + "1": json.Number("1"), "08020002": []any{nil, true},
		"0902016103000000000000000101620505" + hex.EncodeToString([]byte("hello")): map[string]any{"b": "hello", "a": int64(1)},
	} {
		b, err := appendValue(nil, v, 0)
		require.NoError(t, err)
		require.Equal(t, text, hex.EncodeToString(b))
	}
}

func TestDamagedAccumulatorsAreRefused(t *testing.T) {
	for _, h := range []string{"", "03", "0300", "05ff", "05ffffffffffffffffff01", "08ffffffff0f", "0a", "0901", strings.Repeat("0801", 100) + "00"} {
		b, err := hex.DecodeString(h)
		require.NoError(t, err)
		d := decoder{b: b}
		d.value(0)
		require.True(t, d.bad, h)
		d = decoder{b: b}
		d.skip(0)
		require.True(t, d.bad, h)
	}
}

func FuzzStoredValue(f *testing.F) {
	f.Add([]byte{tagObject, 1, 1, 'a', tagInt, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{b: b}
		v := d.value(0)
		skipped := decoder{b: b}
		skipped.skip(0)
		require.Equal(t, d, skipped)
		if !d.bad {
			_, err := appendValue(nil, v, 0)
			require.NoError(t, err)
		}
	})
}

func TestAggregateCalls(t *testing.T) {
	in := environment{key: stringKey(t)}
	for source, want := range map[string]string{
		"count()": "count|", " count ( ) ": "count|", "sum(value.amount)": "sum|value.amount", "last(value)": "last|value",
		"max((value.a + 1) * 2)": "max|(value.a + 1) * 2", `first(value.x == ")" ? 1 : 2)`: `first|value.x == ")" ? 1 : 2`, "sum(sum(value.items, #.price))": "sum|sum(value.items, #.price)",
		"sum(value.amount ?? 0)": "sum|value.amount ?? 0",
	} {
		f, err := parseAggregate("f", source, in)
		require.NoError(t, err, source)
		got := f.fn.String() + "|"
		if f.arg != nil {
			got += f.arg.source
		}
		require.Equal(t, want, got)
	}
	for source, want := range map[string]string{
		"value.amount":          "expected one call such as count() or sum(value.amount)",
		"sum(value.a) + 1":      "expected one call",
		"sum(value.a)+sum(key)": "expected one call",
		"sum(value.a":           "expected one call",
		"summ(value.a)":         "unknown function summ; did you mean sum? allowed: count, sum",
		"median(value.a)":       "unknown function median; allowed: count, sum",
		"sum()":                 "sum needs an expression, for example sum(value.amount)",
		"count(value.a)":        "count() counts records and takes nothing",
		"sum(valeu.a)":          "unknown name valeu; did you mean value? (character 5 of the expression)",
		"sum('x')":              "sum needs numbers, but the expression gives a text",
		"min(value.a == 1)":     "min needs numbers, but the expression gives a boolean",
		"sum(010)":              "number 010 has a leading zero; write 10, or '010' as text (character 5 of the expression)",
		"'":                     "character",
		"":                      "expected one call",
	} {
		_, err := parseAggregate("f", source, in)
		require.ErrorContains(t, err, want, source)
	}
}

func TestTheCodecIDListsWhatDecidesTheLayout(t *testing.T) {
	a := &aggregate{fields: []aggField{{name: "orders", fn: aggCount}, {name: "spent", fn: aggSum}}}
	require.Equal(t, "aggregate1(orders=count,spent=sum)", a.codec())
	require.Equal(t, 17, a.size())
	a.fields = append(a.fields, aggField{name: "top", fn: aggMax})
	require.Equal(t, "aggregate1(orders=count,spent=sum,top=max)", a.codec())
	require.Zero(t, a.size(), "a greatest value may be a text")
	for range 60 {
		a.fields = append(a.fields, aggField{name: "field", fn: aggMax})
	}
	require.Regexp(t, `^aggregate1\(63-fields,sha256=[0-9a-f]{64}\)$`, a.codec())
}

func TestAnAggregateOfManyFieldsHasACodecThatCheckpointsHold(t *testing.T) {
	fields := make([]string, 40)
	for i := range fields {
		fields[i] = fmt.Sprintf("average-order-value-%d: avg(value.x)", i)
	}
	plan := mustBuild(t, pipe("  a: {from: in, aggregate: {"+strings.Join(fields, ", ")+"}}", "a"))
	require.Contains(t, plan.States[0].Codec, "40-fields")
}
