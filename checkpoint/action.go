package checkpoint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Action is what the driver has to do, in the order given. The concrete types are Trigger, Flush, Persist, WriteRoot,
// CommitAction, Complete, Left, Cancel, FailAttempt and Drained, and Skipped and Ignored, which only inform: a driver
// may let them pass.
type Action interface {
	// String is one line, as traces and golden files print it.
	String() string
	action()
}

// Trigger: put barrier ID into the inbox of each of the tasks. Each answers with BarrierPassed or Declined.
type Trigger struct {
	ID     element.CheckpointID
	Reason Reason
	// Tasks are those that the checkpoint covers, sorted. It belongs to the receiver.
	Tasks []element.TaskID
}

// Flush: all tasks have passed the barrier and the sinks hold back what follows: seal the transaction, so that every
// record in it is acknowledged. Answer with Flushed or FlushFailed. It runs in parallel with Persist.
type Flush struct{ ID element.CheckpointID }

// Persist: make the frozen changes of all tasks durable. Answer with Persisted, or with Acked or Declined per task.
type Persist struct{ ID element.CheckpointID }

// TaskPositions says up to where a checkpoint covers the inputs of one task.
type TaskPositions struct {
	Task      element.TaskID
	Positions []element.Position
}

// WriteRoot: everything that the root names is durable: write and sync the root file. Answer with RootWritten or
// RootFailed.
type WriteRoot struct {
	ID element.CheckpointID
	// Tasks are those covered, sorted, with what they reported at the barrier.
	Tasks []TaskPositions
}

// CommitAction: commit the transaction with the offsets of all tasks (a Commit that carries this Permit). From here on
// nothing but its outcome ends the checkpoint: no timeout, no decline, nobody who leaves. Answer with Committed or
// CommitFailed, always.
type CommitAction struct {
	ID     element.CheckpointID
	Permit Permit
}

// Complete: the checkpoint is committed: the frozen state becomes the committed state, held-back output is released,
// the root gets its committed marker.
type Complete struct{ ID element.CheckpointID }

// Left: these tasks are out, sorted: nothing of theirs is uncommitted, or what is was done behind their last barrier and
// is to be dropped. It answers Leave. With a checkpoint that covered them it follows directly behind its Complete, and
// what the driver held back for them is dropped before anything else is released. It belongs to the receiver.
type Left struct{ Tasks []element.TaskID }

// Cancel: stop the workers of the checkpoint and release what they hold. FailAttempt follows it.
type Cancel struct {
	ID     element.CheckpointID
	Reason FailureReason
}

// FailAttempt: end the attempt: abort the open transaction, unless Class is fault.Unconfirmed (then only a stable read
// tells what became of it), drop what is not committed, and go on as Class says. The coordinator is dead afterwards.
type FailAttempt struct {
	// ID is the checkpoint that failed, 0 when none was in flight.
	ID     element.CheckpointID
	Reason FailureReason
	Class  fault.Recovery
	// Err tells the checkpoint, what failed and the cause, carries Class and is never nil.
	Err error
}

// Drained: the final checkpoint is complete, or there was nothing to commit. The coordinator is dead afterwards.
type Drained struct{}

// Skipped answers a request: nothing has moved since the last checkpoint, so none is needed. (Final is answered by
// Drained.)
type Skipped struct{ Reason Reason }

// Ignored answers a report that changed nothing. It is for traces.
type Ignored struct {
	Report string
	ID     element.CheckpointID
	// Task is the zero value for reports that name none.
	Task   element.TaskID
	Answer Answer
}

func (Trigger) action()      {}
func (Flush) action()        {}
func (Persist) action()      {}
func (WriteRoot) action()    {}
func (CommitAction) action() {}
func (Complete) action()     {}
func (Left) action()         {}
func (Cancel) action()       {}
func (FailAttempt) action()  {}
func (Drained) action()      {}
func (Skipped) action()      {}
func (Ignored) action()      {}

func (a Trigger) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "trigger %d (%v):", a.ID, a.Reason)
	for _, t := range a.Tasks {
		b.WriteString(" " + t.String())
	}
	return b.String()
}

func (a Flush) String() string   { return "flush " + idText(a.ID) }
func (a Persist) String() string { return "persist " + idText(a.ID) }

func (a WriteRoot) String() string {
	var b strings.Builder
	b.WriteString("write root " + idText(a.ID) + ":")
	for _, t := range a.Tasks {
		b.WriteString(" " + t.Task.String())
		for i, p := range t.Positions {
			b.WriteByte("=,"[min(i, 1)])
			fmt.Fprintf(&b, "%v@%d", p.TopicPartition, p.Offset)
		}
	}
	return b.String()
}

func (a CommitAction) String() string {
	if !a.Permit.Allows(a.ID) {
		return "commit " + idText(a.ID) + " WITHOUT PERMIT"
	}
	return "commit " + idText(a.ID) + " (permit)"
}

func (a Complete) String() string { return "complete " + idText(a.ID) }

func (a Left) String() string {
	var b strings.Builder
	b.WriteString("left:")
	for _, t := range a.Tasks {
		b.WriteString(" " + t.String())
	}
	return b.String()
}

func (a Cancel) String() string { return fmt.Sprintf("cancel %d: %v", a.ID, a.Reason) }

func (a FailAttempt) String() string {
	return fmt.Sprintf("fail attempt at %d: %v, %v: %v", a.ID, a.Reason, a.Class, a.Err)
}

func (Drained) String() string   { return "drained" }
func (a Skipped) String() string { return fmt.Sprintf("skipped (%v): nothing moved", a.Reason) }

func (a Ignored) String() string {
	if a.Task == (element.TaskID{}) {
		return fmt.Sprintf("ignored %s %d: %v", a.Report, a.ID, a.Answer)
	}
	return fmt.Sprintf("ignored %s %d of %v: %v", a.Report, a.ID, a.Task, a.Answer)
}

func idText(id element.CheckpointID) string { return strconv.FormatUint(uint64(id), 10) }
