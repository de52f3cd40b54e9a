package config

import (
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/topology"
)

// Service is a complete, checked configuration of one process. Durations are whole milliseconds, sizes are bytes.
type Service struct {
	// Application names the service: it is the consumer group, and the prefix of its internal topics and of its
	// transactional ids.
	Application string
	// DataDir holds what the instance keeps for itself, below the working directory when relative.
	DataDir       string
	Kafka         Kafka
	Checkpointing Checkpointing
	State         State
	// Restart holds the options of the chosen strategy; those of the others are zero.
	Restart     restart.Config
	Transaction Transaction
	Instance    Instance
	Group       Group
	Sink        Sink
	Shutdown    Shutdown
	Admin       Admin
	// Plan is the topology that the file describes.
	Plan *topology.Plan

	values   []Value
	topology []*yaml.Node // sources, steps, sinks as keys and values, for Print
}

// Kafka says how to reach the cluster.
type Kafka struct {
	Brokers []string // host:port, at least one
}

// Mode, Retention and Backend are those of package processor.
type (
	Mode      = processor.Mode
	Retention = processor.Retention
	Backend   = processor.Backend
)

// Checkpointing says when checkpoints are taken, and how.
type Checkpointing struct {
	Disabled          bool // none are taken; Interval is 0 then
	Mode              Mode
	Interval          time.Duration // between triggers
	Timeout           time.Duration // a checkpoint not complete by then is aborted
	MinPause          time.Duration // between the end of one and the start of the next
	MaxConcurrent     int           // in flight at once
	TolerableFailures int           // in a row, without an end of the attempt; -1 = unlimited
	Unaligned         bool          // barriers overtake records
	AlignedTimeout    time.Duration // with Unaligned: how long a checkpoint stays aligned
	Retention         Retention
	// PreferCheckpoint reads the checkpoint and not the savepoint that was cut at the same barrier.
	PreferCheckpoint bool
	Force            bool // checkpoints although there are iterations in the process
}

// State says where state lives and where its snapshots go.
type State struct {
	Backend     Backend
	Checkpoints Checkpoints
	// Async persists in the background, Incremental writes only what has changed.
	Async, Incremental bool
	// MemoryThreshold in bytes: smaller runs lie in the metadata of the checkpoint. WriteBufferSize in bytes is that of
	// the snapshot files. MemoryLimit in bytes is the budget of state in memory.
	MemoryThreshold, WriteBufferSize, MemoryLimit int64
	// SavepointsDir is where savepoints go that are asked for without a place; "" = nowhere.
	SavepointsDir string
	// LocalRecovery keeps a local copy of the state, with the badger backend, and recovers from it where it fits.
	LocalRecovery bool
	// LocalRootDirs hold the local copies of the state, at least one directory.
	LocalRootDirs []string
	// UncommittedLimit in bytes: above it a checkpoint is taken early, and where none may start the sources pause.
	UncommittedLimit int64
}

// Checkpoints says where completed checkpoints are kept and how many.
type Checkpoints struct {
	Dir         string // a directory of the file system
	NumRetained int    // at least 1
}

// Transaction holds the settings of the Kafka transactions.
type Transaction struct {
	Timeout time.Duration
}

// Instance identifies this process among those of the application.
type Instance struct {
	ID string // "" = the one kept in the data directory, made at the first start
}

// Group holds the settings of the group membership.
type Group struct {
	SessionTimeout time.Duration
}

// Sink holds the limits of the sinks.
type Sink struct {
	HoldBackLimit int64 // bytes of output held back during a checkpoint before back-pressure
}

// Shutdown bounds the graceful stop.
type Shutdown struct {
	Timeout time.Duration
}

// Admin says where the admin listener is and who may use it.
type Admin struct {
	Listen string // host:port, or "off"; "" = the default address, or a free port of that host
	Token  string // "" = none is wanted
}

// Value is the effective value of one setting and where it came from.
type Value struct {
	Setting *Setting
	// Texts are the value as the service file would have it: one text, or the elements of a list, or none when unset.
	Texts []string
	// Origin is "default", "derived", file:line:column, "environment MILLWEIR_…" or "--set".
	Origin string
}

// Values gives the effective value of every setting in the order of the table.
func (s *Service) Values() []Value { return s.values }
