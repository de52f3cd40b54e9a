package engine

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// seenPlan notes the values in the order in which a task behind an exchange processes them.
func seenPlan(t *testing.T, seen *[]string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	by := topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(1))
	topology.ToTopic(topology.Map(by, "seen", func(_, v string) string {
		*seen = append(*seen, v)
		return v
	}), "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// sentParcel gives the parcel in which a source's task sends these values.
func sentParcel(t *testing.T, plan *topology.Plan, values ...string) topology.Parcel {
	h := newHearing(t, 0)
	h.outs.add(1, []*channel{{limit: 1000, receiver: newDoorbell(), sender: h.bell, behind: new(atomic.Bool)}})
	chain, err := plan.NewTask("in", 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{1: 1}}})
	require.NoError(t, err)
	var recs []element.Record
	for i, v := range values {
		recs = append(recs, element.Record{Key: []byte("k"), Value: []byte(v), Offset: int64(i)})
	}
	require.NoError(t, chain.Process(tp(0), recs))
	require.NoError(t, chain.Flush())
	p, ok := h.outs.all[0].pop(true)
	require.True(t, ok)
	return p.parcel
}

// What was in flight when the state was taken is processed in its order before what lies in the channels, and is in the next
// unaligned snapshot in this order, as far as it is not worked off.
func TestWhatWasInFlightComesBeforeTheStream(t *testing.T) {
	var seen []string
	plan := seenPlan(t, &seen)
	h := newHearing(t, 2)
	var err error
	h.chain, err = plan.NewTask(h.id.Source, 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{1: 1}}})
	require.NoError(t, err)
	restored := func(values ...string) topology.Parcel {
		var data [][]byte
		require.NoError(t, sentParcel(t, plan, values...).Encode(func(_ int, b []byte) error { data = append(data, slices.Clone(b)); return nil }))
		p, err := h.chain.Restore(data)
		require.NoError(t, err)
		return p
	}
	h.in.replay = []topology.Parcel{restored("a1", "a2"), restored("b1")}
	h.limit.Store(1 << 30)
	h.in.channels[0].push(restored("a3"))
	h.in.channels[1].push(restored("b2"))
	require.Equal(t, "records", h.turned())
	require.Equal(t, []string{"a1", "a2"}, seen)

	for _, c := range h.in.channels {
		c.pushBarrier(gate.Barrier{ID: 5, Unaligned: true})
	}
	require.Equal(t, "barrier", h.turned(), "it overtakes both")
	cut := h.events[len(h.events)-1]
	require.Equal(t, evBarrier, cut.kind)
	for range 3 {
		require.Equal(t, "records", h.turned())
	}
	require.Equal(t, []string{"a1", "a2", "b1", "a3", "b2"}, seen)

	again := newHearing(t, 2)
	seen = nil
	again.chain, err = plan.NewTask(again.id.Source, 0, &taskEnv{ctx: t.Context(), t: again.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{1: 1}}})
	require.NoError(t, err)
	var data [][]byte
	require.NoError(t, encodeParcels(cut.ack.inflight)(func(_ int, b []byte) error { data = append(data, slices.Clone(b)); return nil }))
	p, err := again.chain.Restore(data)
	require.NoError(t, err)
	require.NoError(t, again.chain.Receive(p))
	require.Equal(t, []string{"b1", "a3", "b2"}, seen)
}

// An input whose barrier has not come when an unaligned snapshot is taken is recorded until it does: what comes ahead of it is in
// flight, whether or not it has been processed, and what comes behind it is not.
func TestWhatComesAheadOfALateBarrierIsInFlight(t *testing.T) {
	var seen []string
	plan := seenPlan(t, &seen)
	h := newHearing(t, 2)
	h.limit.Store(1 << 30)
	var err error
	h.chain, err = plan.NewTask(h.id.Source, 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{1: 1}}})
	require.NoError(t, err)
	received := func(value string) topology.Parcel {
		var data [][]byte
		require.NoError(t, sentParcel(t, plan, value).Encode(func(_ int, b []byte) error { data = append(data, slices.Clone(b)); return nil }))
		p, err := h.chain.Restore(data)
		require.NoError(t, err)
		return p
	}
	early, late := h.in.channels[0], h.in.channels[1]
	late.push(received("a"))
	early.pushBarrier(gate.Barrier{ID: 5, Unaligned: true})
	early.push(received("x"))
	require.Equal(t, "barrier", h.turned())
	late.push(received("b"))
	for h.turned() != "nothing" {
	}
	require.ElementsMatch(t, []string{"a", "b", "x"}, seen)
	late.push(received("c"))
	late.pushBarrier(gate.Barrier{ID: 5, Unaligned: true})
	late.push(received("d"))
	for h.turned() != "nothing" {
	}
	cut := h.events[len(h.events)-1]
	require.Equal(t, evBarrier, cut.kind)
	seen = nil
	for _, p := range cut.ack.inflight {
		var data [][]byte
		require.NoError(t, p.Encode(func(_ int, b []byte) error { data = append(data, slices.Clone(b)); return nil }))
		again, err := h.chain.Restore(data)
		require.NoError(t, err)
		require.NoError(t, h.chain.Receive(again))
	}
	require.Equal(t, []string{"a", "b", "c"}, seen)
}

// What is recorded for an unaligned checkpoint is let go when that is given up, and nothing more is recorded.
func TestWhatIsRecordedIsLetGoWithItsCheckpoint(t *testing.T) {
	var seen []string
	plan := seenPlan(t, &seen)
	h := newHearing(t, 2)
	h.limit.Store(1 << 30)
	var err error
	h.chain, err = plan.NewTask(h.id.Source, 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{1: 1}}})
	require.NoError(t, err)
	barrier, late := h.in.channels[0], h.in.channels[1]
	barrier.pushBarrier(gate.Barrier{ID: 5, Unaligned: true})
	require.Equal(t, "barrier", h.turned())
	late.push(sentParcel(t, plan, "a1"))
	require.Len(t, late.tape, 1)
	h.inbox.abandon(span{5, 5})
	require.Equal(t, "other", h.turned())
	require.Empty(t, late.tape)
	late.push(sentParcel(t, plan, "a2"))
	require.Empty(t, late.tape)
	require.Nil(t, h.in.open)
}

// With several in flight, each root names the one that was committed before it.
func TestEachRootNamesTheOneCommittedBeforeIt(t *testing.T) {
	w := newWorld(t, 2)
	var writing atomic.Bool
	var triggered, completed, several, wrong atomic.Int64
	w.wrap = func(c Checkpoints) Checkpoints {
		return rootWatch{slowPersist{c, &writing}, func(root *snapshot.Root) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if last := w.commits[len(w.commits)-1]; last > 0 && (root.Predecessor == nil || root.Predecessor.Name.ID != last) {
				wrong.Add(1)
			}
		}}
	}
	cfg := w.config()
	cfg.MaxConcurrent, cfg.Interval = 3, 2*time.Millisecond
	stop := w.start(cfg, &Listener{
		CheckpointTriggered: func(element.CheckpointID) {
			if triggered.Add(1)-completed.Load() > 1 {
				several.Add(1)
			}
		},
		CheckpointCompleted: func(checkpoint.CheckpointStats) { completed.Add(1) },
	})
	w.produceUntil(func() bool { return several.Load() > 3 && completed.Load() > 8 })
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Zero(t, wrong.Load())
}
