package engine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// Config is what an engine needs to know besides the plan and the ports.
type Config struct {
	Application string
	Instance    string
	ClusterID   string
	Incarnation element.Incarnation
	// Life is that of the application at the start; see snapshot.Handle.
	Life uint64

	// Interval, CheckpointTimeout and MinPause are the checkpointing settings of the same names.
	Interval          time.Duration
	CheckpointTimeout time.Duration
	MinPause          time.Duration
	// MaxConcurrent and TolerableFailures (checkpoint.Unlimited: any number) are the checkpointing settings of these names,
	// TransactionTimeout is that of the Kafka transactions: it bounds how long failures are tolerated.
	MaxConcurrent      int
	TolerableFailures  int
	TransactionTimeout time.Duration
	// AtLeastOnce: barriers hold nothing up behind an exchange, and the sinks hold nothing back.
	AtLeastOnce bool
	// NoSnapshots: nothing of the state is written or read. Each attempt begins with empty state at the committed positions.
	NoSnapshots bool
	// Unaligned: barriers overtake records on the way, which become part of the checkpoint. With an AlignedTimeout above 0 a
	// checkpoint begins aligned, and a task whose barriers have not come together by then goes on unaligned.
	Unaligned      bool
	AlignedTimeout time.Duration
	// SyncSnapshots: a task stands still until its state is written. FullSnapshots: each checkpoint writes the whole state.
	SyncSnapshots, FullSnapshots bool
	// PreferCheckpoint: a recovery reads the checkpoint although a savepoint was cut at the same barrier.
	PreferCheckpoint bool
	// ForceIterations takes checkpoints although the plan has a feedback edge, whose records are lost with a failure.
	ForceIterations bool
	// Parallelism is the number of subtasks of an exchange that does not say it itself. Default: the number of CPUs, at most
	// 8. MaxParallelism is the number of key groups, the most that a parallelism can be. Default 128.
	Parallelism, MaxParallelism int
	// ChannelRecords bounds the records on the way from one task to one subtask of an exchange; 4 MiB do, too. Default 1024.
	ChannelRecords int

	// CleanGroupInterval is the least time between two calls of Ports.CleanGroup, and of Ports.CleanIdle. Default 1 min.
	CleanGroupInterval time.Duration
	// InboxRecords bounds the records that wait in front of one task; 16 MiB do, too. Default 8192.
	InboxRecords int
	// UncommittedLimit bounds the bytes of state that all tasks change between two commits; above it a checkpoint is
	// taken early. Default 64 MiB.
	UncommittedLimit int64
	// RecoverFromStore lets the start take the newest committed checkpoint of the store for tasks whose committed offsets
	// are gone, damaged, stale, or name a checkpoint that is; see snapshot.Recover. It ends with the first commit.
	RecoverFromStore bool
	// OthersLast is how long who was stopped stays a member of the group; such a recovery waits so long for their partitions.
	// Default 12 s.
	OthersLast time.Duration
	// From is the savepoint to start from.
	From From
	// AllowDropped lets state go that is in the checkpoint or savepoint and in no step of the plan.
	AllowDropped bool
	// MaxChain is the number of runs a task's state may consist of before they are merged into a full one. Default 16.
	MaxChain int
	// ShutdownTimeout bounds the graceful stop, the last checkpoint included. Default 30 s.
	ShutdownTimeout time.Duration
	// Restart is the restart strategy. Its jitter is drawn from math/rand.
	Restart restart.Config
	// LossDelay is the wait after the second loss of partitions in a row; it doubles with each further one, up to 5 s.
	// Default 1 s.
	LossDelay time.Duration
}

// withDefaults fills what is zero.
func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Interval, time.Second)
	def(&c.CheckpointTimeout, 50*time.Second)
	def(&c.CleanGroupInterval, time.Minute)
	def(&c.ShutdownTimeout, 30*time.Second)
	def(&c.LossDelay, time.Second)
	def(&c.OthersLast, 12*time.Second)
	if c.Parallelism == 0 {
		c.Parallelism = min(runtime.NumCPU(), 8)
	}
	if c.MaxParallelism == 0 {
		c.MaxParallelism = element.DefaultMaxParallelism
	}
	if c.ChannelRecords == 0 {
		c.ChannelRecords = 1024
	}
	if c.InboxRecords == 0 {
		c.InboxRecords = 8192
	}
	if c.UncommittedLimit == 0 {
		c.UncommittedLimit = 64 << 20
	}
	if c.MaxChain == 0 {
		c.MaxChain = 16
	}
	return c
}

