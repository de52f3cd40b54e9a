package pipeline

import (
	"slices"

	"github.com/expr-lang/expr/ast"

	"github.com/millweir/millweir/serde/json"
)

// access is what an expression needs of the value.
type access struct {
	// fields are those that it names, each once.
	fields []string
	// whole says that the value is used other than by fields named in the source, value[key] say.
	whole bool

	shape *shape // of the rows that come; nil when none do
	slots []int  // of fields in shape
}

// accessOf finds out what the tree, as it was compiled, touches.
func accessOf(n ast.Node, s *shape) access {
	a := access{shape: s}
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
