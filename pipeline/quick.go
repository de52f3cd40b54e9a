package pipeline

import (
	"cmp"
	"reflect"

	"github.com/expr-lang/expr/ast"

	"github.com/millweir/millweir/serde/json"
)

// quick is a part of an expression that needs no evaluator: fields, variables, constants, comparisons with constants,
// and, or, not, ??. Its results are those of the evaluator. Where anything is out of the ordinary it gives nil: then the
// evaluator runs the whole expression, so messages come from one place. That is possible because expressions have no
// side effects.
type quick interface {
	// eval gives the result, which may be in room and must not be changed.
	eval(r *record, room *json.Value) *json.Value
}

// The results that are not part of a record. They are never written.
var null, no, yes = json.NullValue(), json.ValueOf(false), json.ValueOf(true)

func truth(b bool) *json.Value {
	if b {
		return &yes
	}
	return &no
}

// quickOf gives the quick form of a tree as it was compiled, nil when it has none.
func quickOf(n ast.Node, s *shape, keyCodec string) quick {
	if path := pathOf(n); path != nil {
		q := &quickPath{path: path, shape: s}
		if s != nil {
			q.slot = s.slot(path[0])
		}
		return q
	}
	if c, ok := constantOf(n); ok {
		return &quickConstant{c}
	}
	switch n := n.(type) {
	case *ast.IdentifierNode:
		if n.Value == "value" || n.Value == "timestamp" || n.Value == "tombstone" || n.Value == "key" && keyCodec == "string" {
			return quickVariable(n.Value)
		}
	case *ast.UnaryNode:
		if of := quickOf(n.Node, s, keyCodec); of != nil && (n.Operator == "not" || n.Operator == "!") {
			return &quickNot{of}
		}
	case *ast.BinaryNode:
		return quickBinary(n, s, keyCodec)
	}
	return nil
}

func quickBinary(n *ast.BinaryNode, s *shape, keyCodec string) quick {
	left := quickOf(n.Left, s, keyCodec)
	if left == nil {
		return nil
	}
	switch n.Operator {
	case "==", "!=", "<", "<=", ">", ">=":
		if c, ok := constantOf(n.Right); ok {
			return &quickCompare{left, n.Operator, c}
		}
	case "and", "&&", "or", "||", "??":
		if right := quickOf(n.Right, s, keyCodec); right != nil {
			return &quickBranch{left, n.Operator, right}
		}
	}
	return nil
}

// constantOf gives the constant that a node is.
func constantOf(n ast.Node) (json.Value, bool) {
	switch n := n.(type) {
	case *ast.NilNode:
		return json.NullValue(), true
	case *ast.BoolNode:
		return json.ValueOf(n.Value), true
	case *ast.StringNode:
		return json.TextValue(n.Value), true
	case *ast.FloatNode:
		return json.FloatValue(n.Value), n.Type() == nil || n.Type().Kind() == reflect.Float64
	case *ast.IntegerNode:
		return json.IntValue(int64(n.Value)), n.Type() == nil || n.Type().Kind() == reflect.Int
	}
	return json.Value{}, false
}

// pathOf gives the names of a plain access value.a.b, nil when the expression is anything else.
func pathOf(n ast.Node) []string {
	m, ok := n.(*ast.MemberNode)
	if !ok || m.Optional || m.Method {
		return nil
	}
	name, ok := m.Property.(*ast.StringNode)
	if !ok {
		return nil
	}
	if isValue(m.Node) {
		return []string{name.Value}
	}
	if above := pathOf(m.Node); above != nil {
		return append(above, name.Value)
	}
	return nil
}

// scalar leaves lists, objects and what else the evaluator has to look through.
func scalar(v *json.Value) *json.Value {
	if v.Kind() == json.KindOther {
		return nil
	}
	return v
}

// quickPath is value.a.b.
type quickPath struct {
	path  []string
	shape *shape // of the rows that come; nil when none do
	slot  int    // of the first name in it
}

