package pipeline

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// The limits of an expression.
const (
	// MaxExpressionBytes is the longest source of an expression.
	MaxExpressionBytes = 4 << 10
	// MaxExpressionNodes bounds its syntax tree.
	MaxExpressionNodes = 1000
	// MaxIterations bounds how many times all predicates of one expression run for one record. The language has loops
	// over lists only, and they nest.
	MaxIterations = 10_000
	// memoryBudget bounds what one evaluation may allocate, in elements and bytes as the evaluator counts them.
	memoryBudget = 1_000_000
)

// wireKey is the key of a record in its wire form. The steps of a pipeline rarely look at the key, so it is decoded
// only where an expression names it.
type wireKey []byte

// record is what flows through a pipeline.
type record = topology.Rec[wireKey, any]

// expression is a compiled expression. It may be used by several goroutines.
type expression struct {
	source  string
	program *vm.Program
	names   map[string]bool  // the variables that it uses
	key     serde.Serde[any] // decodes the key for it
	result  reflect.Kind     // of the result when it is known, else Interface
	access
	quick quick     // nil when it has no such form
	pool  sync.Pool // of *evaluator
}

// environment says what an expression can name and of which types it is.
type environment struct {
	key   serde.Serde[any]
	value valueKind
	shape *shape // of the rows among the values, nil when there are none
}

// evaluator is the memory of one evaluation at a time.
type evaluator struct {
	vm     vm.VM
	env    map[string]any
	fields map[string]any // of the value
	steps  int
	room   int // see maxTextBytes
	looks  int // see maxLooks
}

// compileError is what is wrong with an expression. column counts runes from 1, 0 when there is no place.
type compileError struct {
	line, column int
	msg          string
	cause        error // of an evaluation, nil when there is none
}

func (e *compileError) Unwrap() error { return e.cause }

func (e *compileError) Error() string {
	if e.column == 0 {
		return e.msg
	}
	if e.line > 1 {
		return fmt.Sprintf("%s (line %d, character %d of the expression)", e.msg, e.line, e.column)
	}
	return fmt.Sprintf("%s (character %d of the expression)", e.msg, e.column)
}

// compile checks and compiles an expression.
func compile(source string, in environment) (*expression, error) {
	if len(source) > MaxExpressionBytes {
		return nil, &compileError{msg: fmt.Sprintf("the expression is longer than %d bytes", MaxExpressionBytes)}
	}
	if err := checkLiterals(source); err != nil {
		return nil, err
	}
	g := newGuards()
	program, err := compileGuarded(source, g, in.value.exprType())
	if err == nil && g.err != nil {
		err = g.err
	}
	if err == nil && g.names["tombstone"] {
		// The value may be missing then, so its type is not certain.
		g = newGuards()
		program, err = compileGuarded(source, g, types.Any)
	}
	if err != nil {
		return nil, explain(asCompileError(err), source)
	}
	e := &expression{source: strings.TrimSpace(source), program: program, names: g.names, key: in.key, result: reflect.Interface}
	if t := program.Node().Type(); t != nil {
		e.result = t.Kind()
	}
	e.access = accessOf(program.Node(), in.shape)
	if in.key != nil {
		e.quick = quickOf(program.Node(), in.shape, in.key.Name())
	}
	e.pool.New = func() any { return newEvaluator() }
	return e, nil
}

func compileGuarded(source string, g *guards, value types.Type) (program *vm.Program, err error) {
	// A panic of the compiler is a defect of its own, met with a source that it should have refused.
	defer func() {
		if r := recover(); r != nil {
			program, err = nil, &compileError{msg: fmt.Sprintf("the expression cannot be compiled: %v", r)}
		}
	}()
	options := append([]expr.Option{
		expr.Env(types.Map{
			"key": types.Any, "value": value, "headers": types.TypeOf(map[string]any{}),
			"timestamp": types.Int, "tombstone": types.Bool, stepsName: types.TypeOf(steps{}),
		}),
		expr.MaxNodes(MaxExpressionNodes),
		expr.Patch(g),
	}, slices.Concat(guardedFunctions, ownFunctions, comparing, looking)...)
	return expr.Compile(source, options...)
}

func asCompileError(err error) *compileError {
	var fe *file.Error
	if errors.As(err, &fe) {
		return &compileError{line: fe.Line, column: fe.Column + 1, msg: oneLine(fe.Message)}
	}
	var ce *compileError
	if errors.As(err, &ce) {
		return ce
	}
	return &compileError{msg: oneLine(err.Error())}
}

