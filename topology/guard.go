package topology

import (
	"runtime/debug"

	"github.com/millweir/millweir/element"
)

// stackBytesMax bounds the stack that a PanicError keeps.
const stackBytesMax = 8 << 10

// guard drives an operator's loop over one batch. What goes wrong with a record, panics included, becomes a RecordError
// and meets the policy; the loop then ends (Fail) or goes on behind that record (Skip).
//
// Only the operator's own loop runs under the guard. Its outputs are handed on outside of it, so an error is named after
// the step where it happened, and errors of the engine are not taken for errors of a record.
type guard struct {
	step   string
	policy Policy
	// byTopic gives the policy by the topic of the record's source, where that is not known beforehand; policy is for
	// records of no topic.
	byTopic map[string]Policy
	env     Env
	// at is the index of the record at work, kept up to date by the loop.
	at int
}

// looper is what an operator shows to its guard.
type looper interface {
	// run processes from the given index until the end, an error at guard.at, or a pause. It returns the index to go
	// on from.
	run(from int) (next int, err error)
	// offset gives the offset of record i of the batch at work.
	offset(i int) int64
	// undo takes back what the record at work has put out.
	undo()
	// drain hands the gathered outputs to the consumers.
	drain() error
}

// loop runs o over the n records of the batch at work.
func (g *guard) loop(o looper, from element.TopicPartition, n int) error {
	for i := 0; i < n; {
		next, err := g.try(o, i)
		if err != nil {
			o.undo()
			rerr := &RecordError{From: from, Offset: o.offset(g.at), Step: g.step, Reason: err}
			g.nameTimer(o, rerr)
			if g.policyOf(from.Topic) != Skip {
				return bad(rerr)
			}
			g.env.Skipped(g.step, rerr)
			next = g.at + 1
		}
		if err := o.drain(); err != nil {
			return err
		}
		i = next
	}
	return nil
}

// nameTimer names the timer that failed, or of which the record at work comes.
func (g *guard) nameTimer(o looper, e *RecordError) {
	switch o := o.(type) {
	case timerLooper:
		e.Timer = o.timerRef()
	case recordLooper:
		if e.From == timerOrigin {
			e.Timer, e.Emitted = o.recordRef(g.at), true
		}
	}
}

func (g *guard) policyOf(topic string) Policy {
	if p, ok := g.byTopic[topic]; ok {
		return p
	}
	return g.policy
}

func (g *guard) try(o looper, from int) (next int, err error) {
	g.at = from
	defer func() {
		if p := recover(); p != nil {
			err = asPanic(p)
		}
	}()
	return o.run(from)
}

// asPanic must be called while the panic unwinds: the stack is read here.
func asPanic(p any) *PanicError {
	stack := debug.Stack()
	return &PanicError{Value: p, Stack: string(stack[:min(len(stack), stackBytesMax)])}
}
