package pipeline

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser/lexer"

	"github.com/millweir/millweir/internal/yamlx"
	"github.com/millweir/millweir/topology"
)

// maxFields bounds the output fields of one step.
const maxFields = 64

// aggState is the name of the state within the step.
const aggState = "aggregate"

// aggField is one output field of an aggregate.
type aggField struct {
	name   string
	source string // as the file has it, for messages
	fn     aggFunc
	arg    *expression // nil for count
}

// aggregate is a compiled aggregate step. Fields are sorted by name, so their order in the file does not matter.
type aggregate struct {
	fields []aggField
	// tombstones says that an expression asks about them; otherwise they are left out.
	tombstones bool
}

// parseAggregate reads FUNCTION(EXPRESSION).
func parseAggregate(name, source string, in environment) (aggField, error) {
	fn, arg, shift, err := splitCall(source)
	if err != nil {
		return aggField{}, err
	}
	f := aggField{name: name, source: source, fn: aggFunc(fn)}
	if !slices.Contains(aggFuncs, fn) {
		msg := fmt.Sprintf("unknown function %s; allowed: %s", fn, strings.Join(aggFuncs, ", "))
		if s := yamlx.Suggest(fn, aggFuncs); s != "" {
			msg = fmt.Sprintf("unknown function %s; did you mean %s? allowed: %s", fn, s, strings.Join(aggFuncs, ", "))
		}
		return f, &compileError{msg: msg}
	}
	empty := strings.TrimSpace(arg) == ""
	switch {
	case f.fn == aggCount && empty:
		return f, nil
	case f.fn == aggCount:
		return f, &compileError{msg: "count() counts records and takes nothing; to count some of them put a filter step before, or write sum(CONDITION ? 1 : 0)"}
	case empty:
		return f, &compileError{msg: fmt.Sprintf("%s needs an expression, for example %s(value.amount)", fn, fn)}
	}
	f.arg, err = compile(arg, in)
	var ce *compileError
	if errors.As(err, &ce) && ce.column > 0 && ce.line <= 1 {
		ce.column += shift
	}
	if err != nil {
		return f, err
	}
	return f, f.checkKind(kindOfResult(f.arg))
}

// checkKind refuses an argument that can never be right.
func (f aggField) checkKind(k valueKind) error {
	ok := true
	switch f.fn {
	case aggSum, aggAvg:
		ok = k == unknownKind || k == intKind || k == floatKind
	case aggMin, aggMax:
		ok = k == unknownKind || k == intKind || k == floatKind || k == textKind
	}
	if !ok {
		return &compileError{msg: fmt.Sprintf("%s needs numbers, but the expression gives %s", f.fn, k)}
	}
	return nil
}

// splitCall takes FUNCTION(ARGUMENT) apart; shift is the number of characters before the argument.
func splitCall(source string) (fn, arg string, shift int, err error) {
	malformed := &compileError{msg: fmt.Sprintf("expected one call such as count() or sum(value.amount); functions: %s", strings.Join(aggFuncs, ", "))}
	tokens, lexErr := lexer.Lex(file.NewSource(source))
	if lexErr != nil {
		return "", "", 0, asCompileError(lexErr)
	}
	if n := len(tokens); n > 0 && tokens[n-1].Kind == lexer.EOF {
		tokens = tokens[:n-1]
	}
	n := len(tokens)
	if n < 3 || tokens[0].Kind != lexer.Identifier || !tokens[1].Is(lexer.Bracket, "(") || !tokens[n-1].Is(lexer.Bracket, ")") {
		return "", "", 0, malformed
	}
	depth := 0
	for i, t := range tokens[1:] {
		switch {
		case t.Is(lexer.Bracket, "("):
			depth++
		case t.Is(lexer.Bracket, ")"):
			if depth--; depth == 0 && i+1 != n-1 {
				return "", "", 0, malformed
			}
		}
	}
	runes := []rune(source)
	from, to := tokens[1].From+1, tokens[n-1].From
	if !utf8.ValidString(source) || from > to || to > len(runes) {
		return "", "", 0, malformed
	}
	return tokens[0].Value, string(runes[from:to]), from, nil
}

