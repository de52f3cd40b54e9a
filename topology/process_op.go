package topology

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/millweir/millweir/serde"
)

// segmentRecords is how many outputs of a Processor gather before they are handed on, at the end of a record.
const segmentRecords = 1024

// change is what one record does to one state.
type change uint8

const (
	changeNone change = iota
	changePut
	changeDelete
)

// stateSlot is one declared state with the change that the record at work makes. Changes become state together when the
// record has succeeded.
type stateSlot struct {
	ctx         *ProcessContext
	name, codec string
	table       StateTable
	change      change
	pending     []byte
}

// usable says that a record is at work; if not, the step fails.
func (s *stateSlot) usable() bool {
	if s.ctx.key == nil || s.table == nil {
		s.ctx.fail(fmt.Errorf("state %s: %w", s.name, ErrNoRecord))
		return false
	}
	return true
}

// get gives the encoded value of the current key. Unless the decoded value cannot alias it, it is a copy that lasts.
func (s *stateSlot) get(plain bool) ([]byte, bool) {
	if !s.usable() {
		return nil, false
	}
	raw, ok := s.pending, s.change == changePut
	if s.change == changeNone {
		raw, ok = s.table.Get(s.ctx.key)
	}
	if ok && !plain {
		raw = s.ctx.arena.copy(raw)
	}
	return raw, ok
}

func (s *stateSlot) apply() {
	switch s.change {
	case changePut:
		s.table.Put(s.ctx.key, s.pending)
	case changeDelete:
		s.table.Delete(s.ctx.key)
	case changeNone:
	}
	s.change = changeNone
}

// Collector takes the outputs of a Processor.
type Collector[K, W any] struct {
	out   *scratch[K, W]
	from  int // length of out before the record at work
	carry func(*Rec[K, W])
	err   error
}

// Emit passes on a value with key, headers, timestamp and offset of the input record. The record it returns may be given
// other headers or another timestamp, or be made a tombstone, until the next call of Emit; key and offset stay.
func (c *Collector[K, W]) Emit(value W) *Rec[K, W] {
	if len(c.out.Recs)-c.from >= MaxOutputsPerRecord {
		c.err = ErrTooManyOutputs
		return new(Rec[K, W])
	}
	r := c.out.next()
	c.carry(r)
	r.Value, r.rawValue, r.Tombstone = value, nil, false
	return r
}

// EmitTombstone passes on a null value for the key.
func (c *Collector[K, W]) EmitTombstone() *Rec[K, W] {
	var zero W
	r := c.Emit(zero)
	r.Tombstone = true
	return r
}

type processOp[K, V, W any] struct {
	operator[K, V, W]
	ctx *ProcessContext
	fn  Processor[K, V, W]
	col Collector[K, W]
	rec *Rec[K, V] // at work
	// timers fires them, nil when there are none.
	timers *timerRun[K, V, W]
}

func newProcessOp[K, V, W any](c *compiler, n *node, newFn func() Processor[K, V, W], down []any) (any, error) {
	p := &processOp[K, V, W]{operator: newOperator[K, V, W](c, n, down)}
	p.ctx = &ProcessContext{
		application: c.task.application, source: c.task.id.Source, step: n.name, partition: c.task.id.Partition,
		arena: &c.task.arena,
		tables: func(name, codec string) (StateTable, error) {
			for _, s := range n.states {
				if s.name == name && s.codec == codec {
					return c.state(n, s)
				}
			}
			return nil, fmt.Errorf("state %q with codec %q was not declared when the topology was planned", name, codec)
		},
	}
	p.col.out = &p.out
	p.col.carry = func(r *Rec[K, W]) { carry(r, p.rec) }
	p.ctx.now = c.env.Now
	err := callOpen(p.ctx, func(ctx *ProcessContext) error {
		if p.fn = newFn(); p.fn == nil {
			return errNilProcessor
		}
		return p.fn.Open(ctx)
	})
	if err == nil {
		err = p.openTimers(c, n)
	}
	p.ctx.opened = true
	if err != nil {
		return nil, fmt.Errorf("open step %s: %w", n.name, errors.Join(err, p.closeFn()))
	}
	return p, nil
}

