package engine

import (
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// Listener is told what happens. Each member may be nil. They are called from the engine's goroutines, must be safe
// for concurrent use and must not block.
type Listener struct {
	// AttemptStarted: the attempt's tasks are restored and about to process.
	AttemptStarted func(AttemptInfo)
	// AttemptEnded: err is nil after a graceful stop, and when all partitions have left (Rejoin: others may come); delay is the time before the next attempt.
	AttemptEnded func(attempt int, err error, recovery fault.Recovery, delay time.Duration)
	// StoppedWaiting: the wish to stop came between two attempts, and there is no last checkpoint of what this instance has: the
	// attempt before had failed, or lost what it worked on while partitions are the instance's still, or again. cause has its error.
	StoppedWaiting func(cause error)
	// StandingBy: the group has no partition for this instance at the moment, or, where it needs all of them, only so many.
	StandingBy func(partitions int)
	// Parted: the instance waits for all partitions, for a recovery from the store; again when the other members have changed.
	Parted func(Parted)
	// Joined, Left: partitions were taken in, or given to another member after a last checkpoint, while the others went on.
	Joined func(tps []element.TopicPartition)
	Left   func(tps []element.TopicPartition)
	// Restored: one task's state has been read.
	Restored func(task element.TaskID, from snapshot.RootRef, stats snapshot.Stats, took time.Duration)
	// Reused: one task's state was still in memory and has been rolled back to its last commit.
	Reused func(task element.TaskID, at snapshot.RootRef)
	// Recovering: tasks go back to the store, as asked; nothing is committed yet.
	Recovering func(snapshot.Recovery)
	// CheckpointTriggered, CheckpointCompleted: a checkpoint's life. Completed is after the commit.
	CheckpointTriggered func(id element.CheckpointID)
	CheckpointCompleted func(checkpoint.CheckpointStats)
	// CheckpointAbandoned: a failure was tolerated; what the checkpoints would have covered is that of the next one.
	CheckpointAbandoned func(ids []element.CheckpointID, reason checkpoint.FailureReason, err error)
	// Finished: all inputs of this instance have ended and everything is committed; over says that this holds for the
	// application as a whole.
	Finished func(over bool)
	// Unassigned: the same, and no instance has these partitions at the moment, which are not known to have ended.
	Unassigned func(tps []element.TopicPartition)
	// StartsEmpty: a task starts without state at a committed position, as its handle says: after a cancel that deleted the
	// checkpoints, or before its first record.
	StartsEmpty func(task element.TaskID, at element.CheckpointName)
	// TakenBack: a topic that had been taken out of the application is back, and a task of it goes on at its committed offset, beside
	// newer checkpoints that have the rest; left is the last one that had the task.
	TakenBack func(task element.TaskID, left snapshot.RootRef)
	// LetGo: the state that the committed handles lead to, or that the store has of tasks that the group has forgotten, is let
	// go, as allowed, since there are no checkpoints any more.
	LetGo func(snapshot.HeldState)
	// Unsaved: tasks start without the state that they had: they have run without checkpoints up to their committed positions,
	// the last of which has that name.
	Unsaved func(tasks []element.TaskID, at element.CheckpointName)
	// SavepointUnusable: the savepoint that was cut along with the checkpoint cannot be read; the checkpoint is.
	SavepointUnusable func(task element.TaskID, ref snapshot.SavepointRef, err error)
	// StartedFrom: tasks start from the savepoint that was asked for, or do not since they come from it already.
	StartedFrom func(FromInfo)
	// Dropped: state of a stage, or records on the way to it, is let go, as allowed; it may come several times for one stage.
	Dropped func(snapshot.DroppedStage)
	// Claimed: the savepoint that the application started from was disposed of, as nothing needs it any more, or could not be.
	Claimed func(paths []string, err error)
	// Looping: a checkpoint was completed that lacks so many records on feedback edges; whoever restores it has lost them. After
	// the last one of a run they are.
	Looping func(id element.CheckpointID, records int64, last bool)
	// Merged: a task's chain of runs became one full run, or could not. It is tried again, or the next checkpoint has the
	// whole state of the task: see Renewed.
	Merged func(task element.TaskID, runs int, bytes int64, took time.Duration, err error)
	// Renewed: a checkpoint was committed that has the whole state of a task in place of its chain of runs; cause says why
	// those could not be merged, nil: they have become too many.
	Renewed func(task element.TaskID, runs int, cause error)
	// CloseFailed: a user function's Close returned an error at the end of an attempt.
	CloseFailed func(error)
	// AbortFailed: the open transaction could not be aborted at the end of an attempt; the next one fences it.
	AbortFailed func(error)
	// Cleaned: files that no retained checkpoint needs were removed; err is a failure to do so, which is harmless.
	Cleaned func(snapshot.CleanReport, error)
	// Skipped: a record was let go by the error policy of its source.
	Skipped func(task element.TaskID, step string, reason error)
}

// AttemptInfo says what an attempt starts with.
type AttemptInfo struct {
	Attempt    int
	Tasks      int
	Fresh      int                  // tasks that start without state
	Imported   int                  // tasks that start from a savepoint
	Checkpoint element.CheckpointID // the newest that the other tasks go on from; 0: there is none
	Took       time.Duration
}

// FromInfo says what comes of the wish to start from a savepoint.
type FromInfo struct {
	Origin   []snapshot.SavepointRef // the savepoint, when tasks start from it
	Imported int                     // tasks that do
	Ignored  int                     // tasks that do not, since what is committed comes from it already
	Beyond   element.CheckpointID    // of the ignored ones: the application cut the savepoint itself and has gone on to there; 0: it began with it, or stands at it
	Moved    []snapshot.MovedInput   // committed offsets that are given up
}

func (l *Listener) dropped(d snapshot.DroppedStage) {
	if l.Dropped != nil {
		l.Dropped(d)
	}
}

func (l *Listener) skipped(task element.TaskID, step string, reason error) {
	if l.Skipped != nil {
		l.Skipped(task, step, reason)
	}
}

func (l *Listener) closeFailed(err error) {
	if l.CloseFailed != nil {
		l.CloseFailed(err)
	}
}

func (l *Listener) abortFailed(err error) {
	if l.AbortFailed != nil {
		l.AbortFailed(err)
	}
}

func (l *Listener) cleaned(stats snapshot.CleanReport, err error) {
	if l.Cleaned != nil {
		l.Cleaned(stats, err)
	}
}

func (l *Listener) merged(res *mergeResult) {
	if l.Merged != nil {
		l.Merged(res.task, res.runs, res.run.Length, res.took, res.err)
	}
}
