package processor

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// skipLogged is how many skipped records are logged one by one before only every thousandth is.
const skipLogged = 10

// logging makes a listener that writes the log and passes everything on to the user's own.
func logging(log *slog.Logger, user engine.Listener) *engine.Listener {
	var skipped, tombstones atomic.Int64
	first := new(atomic.Bool)
	lis := &engine.Listener{
		AttemptStarted: func(i engine.AttemptInfo) {
			first.Store(true)
			log.Info("processing", "attempt", i.Attempt, "tasks", i.Tasks, "fresh", i.Fresh, "from_savepoint", i.Imported, "checkpoint", uint64(i.Checkpoint), "took", i.Took.Round(time.Millisecond))
			call(user.AttemptStarted, i)
		},
		AttemptEnded: func(n int, err error, rec fault.Recovery, delay time.Duration) {
			switch {
			case err == nil && rec == fault.Rejoin:
				log.Info("the attempt is over, everything is committed; the next one waits for partitions", "attempt", n)
			case err == nil:
				log.Info("stopped", "attempt", n)
			case rec == fault.Stop:
				log.Error("stopping: no restart can cure this", "attempt", n, "error", err)
			default:
				log.Warn("attempt failed, going back to the last committed checkpoint", "attempt", n, "recovery", rec.String(), "delay", delay.Round(time.Millisecond), "error", err)
			}
			if user.AttemptEnded != nil {
				user.AttemptEnded(n, err, rec, delay)
			}
		},
		StoppedWaiting: func(cause error) {
			log.Warn("stopped without a last checkpoint, the next start does again what was not committed", "error", cause)
			call(user.StoppedWaiting, cause)
		},
		Restored: func(t element.TaskID, from snapshot.RootRef, s snapshot.Stats, took time.Duration) {
			log.Info("state restored", "task", t.String(), "checkpoint", from.Name.String(), "runs", s.DeltaRuns+s.FullRuns, "entries", s.DeltaEntries+s.FullEntries, "bytes", s.Bytes(), "local_copy", s.Local, "local_entries", s.LocalEntries, "took", took.Round(time.Millisecond))
			if user.Restored != nil {
				user.Restored(t, from, s, took)
			}
		},
		Reused: func(t element.TaskID, at snapshot.RootRef) {
			log.Info("state rolled back in memory", "task", t.String(), "checkpoint", at.Name.String())
			if user.Reused != nil {
				user.Reused(t, at)
			}
		},
		Recovering: func(r snapshot.Recovery) {
			logRecovery(log, r)
			call(user.Recovering, r)
		},
		CheckpointTriggered: user.CheckpointTriggered,
		CheckpointCompleted: func(s checkpoint.CheckpointStats) {
			level := slog.LevelDebug
			if first.Swap(false) {
				level = slog.LevelInfo // the first one after a start says that the service is really running
			}
			log.Log(context.Background(), level, "checkpoint committed", "checkpoint", uint64(s.ID), "reason", s.Reason.String(), "bytes", s.DeltaBytes, "entries", s.Entries, "took", s.EndToEnd.Round(time.Millisecond))
			call(user.CheckpointCompleted, s)
		},
		AbortFailed: func(err error) {
			log.Warn("open transaction not aborted, the next start fences it", "error", err)
			call(user.AbortFailed, err)
		},
		Skipped: func(t element.TaskID, step string, reason error) {
			if errors.Is(reason, topology.ErrTombstone) {
				// No mistake: a null value is nothing that an aggregate could fold.
				log.Debug("tombstone left out", "task", t.String(), "step", step, "tombstones", tombstones.Add(1))
			} else if n := skipped.Add(1); n <= skipLogged || n%1000 == 0 {
				log.Warn("record skipped", "task", t.String(), "step", step, "reason", reason, "skipped", n)
			}
			if user.Skipped != nil {
				user.Skipped(t, step, reason)
			}
		},
	}
	logAssignment(log, lis, user)
	logCleaned(log, lis, user)
	logMerges(log, lis, user)
	logGivenUp(log, lis, user)
	return lis
}

