package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
)

// The statistics of a running engine are of what happens in it: barriers that wait behind slow records are late, inputs
// wait for each other, a freeze takes time, and the full size is that of all runs which the root names.
func TestFiguresAreOfWhatHappens(t *testing.T) {
	t.Parallel()
	const each = 2 * time.Millisecond
	w := newWorld(t, 2)
	w.produce(600, 40)
	var mu sync.Mutex
	var all []checkpoint.CheckpointStats
	cfg := w.config()
	cfg.ChannelRecords = 16
	stop := w.startPlan(slowPlan(t, 2, each), cfg, w.ports(), &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, s)
	}})
	w.outputs()
	require.NoError(t, stop())
	mu.Lock()
	defer mu.Unlock()
	var delay, alignment, sync time.Duration
	grown := false
	for _, s := range all {
		require.LessOrEqual(t, s.StartDelay, s.Barriers)
		require.LessOrEqual(t, s.Alignment, s.Barriers)
		require.LessOrEqual(t, s.Sync, s.EndToEnd)
		require.GreaterOrEqual(t, s.FullBytes, s.DeltaBytes)
		delay, alignment, sync = max(delay, s.StartDelay), max(alignment, s.Alignment), max(sync, s.Sync)
		grown = grown || s.DeltaBytes > 0 && s.FullBytes > s.DeltaBytes
	}
	require.Greater(t, delay, each, "barriers pass no full channel")
	require.Greater(t, alignment, 10*time.Microsecond, "two inputs whose barriers never come at the same time")
	require.Greater(t, sync, 100*time.Nanosecond)
	require.True(t, grown, "no checkpoint is built on older runs")

	w.mu.Lock()
	text := w.committed[tp(0)].Metadata
	w.mu.Unlock()
	h, err := snapshot.ParseHandle(text)
	require.NoError(t, err)
	root, err := w.repo.ReadRoot(t.Context(), h.Root)
	require.NoError(t, err)
	var named int64
	for _, e := range root.Tasks {
		named += e.RunBytes()
	}
	last := all[len(all)-1]
	require.Equal(t, h.Root.Name.ID, last.ID)
	require.Equal(t, named, last.FullBytes)
}

// Written counts all that a checkpoint has written: changes of the state and records in flight.
func TestWhatIsWrittenIsCounted(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.produce(600, 17)
			written := &writtenPersist{bytes: map[element.CheckpointID]int64{}, entries: map[element.CheckpointID]int64{}}
			w.wrap = func(c Checkpoints) Checkpoints { written.Checkpoints = c; return written }
			cfg := w.config()
			set(&cfg)
			cfg.ChannelRecords = 64
			var inFlight, wrong atomic.Int64
			stop := w.startPlan(slowPlan(t, 2, 200*time.Microsecond), cfg, w.ports(), &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
				if s.Unaligned {
					inFlight.Add(s.Buffered)
				}
				written.mu.Lock()
				defer written.mu.Unlock()
				if s.DeltaBytes != written.bytes[s.ID] || s.Entries != written.entries[s.ID] {
					wrong.Add(1)
				}
			}})
			w.outputs()
			require.NoError(t, stop())
			w.exact()
			require.Zero(t, wrong.Load())
			require.Equal(t, name == "unaligned", name != "timeout" && inFlight.Load() > 0)
		})
	}
}

// writtenPersist sums up what is written, by checkpoint.
type writtenPersist struct {
	Checkpoints
	mu             sync.Mutex
	bytes, entries map[element.CheckpointID]int64
}

func (p *writtenPersist) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	out, err := p.Checkpoints.Persist(ctx, name, deltas)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range out {
		p.bytes[name.ID] += o.Run.Length + o.InFlight.Length
		p.entries[name.ID] += o.Run.Entries + o.InFlight.Entries
	}
	return out, err
}