// checkpointing gives the coordinator's settings.
func (c Config) checkpointing() checkpoint.Config {
	return checkpoint.Config{
		Interval: c.Interval, First: min(c.Interval, firstCheckpoint), Timeout: c.CheckpointTimeout, MinPause: c.MinPause,
		MaxConcurrent: c.MaxConcurrent, TolerableFailures: c.TolerableFailures, TransactionTimeout: c.TransactionTimeout,
	}
}

// gateMode is how tasks behind an exchange treat barriers.
func (c Config) gateMode() gate.Mode {
	switch {
	case c.AtLeastOnce:
		return gate.Counting
	case c.Unaligned:
		return gate.Unaligned
	}
	return gate.Aligned
}

// validate reports every problem at once.
func (c Config) validate() error {
	var errs []error
	if err := c.checkpointing().Validate(); err != nil {
		errs = append(errs, err)
	}
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Application == "", "application is empty")
	bad(c.Instance == "", "instance is empty")
	bad(c.Incarnation == 0, "incarnation is zero")
	bad(c.InboxRecords < 1, "inbox records %d: want at least 1", c.InboxRecords)
	bad(c.ChannelRecords < 1, "channel records %d: want at least 1", c.ChannelRecords)
	bad(c.MaxParallelism < 1 || c.MaxParallelism > 1<<15, "max parallelism %d: want 1 to 32768", c.MaxParallelism)
	bad(c.Parallelism < 1 || c.Parallelism > c.MaxParallelism, "parallelism %d: want 1 to the max parallelism, %d", c.Parallelism, c.MaxParallelism)
	bad(c.Unaligned && c.AtLeastOnce, "unaligned checkpoints with at-least-once: they are for exactly-once only")
	bad(c.Unaligned && c.MaxConcurrent > 1, "unaligned checkpoints with max-concurrent %d: one at a time only", c.MaxConcurrent)
	bad(c.AlignedTimeout > 0 && !c.Unaligned, "aligned timeout %s without unaligned checkpoints", c.AlignedTimeout)
	bad(len(c.From.Paths) > 0 && c.NoSnapshots, "a start from a savepoint without checkpoints: its state would be gone after the first failure")
	bad(len(c.From.Paths) > 0 && c.RecoverFromStore, "a start from a savepoint and a recovery from the store: one or the other")
	bad(len(c.From.Paths) > snapshot.MaxOrigin, "a savepoint of %d directories: at most %d", len(c.From.Paths), snapshot.MaxOrigin)
	bad(len(c.From.Paths) == 0 && (c.From.Claim || c.From.AcceptDuplicates), "the way of a start from a savepoint without the savepoint")
	bad(c.UncommittedLimit < 1, "uncommitted limit %d: want at least 1 byte", c.UncommittedLimit)
	bad(c.MaxChain < 1, "max chain %d: want at least 1", c.MaxChain)
	return errors.Join(errs...)
}

// suits refuses a plan that cannot be run with these settings.
func (c Config) suits(plan *topology.Plan) error {
	if err := plan.CheckParallelism(c.MaxParallelism); err != nil {
		return err
	}
	for _, s := range plan.Stages {
		switch {
		case s.Kind == topology.BroadcastStage && c.Unaligned:
			return fault.Stopf(fault.BadFile, "step %s: a broadcast with checkpointing.unaligned true: what is on the way to one subtask of it is not what is on the way to another; use aligned checkpoints", s.Name)
		case s.Kind == topology.FeedbackStage && !c.ForceIterations:
			return fault.Stopf(fault.BadFile, "step %s: a feedback edge within the process with checkpointing.force false: records on it are lost with a failure; send them through a topic of their own, or set checkpointing.force to true", s.Name)
		}
	}
	return nil
}
