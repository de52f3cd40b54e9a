package processor

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"time"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Backend names where keyed state is worked on.
type Backend string

// The state backends.
const (
	Badger Backend = "badger" // in memory, with a local copy on disk behind the commits
	Memory Backend = "memory" // in memory only
)

// Config holds every setting of the service. The zero value of each but Brokers means its default; the names in
// parentheses are those of the service file.
type Config struct {
	// Brokers are host:port addresses to start from (kafka.brokers). Required.
	Brokers []string
	// DataDir is what the instance keeps for itself: its id, its lock and by default everything else. Default ./data.
	DataDir string
	// CheckpointsDir holds the snapshots (state.checkpoints.dir). Default <DataDir>/checkpoints.
	CheckpointsDir string
	// Storage holds the snapshots instead of CheckpointsDir, for a medium of one's own; the service closes it.
	Storage snapshot.Storage
	// RetainedCheckpoints is how many completed checkpoints are kept (state.checkpoints.num-retained). Default 3.
	RetainedCheckpoints int
	// Backend is state.backend. Default Badger.
	Backend Backend
	// NoLocalRecovery turns local recovery off (state.backend.local-recovery: false): no local copy is kept or read.
	NoLocalRecovery bool
	// LocalDirs are the places for the local copy of the state (state.local.root-dirs). The first one that can be used is
	// taken; the copy lies in a directory there that has the application's name. Default <DataDir>/local.
	LocalDirs []string

	// Interval is the time between checkpoints (checkpointing.interval). Default 1 s.
	Interval time.Duration
	// CheckpointTimeout aborts a checkpoint that is not complete by then (checkpointing.timeout). Default 50 s.
	CheckpointTimeout time.Duration
	// MinPause is the least time between two checkpoints (checkpointing.min-pause). Default 0.
	MinPause time.Duration
	// TransactionTimeout is the broker's (transaction.timeout). Default: TransactionTimeoutFor.
	TransactionTimeout time.Duration

	// InstanceID identifies the instance (instance.id): static membership and transactional ids. Default: one that is
	// drawn once and kept in DataDir. With an id of one's own the instance stays a member of the group across restarts;
	// without, it leaves the group when it stops gracefully.
	InstanceID string
	// SessionTimeout is the group's (group.session-timeout). Default 10 s.
	SessionTimeout time.Duration
	// HoldBackLimit bounds the bytes of output that wait for a commit (sink.hold-back-limit). Default 64 MiB.
	HoldBackLimit int64
	// UncommittedLimit bounds the bytes of state changed between commits (state.uncommitted-limit). Default 64 MiB.
	UncommittedLimit int64
	// ShutdownTimeout bounds the graceful stop (shutdown.timeout). Default 30 s.
	ShutdownTimeout time.Duration

	// RecoverFromStore lets the start go back to the newest committed checkpoint of the store when the group's committed
	// offsets are gone, damaged or stale, or name a checkpoint that is (--recover-from-store). Outputs may repeat then; the
	// log says which. With valid offsets it does nothing.
	RecoverFromStore bool

	// Logger gets what the service has to say. Default slog.Default().
	Logger *slog.Logger
	// Listener is told what happens, beside the log.
	Listener engine.Listener
	// ClientOptions are added to every Kafka client, for dialers and the like.
	ClientOptions []kgo.Opt
	// Decorate may replace any of the engine's ports before it starts: for fault injection and tests.
	Decorate func(*engine.Ports)

	local     localPace
	goneGrace time.Duration // for tests: in place of the grace of what instances that are gone have left
}

// TransactionTimeoutFor derives the transaction timeout: a transaction lives from the end of one checkpoint to the end
// of the next, so it must outlast the wait for the trigger and the checkpoint itself; at least a minute.
func TransactionTimeoutFor(interval, minPause, checkpointTimeout time.Duration) time.Duration {
	return max(time.Minute, minTransactionTimeout(interval, minPause, checkpointTimeout))
}

func minTransactionTimeout(interval, minPause, checkpointTimeout time.Duration) time.Duration {
	return max(interval, minPause) + checkpointTimeout + 5*time.Second
}

var instanceName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) withDefaults() Config {
	orDefault(&c.DataDir, "data")
	orDefault(&c.CheckpointsDir, filepath.Join(c.DataDir, "checkpoints"))
	orDefault(&c.RetainedCheckpoints, 3)
	orDefault(&c.Backend, Badger)
	if len(c.LocalDirs) == 0 {
		c.LocalDirs = []string{filepath.Join(c.DataDir, "local")}
	}
	orDefault(&c.Interval, time.Second)
	orDefault(&c.CheckpointTimeout, 50*time.Second)
	orDefault(&c.TransactionTimeout, TransactionTimeoutFor(c.Interval, c.MinPause, c.CheckpointTimeout))
	orDefault(&c.SessionTimeout, 10*time.Second)
	orDefault(&c.HoldBackLimit, 64<<20)
	orDefault(&c.UncommittedLimit, 64<<20)
	orDefault(&c.ShutdownTimeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate reports every problem at once.
func (c Config) validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Brokers) == 0, "no broker is given")
	bad(c.Backend != Badger && c.Backend != Memory, "state backend %q: want badger or memory", c.Backend)
	bad(c.RetainedCheckpoints < 1, "retained checkpoints: %d, want at least 1", c.RetainedCheckpoints)
	bad(c.InstanceID != "" && !instanceName.MatchString(c.InstanceID), "instance id %q: want 1 to 128 letters, digits, dots, dashes or underscores", c.InstanceID)
	bad(c.Interval < 0 || c.CheckpointTimeout < 0 || c.MinPause < 0 || c.SessionTimeout < 0 || c.ShutdownTimeout < 0, "a duration is negative")
	bad(c.HoldBackLimit < 0 || c.UncommittedLimit < 0, "a limit is negative")
	if least := minTransactionTimeout(c.Interval, c.MinPause, c.CheckpointTimeout); c.TransactionTimeout < least {
		bad(true, "transaction timeout %s is too short: the larger of interval and min-pause, plus the checkpoint timeout, plus 5s, is %s", c.TransactionTimeout, least)
	}
	if err := errors.Join(errs...); err != nil {
		return fault.Stopf(fault.BadFile, "configuration: %w", err)
	}
	return nil
}
