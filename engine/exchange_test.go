package engine

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// between is a step that a test puts between an exchange and the count behind it.
type between func(topology.Stream[string, string]) topology.Stream[string, string]

func with(in topology.Stream[string, string], steps []between) topology.Stream[string, string] {
	for _, step := range steps {
		in = step(in)
	}
	return in
}

// inOrder fails a record that does not come behind all records of its key that were sent before it, also over restarts.
func inOrder(in topology.Stream[string, string]) topology.Stream[string, string] {
	return topology.Process(in, "in-order", func() topology.Processor[string, string, string] { return &ordered{} })
}

// ordered keeps the offset behind the newest record of a key; the records of a key are of one partition.
type ordered struct{ next *topology.Value[int64] }

func (o *ordered) Open(ctx *topology.ProcessContext) error {
	o.next = topology.ValueState(ctx, "next", serde.Int64())
	return nil
}

func (o *ordered) Process(_ *topology.ProcessContext, in *topology.Rec[string, string], out *topology.Collector[string, string]) error {
	if next, _ := o.next.Get(); in.Offset < next {
		return fault.Stopf(fault.Failed, "the record of key %s at offset %d comes behind that at %d", in.Key, in.Offset, next-1)
	}
	o.next.Set(in.Offset + 1)
	out.Emit(in.Value)
	return nil
}

// exchangePlan counts per key behind an exchange; the key does not change, so the oracle of the world holds.
func exchangePlan(t *testing.T, parallelism int, steps ...between) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	by := topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	topology.ToTopic(topology.Count(with(by, steps), "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// twoHopPlan sends records over two exchanges.
func twoHopPlan(t *testing.T, first, second int, steps ...between) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	spread := topology.Rebalance(in, "spread", serde.String(), serde.String(), topology.Parallelism(first))
	by := topology.GroupBy(spread, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(second))
	topology.ToTopic(topology.Count(with(by, steps), "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// outputs waits until there is an output for every input.
func (w *world) outputs() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for _, log := range w.logs {
			n += len(log)
		}
		return len(w.output) >= n
	}, 15*time.Second, time.Millisecond)
}

// modes are the ways in which an exchange's checkpoints are taken.
var modes = map[string]func(*Config){
	"aligned":    func(*Config) {},
	"unaligned":  func(c *Config) { c.Unaligned = true },
	"timeout":    func(c *Config) { c.Unaligned, c.AlignedTimeout = true, time.Millisecond },
	"concurrent": func(c *Config) { c.MaxConcurrent = 3; c.Interval = 2 * time.Millisecond },
}

func TestEveryInputCountsOnceBehindAnExchange(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			cfg := w.config()
			set(&cfg)
			stop := w.startPlan(exchangePlan(t, 3, inOrder), cfg, w.ports(), nil)
			for range 50 {
				w.produce(100, 13)
				time.Sleep(time.Millisecond)
			}
			w.outputs()
			w.caughtUp()
			require.NoError(t, stop())
			w.exact()
		})
	}
}

func engineSeed(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("ENGINE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("ENGINE_SEED=%d go test ./engine -run '^%s$'", seed, t.Name())
	return rand.New(rand.NewPCG(seed, 1))
}

// The parallelism changes at every start, and every start is cut short.
func TestStateMovesWithTheParallelism(t *testing.T) {
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			rnd := engineSeed(t)
			w := newWorld(t, 3)
			for round, par := range []int{1, 2, 4, 3, 1, 4} {
				cfg := w.config()
				set(&cfg)
				cfg.ChannelRecords = 1 + rnd.IntN(64)
				cfg.ShutdownTimeout = 1 // nothing is committed after the wish to stop
				kill := w.startPlan(exchangePlan(t, par, inOrder), cfg, w.ports(), nil)
				for until := w.done() + 100 + rnd.IntN(200); w.done() < until; {
					w.produce(20, 11)
					time.Sleep(time.Millisecond)
				}
				require.NoError(t, kill())
				t.Logf("round %d, parallelism %d: %d outputs", round, par, w.done())
			}
			cfg := w.config()
			set(&cfg)
			stop := w.startPlan(exchangePlan(t, 2, inOrder), cfg, w.ports(), nil)
			w.outputs()
			require.NoError(t, stop())
			w.exact()
		})
	}
}

func (w *world) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, log := range w.logs {
		n += len(log)
	}
	return n
}

func (w *world) done() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.output)
}

func TestRecordsOfOneKeyStayInOrderOverTwoExchanges(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			cfg := w.config()
			set(&cfg)
			stop := w.startPlan(twoHopPlan(t, 1, 3, inOrder), cfg, w.ports(), nil)
			for i := range 40 {
				w.produce(100, 7)
				if i%10 == 5 {
					w.assign(2) // a loss: the attempt ends and begins again
				}
				time.Sleep(time.Millisecond)
			}
			w.outputs()
			require.NoError(t, stop())
			w.exact()
		})
	}
}

// slowPlan is exchangePlan with a slow step behind the exchange, so that its channels are full.
func slowPlan(t *testing.T, parallelism int, each time.Duration, steps ...between) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	by := topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	slow := topology.Map(by, "slow", func(_, v string) string { time.Sleep(each); return v })
	topology.ToTopic(topology.Count(with(slow, steps), "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// What is in flight when the engine is killed is there again, once, in its order and before what comes behind it, also in other
// subtasks.
func TestRecordsInFlightComeBackOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unaligned", "timeout"} {
		t.Run(name, func(t *testing.T) {
			rnd := engineSeed(t)
			w := newWorld(t, 2)
			w.produce(3000, 17)
			var buffered atomic.Int64
			lis := &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
				if s.Unaligned {
					buffered.Add(s.Buffered)
				}
			}}
			for _, par := range []int{2, 3, 1, 2, 2, 4} {
				cfg := w.config()
				modes[name](&cfg)
				cfg.ChannelRecords, cfg.ShutdownTimeout = 16+rnd.IntN(200), 1
				kill := w.startPlan(slowPlan(t, par, 100*time.Microsecond, inOrder), cfg, w.ports(), lis)
				for until := w.done() + 100 + rnd.IntN(200); w.done() < until; {
					time.Sleep(time.Millisecond)
				}
				require.NoError(t, kill())
			}
			require.Positive(t, buffered.Load(), "no checkpoint had records in flight")
			stop := w.startPlan(slowPlan(t, 2, 0, inOrder), w.config(), w.ports(), lis)
			w.outputs()
			require.NoError(t, stop())
			w.exact()
			t.Logf("%d records were in flight at checkpoints", buffered.Load())
		})
	}
}
