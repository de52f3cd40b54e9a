package processor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/snapshot"
)

// mergeFailure is what the log has said of a task's chain.
type mergeFailure struct {
	text string
	runs int
}

// logMerges adds what tells of chains that were merged, or could not be. One failure is told once, and again when the chain
// has doubled since; the engine calls from one goroutine.
func logMerges(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	told := map[element.TaskID]mergeFailure{}
	lis.Merged = func(t element.TaskID, runs int, bytes int64, took time.Duration, err error) {
		var damage *snapshot.CorruptError
		before, level := told[t], slog.LevelWarn
		if err != nil {
			if before.text == err.Error() && runs < 2*before.runs {
				level = slog.LevelDebug
			} else {
				told[t] = mergeFailure{err.Error(), runs}
			}
		}
		switch {
		case err == nil:
			delete(told, t)
			log.Debug("runs merged", "task", t.String(), "runs", runs, "bytes", bytes, "took", took.Round(time.Millisecond))
		case errors.As(err, &damage):
			log.Log(context.Background(), level, "a checkpoint file is damaged: the state in memory is whole, and the next checkpoint has all of it in place of the runs of the task",
				"task", t.String(), "runs", runs, "at_most", snapshot.MaxRuns, "checkpoint", damage.Checkpoint, "file", damage.File, "kind", damage.Kind, "reason", damage.Reason)
		default:
			log.Log(context.Background(), level, "runs not merged: it is tried again, and before they are too many a checkpoint has the whole state in their place",
				"task", t.String(), "runs", runs, "at_most", snapshot.MaxRuns, "error", err)
		}
		if user.Merged != nil {
			user.Merged(t, runs, bytes, took, err)
		}
	}
	lis.Renewed = func(t element.TaskID, runs int, cause error) {
		delete(told, t)
		log.Info("a checkpoint has the whole state of the task in place of its runs, which were not merged", "task", t.String(), "runs", runs, "because", cause)
		if user.Renewed != nil {
			user.Renewed(t, runs, cause)
		}
	}
}
