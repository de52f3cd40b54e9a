package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
)

// Config is what an engine needs to know besides the plan and the ports.
type Config struct {
	Application string
	Instance    string
	ClusterID   string
	Incarnation element.Incarnation

	// Interval, CheckpointTimeout and MinPause are the checkpointing settings of the same names.
	Interval          time.Duration
	CheckpointTimeout time.Duration
	MinPause          time.Duration
	// CleanGroupInterval is the least time between two calls of Ports.CleanGroup. Default 1 min.
	CleanGroupInterval time.Duration
	// InboxRecords bounds the records that wait in front of one task. Default 8192.
	InboxRecords int
	// UncommittedLimit bounds the bytes of state that all tasks change between two commits; above it a checkpoint is
	// taken early. Default 64 MiB.
	UncommittedLimit int64
	// RecoverFromStore lets the start take the newest committed checkpoint of the store for tasks whose committed offsets
	// are gone, damaged, stale, or name a checkpoint that is; see snapshot.Recover. It ends with the first commit.
	RecoverFromStore bool
	// MaxChain is the number of runs a task's state may consist of before they are merged into a full one. Default 16.
	MaxChain int
	// ShutdownTimeout bounds the graceful stop, the last checkpoint included. Default 30 s.
	ShutdownTimeout time.Duration
	// InitialBackoff, MaxBackoff, BackoffMultiplier and ResetBackoffThreshold are those of Flink's exponential-delay
	// restart strategy: defaults 1 s, 1 min, 1.5 and 1 h.
	InitialBackoff        time.Duration
	MaxBackoff            time.Duration
	BackoffMultiplier     float64
	ResetBackoffThreshold time.Duration
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
	def(&c.InitialBackoff, time.Second)
	def(&c.MaxBackoff, time.Minute)
	def(&c.ResetBackoffThreshold, time.Hour)
	if c.BackoffMultiplier == 0 {
		c.BackoffMultiplier = 1.5
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
	}
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
	bad(c.UncommittedLimit < 1, "uncommitted limit %d: want at least 1 byte", c.UncommittedLimit)
	bad(c.MaxChain < 1, "max chain %d: want at least 1", c.MaxChain)
	bad(c.BackoffMultiplier < 1, "backoff multiplier %g: want at least 1", c.BackoffMultiplier)
	return errors.Join(errs...)
}