// codec is the id of the accumulator's encoding: what it lists decides how the bytes are read. The expressions are not
// part of it, so they may be corrected without losing the state.
func (a *aggregate) codec() string {
	parts := make([]string, len(a.fields))
	for i, f := range a.fields {
		parts[i] = f.name + "=" + string(f.fn)
	}
	list := strings.Join(parts, ",")
	if len(list) > 256 {
		list = fmt.Sprintf("%d fields, sha256=%x", len(parts), sha256.Sum256([]byte(list)))
	}
	return "aggregate1(" + list + ")"
}

// newProcessor makes the step's operator of one task.
func (a *aggregate) newProcessor() topology.Processor[wireKey, any, any] {
	p := &aggProcessor{spec: a, cells: make([]cell, len(a.fields))}
	for range a.fields {
		p.evaluators = append(p.evaluators, newEvaluator())
	}
	return p
}

// aggProcessor folds records. It belongs to one task and so to one goroutine.
type aggProcessor struct {
	spec       *aggregate
	state      *topology.Value[[]byte]
	evaluators []*evaluator
	cells      []cell
	encoded    []byte
}

func (p *aggProcessor) Open(ctx *topology.ProcessContext) error {
	p.state = topology.ValueState(ctx, aggState, p.spec.stateSerde())
	return nil
}

// Process gives one output per input. A tombstone changes nothing and gives none, unless the step asks about them.
func (p *aggProcessor) Process(_ *topology.ProcessContext, in *record, out *topology.Collector[wireKey, any]) error {
	if in.Tombstone && !p.spec.tombstones {
		return nil
	}
	if err := p.load(); err != nil {
		return err
	}
	for i := range p.spec.fields {
		if err := p.fold(i, in); err != nil {
			return err
		}
	}
	b := p.encoded[:0]
	var err error
	for i, f := range p.spec.fields {
		if b, err = p.cells[i].append(b, f.fn); err != nil {
			return fmt.Errorf("%s: %w", f.source, err)
		}
	}
	p.encoded = b
	p.state.Set(b)
	result := make(map[string]any, len(p.cells))
	for i, f := range p.spec.fields {
		result[f.name] = p.cells[i].result(f.fn)
	}
	out.Emit(result)
	clear(p.cells) // values of the record must not stay alive while no other one comes
	return nil
}

func (p *aggProcessor) load() error {
	clear(p.cells)
	b, ok := p.state.Get()
	if !ok {
		return nil
	}
	d := decoder{b: b}
	for i, f := range p.spec.fields {
		p.cells[i].read(&d, f.fn)
	}
	if d.bad || len(d.b) > 0 {
		return errDamaged
	}
	return nil
}

func (p *aggProcessor) fold(i int, in *record) error {
	f := &p.spec.fields[i]
	var v any
	if f.arg != nil {
		var err error
		if v, err = f.arg.evalWith(p.evaluators[i], in); err != nil {
			return fmt.Errorf("%s: %w", f.fn, err)
		}
		if v == nil && f.fn != aggFirst && f.fn != aggLast {
			return fmt.Errorf("%s: missing or null; write %s(%s ?? DEFAULT) if that may be", f.source, f.fn, f.arg.source)
		}
	}
	if err := p.cells[i].add(f.fn, v); err != nil {
		return fmt.Errorf("%s: %w", f.source, err)
	}
	return nil
}

// stateSerde is the codec of the state: the bytes as the processor encodes them, under the id of their layout.
func (a *aggregate) stateSerde() stateCodec {
	size := 0
	for _, f := range a.fields {
		w := f.fn.width()
		if w == 0 {
			return stateCodec{name: a.codec()}
		}
		size += w
	}
	return stateCodec{name: a.codec(), size: size}
}

type stateCodec struct {
	name string
	size int // 0 when it varies
}

func (c stateCodec) Name() string { return c.name }

// FixedSize implements serde.Fixed; 0 means that the size varies.
func (c stateCodec) FixedSize() int { return c.size }

func (c stateCodec) Append(dst, v []byte) ([]byte, error) { return append(dst, v...), nil }

func (c stateCodec) Decode(b []byte) ([]byte, error) { return b, nil }
