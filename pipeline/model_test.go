package pipeline

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// The model is a pipeline without any short cut: values are decoded whole, every expression is run by the evaluator on
// maps, accumulators are values of type any, outputs are maps encoded by the codec for any value.

type modelField struct {
	name, fn, source string // fn is empty in a map
	e                *expression
}

type modelStep struct {
	name, kind string
	fields     []modelField
	state      map[string][]modelCell
}

type modelCell struct {
	n    int64
	v    any
	seen bool
}

// modelEval runs the evaluator.
func modelEval(e *expression, r *record) (any, error) {
	plain := *r
	var out json.Value
	err := e.evalWith(newEvaluator(), &plain, &out)
	return out.Any(), err
}

// fold is one function of an aggregate, by the words of the documentation.
func (c modelCell) fold(fn string, v any) (modelCell, error) {
	first := !c.seen
	c.seen = true
	if c.n++; fn == "count" {
		return c, nil
	}
	number := func(kinds string) error {
		switch v.(type) {
		case int64, float64:
			return nil
		case json.Number:
			return topology.ErrOverflow
		}
		return fmt.Errorf("expected %s, found %s", kinds, describe(v))
	}
	switch fn {
	case "first":
		if first {
			c.v = v
		}
	case "last":
		c.v = v
	case "sum", "avg":
		if err := number("a number"); err != nil {
			return c, err
		}
		if first {
			c.v = v
			break
		}
		a, aWhole := c.v.(int64)
		b, bWhole := v.(int64)
		if aWhole && bWhole {
			s := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
			if !s.IsInt64() {
				return c, topology.ErrOverflow
			}
			c.v = s.Int64()
			break
		}
		toFloat := func(v any) float64 {
			if i, ok := v.(int64); ok {
				return float64(i)
			}
			return v.(float64)
		}
		sum := toFloat(c.v) + toFloat(v)
		if math.IsInf(sum, 0) && !math.IsInf(toFloat(c.v), 0) && !math.IsInf(toFloat(v), 0) {
			return c, topology.ErrOverflow
		}
		c.v = sum
	case "min", "max":
		_, text := v.(string)
		if err := number("a number or a text"); !text && err != nil {
			return c, err
		}
		if first {
			c.v = v
			break
		}
		old, oldText := c.v.(string)
		if text != oldText {
			return c, fmt.Errorf("%s cannot be compared with %s, which came before", describe(v), describe(c.v))
		}
		var order int
		if text {
			order = strings.Compare(v.(string), old)
		} else {
			order = exact(v).Cmp(exact(c.v))
		}
		if fn == "min" && order < 0 || fn == "max" && order > 0 {
			c.v = v
		}
	}
	return c, nil
}

func (c modelCell) result(fn string) any {
	switch fn {
	case "count":
		return c.n
	case "avg":
		if i, ok := c.v.(int64); ok {
			return float64(i) / float64(c.n)
		}
		return c.v.(float64) / float64(c.n)
	}
	return c.v
}

var errLeftOut = errors.New("left out")

// apply gives the value that the step passes on; errLeftOut when it passes none on without an error.
func (s *modelStep) apply(r *record) (any, error) {
	switch s.kind {
	case "filter":
		v, err := modelEval(s.fields[0].e, r)
		if err != nil {
			return nil, err
		}
		keep, ok := v.(bool)
		if !ok {
			return nil, fmt.Errorf("%s: a filter is true or false, but the expression gives %s", s.fields[0].e.source, describe(v))
		}
		if !keep {
			return nil, errLeftOut
		}
		return r.Value, nil
	case "map":
		out := map[string]any{}
		for _, f := range s.fields {
			v, err := modelEval(f.e, r)
			if err != nil {
				return nil, fmt.Errorf("field %s: %w", f.name, err)
			}
			out[f.name] = v
		}
		return out, nil
	}
	cells := make([]modelCell, len(s.fields))
	copy(cells, s.state[string(r.RawKey)])
	out := map[string]any{}
	for i, f := range s.fields {
		var v any
		var err error
		if f.e != nil {
			if v, err = modelEval(f.e, r); err != nil {
				return nil, fmt.Errorf("%s: %w", f.fn, err)
			}
			if v == nil && f.fn != "first" && f.fn != "last" {
				return nil, fmt.Errorf("%s: missing or null; write %s(%s ?? DEFAULT) if that may be", f.source, f.fn, f.e.source)
			}
		}
		if cells[i], err = cells[i].fold(f.fn, v); err != nil {
			return nil, fmt.Errorf("%s: %w", f.source, err)
		}
		out[f.name] = cells[i].result(f.fn)
	}
	s.state[string(r.RawKey)] = cells
	return out, nil
}

