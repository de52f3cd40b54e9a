package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm/runtime"

	"github.com/millweir/millweir/topology"
)

// stepsName is the variable that carries the budget of iterations; $ keeps it out of the reach of the source.
const stepsName = "$steps"

// steps is the rest of an evaluation's budget: runs of predicates, room for what these make, and what they may look at. It
// is a struct because the compiler would follow a bare pointer.
type steps struct{ left, room, looks *int }

var errTooManyIterations = fmt.Errorf("more than %d iterations over lists for one record", MaxIterations)

// guards changes an expression while it is compiled: arithmetic on integers that would wrap around fails instead, and
// every run of a predicate counts, as does what it makes. It also notes which variables are used and refuses what cannot
// be bounded.
type guards struct {
	names   map[string]bool
	charged map[ast.Node]bool // what has its charge, or needs none
	looked  map[ast.Node]bool // see look
	err     error
}

func newGuards() *guards {
	return &guards{names: map[string]bool{}, charged: map[ast.Node]bool{}, looked: map[ast.Node]bool{}}
}

// Visit implements ast.Visitor; children come before their parents.
func (g *guards) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		if strings.HasPrefix(n.Value, "$") { // those that are put in below are not visited
			g.refuse(n, n.Value+" is not available")
		}
		g.names[n.Value] = true
	case *ast.BinaryNode:
		if fn, ok := checkedOperators[n.Operator]; ok {
			ast.Patch(node, call(fn, n.Left, n.Right))
		}
		comparison(node, n)
		if n.Operator == ".." && !constantRange(n) {
			ast.Patch(node, call("$range", n.Left, n.Right))
		}
		if n.Operator == "matches" {
			if _, constant := n.Right.(*ast.StringNode); !constant {
				g.refuse(n, "the pattern of matches must be a text constant")
			}
		}
	case *ast.UnaryNode:
		if n.Operator == "-" && !isNumber(n.Node) {
			ast.Patch(node, call("$sub", &ast.IntegerNode{Value: 0}, n.Node))
		}
	case *ast.PredicateNode:
		ast.Walk(&n.Node, visitor(g.charge))
		n.Node = counted(n.Node)
	case *ast.MemberNode:
		n.Property = indexed(n.Property)
	case *ast.SliceNode:
		n.From, n.To = indexed(n.From), indexed(n.To)
	case *ast.BuiltinNode:
		switch {
		case n.Name == "sum":
			g.sum(node, n)
		case n.Name == "sortBy":
			sortBy(node, n)
		case n.Name == "flatten" && len(n.Arguments) == 1 && open(n.Arguments[0]):
			n.Arguments[0] = call("$flat", n.Arguments[0])
		case n.Name == "min" || n.Name == "max" || n.Name == "mean" || n.Name == "median": // they look into lists in lists
			for i, arg := range n.Arguments {
				if open(arg) && !taken(arg) {
					n.Arguments[i] = call("$flat", arg)
				}
			}
		case n.Name == "get" && len(n.Arguments) == 2:
			n.Arguments[1] = indexed(n.Arguments[1])
		}
	}
}

// indexed puts a check around an index that may be a float, which the language cuts to an integer.
func indexed(n ast.Node) ast.Node {
	switch p := n.(type) {
	case nil, *ast.StringNode:
		return n
	case *ast.PointerNode:
		if p.Name == "index" {
			return n
		}
	}
	if _, ok := wholeConstant(n); ok {
		return n
	}
	return call("$index", n)
}

func (g *guards) refuse(n ast.Node, msg string) {
	if g.err == nil {
		g.err = &compileError{line: 1, column: n.Location().From + 1, msg: msg}
	}
}

// sum becomes a reduce with the checked addition.
func (g *guards) sum(node *ast.Node, n *ast.BuiltinNode) {
	if len(n.Arguments) == 0 {
		return // the checker reports it
	}
	element := ast.Node(&ast.PointerNode{})
	if len(n.Arguments) > 1 {
		p, ok := n.Arguments[1].(*ast.PredicateNode)
		if !ok {
			return
		}
		element = p.Node
		// A text ends the evaluation: it cannot be added to the number that came before. So it needs no charge.
		_, stepped := called(element)
		if name, charged := called(stepped[1]); name == "$charge" {
			stepped[1] = charged[1]
		}
	} else {
		element = counted(element)
	}
	body := call("$add", &ast.PointerNode{Name: "acc"}, element)
	g.charged[body] = true
	ast.Patch(node, &ast.BuiltinNode{Name: "reduce", Arguments: []ast.Node{
		n.Arguments[0], &ast.PredicateNode{Node: body}, &ast.IntegerNode{},
	}})
}