// A barrier's delay is what the task has measured; its report may come much later.
func TestTheStartDelayIsThatOfTheTask(t *testing.T) {
	task := element.TaskID{Source: "in"}
	a := &attempt{co: checkpoint.New(checkpoint.Config{Interval: time.Second, Timeout: time.Minute}, 0), tasks: map[element.TaskID]*owned{}}
	a.co.AddTask(0, task)
	a.co.Moved(0, task)
	a.co.Tick(time.Second)
	began := time.Now()
	a.pending = []*pending{{name: element.CheckpointName{ID: 1}, began: began, acks: map[element.TaskID]taskAck{}}}
	a.onBarrierPassed(3*time.Second, event{id: 1, task: task, ack: taskAck{at: began.Add(10 * time.Millisecond)}})
	s := a.co.Stats().Current
	require.Equal(t, 10*time.Millisecond, s.StartDelay)
	require.Equal(t, 2*time.Second, s.Barriers)
}

// An alignment begins with the first barrier.
func TestAnAlignmentIsMeasuredFromItsFirstBarrier(t *testing.T) {
	h := newHearing(t, 2)
	for id := range element.CheckpointID(2) {
		h.in.channels[0].pushBarrier(gate.Barrier{ID: id + 1})
		require.Equal(t, "other", h.turned())
		time.Sleep(5 * time.Millisecond)
		h.in.channels[1].pushBarrier(gate.Barrier{ID: id + 1})
		require.Equal(t, "barrier", h.turned())
		require.GreaterOrEqual(t, h.events[len(h.events)-1].ack.alignment, 5*time.Millisecond)
	}
}

// What an aligned checkpoint has buffered is what came behind the barrier of an input that was set aside for the others.
func TestWhatWaitedBehindAnAlignedBarrierIsCounted(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Config){
		"aligned": func(*Config) {},
		"patient": func(c *Config) { c.Unaligned, c.AlignedTimeout = true, time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			const behind = 40
			w := newWorld(t, 2)
			var passed, slow atomic.Int64 // of the two partitions, before the exchange
			gate := make(chan struct{})
			b := topology.New(app)
			in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
			before := topology.Map(in, "before", func(k, v string) string {
				if k == "k1" {
					slow.Add(1)
					<-gate
				} else {
					passed.Add(1)
				}
				return v
			})
			by := topology.GroupBy(before, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(1))
			topology.ToTopic(topology.Count(by, "count"), "out", "out", serde.String(), serde.Int64())
			plan, err := b.Plan()
			require.NoError(t, err)
			cfg := w.config()
			set(&cfg)
			cfg.Interval = time.Minute
			cut, completed := make(chan element.CheckpointID, 10), make(chan checkpoint.CheckpointStats, 10)
			ports := w.ports()
			ports.NewState = func(id element.TaskID) State {
				st := worldState{store.New(store.Config{})}
				if id == (element.TaskID{Source: "in"}) {
					return frozenAt{st, cut}
				}
				return st
			}
			stop := w.startPlan(plan, cfg, ports, &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) { completed <- s }})
			w.produce(1, 2) // k0, in the first partition
			w.caughtUp()
			first := <-completed
			require.Zero(t, first.Buffered)
			<-cut
			w.produce(1, 2) // k1: the second partition's task stands still
			require.Eventually(t, func() bool { return slow.Load() == 1 }, 5*time.Second, time.Millisecond)
			asked := make(chan error, 1)
			go func() {
				_, _, err := w.r.Checkpoint(t.Context())
				asked <- err
			}()
			<-cut                // the barrier is on its way before all that comes now
			w.produce(behind, 1) // k0
			require.Eventually(t, func() bool { return passed.Load() == 1+behind }, 5*time.Second, time.Millisecond)
			close(gate)
			require.NoError(t, <-asked)
			s := <-completed
			require.False(t, s.Unaligned)
			require.EqualValues(t, behind, s.Buffered)
			require.Greater(t, s.BufferedBytes, int64(behind*len("k0x")))
			require.NoError(t, stop())
			w.exact()
		})
	}
}

// frozenAt tells when a task takes its part in a checkpoint.
type frozenAt struct {
	worldState
	cut chan<- element.CheckpointID
}

func (f frozenAt) Freeze(id element.CheckpointID) Frozen {
	f.cut <- id
	return f.worldState.Freeze(id)
}
