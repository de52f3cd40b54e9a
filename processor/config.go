package processor

import (
	"log/slog"
	"path/filepath"
	"time"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/engine/restart"
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

// Mode is the guarantee of the checkpoints.
type Mode string

// The modes.
const (
	// ExactlyOnce commits outputs, source positions and state in one transaction.
	ExactlyOnce Mode = "exactly-once"
	// AtLeastOnce commits source positions and state together, after the outputs: those since the last checkpoint repeat
	// after a failure. It spares the transaction and the wait for barriers.
	AtLeastOnce Mode = "at-least-once"
)

// Retention says what becomes of the checkpoints when the service is cancelled.
type Retention string

// The retentions.
const (
	RetainOnCancellation Retention = "retain-on-cancellation"
	DeleteOnCancellation Retention = "delete-on-cancellation"
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
	// LocalDirs are the places for the local copies of the state (state.local.root-dirs): the tasks are spread over them, and
	// one that cannot be used or is full is left out. The copies lie in a directory there that has the application's name.
	// Default <DataDir>/local.
	LocalDirs []string

	// SyncSnapshots persists the state before processing goes on (state.backend.async: false).
	SyncSnapshots bool
	// FullSnapshots makes every checkpoint write the whole state (state.backend.incremental: false).
	FullSnapshots bool
	// MemoryThreshold in bytes: smaller runs lie in the metadata of the checkpoint instead of a file of their own
	// (state.backend.fs.memory-threshold). Default 20 KiB, at most 1 MiB; negative: none does.
	MemoryThreshold int64
	// WriteBufferSize in bytes is that of the snapshot files (state.backend.fs.write-buffer-size); the larger of it and
	// MemoryThreshold counts. Default 4096.
	WriteBufferSize int64
	// MemoryLimit in bytes is the memory that the states of all tasks may take together (state.backend.memory-limit); with the
	// badger backend what exceeds it goes to disk, changes that are not committed excepted. Default 256 MiB.
	MemoryLimit int64
	// SavepointsDir is where savepoints go that are asked for without a place (state.savepoints.dir). Default none.
	SavepointsDir string

	// DisabledCheckpoints takes no checkpoints (checkpointing.interval: disabled): offsets are committed as records are
	// processed, and the state begins empty with every attempt.
	DisabledCheckpoints bool
	// Interval is the time between checkpoints (checkpointing.interval). Default 1 s.
	Interval time.Duration
	// Mode is checkpointing.mode. Default ExactlyOnce.
	Mode Mode
	// CheckpointTimeout aborts a checkpoint that is not complete by then (checkpointing.timeout). Default 50 s.
	CheckpointTimeout time.Duration
	// MinPause is the least time between two checkpoints (checkpointing.min-pause). Default 0.
	MinPause time.Duration
	// MaxConcurrent is the most checkpoints in flight at once (checkpointing.max-concurrent). Default 1.
	MaxConcurrent int
	// TolerableFailures is how many checkpoints in a row may fail without an end of the attempt
	// (checkpointing.tolerable-failures). Default 0; negative: unlimited.
	TolerableFailures int
	// Unaligned lets barriers overtake the records in the channels, which become part of the snapshot
	// (checkpointing.unaligned).
	Unaligned bool
	// AlignedTimeout, with Unaligned: a checkpoint starts aligned and becomes unaligned when its alignment takes longer
	// (checkpointing.aligned-timeout). Default 0: it starts unaligned.
	AlignedTimeout time.Duration
	// Retention is checkpointing.retention. Default RetainOnCancellation.
	Retention Retention
	// PreferCheckpointForRecovery reads the checkpoint, not the savepoint that was cut at the same barrier
	// (checkpointing.prefer-checkpoint-for-recovery).
	PreferCheckpointForRecovery bool
	// ForceIterations takes checkpoints although the topology has iterations in the process (checkpointing.force): what
	// is on their edges is lost with a failure.
	ForceIterations bool
	// Restart is the restart strategy (restart-strategy.*). Default exponential-delay with Flink's options.
	Restart restart.Config
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

	// AdminListen is host:port of the admin listener, or "off" (admin.listen). Default 127.0.0.1:8080, or a free port of
	// that host where it is taken: the log and the file admin.address in DataDir name it.
	AdminListen string
	// AdminToken must come with requests to it as a Bearer token, but for /livez and /readyz (admin.token). Without one the
	// listener must be on a loopback address.
	AdminToken string

	// RecoverFromStore lets the start go back to the newest committed checkpoint of the store when the group's committed
	// offsets are gone, damaged or stale, or name a checkpoint that is (--recover-from-store). Outputs may repeat then; the
	// log says which. With valid offsets it does nothing.
	RecoverFromStore bool

	// From is a savepoint to start from: the directories of all instances that took part in it (--from, once for each). It is
	// for a group without committed offsets, so mostly for an application of another name than the one that took it. It may
	// stay for ever: what comes from the savepoint already starts from its checkpoints.
	From []string
	// ClaimMode says whose the savepoint is (--claim-mode). Default NoClaim.
	ClaimMode ClaimMode
	// AcceptDuplicates goes back to the savepoint although the group has committed offsets (--accept-duplicates): once, and
	// what was put out since it was taken repeats.
	AcceptDuplicates bool
	// AllowDroppedState lets state go that is in the savepoint or the checkpoint and that no step of the topology owns
	// (--allow-dropped-state). The log says what goes.
	AllowDroppedState bool

	// Stopping is called when the service begins to stop because it was cancelled, by its listener or its control topic.
	Stopping func()
	// Settling is called behind the last checkpoint of a cancel that deletes the state: that may take as long as it says, beyond
	// ShutdownTimeout.
	Settling func(within time.Duration)
	// Outlived is called when the service ends because the application was cancelled, and its state deleted, while this
	// instance did not answer: no last checkpoint of it is missing.
	Outlived func()
	// Logger gets what the service has to say. Default slog.Default().
	Logger *slog.Logger
	// Listener is told what happens, beside the log.
	Listener engine.Listener
	// ClientOptions are added to every Kafka client, for dialers and the like.
	ClientOptions []kgo.Opt
	// Decorate may replace any of the engine's ports before it starts: for fault injection and tests.
	Decorate func(*engine.Ports)

	local          localPace
	started        func(*service) // for tests: called when the engine is about to run
	waitTold       time.Duration  // for tests: see there
	goneGrace      time.Duration  // for tests: in place of the grace of what instances that are gone have left
	endsRenewal    time.Duration  // for tests: in place of the constant
	takenBackPause time.Duration  // for tests: in place of the constant
}

// TransactionTimeoutFor derives the transaction timeout: a transaction lives from the end of one checkpoint to the end
// of the next, so it must outlast the wait for the trigger and the checkpoint itself; at least a minute.
func TransactionTimeoutFor(interval, minPause, checkpointTimeout time.Duration) time.Duration {
	return max(time.Minute, minTransactionTimeout(interval, minPause, checkpointTimeout))
}

// transactionReserve is what a transaction needs beyond the wait for a checkpoint and the checkpoint itself.
const transactionReserve = 5 * time.Second

func minTransactionTimeout(interval, minPause, checkpointTimeout time.Duration) time.Duration {
	return max(interval, minPause) + checkpointTimeout + transactionReserve
}

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
	orDefault(&c.Mode, ExactlyOnce)
	orDefault(&c.MaxConcurrent, 1)
	orDefault(&c.ClaimMode, NoClaim)
	if c.TolerableFailures < 0 {
		c.TolerableFailures = -1
	}
	orDefault(&c.Retention, RetainOnCancellation)
	orDefault(&c.MemoryThreshold, 20<<10)
	orDefault(&c.WriteBufferSize, 4096)
	orDefault(&c.MemoryLimit, 256<<20)
	c.Restart = c.Restart.WithDefaults()
	orDefault(&c.SessionTimeout, 10*time.Second)
	orDefault(&c.HoldBackLimit, 64<<20)
	orDefault(&c.UncommittedLimit, 64<<20)
	orDefault(&c.ShutdownTimeout, 30*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// inlineBelow is the size in bytes below which runs lie in the metadata.
func (c Config) inlineBelow() int64 { return max(c.MemoryThreshold, 0) }