// logOffsets puts in place of what tells of checkpoints what tells of a service that takes none and commits offsets.
func logOffsets(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	first := new(atomic.Bool)
	started, ended := lis.AttemptStarted, lis.AttemptEnded
	lis.AttemptStarted = func(i engine.AttemptInfo) {
		first.Store(true)
		started(i)
	}
	lis.AttemptEnded = func(n int, err error, rec fault.Recovery, delay time.Duration) {
		if err == nil || rec == fault.Stop {
			ended(n, err, rec, delay)
			return
		}
		log.Warn("attempt failed, going back to the committed offsets", "attempt", n, "recovery", rec.String(), "delay", delay.Round(time.Millisecond), "error", err)
		if user.AttemptEnded != nil {
			user.AttemptEnded(n, err, rec, delay)
		}
	}
	lis.CheckpointCompleted = func(s checkpoint.CheckpointStats) {
		level := slog.LevelDebug
		if first.Swap(false) {
			level = slog.LevelInfo
		}
		log.Log(context.Background(), level, "offsets committed", "reason", s.Reason.String(), "took", s.EndToEnd.Round(time.Millisecond))
		call(user.CheckpointCompleted, s)
	}
	lis.Left = func(tps []element.TopicPartition) {
		log.Info("partitions given up after their offsets were committed", "partitions", tps)
		call(user.Left, tps)
	}
}

// logGivenUp adds what tells of what is not as it should be, and goes on all the same.
func logGivenUp(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	logAbandoned(log, lis, user)
	logKept(log, lis, user)
	logFrom(log, lis, user)
}

// logAbandoned adds what tells of failures that were tolerated.
func logAbandoned(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	lis.CheckpointAbandoned = func(ids []element.CheckpointID, reason checkpoint.FailureReason, err error) {
		log.Warn("checkpoint given up, the next one covers its work", "checkpoint", uint64(ids[0]), "given_up", len(ids), "reason", reason.String(), "error", err)
		if user.CheckpointAbandoned != nil {
			user.CheckpointAbandoned(ids, reason, err)
		}
	}
}

// logKept adds what tells of savepoints that cannot be read, and of records that no checkpoint has.
func logKept(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	lis.SavepointUnusable = func(task element.TaskID, ref snapshot.SavepointRef, err error) {
		log.Warn("the savepoint cut with the checkpoint cannot be read, the checkpoint is", "task", task.String(), "savepoint", ref.Path, "error", err)
		if user.SavepointUnusable != nil {
			user.SavepointUnusable(task, ref, err)
		}
	}
	lis.StartsEmpty = func(task element.TaskID, at element.CheckpointName) {
		log.Info("a task starts without state at its committed offset, as was committed there", "task", task.String(), "checkpoint", at.String())
		if user.StartsEmpty != nil {
			user.StartsEmpty(task, at)
		}
	}
	lis.TakenBack = func(task element.TaskID, left snapshot.RootRef) {
		log.Info("a topic that had been taken out is back: its task goes on at the offset that was committed with the last checkpoint that had it", "task", task.String(), "checkpoint", left.Name.String(), "from", left.Path)
		if user.TakenBack != nil {
			user.TakenBack(task, left)
		}
	}
	lis.LetGo = func(h snapshot.HeldState) {
		where := "at their committed offsets"
		if h.Forgotten {
			where = "where their sources start, since the group has no committed offset of them"
		}
		log.Warn("STATE IS LET GO, as allowed (--allow-dropped-state): without checkpoints (checkpointing.interval: disabled) the tasks begin without state "+where+", for good",
			"tasks", h.TaskNames(), "states", h.States, "records_in_flight", h.InFlight, "checkpoint", h.Root.Name.String(), "from", h.Root.Path, "unread", h.Err)
		call(user.LetGo, h)
	}
	lis.Unsaved = func(tasks []element.TaskID, at element.CheckpointName) {
		log.Warn("TASKS BEGIN WITHOUT STATE at their committed offsets: they have run with checkpoints disabled (checkpointing.interval: disabled) up to there",
			"tasks", (&snapshot.HeldState{Tasks: tasks}).TaskNames(), "committed", at.String())
		if user.Unsaved != nil {
			user.Unsaved(tasks, at)
		}
	}
	lis.Finished = func(over bool) {
		if over {
			log.Info("all inputs have ended and everything is committed", "application_over", true)
		} else {
			log.Info("all inputs of this instance have ended and everything is committed; the others are left to members of the group, also to those that are dead until their session is over", "application_over", false)
		}
		if user.Finished != nil {
			user.Finished(over)
		}
	}
	lis.Unassigned = func(tps []element.TopicPartition) {
		log.Info("all inputs of this instance have ended and everything is committed; waiting for partitions that the group has given to nobody yet", "partitions", tps)
		call(user.Unassigned, tps)
	}
	var looping atomic.Int64
	lis.Looping = func(id element.CheckpointID, records int64, last bool) {
		if last {
			log.Warn("records were on a feedback edge at the last checkpoint: they are lost", "checkpoint", uint64(id), "records", records)
		} else if n := looping.Add(1); n <= skipLogged || n%1000 == 0 {
			log.Warn("records on a feedback edge are not part of the checkpoint", "checkpoint", uint64(id), "records", records)
		}
		if user.Looping != nil {
			user.Looping(id, records, last)
		}
	}
}

