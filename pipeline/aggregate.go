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
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/topology"
)

// maxFields bounds the output fields of one step.
const maxFields = 64

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
	shape  *shape // of the output: the fields in their order
	// tombstones says that an expression asks about them; otherwise they are left out.
	tombstones bool
}

// parseAggregate reads FUNCTION(EXPRESSION).
func parseAggregate(name, source string, in environment) (aggField, error) {
	fn, arg, shift, err := splitCall(source)
	if err != nil {
		return aggField{}, err
	}
	f := aggField{name: name, source: source}
	known := slices.Index(aggFuncs, fn)
	if known < 0 {
		msg := fmt.Sprintf("unknown function %s; allowed: %s", fn, strings.Join(aggFuncs, ", "))
		if s := yamlx.Suggest(fn, aggFuncs); s != "" {
			msg = fmt.Sprintf("unknown function %s; did you mean %s? allowed: %s", fn, s, strings.Join(aggFuncs, ", "))
		}
		return f, &compileError{msg: msg}
	}
	f.fn = aggFunc(known)
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
// part of it, so they may be corrected without losing the state. Checkpoints hold no name with a blank in it.
func (a *aggregate) codec() string {
	parts := make([]string, len(a.fields))
	for i, f := range a.fields {
		parts[i] = f.name + "=" + f.fn.String()
	}
	list := strings.Join(parts, ",")
	if len(list) > 256 {
		list = fmt.Sprintf("%d-fields,sha256=%x", len(parts), sha256.Sum256([]byte(list)))
	}
	return "aggregate1(" + list + ")"
}

// size is the length of every accumulator in bytes, 0 when it varies.
func (a *aggregate) size() int {
	size := 0
	for _, f := range a.fields {
		w := f.fn.width()
		if w == 0 {
			return 0
		}
		size += w
	}
	return size
}

// encoded describes the step to package topology.
func (a *aggregate) encoded() topology.EncodedAggregate[wireKey, any, any] {
	return topology.EncodedAggregate[wireKey, any, any]{
		Codec: a.codec(), Size: a.size(), Tombstones: a.tombstones,
		New: func() topology.Folder[wireKey, any, any] { return a.newFolder() },
	}
}

// newFolder makes the folder of one task.
func (a *aggregate) newFolder() *folder {
	f := &folder{spec: a, cells: make([]cell, len(a.fields))}
	for range a.fields {
		f.evaluators = append(f.evaluators, newEvaluator())
	}
	return f
}

// folder folds records. It belongs to one task and so to one goroutine.
type folder struct {
	spec       *aggregate
	evaluators []*evaluator
	cells      []cell
	arg        json.Value
}

// Fold implements topology.Folder. What it passes on is a row.
func (p *folder) Fold(dst, old []byte, in *record, out *any) ([]byte, error) {
	b, err := p.foldAll(dst, old, in, out)
	return b, topology.Permanent(err) // expressions give the same for the same record
}

func (p *folder) foldAll(dst, old []byte, in *record, out *any) ([]byte, error) {
	// Values of the record must not stay alive while no other one comes.
	defer p.forget()
	if err := p.load(old); err != nil {
		return nil, err
	}
	for i := range p.spec.fields {
		if err := p.fold(i, in); err != nil {
			return nil, err
		}
	}
	var err error
	for i := range p.spec.fields {
		f := &p.spec.fields[i]
		if dst, err = p.cells[i].append(dst, f.fn); err != nil {
			return nil, fmt.Errorf("%s: %w", f.source, err)
		}
	}
	r := newRow(p.spec.shape)
	for i := range p.spec.fields {
		r.fields[i] = p.cells[i].result(p.spec.fields[i].fn)
	}
	*out = r
	return dst, nil
}

func (p *folder) forget() {
	clear(p.cells)
	p.arg = json.Value{}
}

// load reads the stored accumulator, nil for a new key.
func (p *folder) load(old []byte) error {
	if old == nil {
		return nil
	}
	d := decoder{b: old}
	for i := range p.spec.fields {
		p.cells[i].read(&d, p.spec.fields[i].fn)
	}
	if d.bad || len(d.b) > 0 {
		return errDamaged
	}
	return nil
}

func (p *folder) fold(i int, in *record) error {
	f := &p.spec.fields[i]
	v := &null
	if f.arg != nil {
		if v = f.arg.try(in, &p.arg); v == nil {
			v = &p.arg
			if err := f.arg.evalWith(p.evaluators[i], in, v); err != nil {
				return fmt.Errorf("%s: %w", f.fn, err)
			}
		}
		if v.Kind() == json.KindNull && f.fn != aggFirst && f.fn != aggLast {
			return fmt.Errorf("%s: missing or null; write %s(%s ?? DEFAULT) if that may be", f.source, f.fn, f.arg.source)
		}
	}
	if err := p.cells[i].add(f.fn, v); err != nil {
		return fmt.Errorf("%s: %w", f.source, err)
	}
	return nil
}
