//go:build unix

package integration

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// exchangeSettings is what a test sets of a job with exchanges; it reaches the process as JSON in JOB_EXCHANGE.
type exchangeSettings struct {
	In2          string        // the second input, where there is one
	Ends2        bool          // it ends behind what is there at the first start
	Spread       int           // parallelism of the first hop, where there are two
	Parallelism  int           // of the step that counts
	Slow         time.Duration // that a record takes in that step
	OneShard     bool          // only on its subtask 0
	Late         time.Duration // that a record of the first key takes ahead of the exchange: the barriers of its partition come late
	Unaligned    bool
	Timeout      time.Duration // aligned-timeout
	Concurrent   int
	Tolerable    int
	FailPersist  int           // the first of so many writes of changes fails after it was made
	DelayPersist time.Duration // and each takes up to that long
	Threshold    int64
	Loose        bool          // at-least-once
	Fault        string        // planted: see faulty
	Checkpoint   time.Duration // timeout of a checkpoint; default 5 s
	Session      time.Duration
	Instance     string
	Checkpoints  string
}

func exchangeJob() (x exchangeSettings) {
	if text := os.Getenv("JOB_EXCHANGE"); text != "" {
		if err := json.Unmarshal([]byte(text), &x); err != nil {
			panic(err) // the test itself wrote it
		}
	}
	return x
}

// apply changes the settings of the service. What its checkpoints were like is written to the standard error.
func (x exchangeSettings) apply(cfg *processor.Config) {
	cfg.Unaligned, cfg.AlignedTimeout, cfg.MaxConcurrent, cfg.TolerableFailures = x.Unaligned, x.Timeout, x.Concurrent, x.Tolerable
	cfg.MemoryThreshold, cfg.SessionTimeout, cfg.InstanceID, cfg.CheckpointsDir = x.Threshold, x.Session, x.Instance, x.Checkpoints
	if x.Loose {
		cfg.Mode = processor.AtLeastOnce
	}
	if x.Checkpoint > 0 {
		cfg.CheckpointTimeout = x.Checkpoint
	}
	var flying atomic.Int64
	cfg.Listener = engine.Listener{
		CheckpointTriggered: func(id element.CheckpointID) {
			fmt.Fprintf(os.Stderr, "exchange: triggered id=%d inflight=%d\n", id, flying.Add(1))
		},
		CheckpointCompleted: func(s checkpoint.CheckpointStats) {
			flying.Add(-1)
			fmt.Fprintf(os.Stderr, "exchange: committed id=%d unaligned=%t buffered=%d bytes=%d alignment=%s took=%s\n",
				s.ID, s.Unaligned, s.Buffered, s.BufferedBytes, s.Alignment, s.EndToEnd)
		},
		CheckpointAbandoned: func(ids []element.CheckpointID, reason checkpoint.FailureReason, err error) {
			flying.Add(-int64(len(ids)))
			fmt.Fprintf(os.Stderr, "exchange: abandoned n=%d reason=%s: %v\n", len(ids), reason, err)
		},
		AttemptEnded: func(int, error, fault.Recovery, time.Duration) { flying.Store(0) },
	}
	if x.Fault != "" {
		cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = &faulty{p.Checkpoints, x.Fault} }
	} else if x.FailPersist > 0 || x.DelayPersist > 0 {
		cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = &lazyStore{Checkpoints: p.Checkpoints, x: x} }
	}
}

// lazyStore takes its time to write changes, and loses the answer now and then.
type lazyStore struct {
	engine.Checkpoints
	x exchangeSettings
	n atomic.Int64
}

func (l *lazyStore) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	out, err := l.Checkpoints.Persist(ctx, name, deltas)
	if err == nil && l.x.DelayPersist > 0 {
		select {
		case <-time.After(l.x.DelayPersist/2 + time.Duration(rand.Int64N(int64(l.x.DelayPersist/2)))):
		case <-ctx.Done():
		}
	}
	if err == nil && l.x.FailPersist > 0 && l.n.Add(1)%int64(l.x.FailPersist) == 1 {
		return nil, fault.Restartf(fault.Failed, "planted: the answer of the store is lost")
	}
	return out, err
}

// faulty makes a mistake that the judges of these tests have to find.
type faulty struct {
	engine.Checkpoints
	fault string
}

// RestoreInFlight forgets what was on the way, or takes all of it in every subtask.
func (f *faulty) RestoreInFlight(ctx context.Context, entry snapshot.TaskEntry, keep func(int) bool, apply func(int, []byte) error) (int64, error) {
	switch f.fault {
	case "lose-inflight":
		return 0, nil
	case "double-inflight":
		keep = func(int) bool { return true }
	}
	return f.Checkpoints.RestoreInFlight(ctx, entry, keep, apply)
}