// explain says what an expression can name, and how a text is written, to those whose name is not known.
func explain(e *compileError, source string) *compileError {
	name, ok := strings.CutPrefix(e.msg, "unknown name ")
	switch {
	case !ok:
	case strings.TrimSpace(source) == name:
		e.msg += fmt.Sprintf(`; write "'%s'" if the text is meant, value.%s for a field`, name, name)
	case yamlx.Suggest(name, variables) != "":
		e.msg += fmt.Sprintf("; did you mean %s?", yamlx.Suggest(name, variables))
	default:
		e.msg += fmt.Sprintf("; an expression can name %s; a field is value.%s", strings.Join(variables, ", "), name)
	}
	return e
}

// variables are what an expression can name.
var variables = []string{"key", "value", "headers", "timestamp", "tombstone"}

func oneLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func newEvaluator() *evaluator {
	ev := &evaluator{env: make(map[string]any, 8), fields: map[string]any{}}
	ev.vm.MemoryBudget = memoryBudget
	ev.env[stepsName] = steps{&ev.steps, &ev.room, &ev.looks}
	return ev
}

// eval gives the result for one record, normalised: nil, bool, int64, float64, string, []byte, json.Number, []any and
// map[string]any only. It may share memory with the record.
func (e *expression) eval(r *record) (any, error) {
	var v json.Value
	if err := e.evalInto(r, &v); err != nil {
		return nil, err
	}
	return v.Any(), nil
}

// evalInto is eval without memory for the result.
func (e *expression) evalInto(r *record, out *json.Value) error {
	if v := e.try(r, out); v != nil {
		*out = *v
		return nil
	}
	ev := e.pool.Get().(*evaluator)
	defer e.pool.Put(ev)
	return e.evalWith(ev, r, out)
}

// try evaluates without the evaluator, where that is possible; else it gives nil. The result may be in room.
func (e *expression) try(r *record, room *json.Value) *json.Value {
	if e.quick == nil {
		return nil
	}
	return e.quick.eval(r, room)
}

// evalWith runs the evaluator.
func (e *expression) evalWith(ev *evaluator, r *record, result *json.Value) error {
	if err := ev.fill(e, r); err != nil {
		return err
	}
	ev.steps, ev.room, ev.looks = MaxIterations, maxTextBytes, maxLooks
	out, err := ev.vm.Run(e.program, ev.env)
	// What these alias, a fetch buffer, must not stay alive while no record comes.
	ev.env["value"] = nil
	clear(ev.fields)
	if err != nil {
		var fe *file.Error
		if errors.As(err, &fe) {
			err = &compileError{line: fe.Line, column: fe.Column + 1, msg: oneLine(fe.Message), cause: fe.Prev}
		}
		return fmt.Errorf("%s: %w", e.source, err)
	}
	v, err := normalise(out)
	if err != nil {
		return fmt.Errorf("%s: %w", e.source, err)
	}
	*result = json.ValueOf(v)
	return nil
}

// fill puts the variables that the expression uses in place; others may hold those of another record and are not seen.
func (ev *evaluator) fill(e *expression, r *record) error {
	if e.names["value"] {
		ev.env["value"] = e.view(r.Value, ev.fields)
	}
	if e.names["key"] {
		var key any
		if r.RawKey != nil {
			var err error
			if key, err = e.key.Decode(r.RawKey); err != nil {
				return fmt.Errorf("decode key as %s: %w", e.key.Name(), err)
			}
		}
		ev.env["key"] = key
	}
	if e.names["timestamp"] {
		ev.env["timestamp"] = int(r.Timestamp)
	}
	if e.names["tombstone"] {
		ev.env["tombstone"] = r.Tombstone
	}
	if e.names["headers"] {
		ev.env["headers"] = headerMap(r)
	}
	return nil
}

// headerMap gives the headers by name: of repeated ones the last, as Kafka's lastHeader does; nil for a null value. The
// record itself keeps all of them in their order.
func headerMap(r *record) map[string]any {
	m := make(map[string]any, len(r.Headers))
	for _, h := range r.Headers {
		if h.Value == nil {
			m[h.Key] = nil
			continue
		}
		m[h.Key] = string(h.Value)
	}
	return m
}
