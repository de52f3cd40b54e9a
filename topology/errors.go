package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"

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
	// ErrTooManyTimers is the reason when a key would have more than TimersPerKeyMax pending timers.
	ErrTooManyTimers = fmt.Errorf("more than %d timers for one key", TimersPerKeyMax)
	// ErrNoOnTimer is the reason when a Processor that is no TimerProcessor sets a timer.
	ErrNoOnTimer = errors.New("a timer was set by a Processor without OnTimer")
	// ErrTooManyOutputs is the reason when one record makes a Processor emit more than MaxOutputsPerRecord records.
	ErrTooManyOutputs = fmt.Errorf("more than %d outputs for one record", MaxOutputsPerRecord)
)

// timerFormat is RFC 3339 with the milliseconds that timers have.
const timerFormat = "2006-01-02T15:04:05.000Z07:00"

// RecordError says that one record could not be processed, and where.
type RecordError struct {
	From   element.TopicPartition
	Offset int64
	// Step is the name of the source (when decoding failed), step or sink that failed.
	Step   string
	Reason error
	// Timer is set when the error is that of a timer, or of a record that a timer has emitted. From then has no topic and
	// Offset is -1.
	Timer *TimerRef
	// Emitted says that it is of a record: Timer has the key that the record has at the step that failed, and its
	// timestamp, which is the time of the timer.
	Emitted bool
}

// TimerRef names a timer.
type TimerRef struct {
	Key []byte // as RawKey
	At  time.Time
}

// Error names topic, partition, offset, step and reason; for a timer, or a record of one, key and time instead of the record.
func (e *RecordError) Error() string {
	switch {
	case e.Timer != nil && e.Emitted:
		return fmt.Sprintf("step %s: record of a timer, key %q, at %s: %v", e.Step, e.Timer.Key, e.Timer.At.UTC().Format(timerFormat), e.Reason)
	case e.Timer != nil:
		return fmt.Sprintf("step %s: timer of key %q at %s: %v", e.Step, e.Timer.Key, e.Timer.At.UTC().Format(timerFormat), e.Reason)
	case e.From.Topic == "":
		return fmt.Sprintf("step %s: record of a timer: %v", e.Step, e.Reason)
	}
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

// bad classes an error of a record. User code may fail for a reason that passes, so a new attempt has a point (the restart
// strategy ends it when the same record fails again and again), unless it says something else by a class of its own. A
// record that cannot be encoded or decoded, or breaks a rule of this package, fails every time.
func bad(e *RecordError) error {
	recovery := fault.RecoveryOf(e.Reason)
	if isFixed(e.Reason) {
		recovery = fault.Stop
	}
	return fault.New(recovery, fault.BadRecord, "%w", e)
}

func isFixed(reason error) bool {
	if errors.As(reason, new(*fixedError)) {
		return true
	}
	for _, err := range []error{ErrNullKey, ErrOverflow, ErrNaN, ErrNoRecord, ErrTooManyTimers, ErrNoOnTimer, ErrTooManyOutputs} {
		if errors.Is(reason, err) {
			return true
		}
	}
	return false
}

// fixedError is an error that a record makes every time.
type fixedError struct {
	what string
	err  error
}

func codecError(what string, err error) error { return &fixedError{what, err} }

// Permanent marks an error of a user function as one that the same record gives every time: under the policy Fail the
// service stops at once instead of trying again. nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &fixedError{err: err}
}

func (e *fixedError) Error() string {
	if e.what == "" {
		return e.err.Error()
	}
	return e.what + ": " + e.err.Error()
}

func (e *fixedError) Unwrap() error { return e.err }
