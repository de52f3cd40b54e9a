package topology

import (
	"fmt"
	"slices"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
)

const (
	kindProcess kind = "process"

	// MaxOutputsPerRecord is the most records that a Processor may emit for one input record.
	MaxOutputsPerRecord = 1 << 16
	// StatesPerStepMax is the most states that one Processor may declare.
	StatesPerStepMax = 64
)

// Processor is a step of the user's own, with state. There is one instance per task; all its calls come from one
// goroutine. A Processor that is an io.Closer is closed when its task ends.
type Processor[K, V, W any] interface {
	// Open is called once before the first record. It declares the states by ValueState. It is also called when the
	// topology is planned, on an instance that is then thrown away, to learn which states there are: ctx.Planning()
	// is true then, and connections to the outside should not be opened.
	Open(ctx *ProcessContext) error
	// Process handles one record, tombstones included, and emits any number of records. in must not be changed. When
	// it returns an error or panics, the record goes to the source's OnError policy: what it emitted and what it
	// changed in state is dropped.
	Process(ctx *ProcessContext, in *Rec[K, V], out *Collector[K, W]) error
}

// Process adds a step of the user's own. newFn makes a new instance for each task. When the Processor declares state, a
// null key goes to the source's OnError policy as ErrNullKey; without state null keys are handed to it. A Processor that is
// a TimerProcessor has timers, which are state too.
func Process[K, V, W any](s Stream[K, V], name string, newFn func() Processor[K, V, W]) Stream[K, W] {
	if s.b == nil {
		return Stream[K, W]{}
	}
	n := &node{kind: kindProcess, name: name}
	n.compile = func(c *compiler, n *node, down []any) (any, error) {
		return newProcessOp(c, n, newFn, down)
	}
	out := addStep[K, V, W](s, n)
	if newFn == nil {
		s.b.problem(n.kind, n.name, "the function is nil")
		return out
	}
	s.b.declareStates(n, func(ctx *ProcessContext) error {
		p := newFn()
		if p == nil {
			return errNilProcessor
		}
		_, n.timers = p.(TimerProcessor[K, W])
		return p.Open(ctx)
	})
	if n.timers {
		n.states = append(n.states, state{name: timerState, codec: timerCodec})
	}
	return out
}

var errNilProcessor = fmt.Errorf("the function gives a nil Processor")

// declareStates runs open in planning mode and notes the states that it declares.
func (b *Builder) declareStates(n *node, open func(*ProcessContext) error) {
	ctx := &ProcessContext{step: n.name, source: n.root.name, application: b.application, partition: -1, planning: true}
	if err := callOpen(ctx, open); err != nil {
		b.problem(n.kind, n.name, "opening it to learn its states: %v", err)
	}
	for _, s := range ctx.slots {
		n.states = append(n.states, state{name: s.name, codec: s.codec})
	}
}

// callOpen runs user code that may panic.
func callOpen(ctx *ProcessContext, open func(*ProcessContext) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = asPanic(p)
		}
	}()
	if err := open(ctx); err != nil {
		return err
	}
	return ctx.err
}

// ProcessContext is what a Processor sees of its task.
type ProcessContext struct {
	application, source, step string
	partition                 int32
	planning                  bool

	opened bool
	slots  []*stateSlot
	tables func(name, codec string) (StateTable, error)
	timers *timerSet // nil when the Processor has none
	now    func() int64
	arena  *arena
	key    []byte // of the record at work, nil when there is none
	err    error  // the first failure of a state call since the last check
}

// Application is the name of the application.
func (c *ProcessContext) Application() string { return c.application }

// Step is the name of the step.
func (c *ProcessContext) Step() string { return c.step }

// Task names the task: source and partition. While planning the partition is -1.
func (c *ProcessContext) Task() element.TaskID {
	return element.TaskID{Source: c.source, Partition: c.partition}
}

// Planning says that Open is called only to learn the states.
func (c *ProcessContext) Planning() bool { return c.planning }

func (c *ProcessContext) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// Value is a state that holds one value per key. It reads and writes the value of the key of the record at work.
//
// Calls have no error result: what goes wrong fails the record when Process returns, whatever Process returns.
type Value[S any] struct {
	slot  *stateSlot
	codec serde.Serde[S]
	plain bool
}

// ValueState declares a state of a Processor, in Open. Within the step the name is unique, is not "timers" and matches
// ^[A-Za-z0-9._-]{1,128}$. The state survives restarts as long as the names of step, state and codec stay.
func ValueState[S any](ctx *ProcessContext, name string, codec serde.Serde[S]) *Value[S] {
	v := &Value[S]{slot: &stateSlot{ctx: ctx, name: name}, codec: codec}
	switch {
	case ctx.opened:
		ctx.fail(fmt.Errorf("state %q: declared outside of Open", name))
		return v
	case codec == nil:
		ctx.fail(fmt.Errorf("state %q: the serde is nil", name))
		return v
	case !validName(name):
		ctx.fail(fmt.Errorf("state %q: %s", name, nameRule))
		return v
	case name == timerState:
		ctx.fail(fmt.Errorf("state %q: the name is reserved for timers", name))
		return v
	case slices.ContainsFunc(ctx.slots, func(s *stateSlot) bool { return s.name == name }):
		ctx.fail(fmt.Errorf("state %q: declared twice", name))
		return v
	case len(ctx.slots) >= StatesPerStepMax:
		ctx.fail(fmt.Errorf("state %q: more than %d states", name, StatesPerStepMax))
		return v
	}
	v.slot.codec = codec.Name()
	v.plain = isPlain[S]()
	if ctx.tables != nil {
		table, err := ctx.tables(name, v.slot.codec)
		if err != nil {
			ctx.fail(err)
			return v
		}
		v.slot.table = table
	}
	ctx.slots = append(ctx.slots, v.slot)
	return v
}

// Get gives the value of the current key, the zero S and false when there is none. It sees what Set and Clear did for
// the same record. The result does not change when the state does; it must not be changed by the caller.
func (v *Value[S]) Get() (value S, ok bool) {
	raw, ok := v.slot.get(v.plain)
	if !ok {
		return value, false
	}
	s, err := v.codec.Decode(raw)
	if err != nil {
		v.slot.ctx.fail(fmt.Errorf("state %s: %w", v.slot.name, stateError(v.slot.codec, err)))
		return value, false
	}
	return s, true
}

// Set puts the value of the current key. The value is encoded at once, so later changes of what it points to are not
// seen. It becomes state when Process returns without an error.
func (v *Value[S]) Set(value S) {
	s := v.slot
	if !s.usable() {
		return
	}
	b, err := v.codec.Append(s.pending[:0], value)
	if err != nil {
		s.ctx.fail(fmt.Errorf("state %s: encode as %s: %w", s.name, s.codec, err))
		return
	}
	s.pending, s.change = b, changePut
}

// Clear removes the value of the current key, when Process returns without an error.
func (v *Value[S]) Clear() {
	if v.slot.usable() {
		v.slot.change = changeDelete
	}
}
