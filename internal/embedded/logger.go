package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
)

// logger passes kfake's log on to slog and keeps the errors, since kfake's Close reports a failed write only there.
type logger struct {
	to *slog.Logger

	mu     sync.Mutex
	errors []error
}

// maxKeptErrors bounds what a broker that cannot write remembers.
const maxKeptErrors = 8

func (l *logger) Logf(level kfake.LogLevel, format string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case kfake.LogLevelError:
		to = slog.LevelError
		l.keep(fmt.Errorf(format, args...))
	case kfake.LogLevelWarn:
		to = slog.LevelWarn
		// A batch that could not be written is only a warning there, yet it is lost to every reader.
		if strings.HasPrefix(format, "persist") {
			l.keep(fmt.Errorf(format, args...))
		}
	case kfake.LogLevelInfo, kfake.LogLevelDebug, kfake.LogLevelNone:
	}
	if l.to.Enabled(context.Background(), to) {
		l.to.Log(context.Background(), to, strings.TrimRight(fmt.Sprintf(format, args...), "\n"), "from", "broker")
	}
}

func (l *logger) keep(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errors) < maxKeptErrors {
		l.errors = append(l.errors, err)
	}
}

// err gives everything kept, or nil.
func (l *logger) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.errors...)
}