// model is a chain of steps between a source and a sink of JSON.
type model struct {
	steps        []*modelStep
	out, skipped []string
}

func (m *model) run(offset int, key, value string) {
	skip := func(step string, err error) {
		m.skipped = append(m.skipped, fmt.Sprintf("%s: topic in partition 0 offset %d: step %s: %v", step, offset, step, err))
	}
	r := &record{RawKey: []byte(key), Tombstone: value == "null", Timestamp: int64(1000 + offset), Offset: int64(offset)}
	r.Headers = []element.Header{{Key: "n", Value: []byte(fmt.Sprint(offset))}}
	raw, same := value, true
	if !r.Tombstone {
		v, err := json.Any().Decode([]byte(value))
		if err != nil {
			skip("in", fmt.Errorf("decode value as json: %w", err))
			return
		}
		r.Value = v
	}
	for _, s := range m.steps {
		if r.Tombstone && s.kind != "aggregate" {
			continue
		}
		if r.Tombstone {
			m.skipped = append(m.skipped, s.name+": tombstone")
			return
		}
		v, err := s.apply(r)
		if errors.Is(err, errLeftOut) {
			return
		}
		if err != nil {
			skip(s.name, err)
			return
		}
		next := *r
		next.Value = v
		r, same = &next, same && s.kind == "filter"
	}
	if !r.Tombstone && !same {
		b, err := json.Any().Append(nil, r.Value)
		if err != nil {
			skip("out", fmt.Errorf("encode value as json: %w", err))
			return
		}
		raw = string(b)
	}
	m.out = append(m.out, "out "+key+"="+show([]byte(raw)))
}

// sources of expressions: plain accesses, some that name fields otherwise, and some that need the whole value.
var (
	modelPaths = []string{"value.a", "value.b", `value["c d"]`, "value.deep.n", "value.deep.deep", "value.list", "value.gone", "value?.a"}
	modelNames = []string{"value.a ?? 7", "value.deep?.n ?? 1", `value.b == "x" ? 1 : 2.5`, "value.a ?? value.b ?? 0", "sum(value.list ?? [], # * 2)", "value.list[0]", "map(1..2, value.a)", "{x: value.a, y: [value.b]}", "-value.a", "value.a + value.b", "value.a > 3", "value.deep", "timestamp", "key", "headers.n", "int(value.b)"}
	modelWhole = []string{"value", "len(value)", "value[key]", `"a" in value`, `get(value, "b")`, "let v = value; v.a", "keys(value) | sort()", "value?.[key]", `value == {"a": 1}`, `[value, 1][0]`}
)

func genExpression() *rapid.Generator[string] {
	return rapid.OneOf(rapid.SampledFrom(modelPaths), rapid.SampledFrom(modelPaths), rapid.SampledFrom(modelNames), rapid.SampledFrom(modelWhole))
}

