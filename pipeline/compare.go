package pipeline

import (
	"errors"
	"fmt"
	"slices"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm/runtime"
)

// comparing are the operators and functions that compare: objects by their content, and in a stable order. The language's
// own tells the integers that it makes from those of a record as soon as they are in an object.
var comparing = []expr.Option{
	expr.Function("$equal", equal, new(func(any, any) bool)),
	expr.Function("$in", in, new(func(any, any) bool)),
	expr.Function("sort", sorted, new(func([]any) []any), new(func([]any, string) []any), new(func([]int) []any), new(func([]int, string) []any),
		new(func([]string) []any), new(func([]string, string) []any), new(func([]float64) []any), new(func([]float64, string) []any)),
	expr.Function("$sortBy", sortedPairs, new(func([]any) []any), new(func([]any, string) []any)),
}

// comparison patches the comparisons with an object or a list that is written out.
func comparison(node *ast.Node, n *ast.BinaryNode) {
	switch {
	case n.Operator == "in" && writtenOut(n.Left):
		ast.Patch(node, call("$in", n.Left, n.Right))
	case n.Operator != "==" && n.Operator != "!=" || !writtenOut(n.Left) && !writtenOut(n.Right):
	case n.Operator == "==":
		ast.Patch(node, call("$equal", n.Left, n.Right))
	default:
		ast.Patch(node, &ast.UnaryNode{Operator: "not", Node: call("$equal", n.Left, n.Right)})
	}
}

func writtenOut(n ast.Node) bool {
	switch n.(type) {
	case *ast.MapNode, *ast.ArrayNode:
		return true
	}
	return false
}

// sortBy becomes a sort of pairs, each an element behind what its predicate gives.
func sortBy(node *ast.Node, n *ast.BuiltinNode) {
	if len(n.Arguments) < 2 {
		return // the checker reports it
	}
	by, ok := n.Arguments[1].(*ast.PredicateNode)
	if !ok {
		return
	}
	pair := &ast.PredicateNode{Node: &ast.ArrayNode{Nodes: []ast.Node{by.Node, &ast.PointerNode{}}}}
	pairs := &ast.BuiltinNode{Name: "map", Arguments: []ast.Node{n.Arguments[0], pair}}
	ast.Patch(node, call("$sortBy", append([]ast.Node{pairs}, n.Arguments[2:]...)...))
}

func equal(args ...any) (any, error) {
	var of [2]any
	for i, v := range args {
		n, err := normalise(v, 0)
		if err != nil {
			return nil, err
		}
		of[i] = n
	}
	return sameContent(of[0], of[1]), nil
}

// sameContent compares normalised values.
func sameContent(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if w, ok := b[k]; !ok || !sameContent(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameContent)
	}
	return runtime.Equal(a, b)
}

// in looks for an object or list in a list.
func in(args ...any) (any, error) {
	list, ok := args[1].([]any)
	if !ok {
		return runtime.In(args[0], args[1]), nil
	}
	for _, v := range list {
		if found, err := equal(args[0], v); err != nil || found.(bool) {
			return found, err
		}
	}
	return false, nil
}

func sorted(args ...any) (any, error) {
	v, err := normalise(args[0], 0)
	if err != nil {
		return nil, fmt.Errorf("sort(): %w", err)
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("sort() of %s", describe(args[0]))
	}
	list = slices.Clone(list)
	return list, sortStable(list, args[1:], func(v any) any { return v })
}

// sortedPairs sorts by the first of each pair and gives the second ones.
func sortedPairs(args ...any) (any, error) {
	list := args[0].([]any)
	if err := sortStable(list, args[1:], func(v any) any { return v.([]any)[0] }); err != nil {
		return nil, err
	}
	for i, v := range list {
		list[i] = v.([]any)[1]
	}
	return list, nil
}

// sortStable sorts by what key gives for an element. order is nothing, "asc" or "desc".
func sortStable(list []any, order []any, key func(any) any) error {
	sign := 1
	if len(order) > 0 {
		switch order[0] {
		case "asc":
		case "desc":
			sign = -1
		default:
			return errors.New(`the order of a sort is "asc" or "desc"`)
		}
	}
	slices.SortStableFunc(list, func(a, b any) int {
		switch a, b := key(a), key(b); {
		case runtime.Less(a, b):
			return -sign
		case runtime.Less(b, a):
			return sign
		}
		return 0
	})
	return nil
}
