package store

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// badgerLogPause is how long a message of Badger is not repeated: it tries again every second, or more often, what does not
// work, and says so each time.
const badgerLogPause = time.Minute

// badgerLog passes Badger's messages on. What it calls information is detail here. A message that differs from one before
// in its arguments alone is passed on once in a while. An abandoned database, which tries in vain for as long as the process
// lives, says nothing.
type badgerLog struct {
	log       *slog.Logger
	abandoned *atomic.Bool

	mu   sync.Mutex
	said map[string]time.Time // when, by format; some dozens exist
}

func newBadgerLog(log *slog.Logger, abandoned *atomic.Bool) *badgerLog {
	return &badgerLog{log: log, abandoned: abandoned, said: make(map[string]time.Time)}
}

func (b *badgerLog) Errorf(f string, a ...any)   { b.say(slog.LevelError, f, a) }
func (b *badgerLog) Warningf(f string, a ...any) { b.say(slog.LevelWarn, f, a) }
func (b *badgerLog) Infof(f string, a ...any)    { b.say(slog.LevelDebug, f, a) }
func (b *badgerLog) Debugf(string, ...any)       {}

func (b *badgerLog) say(level slog.Level, f string, a []any) {
	if b.abandoned.Load() || level > slog.LevelDebug && b.again(f) {
		return
	}
	b.log.Log(context.Background(), level, "badger: "+line(f, a))
}

// again says that a message was passed on a short time ago.
func (b *badgerLog) again(f string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.said[f]; ok && time.Since(last) < badgerLogPause {
		return true
	}
	if len(b.said) > 100 { // a message in place of a format
		clear(b.said)
	}
	b.said[f] = time.Now()
	return false
}

func line(f string, a []any) string { return strings.TrimSpace(fmt.Sprintf(f, a...)) }
