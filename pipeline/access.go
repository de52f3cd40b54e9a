package pipeline

import (
	"slices"

	"github.com/expr-lang/expr/ast"

	"github.com/millweir/millweir/serde/json"
)

// access is what an expression needs of the value.
type access struct {
	// path is set when the expression is value.a.b and nothing else: a, b.
	path []string
	// fields are those that it names, each once.
	fields []string
	// whole says that the value is used other than by fields named in the source, value[key] say.
	whole bool

	shape *shape // of the rows that come; nil when none do
	slots []int  // of fields in shape
}

// accessOf finds out what the tree, as it was compiled, touches.
func accessOf(n ast.Node, s *shape) access {
	a := access{path: pathOf(n), shape: s}
	var uses, fields int
	ast.Walk(&n, visitor(func(n *ast.Node) {
		if isValue(*n) {
			uses++
		}
		if name, ok := fieldOf(*n); ok {
			fields++
			a.add(name)
		}
	}))
	a.whole = uses != fields
	if s == nil {
		return a
	}
	if a.whole {
		s.needWhole()
	}
	for _, name := range a.fields {
		a.slots = append(a.slots, s.slot(name))
	}
	return a
}

func (a *access) add(name string) {
	if !slices.Contains(a.fields, name) {
		a.fields = append(a.fields, name)
	}
}

type visitor func(*ast.Node)

func (v visitor) Visit(n *ast.Node) { v(n) }

func isValue(n ast.Node) bool {
	id, ok := n.(*ast.IdentifierNode)
	return ok && id.Value == "value"
}

// fieldOf gives the name of a field of the value: value.name, value["name"], value?.name.
func fieldOf(n ast.Node) (string, bool) {
	m, ok := n.(*ast.MemberNode)
	if !ok || m.Method || !isValue(m.Node) {
		return "", false
	}
	name, ok := m.Property.(*ast.StringNode)
	if !ok {
		return "", false
	}
	return name.Value, true
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

// walk evaluates a plain access without the evaluator; the result may be in room. It gives nil where anything is out of
// the ordinary and leaves that, and its messages, to the evaluator.
func (a *access) walk(value any, room *json.Value) *json.Value {
	if a.path == nil {
		return nil
	}
	path := a.path
	if r, ok := value.(*row); ok {
		if r.shape != a.shape {
			return nil
		}
		v := &null
		if i := a.slots[0]; i >= 0 && r.fields[i].Kind() != json.KindMissing {
			v = &r.fields[i]
		}
		if path = path[1:]; len(path) == 0 {
			return scalar(v)
		}
		if v.Kind() != json.KindOther {
			return nil
		}
		value = v.Other()
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

// null is what a missing field is seen as. It is never written.
var null = json.NullValue()

// scalar leaves lists, objects and what else the evaluator has to look through.
func scalar(v *json.Value) *json.Value {
	if v.Kind() == json.KindOther {
		return nil
	}
	return v
}

// view gives the value as the evaluator is to see it. scratch is used when the map cannot be part of a result.
func (a *access) view(value any, scratch map[string]any) any {
	r, ok := value.(*row)
	if !ok {
		return value
	}
	if a.whole || r.shape != a.shape {
		return r.object()
	}
	clear(scratch)
	for i, slot := range a.slots {
		if slot >= 0 && r.fields[slot].Kind() != json.KindMissing {
			scratch[a.fields[i]] = r.fields[slot].Any()
		}
	}
	return scratch
}
