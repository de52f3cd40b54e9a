package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
	"github.com/millweir/millweir/topology"
)

// barriers is a writer that notes them.
type barriers []element.CheckpointID

func (b *barriers) Write(context.Context, int, []element.Record) error { return nil }
func (b *barriers) Barrier(id element.CheckpointID)                    { *b = append(*b, id) }

// hearing is a task that nobody runs: the test does, step by step, as a scheduler might.
type hearing struct {
	*task
	t      *testing.T
	table  topology.StateTable
	passed barriers
	events []event
}

func newHearing(t *testing.T, inputs int) *hearing {
	h := &hearing{t: t}
	h.task = &task{id: element.TaskID{Source: "in"}, inbox: newInbox(100), state: worldState{store.New(store.Config{})}, out: &h.passed,
		report: func(e event) { h.events = append(h.events, e) }, stats: &taskStats{}, wholes: &wholes{}}
	h.bell = h.inbox.bell
	plan := countPlan(t)
	if inputs > 0 {
		plan = exchangePlan(t, 1)
		h.id.Source, h.exchange = "by-key", true
		h.in = &input{gate: gate.New(inputs, gate.Unaligned)}
		for range inputs {
			h.in.channels = append(h.in.channels, &channel{limit: 10, receiver: h.bell, sender: newDoorbell(), news: &h.in.news, newest: &h.in.newest, behind: &h.in.behind})
		}
	}
	var err error
	h.table, err = h.state.Table("test", serde.String().Name())
	require.NoError(t, err)
	h.chain, err = plan.NewTask(h.id.Source, 0, &taskEnv{ctx: t.Context(), t: h.task, lis: &Listener{}, par: parallelism{most: 8, byStage: map[int]int{1: 1}}})
	require.NoError(t, err)
	return h
}

func (h *hearing) put(key string) { h.table.Put([]byte(key), []byte("v")) }

// frozen gives how many changes the newest report of a checkpoint has.
func (h *hearing) frozen(id element.CheckpointID) int {
	last := h.events[len(h.events)-1]
	require.Equal(h.t, evBarrier, last.kind)
	require.Equal(h.t, id, last.id)
	return last.ack.frozen.Len()
}

func (h *hearing) declined(id element.CheckpointID) {
	for _, e := range h.events {
		require.False(h.t, e.kind == evBarrier && e.id == id, "checkpoint %d was given up", id)
	}
	last := h.events[len(h.events)-1]
	require.Equal(h.t, evDeclined, last.kind)
	require.Equal(h.t, id, last.id)
	require.NotContains(h.t, h.passed, id, "the sink has nothing to hold back for it")
}

// The task has looked at its notices and takes the next barrier; in between a checkpoint is given up and the next one
// triggered. What it froze for the first belongs to the second.
func TestABarrierIsTakenBehindTheNoticesThatCameBeforeIt(t *testing.T) {
	h := newHearing(t, 0)
	h.put("a")
	require.NoError(t, h.onBarrier(gate.Barrier{ID: 7}))
	require.Equal(t, 1, h.frozen(7))
	h.put("b")
	h.inbox.abandon(span{7, 7})
	h.inbox.barrier(gate.Barrier{ID: 8})
	_, err := h.takeDelivery()
	require.NoError(t, err)
	require.Equal(t, 2, h.frozen(8))
}

// The checkpoint is given up while its barrier is in the task's hand: frozen for it now, the changes would be in no later one.
func TestABarrierThatWasGivenUpFreezesNothing(t *testing.T) {
	h := newHearing(t, 0)
	h.put("a")
	h.inbox.abandon(span{6, 7})
	require.NoError(t, h.onBarrier(gate.Barrier{ID: 7}))
	h.declined(7)
	require.NoError(t, h.onBarrier(gate.Barrier{ID: 8}))
	require.Equal(t, 1, h.frozen(8))
}

// A task that stands still until its state is written goes on when that is not going to be.
func TestATaskDoesNotWaitForWhatWasGivenUp(t *testing.T) {
	h := newHearing(t, 0)
	h.wholes.sync, h.feed, h.position.TopicPartition = true, newFeeder(nil), tp(0)
	h.limit.Store(1 << 30)
	h.inbox.barrier(gate.Barrier{ID: 7})
	require.Equal(t, "barrier", h.turned())
	h.give(0, 1)
	require.Equal(t, "nothing", h.turned())
	h.inbox.abandon(span{7, 7})
	require.Equal(t, "other", h.turned())
	require.Equal(t, "records", h.turned())
}

