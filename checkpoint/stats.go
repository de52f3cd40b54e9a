package checkpoint

import (
	"time"

	"github.com/millweir/millweir/element"
)

// RecentCheckpoints is how many ended checkpoints the statistics keep.
const RecentCheckpoints = 16

// CheckpointStats tells how one checkpoint went. Times are those of the driver's clock; the phases follow each other
// except that Persist, which begins when the last barrier has passed, runs beside Waited and Flush. What was not reached
// is 0.
type CheckpointStats struct {
	ID     element.CheckpointID
	Reason Reason
	// Failure is NoFailure for a checkpoint that is in flight or completed.
	Failure FailureReason
	// Phase names the phase reached; for a failed one, the phase it failed in.
	Phase string
	// Tasks is how many tasks it covers, MovedTasks how many of them reported that something had changed.
	Tasks, MovedTasks int
	// Savepoints is how many requests for a savepoint it serves.
	Savepoints int
	// Triggered is when it was triggered.
	Triggered time.Duration
	// StartDelay is the longest time from the trigger until a task had the barrier, Slowest the task that took it.
	StartDelay time.Duration
	Slowest    element.TaskID
	// Alignment is the longest time for which a task had the barrier from one of its inputs and not yet from all.
	Alignment time.Duration
	// Unaligned: at one task at least the barrier overtook records. Buffered and BufferedBytes are, of all tasks, the records
	// that waited behind the barrier when the snapshot was taken, or were overtaken and are part of it.
	Unaligned               bool
	Buffered, BufferedBytes int64
	// Sync is the longest time that a task stood still to freeze its state.
	Sync time.Duration
	// Barriers is the time from the trigger until every task had reported the barrier.
	Barriers time.Duration
	// Waited is how long it waited, with all barriers passed, for its predecessor's commit.
	Waited time.Duration
	// Flush is the time of sealing the transaction, Persist that from the last barrier until the state of all tasks was
	// durable: the asynchronous part.
	Flush, Persist time.Duration
	// Root is the time of writing the root file, Commit that of the transaction's commit.
	Root, Commit time.Duration
	// EndToEnd is the time from the trigger to the end.
	EndToEnd time.Duration
	// DeltaBytes, Entries and Files are what was written for it. StateBytes is the size of the whole state in the tasks,
	// FullBytes the length of everything that the root names, older runs included; where that is not known, StateBytes.
	DeltaBytes, Entries, Files, StateBytes, FullBytes int64
}

// Figure is one number of a checkpoint with its label, as metrics and logs name it.
type Figure struct {
	Label string
	// Time is that of a phase, Bytes a size; the other is 0.
	Time  time.Duration
	Bytes int64
}

// Phases gives the times with stable labels, in the order of a checkpoint's way.
func (s CheckpointStats) Phases() []Figure {
	return []Figure{
		{Label: "start-delay", Time: s.StartDelay}, {Label: "alignment", Time: s.Alignment}, {Label: "sync", Time: s.Sync},
		{Label: "barriers", Time: s.Barriers}, {Label: "async", Time: s.Persist}, {Label: "waited", Time: s.Waited},
		{Label: "flush", Time: s.Flush}, {Label: "root", Time: s.Root}, {Label: "commit", Time: s.Commit},
		{Label: "end-to-end", Time: s.EndToEnd},
	}
}

// Sizes gives the sizes with stable labels: "delta" is what this checkpoint wrote, "full" what a restore from it reads,
// "buffered" the records at the barriers.
func (s CheckpointStats) Sizes() []Figure {
	return []Figure{{Label: "delta", Bytes: s.DeltaBytes}, {Label: "full", Bytes: s.FullBytes}, {Label: "buffered", Bytes: s.BufferedBytes}}
}

// Totals count since the coordinator was made. Each Triggered ends in one of Completed, Abandoned and Failed, or is in
// flight. Failed is of the end of the coordinator: one by its cause, and FailureAlong for others that were in flight.
type Totals struct {
	Triggered, Completed uint64
	// Failed and Abandoned count by FailureReason; index NoFailure is not used.
	Failed, Abandoned [NumFailureReasons]uint64
	// Answers counts the reports by what became of them.
	Answers [NumAnswers]uint64
	// Skipped counts requests that found nothing to do.
	Skipped uint64
	// DeltaBytes and Entries sum up what completed checkpoints have written.
	DeltaBytes, Entries int64
}

// Stats is a copy of all statistics, for metrics and logs.
type Stats struct {
	// Current is the oldest checkpoint in flight, nil when there is none; InFlight has all, oldest first.
	Current  *CheckpointStats
	InFlight []CheckpointStats
	// FailuresInARow is how many were abandoned since the last one that completed.
	FailuresInARow int
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

// Of gives an ended checkpoint that is among the recent ones.
func (s Stats) Of(id element.CheckpointID) (CheckpointStats, bool) {
	for _, r := range s.Recent {
		if r.ID == id {
			return r, true
		}
	}
	return CheckpointStats{}, false
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
