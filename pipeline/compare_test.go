package pipeline

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObjectsAndListsAreEqualByTheirContent(t *testing.T) {
	value := map[string]any{"n": int64(1), "half": 0.5, "object": map[string]any{"a": int64(1), "b": []any{int64(2), "x"}}, "list": []any{map[string]any{"a": int64(1)}}, "none": nil}
	for source, want := range map[string]bool{
		`value.object == {"a": 1, "b": [2, "x"]}`: true, `{"b": [2, "x"], "a": 1.0} == value.object`: true, `value.object != {"a": 1, "b": [2, "x"]}`: false,
		`value.object == {"a": 1}`: false, `value.object == {"a": 1, "c": [2, "x"]}`: false, `value.object == {"a": 1, "b": [2]}`: false, `value.object != {"a": 1}`: true,
		`value.list == [{"a": 1}]`: true, `value.list == [{"a": 2}]`: false, `[value.n, value.half] == [1, 0.5]`: true, `value.list == []`: false,
		`value.none == {}`: false, `value.none == []`: false, `value.n == {"a": 1}`: false, `[value.none] == [nil]`: true, `{"a": value.n} == {"a": 1}`: true,
		`{"a": 1} in value.list`: true, `{"a": 2} in value.list`: false, `[1] in value.none`: false,
	} {
		got, err := mustCompile(t, source).eval(rec(value))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
}

func TestInFindsWhatIsEqualAndNothingElse(t *testing.T) {
	value := map[string]any{
		"none": nil, "empty": "", "a": "a", "five": int64(5), "half": 0.5, "bytes": []byte("a"), "object": map[string]any{"a": int64(1), "b": []any{int64(2), "x"}},
		"list": []any{map[string]any{"a": int64(1)}, nil, ""}, "counts": map[string]any{"": int64(1), "a": int64(2)},
	}
	for source, want := range map[string]bool{
		`value.gone in ["", "a"]`: false, `value.none in ["", "a"]`: false, `value.empty in ["", "a"]`: true, `value.a in ["", "a"]`: true, `value.five in ["", "a"]`: false, `value.object in ["", "a"]`: false,
		`value.bytes in ["a"]`: false, `value.gone not in ["", "a"]`: true, `value.a not in ["", "a"]`: false, `"a" in ["a"]`: true, `value.a in []`: false, `value.none in [nil]`: true, `value.none in ["", nil]`: true,
		`value.five in [1, 5]`: true, `value.five in [1, 5.0]`: true, `value.half in [1, 0.5, "a"]`: true, `value.none in [0]`: false, `len(value.a) in [1, 2]`: true, `value.five in 1..9`: true, `value.none in 0..9`: false, `timestamp in 0..9000000000000000`: true,
		`value.object in [{"a": 1, "b": [2, "x"]}, {}]`: true, `value.object in [{"a": 2, "b": [2, "x"]}]`: false, `value.none in [{}]`: false, `let list = [{"a": 1, "b": [2, "x"]}]; value.object in list`: true,
		`let list = ["", "a"]; value.none in list`: false, `[value.five] in [[5]]`: true, `{"a": 1} in value.list`: true, `"" in value.list`: true, `value.none in value.list`: true, `value.five in value.gone`: false,
		`value.gone in value.counts`: false, `value.empty in value.counts`: true, `value.a in value.counts`: true, `"b" in value.counts`: false, `"a" in value`: true, `nil in groupBy([nil, 1], #)`: true,
		`fromPairs([["a", 1]]) in [{"a": 1}]`: true, `fromPairs([["a", value.five]]) in [{"a": 5}]`: true, `any(["b", value.a], # in ["", "a"])`: true, `duration("1h") in [duration("60m")]`: true,
	} {
		got, err := mustCompile(t, source).eval(rec(value))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	for _, source := range []string{`"a" in 5`, `value.a in 5`, `5 in ["a"]`, `timestamp in ["a"]`, `5 in {"a": 1}`} {
		_, err := compile(source, environment{key: stringKey(t)})
		require.Error(t, err, source)
	}
	for _, source := range []string{`value.five in value.counts`, `value.five in value.a`, `{} in value.counts`} {
		_, err := mustCompile(t, source).eval(rec(value))
		require.Error(t, err, source)
	}
}

func TestSortingKeepsTheOrderOfEqualOnes(t *testing.T) {
	list, ids := make([]any, 100), make([]any, 0, 100)
	for i := range list {
		list[i] = map[string]any{"id": int64(i), "rank": int64(i % 3)}
	}
	for rank := range 3 {
		for i := rank; i < 100; i += 3 {
			ids = append(ids, int64(i))
		}
	}
	down := make([]any, 0, 100)
	for rank := 2; rank >= 0; rank-- {
		for i := rank; i < 100; i += 3 {
			down = append(down, int64(i))
		}
	}
	for source, want := range map[string]any{
		`map(sortBy(value, .rank), .id)`: ids, `map(sortBy(value, .rank, "asc"), .id)`: ids, `map(sortBy(value, .rank, "desc"), .id)`: down, `map(value | sortBy(#.rank), .id)`: ids,
		`sort([3, 1.5, 2])`: []any{1.5, int64(2), int64(3)}, `sort(["b", "a"], "desc")`: []any{"b", "a"}, `sort(split("b a", " "))`: []any{"a", "b"}, `sort(2..3, "desc")`: []any{int64(3), int64(2)},
		`string(sort([2, 1, 1.0, 1, 1.0], "desc"))`: "[2 1 1 1 1]", `sortBy([], #)`: []any{}, `sortBy(["bb", "a"], len(#))`: []any{"a", "bb"}, `value[0].id`: int64(0),
	} {
		got, err := mustCompile(t, source).eval(rec(list))
		require.NoError(t, err, source)
		require.Equal(t, want, got, source)
	}
	for _, source := range []string{`sort([1, "a"])`, `sort(value)`, `sortBy(value, #)`, `sort([1], value[0].id)`, `sort([2, 1], "up")`, `sortBy([2, 1], #, "up")`} {
		_, err := mustCompile(t, source).eval(rec(list))
		require.Error(t, err, source)
	}
}
