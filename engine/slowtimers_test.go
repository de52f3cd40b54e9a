package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// slowAlarm is an alarm whose timers take their time.
type slowAlarm struct {
	alarm
	each time.Duration
}

func (a *slowAlarm) OnTimer(ctx *topology.ProcessContext, key string, at time.Time, out *topology.Collector[string, int64]) error {
	time.Sleep(a.each)
	return a.alarm.OnTimer(ctx, key, at, out)
}

func slowTimerPlan(t *testing.T, exchange bool, base time.Time, each time.Duration) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	if exchange {
		in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(1))
	}
	timed := topology.Process(in, "timed", func() topology.Processor[string, string, int64] {
		return &slowAlarm{alarm: alarm{base: base}, each: each}
	})
	topology.ToTopic(timed, "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// Many timers that are due at once take longer than a checkpoint may. Checkpoints complete meanwhile, each about as fast as
// otherwise, and what comes in is taken as well.
func TestManyTimersThatAreDueLeaveRoomForBarriersAndRecords(t *testing.T) {
	syncSnapshots := func(c *Config) { c.SyncSnapshots = true }
	for name, kind := range map[string]struct {
		exchange bool
		set      func(*Config)
	}{
		"aligned/chained": {false, modes["aligned"]}, "aligned/exchange": {true, modes["aligned"]}, "unaligned/exchange": {true, modes["unaligned"]},
		"sync/chained": {false, syncSnapshots},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.produce(700, 11)
			cfg := w.config()
			kind.set(&cfg)
			cfg.CheckpointTimeout = 300 * time.Millisecond // of 0.7 s and more that the timers take
			cfg.ChannelRecords = 64
			var failed atomic.Int64
			var during atomic.Int64
			base := time.Now().Add(-time.Hour) // all are due at once
			stop := w.startPlan(slowTimerPlan(t, kind.exchange, base, time.Millisecond), cfg, w.ports(), &Listener{
				CheckpointCompleted: func(s checkpoint.CheckpointStats) {
					if done := w.done(); done > 0 && done < w.total() {
						during.Add(1)
					}
				},
				CheckpointAbandoned: func([]element.CheckpointID, checkpoint.FailureReason, error) { failed.Add(1) },
			})
			w.outputs()
			require.NoError(t, stop())
			w.exact()
			require.Zero(t, failed.Load())
			require.Greater(t, during.Load(), int64(5), "checkpoints while the timers fired")
		})
	}
}

// newTiming is a task that nobody runs, which has 1,000 timers that are due.
func newTiming(t *testing.T, exchange bool, plan *topology.Plan) *hearing {
	h := newHearing(t, map[bool]int{false: 0, true: 2}[exchange])
	h.limit.Store(1 << 30)
	h.pace = pace{known: true}
	h.hasTimers, h.feed = true, newFeeder(nil)
	h.position.TopicPartition = tp(0)
	var err error
	h.chain, err = plan.NewTask(h.id.Source, 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{0: 1, 1: 1, 2: 1, 3: 1}}})
	require.NoError(t, err)
	return h
}

func (h *hearing) give(from, n int) { h.inbox.put(some(from, n)) }

func some(from, n int) element.Delivery {
	d := element.Delivery{From: tp(0), Next: int64(from + n), LeaderEpoch: -1}
	for i := range n {
		d.Records = append(d.Records, element.Record{Key: []byte("k"), Value: []byte("x"), Offset: int64(from + i)})
	}
	return d
}

// turn does one turn and says what it was.
func (h *hearing) turned() string {
	before, records, timers := len(h.passed), h.stats.records.Load(), h.stats.emitted.Load()
	did, err := h.turn()
	require.NoError(h.t, err)
	switch {
	case !did:
		return "nothing"
	case len(h.passed) > before:
		return "barrier"
	case h.stats.records.Load() > records:
		return "records"
	case h.stats.emitted.Load() > timers:
		return "timers"
	}
	return "other"
}

// Timers and records have a turn each. A barrier comes before the timers that are due, and behind it come some before the next.
func TestTimersRecordsAndBarriersTakeTurns(t *testing.T) {
	h := newTiming(t, false, slowTimerPlan(t, false, time.Now().Add(-time.Hour), time.Millisecond))
	h.give(0, 1000)
	require.Equal(t, "records", h.turned())
	h.give(1000, 1)
	h.give(1001, 1)
	require.Equal(t, "timers", h.turned())
	require.Equal(t, "records", h.turned())
	require.Equal(t, "timers", h.turned())
	require.Equal(t, "records", h.turned())
	require.Equal(t, "timers", h.turned())
	require.Equal(t, "timers", h.turned(), "nothing else is there")
	h.give(1002, 1)
	h.inbox.barrier(gate.Barrier{ID: 1})
	h.inbox.barrier(gate.Barrier{ID: 2})
	require.Equal(t, "barrier", h.turned())
	require.Equal(t, "timers", h.turned(), "one slice between two barriers")
	require.Equal(t, "barrier", h.turned())
	began, fired := time.Now(), h.stats.emitted.Load()
	require.Equal(t, "timers", h.turned())
	n := h.stats.emitted.Load() - fired
	require.LessOrEqual(t, n, int64(timerSlice/time.Millisecond), "%d timers of 1 ms in one slice, %s", n, time.Since(began))
	require.Positive(t, n)
}

