package pipeline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm/runtime"

	sjson "github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// ownFunctions take the place of functions of the language: of those that walk an object in the random order of a map,
// those that round or wrap integers, and those whose result can be far larger than what they get.
var ownFunctions = []expr.Option{
	expr.Function("keys", keys, new(func(map[string]any) []any), new(func(map[any][]any) []any)),
	expr.Function("values", values, new(func(map[string]any) []any), new(func(map[any][]any) []any)),
	expr.Function("toPairs", toPairs, new(func(map[string]any) []any), new(func(map[any][]any) []any)),
	expr.Function("fromPairs", fromPairs, new(func(any) map[string]any)),
	expr.Function("fromJSON", fromJSON, new(func(string) any)),
	expr.Function("toJSON", toJSON, new(func(any) string)),
	expr.Function("string", toText, new(func(any) string)),
	expr.Function("abs", abs, new(func(any) any)),
	expr.Function("round", rounded("round", math.Round), new(func(any) float64)),
	expr.Function("floor", rounded("floor", math.Floor), new(func(any) float64)),
	expr.Function("ceil", rounded("ceil", math.Ceil), new(func(any) float64)),
	expr.Function("bitshl", shiftLeft, new(func(int, int) int)),
	expr.Function("$index", index, new(func(any) any)),
	expr.Function("$range", wholeRange, new(func(any, any) []int)),
	expr.Function("replace", replace, new(func(string, string, string) string), new(func(string, string, string, int) string)),
	expr.Function("join", join, new(func([]any) string), new(func([]any, string) string), new(func([]string) string), new(func([]string, string) string)),
	expr.Function("split", splitter(strings.SplitN), new(func(string, string) []string), new(func(string, string, int) []string)),
	expr.Function("splitAfter", splitter(strings.SplitAfterN), new(func(string, string) []string), new(func(string, string, int) []string)),
}

// entry is one of an object, or one group of groupBy.
type entry struct{ key, value any }

// entries gives them in the order of their keys, which of texts is that of their bytes.
func entries(name string, v any) ([]entry, error) {
	switch m := v.(type) {
	case map[string]any:
		out := make([]entry, 0, len(m))
		for _, k := range slices.Sorted(maps.Keys(m)) {
			out = append(out, entry{k, m[k]})
		}
		return out, nil
	case map[any][]any:
		out := make([]entry, 0, len(m))
		for k, group := range m {
			if f, ok := k.(float64); ok && f != f {
				return nil, topology.ErrNaN
			}
			if keyRank(k) == 0 {
				return nil, fmt.Errorf("%s() of groups by %s", name, describe(k))
			}
			out = append(out, entry{k, group})
		}
		slices.SortFunc(out, func(a, b entry) int { return compareKeys(a.key, b.key) })
		return out, nil
	}
	return nil, fmt.Errorf("%s() of %s", name, describe(v))
}

// keyRank orders the kinds of groups' keys; 0 stands for those that have no place.
func keyRank(k any) int {
	switch k.(type) {
	case nil:
		return 1
	case bool:
		return 2
	case int, int64:
		return 3
	case float64:
		return 4
	case json.Number:
		return 5
	case string:
		return 6
	}
	return 0
}

// compareKeys is an order in which no two keys of one map are equal.
func compareKeys(a, b any) int {
	if c := cmp.Compare(keyRank(a), keyRank(b)); c != 0 {
		return c
	}
	switch a := a.(type) {
	case bool:
		return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
	case int, int64:
		x, _ := asInt64(a)
		y, _ := asInt64(b)
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(fmt.Sprintf("%T", a), fmt.Sprintf("%T", b)))
	case float64:
		return cmp.Compare(a, b.(float64))
	case json.Number:
		return cmp.Compare(a, b.(json.Number))
	case string:
		return cmp.Compare(a, b.(string))
	}
	return 0
}

// listOf makes a list of what pick takes of each entry.
func listOf(name string, object any, pick func(entry) any) (any, error) {
	all, err := entries(name, object)
	if err != nil {
		return nil, err
	}
	out := make([]any, len(all))
	for i, e := range all {
		out[i] = pick(e)
	}
	return out, nil
}

func keys(args ...any) (any, error) {
	return listOf("keys", args[0], func(e entry) any { return e.key })
}

func values(args ...any) (any, error) {
	return listOf("values", args[0], func(e entry) any { return e.value })
}

