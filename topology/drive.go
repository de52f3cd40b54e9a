package topology

import (
	"fmt"
	"math"

	"github.com/millweir/millweir/element"
)

// timersPerCall is how many timers one call of FireTimers fires.
const timersPerCall = 256

// ID names the task.
func (t *Task) ID() element.TaskID { return t.id }

// Process runs records of the task's partition, in offset order, through all operators. When it returns nil, all outputs
// have been handed to Env.Emit and all state is in the tables: nothing is kept back. The records' bytes must never
// change; the slice and the headers are used during the call only.
//
// An error ends the task: later calls give it again. With the policy Fail it is a *RecordError, classed to end the
// process; errors of Env come as they are.
func (t *Task) Process(from element.TopicPartition, recs []element.Record) error {
	if t.err != nil {
		return t.err
	}
	if from != t.from {
		t.err = fmt.Errorf("task %s was given records of %s", t.id, from)
		return t.err
	}
	src, ok := t.root.(source)
	if !ok {
		t.err = fmt.Errorf("task %s has no source to read from", t.id)
		return t.err
	}
	return t.finish(src.process(from, recs))
}

// finish ends a call that has run records: what exchanges have gathered is sent.
func (t *Task) finish(err error) error {
	if t.err = err; t.err == nil {
		t.err = t.send()
	}
	if t.err == nil {
		t.root.release()
	}
	return t.err
}

func (t *Task) send() error {
	for _, s := range t.senders {
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}

// Receive runs the records of a parcel that was sent to this subtask through all operators. It takes the parcel over and
// recycles it, unless it is kept. For outputs, state and errors what is said of Process holds.
func (t *Task) Receive(p Parcel) error {
	if t.err != nil {
		return t.err
	}
	r, ok := t.root.(receiver)
	if !ok {
		t.err = fmt.Errorf("task %s has no exchange to receive from", t.id)
		return t.err
	}
	return t.finish(r.receive(p))
}

// Restore makes a parcel for this subtask of records that Parcel.Encode gave, in their order. It may hold any number of
// them, and is given to Receive like others. The bytes are copied.
func (t *Task) Restore(data [][]byte) (Parcel, error) {
	r, ok := t.root.(receiver)
	if !ok {
		return nil, fmt.Errorf("task %s has no exchange to receive from", t.id)
	}
	p, err := r.restore(data)
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", t.id, err)
	}
	return p, nil
}

// Flush is called before a barrier: everything that the records so far owe must be out and in state. Operators owe
// nothing after Process, Receive and FireTimers, so there is nothing to hand on; a task that has failed says so again,
// for no barrier may pass it.
func (t *Task) Flush() error {
	if t.err == nil {
		t.err = t.send()
	}
	return t.err
}

// NextTimer gives the time of the first pending timer in milliseconds since the Unix epoch; ok is false when there is
// none.
func (t *Task) NextTimer() (ms int64, ok bool) {
	first, _ := t.firstTimers()
	if first == nil {
		return 0, false
	}
	at, _ := first.nextTimer()
	return at, true
}

// firstTimers gives the operator whose timer is the first one, nil when there is no timer, and the time of the first one
// of the others.
func (t *Task) firstTimers() (first timed, others int64) {
	best := int64(math.MaxInt64)
	others = best
	for _, op := range t.timed {
		at, ok := op.nextTimer()
		switch {
		case !ok:
		case first == nil || at < best:
			first, best, others = op, at, best
		case at < others:
			others = at
		}
	}
	return first, others
}

// FireTimers fires the timers that are due at now, in the order of their times, at most 256 in one call. Behind each
// it asks enough (nil: never) whether to leave it at that; more says that others are due. For outputs, state and errors what is
// said of Process holds.
func (t *Task) FireTimers(now int64, enough func() bool) (more bool, err error) {
	if t.err != nil {
		return false, t.err
	}
	if enough == nil {
		enough = func() bool { return false }
	}
	for left := timersPerCall; ; {
		first, others := t.firstTimers()
		if more = first != nil && due(first, now); !more || left == 0 || left < timersPerCall && enough() {
			break
		}
		fired, err := first.fire(now, others, left, enough)
		if err != nil {
			return false, t.finish(err)
		}
		left -= fired
	}
	if err := t.finish(nil); err != nil {
		return false, err
	}
	return more, nil
}

// due says that the first timer of an operator is due.
func due(op timed, now int64) bool {
	at, ok := op.nextTimer()
	return ok && at <= now
}

// Close closes the Processors that are closers and ends the task. A second call does nothing.
func (t *Task) Close() error {
	if t.done {
		return nil
	}
	t.done = true
	if t.err == nil {
		t.err = fmt.Errorf("task %s is closed", t.id)
	}
	return t.root.close()
}