// makers are functions that make texts or lists: by no more than some times what they get, or checked. Only a predicate
// can run them often enough to matter.
var makers = map[string]bool{
	"$add": true, "$range": true, "replace": true, "join": true, "split": true, "splitAfter": true, "string": true, "upper": true, "lower": true,
	"toJSON": true, "fromJSON": true, "toBase64": true, "fromBase64": true, "keys": true, "values": true, "toPairs": true, "fromPairs": true, "sort": true,
}

// charge puts the charge around a maker inside of a predicate, and counts what is looked at there.
func (g *guards) charge(node *ast.Node) {
	g.look(*node)
	name, args := called(*node)
	if !makers[name] || g.charged[*node] {
		return
	}
	g.charged[*node] = true
	switch {
	case name == "$add" && slices.ContainsFunc(args, isNumeric):
	case name == "fromJSON" && len(args) == 1: // the size of a value is not at hand; that of its text is
		args[0] = call("$charge", &ast.IdentifierNode{Value: stepsName}, args[0], &ast.IntegerNode{Value: 8})
	default:
		inner := *node
		ast.Patch(node, call("$charge", &ast.IdentifierNode{Value: stepsName}, inner))
	}
}

// called gives the name of the function that a node calls, and its arguments.
func called(n ast.Node) (string, []ast.Node) {
	switch n := n.(type) {
	case *ast.BuiltinNode:
		return n.Name, n.Arguments
	case *ast.CallNode:
		if fn, ok := n.Callee.(*ast.IdentifierNode); ok {
			return fn.Value, n.Arguments
		}
	}
	return "", nil
}

// isNumeric says that a node gives a number or fails.
func isNumeric(n ast.Node) bool {
	name, _ := called(n)
	return isNumber(n) || name == "$mul" || name == "$sub"
}

// constantRange says that the bounds are constants and their distance fits, so that the language's own range is right.
func constantRange(n *ast.BinaryNode) bool {
	from, okFrom := wholeConstant(n.Left)
	to, okTo := wholeConstant(n.Right)
	_, fits := subInt64(to, from)
	return okFrom && okTo && fits
}

func wholeConstant(n ast.Node) (int64, bool) {
	switch n := n.(type) {
	case *ast.IntegerNode:
		return int64(n.Value), true
	case *ast.UnaryNode:
		if i, ok := n.Node.(*ast.IntegerNode); ok && n.Operator == "-" {
			return -int64(i.Value), true
		}
	}
	return 0, false
}

func isNumber(n ast.Node) bool {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return true
	}
	return false
}

// counted wraps the body of a predicate so that each run takes one step of the budget.
func counted(body ast.Node) ast.Node {
	return call("$step", &ast.IdentifierNode{Value: stepsName}, body)
}

func call(fn string, args ...ast.Node) ast.Node {
	c := &ast.CallNode{Callee: &ast.IdentifierNode{Value: fn}, Arguments: args}
	for _, a := range args {
		if a.Location().From > 0 {
			c.SetLocation(a.Location())
			break
		}
	}
	return c
}

var checkedOperators = map[string]string{"+": "$add", "-": "$sub", "*": "$mul"}

// guardedFunctions are the options that set the language up: what it lacks, and what replaces it.
//
// now, timezone and date are left out because the same record must give the same result at every time on every host (a
// date has methods that look at the local time zone); millis takes the place of date. repeat is left out because it
// allocates before it is charged, uniq because it is quadratic.
var guardedFunctions = []expr.Option{
	expr.DisableBuiltin("now"), expr.DisableBuiltin("timezone"), expr.DisableBuiltin("date"),
	expr.DisableBuiltin("repeat"), expr.DisableBuiltin("uniq"),
	expr.Function("$step", step, new(func(steps, any) any)),
	expr.Function("$charge", charge, new(func(steps, any) any), new(func(steps, any, int) any)),
	expr.Function("$add", checked(addInt64, addOthers), new(func(any, any) any)),
	expr.Function("$sub", checked(subInt64, failing(runtime.Subtract)), new(func(any, any) any)),
	expr.Function("$mul", checked(mulInt64, failing(runtime.Multiply)), new(func(any, any) any)),
	expr.Function("int", toInt, new(func(any) int)),
	expr.Function("millis", millis, new(func(string) int), new(func(string, string) int)),
}