func toPairs(args ...any) (any, error) {
	return listOf("toPairs", args[0], func(e entry) any { return []any{e.key, e.value} })
}

// fromPairs makes an object, whose keys are texts; of equal ones the last counts.
func fromPairs(args ...any) (any, error) {
	list := reflect.ValueOf(args[0])
	if list.Kind() != reflect.Slice {
		return nil, fmt.Errorf("fromPairs() of %s", describe(args[0]))
	}
	out := make(map[string]any, list.Len())
	for i := range list.Len() {
		pair := reflect.ValueOf(list.Index(i).Interface())
		if pair.Kind() != reflect.Slice || pair.Len() != 2 {
			return nil, errors.New("fromPairs() of a list with an element that is not a list of two")
		}
		key, ok := pair.Index(0).Interface().(string)
		if !ok {
			return nil, errors.New("fromPairs() with a key that is not a text")
		}
		out[key] = pair.Index(1).Interface()
	}
	return out, nil
}

// fromJSON reads what a JSON source reads, so integers are exact. The copy of the text is what the result may alias.
func fromJSON(args ...any) (any, error) {
	v, err := sjson.Any().Decode([]byte(args[0].(string)))
	if err != nil {
		return nil, fmt.Errorf("fromJSON(): %w", err)
	}
	return v, nil
}

// toJSON writes what a JSON sink writes.
func toJSON(args ...any) (any, error) {
	v, err := normalise(args[0])
	if err != nil {
		return nil, fmt.Errorf("toJSON(): %w", err)
	}
	b, err := sjson.Any().Append(nil, v)
	if err != nil {
		return nil, fmt.Errorf("toJSON(): %w", err)
	}
	return string(b), nil
}

// toText is string() of what a record can hold. The language's own prints addresses of all else, and makes one text of all
// that is missing, which as a key would bring unlike records together.
func toText(args ...any) (any, error) {
	switch v := args[0].(type) {
	case nil:
		return nil, fmt.Errorf("string() of %s; write string(… ?? DEFAULT) if that may be", describe(v))
	case string:
		return v, nil
	case int:
		return strconv.Itoa(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case time.Duration:
		return v.String(), nil
	}
	v, err := normalise(args[0])
	if err != nil {
		return nil, fmt.Errorf("string(): %w", err)
	}
	return fmt.Sprint(v), nil
}

func abs(args ...any) (any, error) {
	if f, ok := args[0].(float64); ok {
		return math.Abs(f), nil
	}
	n, ok := asInt64(args[0])
	switch {
	case !ok:
		return nil, fmt.Errorf("abs() of %s", describe(args[0]))
	case n == math.MinInt64:
		return nil, topology.ErrOverflow
	case n < 0:
		n = -n
	}
	return int(n), nil
}

// rounded gives a float, also of an integer, which it must hold exactly.
func rounded(name string, round func(float64) float64) func(args ...any) (any, error) {
	return func(args ...any) (any, error) {
		if f, ok := args[0].(float64); ok {
			return round(f), nil
		}
		n, ok := asInt64(args[0])
		if !ok {
			return nil, fmt.Errorf("%s() of %s", name, describe(args[0]))
		}
		f := float64(n)
		if compareFloatInt(f, n) != 0 {
			return nil, fmt.Errorf("%s() of a whole number that a float does not hold exactly", name)
		}
		return f, nil
	}
}

func shiftLeft(args ...any) (any, error) {
	n, ok := asInt64(args[0])
	by, okBy := asInt64(args[1])
	switch {
	case !ok || !okBy:
		return nil, errors.New("bitshl() of what is not a whole number")
	case by < 0:
		return nil, fmt.Errorf("bitshl() by %d", by)
	case n<<by>>by != n:
		return nil, topology.ErrOverflow
	}
	return int(n << by), nil
}

// index refuses floats of which processors make different integers.
func index(args ...any) (any, error) {
	if f, ok := args[0].(float64); ok && !(math.Abs(f) < 1<<53) {
		return nil, errors.New("an index that is no whole number")
	}
	return args[0], nil
}

// wholeRange is FROM..TO where these are not constants. The language's own cuts floats to integers, and gives an empty
// list where the length overflows.
func wholeRange(args ...any) (any, error) {
	var bounds [2]int64
	for i, v := range args {
		n, ok := asInt64(v)
		if f, isFloat := v.(float64); isFloat && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			n, ok = int64(f), true
		}
		if !ok {
			return nil, fmt.Errorf("a range needs whole numbers, found %s", describe(v))
		}
		bounds[i] = n
	}
	if bounds[1] < bounds[0] {
		return []int{}, nil // the language's own overflows where they are far apart
	}
	if n, ok := subInt64(bounds[1], bounds[0]); !ok || n >= memoryBudget {
		return nil, fmt.Errorf("a range of more than %d numbers", memoryBudget)
	}
	return runtime.MakeRange(int(bounds[0]), int(bounds[1])), nil
}

