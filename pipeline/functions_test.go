package pipeline

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/topology"
)

func TestObjectsAreReadInTheOrderOfTheirKeys(t *testing.T) {
	object := map[string]any{}
	for i := range 20 {
		object[fmt.Sprintf("k%02d", i)] = int64(i % 4)
	}
	object["Z"], object["é"] = int64(7), int64(8)
	for source, want := range map[string]string{
		`join(keys(value), ",")`:                                                 "Z,k00,k01,k02,k03,k04,k05,k06,k07,k08,k09,k10,k11,k12,k13,k14,k15,k16,k17,k18,k19,é",
		`string(values(value))`:                                                  "[7 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3 8]",
		`string(toPairs(value)[:3])`:                                             "[[Z 7] [k00 0] [k01 1]]",
		`string(keys(groupBy(keys(value), len(#) > 1 ? #[2:] : 0)))`:             "[0 0 1 2 3 4 5 6 7 8 9]",
		`string(values(groupBy(values(value), #)))`:                              "[[0 0 0 0 0] [1 1 1 1 1] [2 2 2 2 2] [3 3 3 3 3] [7] [8]]",
		`string(keys(groupBy([true, 2, "x", 1.5, 1, "a", false, nil, 0.5], #)))`: "[<nil> false true 1 2 0.5 1.5 a x]",
		`string(fromPairs(toPairs(value)) == value)`:                             "true",
		`join(keys(headers), ",")`:                                               "empty,null,trace",
		`toJSON(fromPairs([["b", 1], ["a", 2], ["b", 3]]))`:                      `{"a":2,"b":3}`,
		`join(keys({"b": 1, "a": 2}))`:                                           "ab",
	} {
		e := mustCompile(t, source)
		for range 20 {
			got, err := e.eval(rec(object))
			require.NoError(t, err, source)
			require.Equal(t, want, got, source)
		}
	}
}

func TestWhatHasNoOrderOrNoFixedTextIsRefused(t *testing.T) {
	value := map[string]any{"nan": math.NaN(), "big": json.Number("18446744073709551616"), "n": int64(1)}
	for _, source := range []string{
		`keys(groupBy([value.nan, value.nan], #))`, `string(value.big.String)`, `string(duration("1h").Hours)`, `string(groupBy([value.n], #))`,
		`toJSON(value.big.String)`, `fromPairs([[1, 2]])`, `fromPairs([1])`, `keys(value.n)`, `values(value.n)`, `toPairs(value.n)`,
		`map([value.nan], toJSON(#))`,
	} {
		_, err := mustCompile(t, source).eval(rec(value))
		require.Error(t, err, source)
	}
	for _, source := range []string{`keys("x")`, `values(1)`, `toPairs([1])`} {
		_, err := compile(source, environment{key: stringKey(t)})
		require.Error(t, err, source)
	}
}

