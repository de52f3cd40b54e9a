package kafka

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// logBridge writes kgo's log to slog. kgo's Info speaks of every join and metadata change, so it goes to slog's Debug,
// and its Debug (every request) one step below. While a broker is away kgo repeats the same warning at each retry:
// one line per message and repeatEvery is enough, the next one says how many were left out.
type logBridge struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	seen map[string]*repeat // by message; kgo's messages are constants, so the map stays small; maxMessages bounds it
}

type repeat struct {
	last    time.Time
	dropped int
}

const (
	repeatEvery = 5 * time.Second
	maxMessages = 512
	levelTrace  = slog.LevelDebug - 4
)

func newLogBridge(log *slog.Logger) *logBridge {
	return &logBridge{log: log, now: time.Now, seen: make(map[string]*repeat)}
}

// Level implements kgo.Logger.
func (b *logBridge) Level() kgo.LogLevel {
	ctx := context.Background()
	switch {
	case b.log.Enabled(ctx, levelTrace):
		return kgo.LogLevelDebug
	case b.log.Enabled(ctx, slog.LevelDebug):
		return kgo.LogLevelInfo
	case b.log.Enabled(ctx, slog.LevelWarn):
		return kgo.LogLevelWarn
	case b.log.Enabled(ctx, slog.LevelError):
		return kgo.LogLevelError
	}
	return kgo.LogLevelNone
}

// Log implements kgo.Logger.
func (b *logBridge) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := levelTrace
	switch level {
	case kgo.LogLevelError, kgo.LogLevelWarn:
		to = slog.LevelWarn // the client goes on; what ends anything is told by whom it ends
	case kgo.LogLevelInfo:
		to = slog.LevelDebug
	}
	if to >= slog.LevelWarn {
		dropped, ok := b.admit(msg)
		if !ok {
			return
		}
		if dropped > 0 {
			keyvals = append(keyvals[:len(keyvals):len(keyvals)], "left_out", dropped)
		}
	}
	b.log.Log(context.Background(), to, "kafka: "+msg, keyvals...)
}

// admit says whether msg may be written now, and how many of its kind were left out before.
func (b *logBridge) admit(msg string) (dropped int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	r := b.seen[msg]
	if r == nil {
		if len(b.seen) >= maxMessages {
			clear(b.seen)
		}
		b.seen[msg] = &repeat{last: now}
		return 0, true
	}
	if now.Sub(r.last) < repeatEvery {
		r.dropped++
		return 0, false
	}
	dropped, r.dropped, r.last = r.dropped, 0, now
	return dropped, true
}