func (q *quickPath) eval(rec *record, room *json.Value) *json.Value {
	path, value := q.path, rec.Value
	if r, ok := value.(*row); ok {
		if r.shape != q.shape {
			return nil
		}
		v := &null
		if q.slot >= 0 && r.fields[q.slot].Kind() != json.KindMissing {
			v = &r.fields[q.slot]
		}
		if path = path[1:]; len(path) == 0 {
			return scalar(v)
		}
		value = v.Other() // nil for scalars, which have no fields
	}
	for _, name := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[name]
	}
	*room = json.ValueOf(value)
	return scalar(room)
}

type quickConstant struct{ v json.Value }

func (q *quickConstant) eval(*record, *json.Value) *json.Value { return &q.v }

type quickVariable string

func (q quickVariable) eval(r *record, room *json.Value) *json.Value {
	switch q {
	case "timestamp":
		*room = json.IntValue(r.Timestamp)
		return room
	case "tombstone":
		return truth(r.Tombstone)
	case "key":
		if r.RawKey == nil {
			return &null
		}
		*room = json.TextValue(textOf(r.RawKey))
		return room
	}
	if _, ok := r.Value.(*row); ok {
		return nil
	}
	*room = json.ValueOf(r.Value)
	return scalar(room)
}

type quickNot struct{ of quick }

func (q *quickNot) eval(r *record, room *json.Value) *json.Value {
	v := q.of.eval(r, room)
	if v == nil || v.Kind() != json.KindBool {
		return nil
	}
	return truth(!v.Bool())
}

// quickBranch is and, or, ??: the right side counts only when the left one does not decide.
type quickBranch struct {
	left     quick
	operator string
	right    quick
}

func (q *quickBranch) eval(r *record, room *json.Value) *json.Value {
	v := q.left.eval(r, room)
	if v == nil {
		return nil
	}
	if q.operator == "??" {
		if v.Kind() != json.KindNull {
			return v
		}
		return q.right.eval(r, room)
	}
	if v.Kind() != json.KindBool {
		return nil
	}
	if or := q.operator == "or" || q.operator == "||"; v.Bool() == or {
		return v
	}
	if v = q.right.eval(r, room); v == nil || v.Kind() != json.KindBool {
		return nil
	}
	return v
}

// quickCompare compares with a constant.
type quickCompare struct {
	left     quick
	operator string
	with     json.Value
}

func (q *quickCompare) eval(r *record, room *json.Value) *json.Value {
	v := q.left.eval(r, room)
	if v == nil || v.Kind() == json.KindNumber {
		return nil
	}
	order, comparable := compareScalars(v, &q.with)
	switch q.operator {
	case "==":
		return truth(comparable && order == 0)
	case "!=":
		return truth(!comparable || order != 0)
	}
	if !comparable || order == unordered || v.Kind() == json.KindNull || v.Kind() == json.KindBool {
		return nil
	}
	switch q.operator {
	case "<":
		return truth(order < 0)
	case "<=":
		return truth(order <= 0)
	case ">":
		return truth(order > 0)
	}
	return truth(order >= 0)
}

// unordered is the order of NaN and anything.
const unordered = 2

// compareScalars compares as the language does: an integer and a float as floats. Other kinds do not mix.
func compareScalars(a, b *json.Value) (order int, comparable bool) {
	aNumber := a.Kind() == json.KindInt || a.Kind() == json.KindFloat
	bNumber := b.Kind() == json.KindInt || b.Kind() == json.KindFloat
	switch {
	case aNumber && bNumber && (a.Kind() == json.KindFloat || b.Kind() == json.KindFloat):
		x, y := asFloat(a), asFloat(b)
		if x != x || y != y {
			return unordered, true
		}
		return cmp.Compare(x, y), true
	case a.Kind() != b.Kind():
		return 0, false
	}
	switch a.Kind() {
	case json.KindInt:
		return cmp.Compare(a.Int(), b.Int()), true
	case json.KindText:
		return cmp.Compare(a.Text(), b.Text()), true
	case json.KindBool:
		return cmp.Compare(truthNumber(a), truthNumber(b)), true
	}
	return 0, true // two nulls
}

func truthNumber(v *json.Value) int {
	if v.Bool() {
		return 1
	}
	return 0
}