// A barrier that lies behind records in a channel comes before further timers, as does one that overtakes them. While its like
// is still on the way from elsewhere, timers fire.
func TestABarrierInAChannelComesBeforeTimers(t *testing.T) {
	for _, unaligned := range []bool{false, true} {
		h := newTiming(t, true, slowTimerPlan(t, true, time.Now().Add(-time.Hour), time.Millisecond))
		send := func(in, n int) {
			for range n {
				p, err := h.chain.Restore(parcelOf(t))
				require.NoError(t, err)
				h.in.channels[in].push(p)
			}
		}
		send(0, 3)
		require.Equal(t, "records", h.turned())
		require.Equal(t, "timers", h.turned())
		b := gate.Barrier{ID: 1, Unaligned: unaligned}
		h.in.channels[0].pushBarrier(b)
		if unaligned {
			require.Equal(t, "barrier", h.turned())
			require.Equal(t, "timers", h.turned())
			continue
		}
		require.Equal(t, "records", h.turned())
		require.Equal(t, "records", h.turned())
		require.Equal(t, "other", h.turned(), "the barrier: it waits for the other one")
		require.Equal(t, "timers", h.turned())
		require.Equal(t, "timers", h.turned())
		send(1, 2)
		require.Equal(t, "records", h.turned())
		require.Equal(t, "records", h.turned())
		h.in.channels[1].pushBarrier(b)
		require.Equal(t, "barrier", h.turned())
		require.Equal(t, "timers", h.turned())
	}
}

// It is not only the timers that may be slow: the step behind them is, for what they emit together.
func TestTimersBeforeASlowStepLeaveRoomForBarriers(t *testing.T) {
	boundedPace.Store(int64(time.Millisecond))
	defer boundedPace.Store(0)
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	timed := topology.Process(in, "timed", func() topology.Processor[string, string, int64] { return &alarm{base: time.Now().Add(-time.Hour)} })
	topology.ToTopic(topology.Map(timed, "slow", func(_ string, n int64) int64 {
		time.Sleep(time.Duration(boundedPace.Load()))
		return n
	}), "out", "out", serde.String(), serde.Int64())
	plan, err := b.Plan()
	require.NoError(t, err)
	h := newTiming(t, false, plan)
	require.NoError(t, h.process(some(0, 1000)))
	var fired []int64
	for range 20 {
		before := h.stats.emitted.Load()
		require.Equal(t, "timers", h.turned())
		fired = append(fired, h.stats.emitted.Load()-before)
	}
	for _, n := range fired {
		require.LessOrEqual(t, n, int64(timerSlice/time.Millisecond), "timers of 1 ms by slice: %v", fired)
	}
}

// parcelOf gives 100 records as a snapshot has them.
func parcelOf(t *testing.T) (data [][]byte) {
	h := newHearing(t, 0)
	plan := slowTimerPlan(t, true, time.Now(), 0)
	h.outs.add(1, []*channel{{limit: 1000, receiver: newDoorbell(), sender: h.bell, behind: new(atomic.Bool)}})
	chain, err := plan.NewTask("in", 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{0: 1, 1: 1, 2: 1, 3: 1}}})
	require.NoError(t, err)
	var recs []element.Record
	for i := range 100 {
		recs = append(recs, element.Record{Key: []byte("k"), Value: []byte("x"), Offset: int64(100*parcels.Add(1)) + int64(i)})
	}
	require.NoError(t, chain.Process(tp(0), recs))
	p, ok := h.outs.all[0].pop(true)
	require.True(t, ok)
	require.NoError(t, p.parcel.Encode(func(_ int, b []byte) error { data = append(data, append([]byte(nil), b...)); return nil }))
	return data
}

var parcels atomic.Int64

// Timers that are due and have no room behind them, or must wait for the state to be written, wait for a ring.
func TestTimersThatMustWaitDoNotTurn(t *testing.T) {
	h := newTiming(t, false, endedTimersPlan(t, false, 1, time.Now().Add(-time.Hour), 0))
	c := &channel{limit: 1, receiver: newDoorbell(), sender: h.bell, behind: new(atomic.Bool)}
	for i := range 3 {
		h.outs.add(i, []*channel{c})
	}
	require.NoError(t, h.process(some(0, 1000)))
	_, ok := h.wakeAt()
	require.True(t, ok, "they are due")
	h.unwritten = 5
	require.Equal(t, "nothing", h.turned())
	_, ok = h.wakeAt()
	require.False(t, ok)
	h.inbox.written(5)
	did, err := h.turn()
	require.NoError(t, err)
	require.True(t, did)
	require.Zero(t, c.waiting())
	did, err = h.turn()
	require.NoError(t, err)
	require.True(t, did)
	require.Positive(t, c.waiting(), "they fire")
	for len(h.bell.c) > 0 {
		<-h.bell.c
	}
	require.Equal(t, "nothing", h.turned(), "there is no room")
	_, ok = h.wakeAt()
	require.False(t, ok)
	for c.waiting() > 0 {
		c.pop(true)
	}
	require.Len(t, h.bell.c, 1, "there is room")
	did, err = h.turn()
	require.NoError(t, err)
	require.True(t, did)
	require.Positive(t, c.waiting())
}
