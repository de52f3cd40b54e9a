package pipeline

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

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

// comparison patches the comparisons with an object or a list that is written out, and `in` unless both sides are known
// and the left one is a text, a number or a boolean. The language finds nothing (missing or null) where the empty text is,
// and fails for a number in a list of texts.
func comparison(node *ast.Node, n *ast.BinaryNode) {
	written := writtenOut(n.Left) || n.Operator != "in" && writtenOut(n.Right)
	switch {
	case n.Operator == "in" && (written || open(n.Left) && open(n.Right) || unknown(n.Right)):
		ast.Patch(node, call("$in", n.Left, textSet(n.Right)))
	case n.Operator == "==" && written:
		ast.Patch(node, call("$equal", n.Left, n.Right))
	case n.Operator == "!=" && written:
		ast.Patch(node, &ast.UnaryNode{Operator: "not", Node: call("$equal", n.Left, n.Right)})
	}
}

// open says that a node may give a list or an object, as far as the checker knows. A range is compared without being made.
func open(n ast.Node) bool {
	if b, ok := n.(*ast.BinaryNode); ok && b.Operator == ".." {
		return false
	}
	if unknown(n) {
		return true
	}
	k := n.Type().Kind()
	return k == reflect.Slice || k == reflect.Map
}

// unknown says that the checker knows nothing of a node.
func unknown(n ast.Node) bool { return n.Type() == nil || n.Type().Kind() == reflect.Interface }

// textSet makes a set of a list of text constants; it leaves all else as it is.
func textSet(n ast.Node) ast.Node {
	list, ok := n.(*ast.ArrayNode)
	if !ok {
		return n
	}
	set := make(map[string]struct{}, len(list.Nodes))
	for _, e := range list.Nodes {
		text, ok := e.(*ast.StringNode)
		if !ok {
			return n
		}
		set[text.Value] = struct{}{}
	}
	return &ast.ConstantNode{Value: set}
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
		n, err := normalise(v)
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

// in looks for a value in a list, as == compares, or for a name in an object. A missing one is the name of nothing.
func in(args ...any) (any, error) {
	needle := args[0]
	switch right := args[1].(type) {
	case map[string]struct{}: // see textSet
		text, ok := needle.(string)
		_, found := right[text]
		return ok && found, nil
	case []any:
		return inList(needle, right)
	case map[string]any:
		if needle == nil {
			return false, nil
		}
	}
	return runtime.In(needle, args[1]), nil
}

func inList(needle any, list []any) (bool, error) {
	needle, err := content(needle)
	if err != nil {
		return false, err
	}
	for _, v := range list {
		if v, err = content(v); err != nil {
			return false, err
		}
		if sameContent(needle, v) {
			return true, nil
		}
	}
	return false, nil
}

// content normalises what may have something in it.
func content(v any) (any, error) {
	switch v.(type) {
	case nil, bool, int, int64, float64, string, time.Duration:
		return v, nil
	}
	return normalise(v)
}

func sorted(args ...any) (any, error) {
	v, err := normalise(args[0])
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
