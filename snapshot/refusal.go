package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Reason says why a task is not started.
type Reason string

// The reasons. Each stands for one situation that a person resolves in one way; docs/format/handle.md lists them.
const (
	ReasonForeignOffset   Reason = "foreign-offset"        // a committed offset without our handle
	ReasonDamagedHandle   Reason = "damaged-handle"        // checksum or format of the handle violated
	ReasonNewerHandle     Reason = "newer-handle"          // written by a newer version of the program
	ReasonOffsetMoved     Reason = "offset-moved"          // the committed offset is not the handle's
	ReasonOtherCluster    Reason = "other-cluster"         // offsets were mirrored from another cluster
	ReasonOtherStore      Reason = "other-store"           // another checkpoint directory is configured
	ReasonOtherGroup      Reason = "other-application"     // the handle names a root of another application
	ReasonTopicRecreated  Reason = "topic-recreated"       // same name, another topic id
	ReasonPartitionCount  Reason = "partition-count"       // the key to partition mapping changed under keyed state
	ReasonInputsDisagree  Reason = "inputs-disagree"       // the inputs of one task stand at different checkpoints
	ReasonOffsetsExpired  Reason = "offsets-expired"       // the store knows the task, the group does not
	ReasonStaleHandle     Reason = "stale-handle"          // the store knows a newer commit of the task than the handle
	ReasonRootUnusable    Reason = "checkpoint-damaged"    // root missing or damaged
	ReasonUnreadable      Reason = "checkpoint-unreadable" // a root that no handle names is missing or damaged, and may hold the task
	ReasonTaskMissing     Reason = "task-missing"          // the root does not hold the task
	ReasonPositionDiffers Reason = "position-differs"      // the root's position is not the handle's
	ReasonOtherInputs     Reason = "other-inputs"          // the source of the task reads something else than it did
	ReasonCodecChanged    Reason = "state-codec-changed"   // a state was written with another codec
	ReasonStateDropped    Reason = "state-not-in-topology" // the checkpoint holds state that no step owns
	ReasonMixedRoots      Reason = "checkpoints-mixed"     // the tasks of an application with exchanges stand at different checkpoints
	ReasonInFlight        Reason = "records-in-flight"     // records in flight cannot go where the topology now is
	// ReasonCheckpointsDisabled: a start without checkpoints would lose the state that the committed offsets lead to.
	ReasonCheckpointsDisabled Reason = "checkpoints-disabled"

	ReasonOtherLineage Reason = "other-lineage" // the committed offset does not come from the savepoint to start from
)

// Refusal is one task that cannot be started, and why.
type Refusal struct {
	Reason    Reason
	Task      element.TaskID
	Partition element.TopicPartition // the input concerned; zero when it is the task as a whole
	Message   string                 // one line: what, where, what to do
	Err       error                  // cause, may be nil
}

// RefusedError is the outcome of a Resolve that refuses. It comes wrapped in a fault of class Stop whose code is that
// of the first refusal.
type RefusedError struct {
	Refusals []Refusal // sorted by task, at least one
}

// Error gives the lines of the first refusal of each reason, since each has a cure of its own, and the number of the others.
func (e *RefusedError) Error() string {
	shown := e.shown()
	lines := make([]string, len(shown))
	for i, r := range shown {
		lines[i] = r.Message
	}
	s := strings.Join(lines, "; and ")
	if n := len(e.Refusals) - len(shown); n > 0 {
		s += fmt.Sprintf(" (and %d more)", n)
	}
	return s
}

// shown gives the first refusal of each reason.
func (e *RefusedError) shown() (out []Refusal) {
	for _, r := range e.Refusals {
		if !slices.ContainsFunc(out, func(o Refusal) bool { return o.Reason == r.Reason }) {
			out = append(out, r)
		}
	}
	return out
}

// Unwrap gives the causes.
func (e *RefusedError) Unwrap() []error {
	var out []error
	for _, r := range e.Refusals {
		if r.Err != nil {
			out = append(out, r.Err)
		}
	}
	return out
}

// Has reports whether a task was refused for a reason.
func (e *RefusedError) Has(reason Reason) bool {
	for _, r := range e.Refusals {
		if r.Reason == reason {
			return true
		}
	}
	return false
}

// RefusalOf finds the RefusedError in a chain, nil when there is none.
func RefusalOf(err error) *RefusedError {
	var e *RefusedError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// code gives the exit code of a reason.
func (r Reason) code() fault.Code {
	switch r {
	case ReasonRootUnusable, ReasonUnreadable, ReasonTaskMissing, ReasonPositionDiffers:
		return fault.Corrupt
	case ReasonOtherInputs, ReasonCodecChanged, ReasonStateDropped, ReasonPartitionCount, ReasonInFlight, ReasonCheckpointsDisabled:
		return fault.StateMismatch
	}
	return fault.HandleMismatch
}