// maxTextBytes is the longest text that replace, join and + make, and what all evaluations of predicates for one record
// may make of texts and lists.
const maxTextBytes = 16 << 20

var errTextTooLong = fmt.Errorf("more than %d bytes of text or lists are made for one record", maxTextBytes)

// addOthers is + for what are no integers.
func addOthers(a, b any) (any, error) {
	x, ok := a.(string)
	if !ok {
		return runtime.Add(a, b), nil
	}
	y, ok := b.(string)
	if !ok {
		return runtime.Add(a, b), nil
	}
	if len(x)+len(y) > maxTextBytes {
		return nil, errTextTooLong
	}
	return x + y, nil
}

func replace(args ...any) (any, error) {
	s, from, to, most := args[0].(string), args[1].(string), args[2].(string), -1
	if len(args) > 3 {
		n, err := limit("replace", args[3])
		if err != nil {
			return nil, err
		}
		most = n
	}
	if more := len(to) - len(from); more > 0 {
		n := strings.Count(s, from)
		if most >= 0 {
			n = min(n, most)
		}
		if len(s)+n*more > maxTextBytes {
			return nil, errTextTooLong
		}
	}
	return strings.Replace(s, from, to, most), nil
}

func limit(name string, v any) (int, error) {
	n, ok := asInt64(v)
	if !ok {
		return 0, fmt.Errorf("%s() with a limit that is not a whole number: %s", name, describe(v))
	}
	return int(n), nil
}

func join(args ...any) (any, error) {
	glue := ""
	if len(args) > 1 {
		glue = args[1].(string)
	}
	parts, ok := args[0].([]string)
	if !ok {
		list, isList := args[0].([]any)
		if !isList {
			return nil, fmt.Errorf("join() of %s", describe(args[0]))
		}
		parts = make([]string, len(list))
		for i, v := range list {
			if parts[i], ok = v.(string); !ok {
				return nil, fmt.Errorf("join() of a list with %s in it", describe(v))
			}
		}
	}
	size := len(glue) * max(0, len(parts)-1)
	for _, p := range parts {
		size += len(p)
	}
	if size > maxTextBytes {
		return nil, errTextTooLong
	}
	return strings.Join(parts, glue), nil
}

// splitter is split or splitAfter with a bound on the pieces, whose headers take more room than short ones.
func splitter(split func(s, at string, n int) []string) func(args ...any) (any, error) {
	return func(args ...any) (any, error) {
		s, at, n := args[0].(string), args[1].(string), -1
		if len(args) > 2 {
			var err error
			if n, err = limit("split", args[2]); err != nil {
				return nil, err
			}
		}
		if len(s) >= memoryBudget && (n < 0 || n > memoryBudget) && pieces(s, at) > memoryBudget {
			return nil, fmt.Errorf("split() into more than %d pieces", memoryBudget)
		}
		return split(s, at, n), nil
	}
}

func pieces(s, at string) int {
	if at == "" {
		return utf8.RuneCountInString(s)
	}
	return strings.Count(s, at) + 1
}

// charge takes what a function has made inside of a predicate from the budget of the evaluation, factor times.
func charge(args ...any) (any, error) {
	size, factor := 0, 1
	switch v := args[1].(type) {
	case string:
		size = len(v)
	case []string:
		size = 16 * len(v)
	case []int:
		size = 8 * len(v)
	case []any:
		size = 32 * len(v)
	case map[string]any:
		size = 64 * len(v)
	}
	if len(args) > 2 {
		factor = args[2].(int)
	}
	room := args[0].(steps).room
	if *room -= factor * size; *room < 0 {
		return nil, errTextTooLong
	}
	return args[1], nil
}