// Restore forgets the state of subtask 1.
func (f *faulty) Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(int, []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error) {
	if f.fault == "lose-subtask" && entry.Task.Source == "by-group" && entry.Task.Partition == 1 {
		return snapshot.Stats{}, nil
	}
	return f.Checkpoints.Restore(ctx, entry, keep, apply)
}

// tally is what is kept per group: how many inputs it had, the sum of their numbers, and the number of the last one.
// Each output shows with it which input it belongs to.
type tally struct{ n, sum, last int64 }

type tallySerde struct{}

func (tallySerde) Name() string   { return "test-tally" }
func (tallySerde) FixedSize() int { return 24 }
func (tallySerde) Append(dst []byte, t tally) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.n))
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.sum))
	return binary.BigEndian.AppendUint64(dst, uint64(t.last)), nil
}
func (tallySerde) Decode(b []byte) (tally, error) {
	if len(b) != 24 {
		return tally{}, fmt.Errorf("%d bytes, want 24", len(b))
	}
	return tally{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])), int64(binary.BigEndian.Uint64(b[16:]))}, nil
}

// ticketGroups is how many groups the tickets of these tests fall into.
const ticketGroups = 997

// groupOf is the key that ticket number i is counted by. It has nothing to do with the key of the input.
func groupOf(i int64) []byte {
	return fmt.Appendf(nil, "group-%d", uint64(i)*0x9E3779B97F4A7C15>>33%ticketGroups)
}

// countGroups counts the tickets of a stream per group behind an exchange.
func countGroups(s topology.Stream[[]byte, int64], x exchangeSettings, out string) {
	by := topology.GroupBy(s, "by-group", serde.Bytes(), serde.Int64(), func(_ []byte, i int64) []byte { return groupOf(i) }, topology.Parallelism(x.Parallelism))
	if x.Slow > 0 {
		by = topology.Map(by, "slow", x.linger())
	}
	counted := topology.Aggregate(by, "tally", tallySerde{}, func(t tally, i int64) tally { return tally{t.n + 1, t.sum + i, i} })
	topology.ToTopic(counted, "out", out, serde.Bytes(), tallySerde{})
}

// linger makes each record take its time, several at once where the clock is too coarse.
func (x exchangeSettings) linger() func(k []byte, v int64) int64 {
	var n atomic.Int64
	some := max(1, int64(2*time.Millisecond/x.Slow))
	return func(k []byte, v int64) int64 {
		if x.OneShard && element.SubtaskOf(element.KeyGroup(k, element.DefaultMaxParallelism), x.Parallelism, element.DefaultMaxParallelism) != 0 {
			return v
		}
		if n.Add(1)%some == 0 {
			time.Sleep(time.Duration(some) * x.Slow)
		}
		return v
	}
}

// late makes the records of one partition take their time, and only those that have its first key.
func (x exchangeSettings) late(s topology.Stream[[]byte, int64]) topology.Stream[[]byte, int64] {
	if x.Late == 0 {
		return s
	}
	return topology.Map(s, "late", func(k []byte, v int64) int64 {
		if string(k) == "till-0" {
			time.Sleep(x.Late)
		}
		return v
	})
}

// countByGroup has one exchange.
func countByGroup(b *topology.Builder, in, out string) { countByGroupWith(b, in, out, exchangeJob()) }

func countByGroupWith(b *topology.Builder, in, out string, x exchangeSettings) {
	countGroups(x.late(topology.FromTopic(b, "in", in, serde.Bytes(), serde.Int64())), x, out)
}

// countOfTwo has two inputs that meet before the exchange.
func countOfTwo(b *topology.Builder, in, out string) {
	x := exchangeJob()
	first := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Int64())
	end := topology.Unbounded()
	if x.Ends2 {
		end = topology.EndLatest()
	}
	second := topology.FromTopic(b, "in2", x.In2, serde.Bytes(), serde.Int64(), topology.EndAt(end))
	countGroups(topology.Merge("both", first, second), x, out)
}

// countOverHops has two inputs, of which one goes over an exchange more than the other before they meet.
func countOverHops(b *topology.Builder, in, out string) {
	x := exchangeJob()
	first := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Int64())
	spread := topology.Rebalance(first, "spread", serde.Bytes(), serde.Int64(), topology.Parallelism(x.Spread))
	second := topology.FromTopic(b, "in2", x.In2, serde.Bytes(), serde.Int64())
	countGroups(topology.Merge("both", spread, x.late(second)), x, out)
}