func TestIntegersStayExactInFunctions(t *testing.T) {
	value := map[string]any{
		"json": `{"id":9007199254740993,"big":18446744073709551616,"price":0.5,"list":[1,2]}`, "id": int64(9007199254740993),
		"min": int64(math.MinInt64), "max": int64(math.MaxInt64), "small": int64(-7), "half": -1.5, "huge": 1e300, "nan": math.NaN(), "whole": 3.0,
	}
	for source, want := range map[string]any{
		`fromJSON(value.json).id`: int64(9007199254740993), `fromJSON(value.json).id + 1`: int64(9007199254740994),
		`fromJSON(value.json).big`: json.Number("18446744073709551616"), `fromJSON(value.json).price`: 0.5, `sum(fromJSON(value.json).list)`: int64(3),
		`toJSON(value.id)`: "9007199254740993", `toJSON(fromJSON(value.json))`: `{"big":18446744073709551616,"id":9007199254740993,"list":[1,2],"price":0.5}`,
		`string(value.id)`: "9007199254740993", `string(value.min)`: "-9223372036854775808", `string(value.half)`: "-1.5", `string(value.huge)`: "1e+300",
		`string([nil])`: "[<nil>]", `string(value.gone ?? "none")`: "none", `string(true)`: "true", `string([1, "a"])`: "[1 a]", `string(duration("90m"))`: "1h30m0s", `string(fromJSON(value.json).big)`: "18446744073709551616",
		`abs(value.small)`: int64(7), `abs(value.half)`: 1.5, `abs(value.max)`: int64(math.MaxInt64), `value.small | abs()`: int64(7),
		`round(value.half)`: -2.0, `floor(value.half)`: -2.0, `ceil(value.half)`: -1.0, `round(value.small)`: -7.0, `floor(9007199254740992)`: 9007199254740992.0,
		`bitshl(3, 4)`: int64(48), `bitshl(value.small, 2)`: int64(-28), `bitshl(0, 99)`: int64(0), `bitshl(1, 62)`: int64(1 << 62), `bitshl(-1, 63)`: int64(math.MinInt64),
		`value.small..-5`: []any{int64(-7), int64(-6), int64(-5)}, `1..value.whole`: []any{int64(1), int64(2), int64(3)}, `3..value.small`: []any{}, `value.max..value.min`: []any{}, `value.max..-9223372026854775808`: []any{}, `2 in 1..3`: true,
		`[1, 2, 3][value.whole - 2]`: int64(2), `[1, 2, 3][value.whole - 1:]`: []any{int64(3)}, `map([4, 5], [4, 5][#index])`: []any{int64(4), int64(5)}, `value[key] ?? 0`: int64(0), `get([1, 2], -1)`: int64(2),
	} {
		got, err := mustCompile(t, source).eval(rec(value))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	for _, source := range []string{"abs(value.min)", "bitshl(1, 63)", "bitshl(1, 64)", "bitshl(value.max, 1)", "bitshl(value.min, 1)"} {
		_, err := mustCompile(t, source).eval(rec(value))
		require.ErrorIs(t, err, topology.ErrOverflow, source)
	}
	for _, source := range []string{
		"round(value.id)", "floor(value.max)", "ceil(value.min + 1)", "value.min..value.max", "-9223372036854775807..9223372036854775807", "1..value.half", "value.nan..3",
		"1..value.huge", "1..value.max", "[1, 2][value.nan]", "[1, 2][value.huge:]", "[1, 2][:value.nan]", "get([1, 2], value.nan)", `bitshl(1, -1)`, `fromJSON("{")`, `fromJSON("1 2")`, `round("x")`, `abs("x")`, `abs(nil)`, `abs(fromJSON(value.json).big)`,
		`string(nil)`, `string(value.gone)`, `"no " + string(value.json?.gone)`, `map([nil], string(#))`,
	} {
		_, err := mustCompile(t, source).eval(rec(value))
		require.Error(t, err, source)
	}
}

func TestWhatFromJSONGivesOutlivesTheInput(t *testing.T) {
	text := []byte(`{"a":"b"}`)
	r := rec(nil)
	r.RawKey = text
	got, err := mustCompile(t, "fromJSON(key).a").eval(r)
	require.NoError(t, err)
	copy(text, strings.Repeat("x", len(text)))
	require.Equal(t, "b", got)
}

func TestTextFunctionsKeepTheirMeaning(t *testing.T) {
	for source, want := range map[string]any{
		`replace("a,b,c", ",", "--")`: "a--b--c", `replace("a,b,c", ",", "--", 1)`: "a--b,c", `replace("aé", "", "-")`: "-a-é-", `replace("aé", "", "-", 2)`: "-a-é", `replace("abc", "b", "")`: "ac",
		`replace("a,b", ",", "--", -1)`: "a--b", `replace("a,b", ",", "--", 0)`: "a,b",
		`join(["a", "b"], ",")`: "a,b", `join(["a", "b"])`: "ab", `join(split("a b", " "), "-")`: "a-b", `join([])`: "",
		`split("a,b,c", ",", 2)`: []any{"a", "b,c"}, `splitAfter("a,b", ",")`: []any{"a,", "b"}, `splitAfter("a,b,c", ",", 2)`: []any{"a,", "b,c"}, `split("aé", "")`: []any{"a", "é"},
		`split("a", ",", 0)`: []any{}, `map(["a"], upper(#) + "b")`: []any{"Ab"}, `reduce(["a", "b"], #acc + #)`: "ab",
		`map(["[1]"], fromJSON(#)[0] + 1)`: []any{int64(2)}, `filter(["b", "a"], lower(#) == "a")`: []any{"a"}, `map([[1, 2]], len(toJSON(#)))`: []any{int64(5)},
	} {
		got, err := mustCompile(t, source).eval(rec(nil))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	_, err := mustCompile(t, `join([1], ",")`).eval(rec(nil))
	require.Error(t, err)
	_, err = compile(`replace("a")`, environment{key: stringKey(t)})
	require.ErrorContains(t, err, "not enough arguments to call replace")
}

// The texts are as a record may have them; each source would make some gigabytes of them.
func TestARecordCannotMakeTextsWithoutBound(t *testing.T) {
	half := 500 << 10
	long := make([]any, 9_000)
	for i := range long {
		long[i] = "ab"
	}
	wide := make([]any, half/4)
	for i := range wide {
		wide[i] = ""
	}
	value := map[string]any{
		"text": strings.Repeat(",", half), "sep": strings.Repeat("x", half), "list": long, "wide": wide, "json": "[" + strings.Repeat("[],", half/3) + "1]",
		"object": map[string]any{"x": strings.Repeat("x", half)},
	}
	for _, source := range []string{
		`replace(value.text, ",", value.sep)`, `replace(value.text, "", value.sep)`, `replace(value.text, ",", value.sep, 9000)`, `join(value.wide, value.sep)`, `join(split(value.text, ","), value.sep)`,
		`reduce(value.list, #acc + value.sep, "")`, `map(value.list, value.sep + #)`, `map(value.list, upper(value.text))`, `map(value.list, lower(value.sep + "A"))`,
		`map(value.list, replace(value.sep, "x", "y", 9))`, `map(value.list, join([value.sep, #]))`, `map(value.list, toJSON(value.sep))`, `map(value.list, toBase64(value.sep))`,
		`map(value.list, fromBase64(value.sep))`, `map(value.list, string(value.object))`, `map(value.list, split(value.text, ","))`, `map(value.list, splitAfter(value.text, ","))`,
		`map(value.list, fromJSON(value.json))`, `map(value.list, map(1..1, value.sep + "x"))`, `sum(value.list, len(value.sep + #))`, `map(value.list, 1..len(value.text))`,
		`count(value.list, let a = value.sep + value.sep; len(a + a) > 0)`, `map(value.list, trim(value.sep + "  "))`,
	} {
		e := mustCompile(t, source)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := e.eval(rec(value))
		runtime.ReadMemStats(&after)
		require.Error(t, err, source)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(160<<20), source)
	}
	doubled := "let a = value.sep + value.sep; let b = a + a; let c = b + b; let d = c + c; let e = d + d; let f = e + e; len(f + f)"
	_, err := mustCompile(t, doubled).eval(rec(value))
	require.ErrorContains(t, err, "bytes of text")
	_, err = mustCompile(t, `split(value, "")`).eval(rec(strings.Repeat("x", memoryBudget+1)))
	require.ErrorContains(t, err, "pieces")
}
