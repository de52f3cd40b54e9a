package topology

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Reasons of records that a step does not process.
var (
	// ErrNullKey is the reason when a keyed step meets a record without a key. It goes to the source's OnError policy.
	ErrNullKey = errors.New("null key")
	// ErrTombstone is the reason given to Env.Skipped when an aggregate leaves out a record with a null value. It is
	// no error: the record is left out under every policy.
	ErrTombstone = errors.New("tombstone")
	// ErrOverflow is the reason when a sum or a count leaves the range of int64.
	ErrOverflow = errors.New("int64 overflow")
	// ErrNaN is the reason when Min or Max meets a value that is not a number and so has no place in the order.
	ErrNaN = errors.New("NaN has no order")
	// ErrNoRecord is the reason when keyed state is used while no record is processed, so that there is no key.
	ErrNoRecord = errors.New("keyed state used outside of Process")
	// ErrTooManyOutputs is the reason when one record makes a Processor emit more than MaxOutputsPerRecord records.
	ErrTooManyOutputs = fmt.Errorf("more than %d outputs for one record", MaxOutputsPerRecord)
)

// RecordError says that one record could not be processed, and where.
type RecordError struct {
	From   element.TopicPartition
	Offset int64
	// Step is the name of the source (when decoding failed), step or sink that failed.
	Step   string
	Reason error
}

// Error names topic, partition, offset, step and reason.
func (e *RecordError) Error() string {
	return fmt.Sprintf("topic %s partition %d offset %d: step %s: %v", e.From.Topic, e.From.Partition, e.Offset, e.Step, e.Reason)
}

// Unwrap gives the reason.
func (e *RecordError) Unwrap() error { return e.Reason }

// Detail gives what does not fit on one line: the stack when user code panicked, else nothing.
func (e *RecordError) Detail() string {
	var p *PanicError
	if errors.As(e.Reason, &p) {
		return p.Stack
	}
	return ""
}

// PanicError is the reason when user code, or a serde, panicked.
type PanicError struct {
	// Value is what was given to panic.
	Value any
	// Stack is the stack of the panic, cut to a few kilobytes.
	Stack string
}

// Error gives the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the panic's value when it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Problem is one mistake in a topology.
type Problem struct {
	// Kind is "application", "source", "step" or "sink".
	Kind string
	// Name is the name as given, which may be what is wrong with it.
	Name string
	// Text says what is wrong and what is allowed.
	Text string
}

// String gives the problem as one line.
func (p Problem) String() string { return fmt.Sprintf("%s %q: %s", p.Kind, p.Name, p.Text) }

// PlanError lists all the mistakes of a topology at once.
type PlanError struct {
	Application string
	Problems    []Problem
}

// Error gives all problems on one line.
func (e *PlanError) Error() string {
	parts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		parts[i] = p.String()
	}
	noun := "problems"
	if len(parts) == 1 {
		noun = "problem"
	}
	return fmt.Sprintf("topology %q has %d %s: %s", e.Application, len(parts), noun, strings.Join(parts, "; "))
}

// bad classes a record error for the policy Fail: a new attempt would meet the same record again.
func bad(e *RecordError) error { return fault.Stopf(fault.BadRecord, "%w", e) }
