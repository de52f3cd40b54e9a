package checkpoint

import (
	"time"

	"github.com/millweir/millweir/element"
)

// RecentCheckpoints is how many ended checkpoints the statistics keep.
const RecentCheckpoints = 16

// CheckpointStats tells how one checkpoint went. Times are those of the driver's clock; the phases follow each other
// except Flush and Persist, which both begin when the last barrier has passed. What was not reached is 0.
type CheckpointStats struct {
	ID     element.CheckpointID
	Reason Reason
	// Failure is NoFailure for a checkpoint that is in flight or completed.
	Failure FailureReason
	// Phase names the phase reached; for a failed one, the phase it failed in.
	Phase string
	// Tasks is how many tasks it covers, MovedTasks how many of them reported that something had changed.
	Tasks, MovedTasks int
	// Triggered is when it was triggered.
	Triggered time.Duration
	// StartDelay is the longest time from the trigger until a task had the barrier, Slowest the task that took it.
	StartDelay time.Duration
	Slowest    element.TaskID
	// Sync is the longest time that a task stood still to freeze its state.
	Sync time.Duration
	// Barriers is the time from the trigger until every task had reported the barrier.
	Barriers time.Duration
	// Flush and Persist are the times until the transaction was sealed, and until the state of all tasks was durable.
	Flush, Persist time.Duration
	// Root is the time of writing the root file, Commit that of the transaction's commit.
	Root, Commit time.Duration
	// EndToEnd is the time from the trigger to the end.
	EndToEnd time.Duration
	// DeltaBytes, Entries and Files are what was written for it; StateBytes is the size of the whole state.
	DeltaBytes, Entries, Files, StateBytes int64
}

// Totals count since the coordinator was made. Failed has at most one entry of 1: a failure is the coordinator's end.
type Totals struct {
	Triggered, Completed uint64
	// Failed counts by FailureReason; index NoFailure is not used.
	Failed [NumFailureReasons]uint64
	// Answers counts the reports by what became of them.
	Answers [NumAnswers]uint64
	// Skipped counts requests that found nothing to do.
	Skipped uint64
	// DeltaBytes and Entries sum up what completed checkpoints have written.
	DeltaBytes, Entries int64
}

// Stats is a copy of all statistics, for metrics and logs.
type Stats struct {
	// Current is the checkpoint in flight, nil when there is none.
	Current *CheckpointStats
	// Recent holds the last ended ones, oldest first, at most RecentCheckpoints.
	Recent []CheckpointStats
	Totals Totals
}

// Last gives the checkpoint that ended last.
func (s Stats) Last() (CheckpointStats, bool) {
	if len(s.Recent) == 0 {
		return CheckpointStats{}, false
	}
	return s.Recent[len(s.Recent)-1], true
}

// history is the bounded ring behind Stats.Recent.
type history struct {
	ring [RecentCheckpoints]CheckpointStats
	n    uint64 // how many were ever put in
}

func (h *history) add(s CheckpointStats) {
	h.ring[h.n%RecentCheckpoints] = s
	h.n++
}

// list copies the ring, oldest first.
func (h *history) list() []CheckpointStats {
	first := h.n - min(h.n, RecentCheckpoints)
	out := make([]CheckpointStats, 0, h.n-first)
	for i := first; i < h.n; i++ {
		out = append(out, h.ring[i%RecentCheckpoints])
	}
	return out
}