// genSteps draws a chain, as YAML and as a model; nil when the file has a mistake in it, which its types may cause.
func genSteps(t *rapid.T, tame bool) (string, *model, string) {
	m, from, kind := &model{}, "in", unknownKind
	var yaml strings.Builder
	pool := genExpression()
	if rapid.Bool().Draw(t, "without whole values") {
		pool = rapid.OneOf(rapid.SampledFrom(modelPaths), rapid.SampledFrom(modelNames))
	}
	if tame {
		pool = rapid.SampledFrom([]string{"value.a", "value.b", "value.a", "value.b", "value.a ?? 7", "value.a * 2", "value.gone ?? value.b"})
	}
	for i, k := range rapid.SliceOfN(rapid.SampledFrom([]string{"filter", "map", "aggregate", "aggregate"}), 1, 3).Draw(t, "kinds") {
		s := &modelStep{name: fmt.Sprintf("s%d", i), kind: k, state: map[string][]modelCell{}}
		in := environment{key: stringKey(t), value: kind}
		n := 1
		if k != "filter" {
			n = rapid.IntRange(1, 10).Draw(t, "fields")
		}
		fmt.Fprintf(&yaml, "  %s:\n    from: %s\n", s.name, from)
		for j := range n {
			f := modelField{name: []string{"a", "b", "c d", "deep", "list", "f", "g", "h", "i", "j"}[j], source: pool.Draw(t, "expression")}
			if k == "aggregate" {
				f.name = strings.ReplaceAll(f.name, " ", "-")
				f.fn = rapid.SampledFrom(aggFuncs).Draw(t, "function")
			}
			if k == "filter" {
				f.source = rapid.SampledFrom([]string{f.source, f.source + " != 1", "value.a != nil", `value.b == "x"`}).Draw(t, "condition")
			}
			if f.fn != "count" {
				e, err := compile(f.source, in)
				if err != nil {
					return "", nil, ""
				}
				f.e = e
			}
			if k == "aggregate" {
				if f.source = f.fn + "(" + f.source + ")"; f.fn == "count" {
					f.source = "count()"
				}
			}
			switch {
			case k == "filter":
				fmt.Fprintf(&yaml, "    filter: %q\n", f.source)
			case j == 0:
				fmt.Fprintf(&yaml, "    %s:\n      %q: %q\n", k, f.name, f.source)
			default:
				fmt.Fprintf(&yaml, "      %q: %q\n", f.name, f.source)
			}
			s.fields = append(s.fields, f)
		}
		if k == "aggregate" {
			slices.SortFunc(s.fields, func(a, b modelField) int { return strings.Compare(a.name, b.name) })
		}
		if k != "filter" {
			kind = objectKind
		}
		m.steps, from = append(m.steps, s), s.name
	}
	return yaml.String(), m, from
}

// genDocument draws JSON texts: objects with the fields that the expressions name, other values, and broken ones.
func genDocument(t *rapid.T, tame bool) string {
	if tame {
		leaf := rapid.SampledFrom([]string{"1", "2", "-3", "0.5", "9007199254740993", "9007199254740992.0", "-0", "1e300", `"x"`, `"y"`, `"\u00e9"`, "4", "4.0", "10"})
		numbers := rapid.SampledFrom([]string{"1", "2.5", "3"})
		return fmt.Sprintf(`{"z":[{"a":1}],"a":%s,"b":%s}`, numbers.Draw(t, "a"), leaf.Draw(t, "b"))
	}
	leaf := rapid.SampledFrom([]string{"null", "true", "1", "2", "7", "-3", "0.5", "1.0", "-0", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e400", `"x"`, `"y\u00e9"`, `"12"`, `""`, "[]", "{}", "[1,2]", `[1.5,"x",null]`, `{"n":4}`, `{"n":null,"deep":{"n":1}}`, "1e300", "9007199254740993", strings.Repeat("[", 70) + strings.Repeat("]", 70)})
	doc := leaf.Draw(t, "leaf")
	if kind := rapid.IntRange(0, 11).Draw(t, "kind"); kind > 0 {
		var members []string
		for range rapid.IntRange(0, 6).Draw(t, "members") {
			name := rapid.SampledFrom([]string{"a", "a", "b", "b", "c d", "deep", "list", "k1", `\u0061`, "other"}).Draw(t, "name")
			members = append(members, fmt.Sprintf(`"%s"%s:%s`, name, rapid.SampledFrom([]string{"", " "}).Draw(t, "space"), leaf.Draw(t, "member")))
		}
		doc = "{" + strings.Join(members, ",") + "}"
		if kind == 1 {
			at := rapid.IntRange(0, len(doc)).Draw(t, "at")
			doc = doc[:at] + rapid.SampledFrom([]string{"", `"`, "}", ",", "\x01", "\xff", "0", " "}).Draw(t, "mistake") + doc[min(len(doc), at+1):]
		}
	}
	return doc
}

// TestPipelinesMatchTheModel runs random files on random records. Outputs, what is skipped and why must be the same.
func TestPipelinesMatchTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tame := rapid.Bool().Draw(t, "tame") // most records of the other kind fail somewhere
		steps, m, last := genSteps(t, tame)
		if m == nil {
			t.Skip("types refuse it")
		}
		plan, ps := buildText(strings.Replace(pipe(steps, last), "value: json}}\nsteps", "value: json, on-error: skip}}\nsteps", 1))
		if ps.Len() > 0 {
			require.ErrorContains(t, ps.Err(), "but the expression gives", steps)
			t.Skip("types refuse it")
		}
		w := newWorld(plan)
		for range 2 {
			var records []string
			for i := range rapid.IntRange(0, 12).Draw(t, "records") {
				key, doc := rapid.SampledFrom([]string{"a", "k1"}).Draw(t, "key"), genDocument(t, tame && rapid.IntRange(0, 9).Draw(t, "wild") > 0)
				records = append(records, key+"="+doc)
				m.run(i, key, doc)
			}
			require.NoError(t, w.run(t, records...))
		}
		require.Equal(t, m.out, w.out, steps)
		slices.Sort(m.skipped) // the pipeline works in batches
		slices.Sort(w.skipped)
		require.Equal(t, m.skipped, w.skipped, steps)
	})
}

