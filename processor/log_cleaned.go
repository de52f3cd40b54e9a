package processor

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/snapshot"
)

// What keeps old checkpoints from being removed is told again after tellAgain, in case nobody has read it the first time. No
// more than tellMost errors are remembered.
const (
	tellAgain = time.Hour
	tellMost  = 64
)

// logCleaned adds what tells of files that were removed, or could not be. It is tried after every checkpoint, by several that have
// errors of their own, so each text is told once in tellAgain.
func logCleaned(log *slog.Logger, lis *engine.Listener, user engine.Listener) {
	var mu sync.Mutex
	told := map[string]time.Time{}
	level := func(text string) slog.Level {
		mu.Lock()
		defer mu.Unlock()
		if at, ok := told[text]; ok && time.Since(at) < tellAgain {
			return slog.LevelDebug
		}
		if len(told) == tellMost {
			clear(told)
		}
		told[text] = time.Now()
		return slog.LevelWarn
	}
	lis.Cleaned = func(s snapshot.CleanReport, err error) {
		if err != nil {
			log.Log(context.Background(), level(err.Error()), "old checkpoints not removed", "error", err)
		}
		if len(s.Gone) > 0 {
			log.Info("nothing is left of instances that are gone", "instances", s.Gone)
		}
		if user.Cleaned != nil {
			user.Cleaned(s, err)
		}
	}
}