// dateLayouts are those that millis tries without a layout.
var dateLayouts = []string{time.RFC3339, "2006-01-02", "2006-01-02 15:04:05"}

// millis gives the milliseconds since 1970 of a date, as timestamp has them: millis(TEXT), or millis(TEXT, LAYOUT) with
// a layout of Go's package time. Without a zone in the text it is UTC.
func millis(args ...any) (any, error) {
	text, layouts := args[0].(string), dateLayouts
	if len(args) > 1 {
		layouts = []string{args[1].(string)}
	}
	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return int(t.UnixMilli()), nil
		}
	}
	return nil, errors.New("millis() of a text that is not a date of the expected form")
}

func step(args ...any) (any, error) {
	s := args[0].(steps)
	if *s.left--; *s.left < 0 {
		return nil, errTooManyIterations
	}
	return args[1], nil
}

// checked gives the operator that computes integers exactly and leaves all else to the language.
func checked(ints func(a, b int64) (int64, bool), others func(a, b any) (any, error)) func(args ...any) (any, error) {
	return func(args ...any) (any, error) {
		a, isTimeA, okA := whole(args[0])
		b, isTimeB, okB := whole(args[1])
		if !okA || !okB {
			return others(args[0], args[1])
		}
		v, ok := ints(a, b)
		switch {
		case !ok:
			return nil, topology.ErrOverflow
		case isTimeA || isTimeB: // the language knows which of these make sense
			return others(args[0], args[1])
		}
		return int(v), nil
	}
}

// whole gives an integer, or a duration in nanoseconds.
func whole(v any) (n int64, duration, ok bool) {
	if n, ok = asInt64(v); ok {
		return n, false, true
	}
	d, ok := v.(time.Duration)
	return int64(d), ok, ok
}

// failing is an operator of the language, which panics where it does not apply; the evaluator makes that an error.
func failing(operator func(a, b any) any) func(a, b any) (any, error) {
	return func(a, b any) (any, error) { return operator(a, b), nil }
}

func asInt64(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint8:
		return int64(v), true
	}
	return 0, false
}

func addInt64(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0)
}

func subInt64(a, b int64) (int64, bool) {
	c := a - b
	return c, (c < a) == (b > 0)
}

func mulInt64(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	if c/b != a || a == -1 && b == math.MinInt64 || b == -1 && a == math.MinInt64 {
		return 0, false
	}
	return c, true
}

// toInt is int() with errors where the language's own would give any number at all.
func toInt(args ...any) (any, error) {
	if v, ok := asInt64(args[0]); ok {
		return int(v), nil
	}
	switch v := args[0].(type) {
	case float64:
		if v != v || v < math.MinInt64 || v >= math.MaxInt64 {
			return nil, topology.ErrOverflow
		}
		return int(v), nil
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if errors.Is(err, strconv.ErrRange) {
			return nil, topology.ErrOverflow
		}
		if err != nil {
			return nil, errors.New("int() of a text that is not a whole number")
		}
		return int(n), nil
	case json.Number:
		return nil, topology.ErrOverflow
	}
	return nil, fmt.Errorf("int() of %s", describe(args[0]))
}

// describe names the type of a value for messages.
func describe(v any) string {
	switch v.(type) {
	case nil:
		return "nothing (missing or null)"
	case bool:
		return "a boolean"
	case string:
		return "a text"
	case []byte:
		return "bytes"
	case json.Number:
		return "a number beyond the range of int64"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	}
	switch reflect.ValueOf(v).Kind() {
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Float64, reflect.Float32:
		return "a number"
	}
	return fmt.Sprintf("a value of type %T", v)
}
