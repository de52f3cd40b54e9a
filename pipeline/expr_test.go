package pipeline

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/expr-lang/expr/builtin"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	sjson "github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

func stringKey(t require.TestingT) serde.Serde[any] {
	s, err := serde.Dynamic("string")
	require.NoError(t, err)
	return s
}

func mustCompile(t testing.TB, source string) *expression {
	t.Helper()
	e, err := compile(source, environment{key: stringKey(t)})
	require.NoError(t, err, source)
	return e
}

func rec(value any) *record {
	return &record{RawKey: []byte("anna"), Value: value, Timestamp: 1_700_000_000_123, Headers: []element.Header{
		{Key: "trace", Value: []byte("first")}, {Key: "trace", Value: []byte("second")}, {Key: "null", Value: nil}, {Key: "empty", Value: []byte{}},
	}}
}

func TestExpressionsSeeTheRecord(t *testing.T) {
	value := map[string]any{"amount": int64(40), "rate": 0.5, "name": "x", "items": []any{int64(1), int64(2)}, "none": nil, "deep": map[string]any{"a": "b"}}
	for source, want := range map[string]any{
		`value.amount`: int64(40), `value.amount + 2`: int64(42), `value.amount * value.rate`: 20.0, `value.rate + value.rate`: 1.0,
		`value.name + "y"`: "xy", `key`: "anna", `key + "!"`: "anna!", `timestamp`: int64(1_700_000_000_123), `tombstone`: false,
		`headers.trace`: "second", `headers["trace"]`: "second", `headers.none`: nil, `headers["null"]`: nil, `headers.empty`: "",
		`value.none`: nil, `value.gone`: nil, `value.gone ?? 7`: int64(7), `value.gone?.deeper`: nil, `value.deep.a`: "b",
		`sum(value.items)`: int64(3), `sum(value.items, # * 10)`: int64(30), `len(value.items)`: int64(2), `-value.amount`: int64(-40),
		`{"a": 1, "b": [2, value.amount]}`: map[string]any{"a": int64(1), "b": []any{int64(2), int64(40)}},
		`map(value.items, # + 1)`:          []any{int64(2), int64(3)}, `filter(value.items, # > 1)`: []any{int64(2)},
		`split("a,b", ",")`: []any{"a", "b"}, `value.amount > 10 ? "big" : "small"`: "big", `int("12")`: int64(12), `int(2.9)`: int64(2),
		`value.amount % 7`: int64(5), `value.amount / 16`: 2.5, `any(value.items, # == 2)`: true, `count(value.items, # > 0)`: int64(2),
		`let x = value.amount; x + x`: int64(80), `1..3`: []any{int64(1), int64(2), int64(3)}, `value.name matches "^x$"`: true,
		`reduce(value.items, #acc + #, 0)`: int64(3), `millis("2024-01-01")`: int64(1704067200000), `millis("2024-01-01T01:00:00+01:00")`: int64(1704067200000), `millis("01.01.2024", "02.01.2006")`: int64(1704067200000), `-5`: int64(-5), `1.5`: 1.5, `"010"`: "010",
	} {
		got, err := mustCompile(t, source).eval(rec(value))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
}

func TestAResultSharesWhatDidNotChange(t *testing.T) {
	value := map[string]any{"list": []any{int64(1)}}
	got, err := mustCompile(t, "value").eval(rec(value))
	require.NoError(t, err)
	got.(map[string]any)["list"].([]any)[0] = int64(9)
	require.Equal(t, int64(9), value["list"].([]any)[0])
}

func TestANullKeyIsNil(t *testing.T) {
	r := rec(nil)
	r.RawKey = nil
	got, err := mustCompile(t, `key ?? "none"`).eval(r)
	require.NoError(t, err)
	require.Equal(t, "none", got)
}

func TestAKeyThatCannotBeDecodedIsAnError(t *testing.T) {
	k, err := serde.Dynamic("int64")
	require.NoError(t, err)
	e, err := compile("key", environment{key: k})
	require.NoError(t, err)
	_, err = e.eval(rec(nil))
	require.ErrorContains(t, err, "decode key as int64")
}

func TestIntegersNeverWrapAround(t *testing.T) {
	value := map[string]any{"max": int64(math.MaxInt64), "min": int64(math.MinInt64), "big": json.Number("18446744073709551616"), "huge": 1e300, "list": []any{int64(math.MaxInt64), int64(1)}}
	for _, source := range []string{
		"value.max + 1", "value.min - 1", "value.max * 2", "-value.min", "value.min * -1", "-1 * value.min", "sum(value.list)", "sum(value.list, # * 2)",
		"reduce(value.list, #acc + #, 0)", "int(value.huge)", `int("9223372036854775808")`, "int(value.big)", "9223372036854775807 + 1",
	} {
		_, err := mustCompile(t, source).eval(rec(value))
		require.ErrorIs(t, err, topology.ErrOverflow, source)
	}
	for source, want := range map[string]any{"value.max - 1": int64(math.MaxInt64 - 1), "value.min + 1": int64(math.MinInt64 + 1), "value.max * -1": int64(-math.MaxInt64), "value.min * 1": int64(math.MinInt64), "value.min + value.max": int64(-1)} {
		got, err := mustCompile(t, source).eval(rec(value))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
}

func TestDurationsNeverWrapAround(t *testing.T) {
	value := map[string]any{"n": int64(3), "huge": int64(10_000_000_000)}
	for source, want := range map[string]any{
		`(duration("1h") * value.n).Milliseconds()`: int64(10_800_000), `(value.n * duration("1h") - duration("30m")).Minutes()`: 150.0, `(duration("1h") + duration("1s")).Seconds()`: 3601.0,
	} {
		got, err := mustCompile(t, source).eval(rec(value))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	for _, source := range []string{
		`(duration("1h") * value.huge).Milliseconds()`, `(value.huge * duration("1h")).Milliseconds()`, `(duration("2562047h") + duration("1h")).Hours()`, `(duration("-2562047h") - duration("1h")).Hours()`, `(duration("1h") * duration("1h")).Hours()`,
	} {
		_, err := mustCompile(t, source).eval(rec(value))
		require.ErrorIs(t, err, topology.ErrOverflow, source)
	}
}

func TestErrorsOfARecordNameTheExpression(t *testing.T) {
	for source, want := range map[string]string{
		"value.a.b":      "value.a.b: cannot fetch b from <nil> (character 9 of the expression)",
		"value.text + 1": "value.text + 1: ",
		"value.n > 'x'":  "value.n > 'x': ",
		"value.n % 0":    "value.n % 0: ",
		`millis("x")`:    "millis() of a text that is not a date",
		`duration("1h")`: "a duration is no value of a record",
	} {
		_, err := mustCompile(t, source).eval(rec(map[string]any{"text": "x", "n": int64(1)}))
		require.ErrorContains(t, err, want, source)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestMistakesAreFoundWhenCompiled(t *testing.T) {
	for source, want := range map[string]string{
		"value.":                        "unexpected end of expression (character 6 of the expression)",
		"valeu.amount":                  "unknown name valeu; did you mean value? (character 1 of the expression)",
		"amount > 5":                    "unknown name amount; an expression can name key, value, headers, timestamp, tombstone; a field is value.amount (character 1 of the expression)",
		"now()":                         "unknown name now",
		"timezone('UTC')":               "unknown name timezone",
		"repeat('x', 1000000)":          "unknown name repeat",
		"uniq([1])":                     "unknown name uniq",
		"$env":                          "$env is not available",
		"$steps":                        "character 1",
		"key matches value":             "the pattern of matches must be a text constant",
		"key matches '('":               "missing closing )",
		"tombstone + ":                  "unexpected",
		"value.a\n  + valeu":            "(line 2, character 5 of the expression)",
		"1 +":                           "unexpected",
		"'x":                            "character",
		"99999999999999999999":          "",
		strings.Repeat("1+", 600) + "1": "exceeds maximum allowed nodes",
		strings.Repeat("x", 5000):       "longer than 4096 bytes",
		strings.Repeat("(", 2000) + "1": "",
	} {
		_, err := compile(source, environment{key: stringKey(t)})
		require.ErrorContains(t, err, want, source)
		require.NotContains(t, err.Error(), "\n")
	}
}

// A function with too few arguments, or too many, is told as that, also inside of a predicate.
func TestWrongNumbersOfArgumentsAreMistakes(t *testing.T) {
	for _, name := range builtin.Names {
		for _, args := range []string{"", "1", "#, 1", "key, 1, 2, 3, 4"} {
			for _, source := range []string{name + "(" + args + ")", "filter([1], " + name + "(" + args + ") == 1)"} {
				if _, err := compile(source, environment{key: stringKey(t)}); err != nil {
					require.NotContains(t, err.Error(), "cannot be compiled", source)
				}
			}
		}
	}
	_, err := compile("filter([1], len() > 1)", environment{key: stringKey(t)})
	require.ErrorContains(t, err, "invalid number of arguments (expected 1, got 0)")
}

func TestC44_ConstantsKeepTheirTextOrAreRefused(t *testing.T) {
	for _, source := range []string{"010", "08", "1.10", "1e3", "2024-01-01", "2024-10-11", "22:30", "0x1F", "1_000", "18446744073709551616", "value.zip == 010", "-010", "00", "2024-10-11T10:00:00Z", "12/11/2024", "1.0", "0b1", "NO", "on", "y"} {
		_, err := compile(source, environment{key: stringKey(t)})
		require.Error(t, err, source)
	}
	for source, want := range map[string]any{"10": int64(10), "0": int64(0), "0.5": 0.5, "-1.5": -1.5, "true": true, `"010"`: "010", "'2024-01-01'": "2024-01-01", "value.n * 1.10": 2.2, "9223372036854775807": int64(math.MaxInt64), "value.n == 1": false} {
		got, err := mustCompile(t, source).eval(rec(map[string]any{"n": int64(2)}))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
}

func TestC44_AMessageSaysHowToQuote(t *testing.T) {
	for source, want := range map[string]string{
		"2024-01-01": `2024-01-01 looks like a date or a time; write "'2024-01-01'" if the text is meant`,
		"1.10":       `1.10 is not how the number would be written out; write "'1.10'" if the text is meant`,
		"x == 010":   "number 010 has a leading zero; write 10, or '010' as text (character 6 of the expression)",
	} {
		_, err := compile(source, environment{key: stringKey(t)})
		require.EqualError(t, err, want)
	}
}

func TestKnownTypesAreCheckedWhenCompiled(t *testing.T) {
	_, err := compile("value.status", environment{key: stringKey(t), value: intKind})
	require.ErrorContains(t, err, "type int64 has no field status")
	_, err = compile(`value + "x"`, environment{key: stringKey(t), value: floatKind})
	require.NoError(t, err) // left to the record: the checked operators take anything
	e, err := compile(`tombstone ? "gone" : value`, environment{key: stringKey(t), value: textKind})
	require.NoError(t, err)
	r := rec(nil)
	r.Tombstone = true
	got, err := e.eval(r)
	require.NoError(t, err)
	require.Equal(t, "gone", got)
}

func TestEvaluationIsBounded(t *testing.T) {
	long := make([]any, 200_000)
	for i := range long {
		long[i] = int64(i)
	}
	for _, source := range []string{
		"count(value, count(value, true) > 0)", "all(value, # >= 0)", "map(1..900000, map(1..900000, #))", "1..2000000",
		"sum(value)", "sum(map(1..100000, #))", "sortBy(value, -#)", "reduce(value, #acc + #)", "groupBy(value, #)", "find(value, # < 0)",
	} {
		e := mustCompile(t, source)
		start := time.Now()
		_, err := e.eval(rec(long))
		require.Error(t, err, source)
		require.Less(t, time.Since(start), time.Second, source)
	}
	// The budget is per record: the next one has all of it.
	e := mustCompile(t, "count(value, true)")
	for range 3 {
		got, err := e.eval(rec(long[:9_000]))
		require.NoError(t, err)
		require.Equal(t, int64(9_000), got)
	}
}

// TestWhatPredicatesLookAtIsBounded: one record of a megabyte must not keep a task for minutes.
func TestWhatPredicatesLookAtIsBounded(t *testing.T) {
	list := func(n int, v any) []any { return slices.Repeat([]any{v}, n) }
	of := func(runs, n int) map[string]any {
		return map[string]any{
			"items": list(runs, int64(1)), "words": list(runs, "word"), "allowed": list(n, int64(2)), "same": list(n, int64(2)), "nested": []any{list(n, int64(2))},
			"text": strings.Repeat("a", 16*n), "flags": list(n, true), "empty": list(n, ""), "pairs": list(n, []any{"a", int64(1)}),
		}
	}
	_, err := mustCompile(t, "filter(value.items, # in value.allowed)").eval(rec(of(10_000, 64<<10)))
	require.ErrorIs(t, err, errTooManyLooks)
	small := of(1000, 100)
	looks := func(source string) int {
		ev, out := newEvaluator(), sjson.NullValue()
		require.NoError(t, mustCompile(t, source).evalWith(ev, rec(small), &out), source)
		return maxLooks - ev.looks
	}
	for _, source := range []string{
		"filter(value.items, # in value.allowed)", "filter(value.items, # not in value.allowed)", "filter(value.items, len(string(#)) in value.allowed)", "count(value.items, value.allowed == value.same) > 10000",
		"any(value.items, value.nested != [value.same])", "filter(value.items, # > max(value.allowed))", "filter(value.items, # > min(value.allowed, 2))", "filter(value.items, # > mean(value.allowed))", "filter(value.items, # > median(value.allowed))",
		`filter(value.words, value.text matches "a.*z")`, `filter(value.words, value.text contains #)`, "filter(value.items, count(value.flags) == #)", "filter(value.items, len(value.text) == #)", `filter(value.words, indexOf(value.text, #) > 0)`,
		`filter(value.words[:500], len(split(value.text, #)) > 1)`, `filter(value.words, join(value.empty) == #)`, `filter(value.words, len(fromPairs(value.pairs)) == #)`, `filter(value.words, replace(value.text, value.text, "") == #)`, `filter(value.words, trim(value.text, "a") == #)`,
		"any(value.items, value.allowed in [[1], [2]])", `filter(value.items, value.allowed in [[#], value.same, [1]])`, `filter(value.items[:500], any([1], value.allowed in [[1], value.same, #]))`,
	} {
		require.GreaterOrEqual(t, looks(source), 50_000, source)
	}
	for _, source := range []string{`count(value.words, # in ["word", "other"])`, "count(value.items, # == 1)", `count(value.words, # > "w")`, "value.allowed == value.same", "max(value.allowed)"} {
		require.Zero(t, looks(source), source)
	}
	// The length of a list, and what has a name in an object, are known without a look at the rest.
	many := of(5000, 5000)
	for i := range 5000 {
		many["o"+strconv.Itoa(i)] = list(10, int64(i))
	}
	for _, source := range []string{"count(value.items, len(value.allowed) == 5000)", `count(value.items, len(value) > 5000)`, `count(value.items, "o1" in value)`, `count(value.words, # not in value)`} {
		got, err := mustCompile(t, source).eval(rec(many))
		require.NoError(t, err, source)
		require.EqualValues(t, 5000, got, source)
	}
	require.Less(t, looks(`count(value.words, # matches "^w" and # contains "o" and len(#) in 1..100 and # == key)`), 10_000)
}

// TestValuesThatShareTheirPartsAreBounded: forty lists of two stand for 2^40 numbers.
func TestValuesThatShareTheirPartsAreBounded(t *testing.T) {
	shared := "let a0 = [value.n, 0]; "
	for i := range 40 {
		shared += fmt.Sprintf("let a%d = [a%d, a%d]; ", i+1, i, i)
	}
	texts := strings.Replace(shared, "[value.n, 0]", `["x"]`, 1)
	for _, source := range []string{
		shared + "a40", texts + "a40", shared + "toJSON(a40)", shared + "flatten(a40)", strings.Replace(shared, "[value.n, 0]", "[]", 1) + "flatten(a40)",
		shared + "a40 == [1]", "reduce(1..40, [#acc, #acc], 0)",
		shared + "max(a40)", shared + "min(1, [a40])", shared + "mean(a40)", shared + `let o = {"a": a40}; median(o.a)`, "max(reduce(1..40, [#acc, #acc], 0))",
	} {
		_, err := mustCompile(t, source).eval(rec(map[string]any{"n": int64(1)}))
		require.Error(t, err, source) // without a bound it would not come to an end
	}
	got, err := mustCompile(t, "flatten([[value.n, [2]], [], [[value.l]]])").eval(rec(map[string]any{"n": int64(1), "l": []any{int64(3), map[string]any{}}}))
	require.NoError(t, err)
	require.Equal(t, []any{int64(1), int64(2), int64(3), map[string]any{}}, got)
	_, err = compile("flatten(5)", environment{key: stringKey(t)})
	require.Error(t, err)
}

func TestDeepValuesAreRefused(t *testing.T) {
	var deep any = int64(1)
	for range 100 {
		deep = []any{deep}
	}
	_, err := mustCompile(t, "value").eval(rec(deep))
	require.ErrorIs(t, err, errTooDeep)
}

// FuzzExpr compiles any text and runs it: no panic, and no evaluation that does not end.
func FuzzExpr(f *testing.F) {
	for _, s := range []string{"value.a + 1", `key == "x" && headers.a != nil`, "sum(value.list, # * 2)", "map(1..10, {#})", "let a = 1; a..5", "010", "2024-01-01", "value?.a ?? [1]", "'a' matches 'b+'", "$steps", "$env.value", "-(-value.n)", "reduce(value.list, #acc + #index, 0)",
		"keys(groupBy(value.list, #))", "toPairs(fromPairs([['a', value.f]]))", "fromJSON(toJSON(value))", "map(1..value.a, replace(value.s, '', string(value.list)))", "join(split(value.s, ''), key)[value.f:]", "abs(bitshl(value.n, 1))", "sortBy(value.list, #, key)", "sort(value.list) == [{'a': value.a}]", "[1] in [value.list]"} {
		f.Add(s)
	}
	value := map[string]any{"a": int64(1), "n": int64(math.MinInt64), "f": math.NaN(), "s": "x", "list": []any{int64(1), "b", nil}, "big": json.Number("1e999")}
	f.Fuzz(func(t *testing.T, source string) {
		start := time.Now()
		in := environment{key: stringKey(t)}
		if a, err := parseAggregate("f", source, in); err == nil && a.arg != nil {
			_, _ = a.arg.eval(rec(value))
		}
		e, err := compile(source, in)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		got, err := e.eval(rec(value))
		if err == nil {
			b, err := appendValue(nil, got, 0)
			require.NoError(t, err)
			d := decoder{b: b}
			d.value(0)
			require.False(t, d.bad)
		}
		require.Less(t, time.Since(start), time.Second, "%q", source)
	})
}
