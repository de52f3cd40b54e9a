package pipeline

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
)

// maxLooks bounds what all runs of predicates for one record look at, in elements of lists and objects. A text counts by
// its length: one for so many of its bytes as take about as long as an element.
const maxLooks = 20_000_000

// The bytes of a text that count as one element.
const (
	comparedBytes = 1024
	searchedBytes = 16
	matchedBytes  = 1
)

// What of a value is looked at, whatever is in it.
const (
	allParts    = iota
	noObject    // all of a list or a text, and one name of an object
	onlyOfTexts // all of a text, of other values nothing
)

var (
	errTooManyLooks = fmt.Errorf("predicates look at more than %d elements for one record", maxLooks)
	looking         = []expr.Option{expr.Function("$look", look, new(func(steps, any, int, int) any)), expr.Function("$flat", flat, new(func(any) any))}
)

// lookers are the functions whose time depends on the size of what they get, while charge does not see it in what they make.
var lookers = map[string]bool{
	"$in": true, "$equal": true, "min": true, "max": true, "mean": true, "median": true, "count": true, "len": true, "trim": true, "indexOf": true,
	"lastIndexOf": true, "split": true, "splitAfter": true, "join": true, "fromPairs": true, "replace": true, "float": true, "duration": true,
}

// look counts, inside of a predicate, what an operator or function looks at.
func (g *guards) look(n ast.Node) {
	if g.looked[n] {
		return
	}
	g.looked[n] = true
	if b, ok := n.(*ast.BinaryNode); ok {
		switch b.Operator {
		case "==", "!=": // no more of one side than of the other
			if looksAtMuch(b.Left) {
				b.Right = looked(b.Right, comparedBytes, allParts)
			}
		case "in":
			b.Right = looked(b.Right, comparedBytes, noObject)
		case "matches":
			b.Left = looked(b.Left, matchedBytes, allParts)
		case "contains":
			b.Left = looked(b.Left, searchedBytes, allParts)
		}
		return
	}
	name, args := called(n)
	switch {
	case !lookers[name], name == "count" && len(args) > 1: // with a predicate it is counted by its runs
		return
	case len(args) == 0: // the checker reports it
		return
	}
	if _, set := args[len(args)-1].(*ast.ConstantNode); set && name == "$in" {
		return
	}
	bytes := searchedBytes
	if name == "$in" || name == "$equal" {
		bytes = comparedBytes
	}
	for i := range args {
		parts := allParts
		switch {
		case name == "len":
			parts = onlyOfTexts
		case name == "$in" && i == 1:
			parts = noObject
		}
		args[i] = looked(args[i], bytes, parts)
	}
}

// looked puts the count around what may be large.
func looked(n ast.Node, bytes, parts int) ast.Node {
	if !looksAtMuch(n) {
		return n
	}
	return call("$look", &ast.IdentifierNode{Value: stepsName}, n, &ast.IntegerNode{Value: bytes}, &ast.IntegerNode{Value: parts})
}

// looksAtMuch is false for what the source bounds, and for what is a number or a boolean.
func looksAtMuch(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.ConstantNode:
		return false
	case *ast.ArrayNode:
		return slices.ContainsFunc(n.Nodes, looksAtMuch)
	case *ast.BinaryNode:
		if n.Operator == ".." { // the evaluator counts its length
			return false
		}
	}
	return open(n) || n.Type().Kind() == reflect.String
}

func look(args ...any) (any, error) {
	left := args[0].(steps).looks
	if glance(args[1], args[3].(int)) {
		*left--
	} else if *left = sizeWithin(args[1], args[2].(int), *left); *left < 0 {
		return nil, errTooManyLooks
	}
	return args[1], nil
}

// glance says that the time does not depend on the size of a value.
func glance(v any, parts int) bool {
	switch v.(type) {
	case string:
		return false
	case map[string]any:
		return parts != allParts
	}
	return parts == onlyOfTexts
}

// sizeWithin gives what is left of a budget after all parts of a value, below 0 when it does not suffice.
func sizeWithin(v any, bytes, left int) int {
	left--
	switch v := v.(type) {
	case string:
		left -= len(v) / bytes
	case []byte:
		left -= len(v) / bytes
	case []string:
		left -= len(v)
	case []int:
		left -= len(v)
	case []any:
		for _, e := range v {
			if left < 0 {
				break
			}
			left = sizeWithin(e, bytes, left)
		}
	case map[string]any:
		for _, e := range v {
			if left < 0 {
				break
			}
			left = sizeWithin(e, bytes, left)
		}
	}
	return left
}

// taken says that a node is a part of the record, so it shares no parts, or of what a predicate gets, which is counted there.
func taken(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.MemberNode:
		return taken(n.Node)
	case *ast.ChainNode:
		return taken(n.Node)
	case *ast.IdentifierNode:
		return slices.Contains(variables, n.Value)
	case *ast.PointerNode:
		return true
	}
	return false
}

// flat refuses what flatten would need far more room for than the evaluator allows its result, see maxParts, and what min and
// its like would look into for longer.
func flat(args ...any) (any, error) {
	if flatWithin(args[0], 2*memoryBudget) < 0 {
		return nil, errTooManyParts
	}
	return args[0], nil
}

// flatWithin gives what is left of a budget after the lists and elements that flatten meets.
func flatWithin(v any, left int) int {
	left--
	switch v := v.(type) {
	case []string:
		left -= len(v)
	case []int:
		left -= len(v)
	case []any:
		for _, e := range v {
			if left < 0 {
				break
			}
			left = flatWithin(e, left)
		}
	}
	return left
}
