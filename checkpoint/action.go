package checkpoint

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Action is what the driver has to do, in the order given. The concrete types are Trigger, Flush, Persist, WriteRoot,
// CommitAction, Complete, Left, Abandon, Cancel, FailAttempt and Drained, and Skipped, Refused and Ignored, which only
// inform: a driver may let them pass.
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
	// Savepoint names the requests for a savepoint that this checkpoint serves, in the order of the requests: the driver
	// cuts a savepoint at the same barrier. They are served when it is complete.
	Savepoint []string
}

// Flush: all tasks have passed the barrier and the sinks hold back what follows, and no older checkpoint is in flight:
// seal the transaction, so that every record in it is acknowledged. What was held back behind the older one's barrier, up
// to this one's, belongs into it. Answer with Flushed or FlushFailed. It runs in parallel with Persist.
type Flush struct{ ID element.CheckpointID }

// Persist: make the frozen changes of all tasks durable. Older checkpoints may be at that too. Answer with Persisted, or with Acked or Declined per task.
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

// Abandon: these checkpoints are given up, and the attempt goes on. They are the newest ones in flight, growing: the first
// one failed, and what the others have written builds on it. Their workers stop, but a flush that has begun ends by
// itself: cut short, it would take the transaction with it. What the tasks froze for them becomes a part of what they
// freeze next, with the newest value of each key; what is held back behind their barriers follows what lies before them,
// into the queue behind the barrier of the newest one that is still in flight, or into the same transaction when there is
// none, which is reopened if it is sealed. Barriers of theirs that are still under way mean nothing. The next Trigger
// covers all of it. What was frozen and held back for an older one that is still in flight stays as it is.
type Abandon struct {
	IDs    []element.CheckpointID
	Reason FailureReason
	// Failures is how many have failed in a row, this one included. Those that are given up along with another do not count.
	Failures int
	// Err tells the checkpoint, what failed and the cause, and is never nil.
	Err error
}

// Cancel: stop the workers of the checkpoint and release what they hold. FailAttempt follows it: in the same call, or
// behind the outcome of an older one's commit that is under way.
type Cancel struct {
	ID     element.CheckpointID
	Reason FailureReason
}

// FailAttempt: end the attempt, and with it all checkpoints in flight: abort the open transaction, unless Class is fault.Unconfirmed (then only a stable read
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

// Refused answers a request for a savepoint of which too many wait already.
type Refused struct{ Savepoint string }

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
func (Abandon) action()      {}
func (Cancel) action()       {}
func (FailAttempt) action()  {}
func (Drained) action()      {}
func (Skipped) action()      {}
func (Refused) action()      {}
func (Ignored) action()      {}

func (a Trigger) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "trigger %d (%v):", a.ID, a.Reason)
	for _, t := range a.Tasks {
		b.WriteString(" " + t.String())
	}
	if len(a.Savepoint) > 0 {
		b.WriteString(", savepoint " + strings.Join(a.Savepoint, " "))
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

func (a Abandon) String() string {
	var b strings.Builder
	b.WriteString("abandon")
	for _, id := range a.IDs {
		b.WriteString(" " + idText(id))
	}
	fmt.Fprintf(&b, ": %v, %d in a row: %v", a.Reason, a.Failures, a.Err)
	return b.String()
}

func (a Cancel) String() string { return fmt.Sprintf("cancel %d: %v", a.ID, a.Reason) }

func (a FailAttempt) String() string {
	return fmt.Sprintf("fail attempt at %d: %v, %v: %v", a.ID, a.Reason, a.Class, a.Err)
}

func (Drained) String() string   { return "drained" }
func (a Skipped) String() string { return fmt.Sprintf("skipped (%v): nothing moved", a.Reason) }

func (a Refused) String() string {
	return fmt.Sprintf("refused savepoint %s: %d wait already", a.Savepoint, MaxSavepoints)
}

func (a Ignored) String() string {
	if a.Task == (element.TaskID{}) {
		return fmt.Sprintf("ignored %s %d: %v", a.Report, a.ID, a.Answer)
	}
	return fmt.Sprintf("ignored %s %d of %v: %v", a.Report, a.ID, a.Task, a.Answer)
}

func idText(id element.CheckpointID) string { return strconv.FormatUint(uint64(id), 10) }