// TestQuickFormsMatchTheEvaluator compares both ways on maps and on rows, errors included.
func TestQuickFormsMatchTheEvaluator(t *testing.T) {
	left := append([]string{"value", "key", "timestamp", "tombstone", "1", "value.a ?? 5", "value.gone ?? value.b", "value.a ?? nil ?? key"}, modelPaths[:7]...)
	right := []string{"1", "2", "0.5", "1.0 + 1", "-3", `"x"`, `"12"`, `""`, "true", "false", "nil", "9007199254740993", "9007199254740992.0", "9223372036854775807", "0"}
	var used int
	rapid.Check(t, func(t *rapid.T) {
		compare := func() string {
			l := rapid.SampledFrom(left).Draw(t, "left")
			if rapid.IntRange(0, 4).Draw(t, "bare") == 0 {
				return l
			}
			op := rapid.SampledFrom([]string{"==", "!=", "<", "<=", ">", ">="}).Draw(t, "operator")
			return "(" + l + ") " + op + " " + rapid.SampledFrom(right).Draw(t, "right")
		}
		source := compare()
		for range rapid.IntRange(0, 2).Draw(t, "more") {
			source = rapid.SampledFrom([]string{"", "", "not "}).Draw(t, "not") + "(" + source + ") " + rapid.SampledFrom([]string{"and", "or", "&&", "||", "??"}).Draw(t, "branch") + " (" + compare() + ")"
		}
		s := &sourceValue{Serde: json.Any(), shape: &shape{source: true}}
		e, err := compile(source, environment{key: stringKey(t), shape: s.shape})
		if err != nil {
			t.Skip("types refuse it: ", err)
		}
		s.seal()
		doc := []byte(genDocument(t, rapid.Bool().Draw(t, "tame")))
		whole, wholeErr := json.Any().Decode(doc)
		picked, pickedErr := s.Decode(doc)
		require.Equal(t, wholeErr, pickedErr)
		if wholeErr != nil {
			return
		}
		want, wantErr := modelEval(e, rec(whole))
		for _, v := range []any{whole, picked} {
			r, room := rec(v), json.Value{}
			if rapid.Bool().Draw(t, "null key") {
				r.RawKey = nil
				want, wantErr = modelEval(e, &record{Value: whole, Headers: r.Headers, Timestamp: r.Timestamp})
			}
			if got := e.try(r, &room); got != nil {
				used++
				require.NoError(t, wantErr, source)
				require.Equal(t, want, got.Any(), source)
			}
			got, err := e.eval(r)
			require.Equal(t, wantErr, err, source)
			require.Equal(t, want, got, source)
			want, wantErr = modelEval(e, rec(whole))
		}
		require.Equal(t, []json.Value{json.NullValue(), json.ValueOf(false), json.ValueOf(true)}, []json.Value{null, no, yes})
	})
	require.NotZero(t, used)
}

func TestWhatHasAQuickForm(t *testing.T) {
	for source, want := range map[string]bool{
		"value.a": true, "value.a.b": true, `value["c d"]`: true, "value": true, "key": true, "timestamp": true, "1": true, `value.status == "paid"`: true,
		`value.status == "accepted" and value.amount > 0`: true, "not (value.a != nil) or value.b >= 0.5": true, `value.country ?? "NO"`: true, "value.amount ?? 0": true,
		"value.a == value.b": false, "value.a + 1": false, "value?.a": false, "len(value)": false, "headers.a": false, "value[key]": false, `value.a matches "x"`: false, "-value.a": false,
	} {
		e := mustCompile(t, source)
		require.Equal(t, want, e.quick != nil, source)
	}
}