// The same behind an exchange, where barriers come through the channels.
func TestASnapshotThatWasGivenUpFreezesNothing(t *testing.T) {
	for name, b := range map[string]gate.Barrier{"aligned": {}, "unaligned": {Unaligned: true}} {
		for _, first := range []element.CheckpointID{6, 7} {
			t.Run(name, func(t *testing.T) {
				h := newHearing(t, 2)
				h.put("a")
				pass := func(id element.CheckpointID) {
					b.ID = id
					for _, c := range h.in.channels {
						c.pushBarrier(b)
					}
					for {
						did, err := h.in.urgent(h.task)
						require.NoError(t, err)
						if !did {
							did, err = h.in.take(h.task)
							require.NoError(t, err)
						}
						if !did {
							return
						}
					}
				}
				h.inbox.abandon(span{first, 7})
				pass(7)
				h.declined(7)
				h.put("b")
				pass(8)
				require.Equal(t, 2, h.frozen(8))
			})
		}
	}
}

// One event may complete several checkpoints: those that waited for the end of an input. The word that all are given up comes
// with the first, and counts for the others: frozen for one of them, the changes would be in no later one.
func TestSeveralSnapshotsAtOnceThatWereGivenUpFreezeNothing(t *testing.T) {
	for name, complete := range map[string]func(*testing.T) (*gate.Gate, []gate.Action){
		"aligned": func(*testing.T) (*gate.Gate, []gate.Action) {
			g := gate.New(1, gate.Aligned)
			g.Trigger(gate.Barrier{ID: 7})
			g.Trigger(gate.Barrier{ID: 8})
			return g, g.Ended(0)
		},
		"at-least-once": func(t *testing.T) (*gate.Gate, []gate.Action) {
			g := gate.New(2, gate.Counting)
			require.Empty(t, g.Barrier(0, gate.Barrier{ID: 7}))
			require.Empty(t, g.Barrier(0, gate.Barrier{ID: 8}))
			return g, g.Ended(1)
		},
	} {
		for _, apart := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h := newHearing(t, 2)
				var actions []gate.Action
				h.in.gate, actions = complete(t)
				require.Len(t, actions, 2, "two snapshots")
				h.put("a")
				if apart {
					h.inbox.abandon(span{8, 8}) // they need not go together
					h.inbox.abandon(span{7, 7})
				} else {
					h.inbox.abandon(span{7, 8})
				}
				require.NoError(t, h.in.perform(h.task, actions))
				h.declined(8)
				require.Empty(t, h.passed)
				h.put("b")
				require.NoError(t, h.in.perform(h.task, []gate.Action{gate.Snapshot{ID: 9}}))
				require.Equal(t, 2, h.frozen(9))
			})
		}
	}
}

// A process that was replaced looks for records in flight that its successor has cleaned away: it must look at the offsets
// again before it gives up for good.
func TestRecordsInFlightThatAreGoneAreLookedForAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(3000, 17)
	cfg := w.config()
	cfg.Unaligned, cfg.ShutdownTimeout = true, 1
	kill := w.startPlan(slowPlan(t, 2, 100*time.Microsecond), cfg, w.ports(), nil)
	for w.done() < 500 {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, kill())
	var calls, rejoined atomic.Int64
	w.wrap = func(c Checkpoints) Checkpoints {
		return goneInFlight{c, func() bool {
			if calls.Add(1) > 1 {
				return false
			}
			w.mu.Lock()
			w.staleReads = 1 // the next look differs from the one before
			w.mu.Unlock()
			return true
		}}
	}
	lis := &Listener{AttemptEnded: func(_ int, _ error, class fault.Recovery, _ time.Duration) {
		if class == fault.Rejoin {
			rejoined.Add(1)
		}
	}}
	stop := w.startPlan(slowPlan(t, 2, 0), w.config(), w.ports(), lis)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
	require.EqualValues(t, 1, rejoined.Load())
}

// goneInFlight does not find a file, when told so.
type goneInFlight struct {
	Checkpoints
	gone func() bool
}

func (g goneInFlight) RestoreInFlight(ctx context.Context, entry snapshot.TaskEntry, keep func(int) bool, apply func(int, []byte) error) (int64, error) {
	if g.gone() {
		return 0, fault.Stopf(fault.Corrupt, "the file is missing")
	}
	return g.Checkpoints.RestoreInFlight(ctx, entry, keep, apply)
}