// openTimers checks that the Processor has the states that the plan lists, and reads its timers.
func (p *processOp[K, V, W]) openTimers(c *compiler, n *node) error {
	fn, timers := p.fn.(TimerProcessor[K, W])
	states := n.states
	if n.timers {
		states = states[:len(states)-1]
	}
	switch {
	case len(p.ctx.slots) != len(states):
		return fmt.Errorf("%d states declared, %d when the topology was planned", len(p.ctx.slots), len(states))
	case timers != n.timers:
		return fmt.Errorf("it has timers: %t; when the topology was planned: %t", timers, n.timers)
	case !timers:
		return nil
	}
	table, err := c.state(n, n.states[len(states)])
	if err != nil {
		return err
	}
	if p.ctx.timers, err = newTimerSet(table); err != nil {
		return err
	}
	p.timers = &timerRun[K, V, W]{p: p, fn: fn, key: c.root.keySerde.(serde.Serde[K])}
	c.task.timed = append(c.task.timed, p.timers)
	return nil
}

func (p *processOp[K, V, W]) push(b *Batch[K, V]) error { return p.feed(p, b) }

func (p *processOp[K, V, W]) run(from int) (int, error) {
	recs := p.in.Recs
	for i := from; i < len(recs); i++ {
		p.guard.at = i
		p.out.start()
		if err := p.one(&recs[i]); err != nil {
			return i, err
		}
		if len(p.out.Recs) >= segmentRecords {
			return i + 1, nil
		}
	}
	return len(recs), nil
}

// one processes a record.
func (p *processOp[K, V, W]) one(in *Rec[K, V]) error {
	if in.RawKey == nil && (len(p.ctx.slots) > 0 || p.timers != nil) {
		return ErrNullKey
	}
	p.begin(in)
	if err := p.fn.Process(p.ctx, in, &p.col); err != nil {
		return err
	}
	return p.commit(in)
}

// begin sets the record at work.
func (p *processOp[K, V, W]) begin(in *Rec[K, V]) {
	p.rec, p.ctx.key, p.ctx.err = in, in.RawKey, nil
	p.col.from, p.col.err = len(p.out.Recs), nil
	for _, s := range p.ctx.slots {
		s.change = changeNone
	}
	if p.ctx.timers != nil {
		p.ctx.timers.begin()
	}
}

// commit ends it: state changes, timers and outputs count only when all went well.
func (p *processOp[K, V, W]) commit(in *Rec[K, V]) error {
	if err := cmp.Or(p.ctx.err, p.col.err); err != nil {
		return err
	}
	if t := p.ctx.timers; t != nil {
		if err := t.prepare(in.RawKey); err != nil {
			return err
		}
		if err := t.apply(in.RawKey); err != nil {
			return err
		}
	}
	for _, s := range p.ctx.slots {
		s.apply()
	}
	for i := p.col.from; i < len(p.out.Recs); i++ {
		p.out.Recs[i].keep(in.Key, in.RawKey, in.Offset)
	}
	p.ctx.key = nil
	return nil
}

func (p *processOp[K, V, W]) undo() {
	p.ctx.key = nil
	p.operator.undo()
}

func (p *processOp[K, V, W]) release() {
	p.rec, p.ctx.key = nil, nil
	if p.timers != nil {
		p.timers.release()
	}
	p.operator.release()
}

func (p *processOp[K, V, W]) close() error {
	return errors.Join(p.closeFn(), p.operator.close())
}

// closeFn closes the user's Processor once.
func (p *processOp[K, V, W]) closeFn() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("close step %s: %w", p.guard.step, asPanic(r))
		}
	}()
	c, ok := p.fn.(io.Closer)
	p.fn = nil
	if !ok {
		return nil
	}
	if err := c.Close(); err != nil {
		return fmt.Errorf("close step %s: %w", p.guard.step, err)
	}
	return nil
}