// logAssignment adds what tells of partitions that come and go.
func logAssignment(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	lis.StandingBy = func(partitions int) {
		if partitions == 0 {
			log.Info("standing by: the group has no partition for this instance")
		} else {
			log.Info("standing by: this instance needs all partitions, and the group has given it a part of them", "partitions", partitions)
		}
		if user.StandingBy != nil {
			user.StandingBy(partitions)
		}
	}
	lis.Parted = func(p engine.Parted) {
		var names []string
		for _, m := range p.Others {
			names = append(names, m.Name)
		}
		if len(names) > 0 {
			log.Warn("the recovery from the store waits for all partitions: the group still gives some to others, which are to be stopped; those that are stay members until their sessions are over",
				"missing", p.Missing, "members", names, "at_most", p.AtMost)
		} else {
			log.Info("the recovery from the store waits for all partitions: nobody else is in the group any more", "missing", p.Missing)
		}
		call(user.Parted, p)
	}
	lis.Joined = func(tps []element.TopicPartition) {
		log.Info("partitions taken in beside the others", "partitions", tps)
		call(user.Joined, tps)
	}
	lis.Left = func(tps []element.TopicPartition) {
		log.Info("partitions given up after a last checkpoint", "partitions", tps)
		call(user.Left, tps)
	}
}

// logRecovery says loudly where a recovery from the store starts and what may come of it.
func logRecovery(log *slog.Logger, r snapshot.Recovery) {
	log.Warn("RECOVERING FROM THE STORE, as asked: the group's offsets are of no use", "reason", string(r.Reason), "cause", r.Cause)
	for _, t := range r.Tasks {
		for _, p := range t.Ranges {
			log.Warn("going back to a committed checkpoint", "task", t.Task.String(), "reason", string(t.Reason), "input", p.From.TopicPartition.String(), "offset", p.From.Offset,
				"checkpoint", t.Root.Name.String(), "created", time.UnixMilli(t.CreatedUnixMilli).UTC().Format(time.RFC3339), "file", t.Root.Path, "may_repeat", t.Repeats())
		}
	}
	for _, t := range r.Added {
		log.Warn("a partition that was added since begins at its beginning: its outputs so far repeat", "task", t.String())
	}
	for _, p := range r.Passed {
		why := "unconfirmed: it is not known whether its transaction was committed"
		if p.Err != nil {
			why = p.Err.Error()
		}
		log.Warn("a newer checkpoint is not taken", "checkpoint", p.Ref.Name.String(), "file", p.Ref.Path, "because", why)
	}
	log.Warn("start without --recover-from-store from now on")
}

// call calls f when there is one.
func call[T any](f func(T), v T) {
	if f != nil {
		f(v)
	}
}
