package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
)

// Service is the instance that the listener speaks for. Its methods are called from several goroutines.
type Service interface {
	// Who gives the name of the application and the instance id.
	Who() (application, instance string)
	// Live gives the reason why the instance does no work any more, nil as long as it does or tries to.
	Live() error
	// Ready says in one line what the instance does, and whether that is what it is there for.
	Ready(ctx context.Context) (what string, ready bool)
	Metrics() http.Handler
	Checkpoints(ctx context.Context) (Report, error)
	Attempts(ctx context.Context) (Attempts, error)
	TriggerCheckpoint(ctx context.Context) (Triggered, error)
	Savepoints(ctx context.Context) ([]SavepointInfo, error)
	// TriggerSavepoint takes a savepoint of this instance's tasks into dir, "" = state.savepoints.dir.
	TriggerSavepoint(ctx context.Context, dir string) (Part, error)
	// Cancel stops the instance, and returns when it has taken its last checkpoint. A savepoint that is wanted is cut
	// there; the instance ends also when that fails.
	Cancel(ctx context.Context, c Cancel) (Part, error)
}

// Part is what one instance has done for a command.
type Part struct {
	Instance string `json:"instance"`
	// Checkpoint is the name of the checkpoint, "" when none was needed or the instance has no tasks.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Path and Digest are those of the savepoint, "" when none was asked for or the instance has no tasks.
	Path   string `json:"path,omitempty"`
	Digest string `json:"digest,omitempty"`
	// Requests are the ids that the savepoint carries, the same in the parts of all instances.
	Requests []string `json:"requests,omitempty"`
	// Partitions are the source partitions of the instance's tasks, as topic/number.
	Partitions []string `json:"partitions"`
	// StandingBy: the instance has no tasks at the moment.
	StandingBy bool `json:"standing_by,omitempty"`
	// OffsetsOnly: the instance takes no checkpoints (checkpointing.interval: disabled), it commits offsets.
	OffsetsOnly bool `json:"offsets_only,omitempty"`
	// Retention is the checkpointing.retention of an instance that a cancel without a savepoint ends; "" otherwise.
	Retention string `json:"retention,omitempty"`
	// Kept says why the checkpoints are there that a cancel of this instance by itself was to delete: others are in the group,
	// and the last one that is cancelled deletes them. "" otherwise.
	Kept string `json:"kept,omitempty"`
}

// Triggered is the answer to a manual checkpoint.
type Triggered struct {
	Part
	// Needed is false when nothing had changed since the last one, so that none was taken.
	Needed bool        `json:"needed"`
	Stats  *Checkpoint `json:"stats,omitempty"`
}

// Cancel is the wish to end the instance.
type Cancel struct {
	// Savepoint asks for one at the end, in Dir, "" = state.savepoints.dir.
	Savepoint bool
	Dir       string
}

// Check refuses a Dir without a Savepoint: whoever names one wants a savepoint, or has made a mistake.
func (c Cancel) Check() error {
	if !c.Savepoint && c.Dir != "" {
		return fault.Stopf(fault.Usage, "the cancel names a directory for a savepoint, %q, and asks for none", c.Dir)
	}
	return nil
}

// SavepointInfo is one savepoint of the savepoint directory.
type SavepointInfo struct {
	Path        string     `json:"path"`
	Application string     `json:"application"`
	Checkpoint  string     `json:"checkpoint"`
	Instance    string     `json:"instance,omitempty"`
	Created     *time.Time `json:"created,omitempty"`
	Bytes       int64      `json:"bytes"`
	Tasks       int        `json:"tasks"`
	Positions   []Position `json:"positions"`
	Requests    []string   `json:"requests,omitempty"`
	Damage      string     `json:"damage,omitempty"`
	Unreadable  bool       `json:"unreadable,omitempty"` // Damage is none, but a lack of the right to read it
}

// Position is the next offset of a partition.
type Position struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Report is what an instance tells of its checkpoints.
type Report struct {
	Application string    `json:"application"`
	Instance    string    `json:"instance"`
	State       string    `json:"state"`
	Since       time.Time `json:"since"`
	Attempt     int       `json:"attempt"`
	Restarts    int       `json:"restarts"`
	// Cause is the error that ended the last failed attempt.
	Cause string `json:"cause,omitempty"`
	// Committed is the newest committed checkpoint of the attempt, Root its file.
	Committed string `json:"committed,omitempty"`
	Root      string `json:"root,omitempty"`
	// Totals count since the process began; InFlight and Recent are of the attempt that runs, oldest first.
	Totals   Totals       `json:"totals"`
	InFlight []Checkpoint `json:"in_flight"`
	Recent   []Checkpoint `json:"recent"`
}

// Totals count checkpoints.
type Totals struct {
	Triggered uint64 `json:"triggered"`
	Completed uint64 `json:"completed"`
	Failed    uint64 `json:"failed"`
	Abandoned uint64 `json:"abandoned"`
}

// Checkpoint tells how one checkpoint went.
type Checkpoint struct {
	ID      uint64 `json:"id"`
	Reason  string `json:"reason"`
	Status  string `json:"status"` // in-progress, completed or failed
	Failure string `json:"failure,omitempty"`
	// Phase is the one that was reached, or failed in.
	Phase      string `json:"phase"`
	Tasks      int    `json:"tasks"`
	MovedTasks int    `json:"moved_tasks"`
	Savepoints int    `json:"savepoints,omitempty"`
	Unaligned  bool   `json:"unaligned,omitempty"`
	Slowest    string `json:"slowest_task,omitempty"`
	// Phases are times in milliseconds, Sizes are bytes: "delta" is what it wrote, "full" what a restore from it reads.
	Phases   map[string]float64 `json:"phases_ms"`
	Sizes    map[string]int64   `json:"sizes_bytes"`
	Entries  int64              `json:"delta_entries"`
	Files    int64              `json:"delta_files"`
	State    int64              `json:"state_bytes"`
	Buffered int64              `json:"buffered_records"`
}

// CheckpointOf gives the statistics of a checkpoint as they go over the wire.
func CheckpointOf(s checkpoint.CheckpointStats, inFlight bool) Checkpoint {
	c := Checkpoint{ID: uint64(s.ID), Reason: s.Reason.String(), Status: "completed", Phase: s.Phase, Tasks: s.Tasks, MovedTasks: s.MovedTasks,
		Savepoints: s.Savepoints, Unaligned: s.Unaligned, Phases: map[string]float64{}, Sizes: map[string]int64{},
		Entries: s.Entries, Files: s.Files, State: s.StateBytes, Buffered: s.Buffered}
	switch {
	case s.Failure != checkpoint.NoFailure:
		c.Status, c.Failure = "failed", s.Failure.String()
	case inFlight:
		c.Status = "in-progress"
	}
	if s.StartDelay > 0 {
		c.Slowest = s.Slowest.String()
	}
	for _, f := range s.Phases() {
		c.Phases[f.Label] = float64(f.Time) / float64(time.Millisecond)
	}
	for _, f := range s.Sizes() {
		c.Sizes[f.Label] = f.Bytes
	}
	return c
}
