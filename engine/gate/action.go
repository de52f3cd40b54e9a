package gate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millweir/millweir/element"
)

// Action is what the driver has to do, in the order given. The concrete types are Block, Unblock, Snapshot,
// CloseRecording, Captured, Abort and StartTimer.
type Action interface {
	// String is one line, as traces and golden files print it.
	String() string
	action()
}

// Block: do not read the input until Unblock. What its channel takes up meanwhile is bounded, and comes first then.
type Block struct {
	Input int
	ID    element.CheckpointID
}

// Unblock: all inputs may be read again.
type Unblock struct{}

// Snapshot: flush pending output, freeze the state, pass the barrier to the sinks, forward the barrier Forward to all
// outputs. In that order, without a record in between.
type Snapshot struct {
	ID element.CheckpointID
	// Unaligned: records in flight are part of it, and Captured or Abort follows (perhaps among the same actions).
	Unaligned bool
	// Overtake are inputs whose barrier lies in the channel: what is queued ahead of it is captured now, in order, and
	// stays queued; the barrier itself is taken out. Ascending, as Record.
	Overtake []int
	// Record are inputs whose barrier has not come: what is popped from them is captured, and processed as ever, until
	// CloseRecording.
	Record []int
	// Forward is the barrier to send on.
	Forward Barrier
}

// CloseRecording: the barrier (or the end) of a recorded input has come: nothing more is captured from it. With Overtake
// the barrier still lies in the channel: what is queued ahead of it is captured first, behind what was recorded, and the
// barrier is taken out.
type CloseRecording struct {
	Input    int
	ID       element.CheckpointID
	Overtake bool
}

// Captured: the in-flight part of the unaligned snapshot is complete.
type Captured struct{ ID element.CheckpointID }

// Abort: the checkpoint will not be completed here: forward its cancel barrier, drop what was recorded for it, and
// decline it at the coordinator. A snapshot that was taken already is given up.
type Abort struct{ ID element.CheckpointID }

// StartTimer: call TimedOut when what is left of the aligned-timeout, counted from the trigger, is over.
type StartTimer struct{ ID element.CheckpointID }

func (Block) action()          {}
func (Unblock) action()        {}
func (Snapshot) action()       {}
func (CloseRecording) action() {}
func (Captured) action()       {}
func (Abort) action()          {}
func (StartTimer) action()     {}

// String gives one line.
func (a Block) String() string { return fmt.Sprintf("block %d", a.Input) }

// String gives one line.
func (a Unblock) String() string { return "unblock" }

// String gives one line.
func (a Snapshot) String() string {
	s := fmt.Sprintf("snapshot %d", a.ID)
	if a.Unaligned {
		s += " unaligned"
	}
	if len(a.Overtake) > 0 {
		s += ", overtake " + numbers(a.Overtake)
	}
	if len(a.Record) > 0 {
		s += ", record " + numbers(a.Record)
	}
	return s + ", forward " + a.Forward.String()
}

// String gives one line.
func (a CloseRecording) String() string {
	s := fmt.Sprintf("close recording of %d for %d", a.Input, a.ID)
	if a.Overtake {
		s += ", overtake"
	}
	return s
}

// String gives one line.
func (a Captured) String() string { return fmt.Sprintf("captured %d", a.ID) }

// String gives one line.
func (a Abort) String() string { return fmt.Sprintf("abort %d", a.ID) }

// String gives one line.
func (a StartTimer) String() string { return fmt.Sprintf("start timer %d", a.ID) }

func numbers(in []int) string {
	var parts []string
	for _, i := range in {
		parts = append(parts, strconv.Itoa(i))
	}
	return strings.Join(parts, " ")
}
