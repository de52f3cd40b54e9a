package engine

import (
	"context"
	"errors"
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

// roundsPlan lets every record go around a feedback edge, and become longer, until its value has so many bytes; then it is
// counted. A round takes pace.
func roundsPlan(t *testing.T, rounds int, pace time.Duration, end topology.End) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.EndAt(end))
	loop := topology.NewFeedback(b, "again", serde.String(), serde.String(), topology.Parallelism(2))
	both := topology.Merge("both", in, loop.Stream())
	by := topology.GroupBy(both, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	step := topology.Map(by, "step", func(_, v string) string {
		time.Sleep(pace)
		return v + "x"
	})
	loop.From(topology.Filter(step, "more", func(_, v string) bool { return len(v) < rounds }))
	done := topology.Filter(step, "done", func(_, v string) bool { return len(v) >= rounds })
	topology.ToTopic(topology.Count(done, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// A bounded run with a feedback edge is over when its sources have ended and nothing goes around any more.
func TestABoundedRunWithAFeedbackEdgeEnds(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"aligned", "unaligned"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.produce(100, 7)
			cfg := w.config()
			modes[name](&cfg)
			cfg.ForceIterations, cfg.ChannelRecords = true, 16
			r, err := New(roundsPlan(t, 6, 100*time.Microsecond, topology.EndLatest()), cfg, w.ports(), &Listener{
				Looping: func(_ element.CheckpointID, n int64, last bool) {
					if last {
						t.Errorf("%d records are lost", n)
					}
				},
			})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, r.Run(ctx))
			require.NoError(t, ctx.Err(), "it ended by itself")
			w.exact()
		})
	}
}

// A graceful stop lets what goes around come to its end before the last checkpoint.
func TestAStopEmptiesTheFeedbackEdges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for range 3 {
		var going atomic.Int64
		cfg := w.config()
		cfg.ForceIterations, cfg.ChannelRecords = true, 16
		stop := w.startPlan(roundsPlan(t, 6, 100*time.Microsecond, topology.Unbounded()), cfg, w.ports(), &Listener{
			Looping: func(_ element.CheckpointID, n int64, last bool) {
				if going.Store(n); last {
					t.Errorf("%d records are lost", n)
				}
			},
		})
		w.produce(100, 7)
		require.Eventually(t, func() bool { return going.Load() > 0 }, 5*time.Second, time.Millisecond)
		require.Less(t, w.done(), w.total(), "it is stopped in the middle")
		require.NoError(t, stop())
	}
	cfg := w.config()
	cfg.ForceIterations = true
	stop := w.startPlan(roundsPlan(t, 6, 100*time.Microsecond, topology.Unbounded()), cfg, w.ports(), nil)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

// What does not come to its end in time is lost, and the last checkpoint says how much.
func TestAStopCountsWhatIsLeftOnTheFeedbackEdges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(40, 7)
	var going atomic.Int64
	cfg := w.config()
	cfg.ForceIterations, cfg.ShutdownTimeout = true, 2*time.Second
	var lost int64
	stop := w.startPlan(roundsPlan(t, 1<<30, 100*time.Microsecond, topology.Unbounded()), cfg, w.ports(), &Listener{
		Looping: func(_ element.CheckpointID, n int64, last bool) {
			if going.Store(n); last {
				lost = n
			}
		},
	})
	w.caughtUp()
	require.Eventually(t, func() bool { return going.Load() > 0 }, 5*time.Second, time.Millisecond)
	began := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(began), 5*time.Second)
	require.Positive(t, lost)
	require.LessOrEqual(t, lost, int64(40))
}

// A failure loses exactly as many records as the checkpoint said that is fallen back to: those that were sent around before
// the cut of their sender and not taken before that of the receiver, which come at different moments.
func TestWhatAFailureLosesOnAFeedbackEdgeIsCounted(t *testing.T) {
	for _, name := range []string{"aligned", "unaligned"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			losesWhatItSays(t, modes[name])
		})
	}
}

func losesWhatItSays(t *testing.T, set func(*Config)) {
	w := newWorld(t, 2)
	cfg := w.config()
	set(&cfg)
	cfg.ForceIterations, cfg.ChannelRecords = true, 16
	var completed, at, lost, failures atomic.Int64
	var armed atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if armed.Load() && int64(c.Name.ID) > at.Load() {
			armed.Store(false)
			failures.Add(1)
			return false, errors.New("planted")
		}
		return true, nil
	}
	stop := w.startPlan(roundsPlan(t, 4, 200*time.Microsecond, topology.Unbounded()), cfg, w.ports(), &Listener{
		Looping: func(id element.CheckpointID, n int64, _ bool) {
			if completed.Add(1)%5 == 0 && failures.Load() < 6 && armed.CompareAndSwap(false, true) {
				at.Store(int64(id))
				lost.Add(n)
			}
		},
	})
	for failures.Load() < 6 {
		if w.total()-w.done()-int(lost.Load()) < 50 {
			w.produce(20, 7)
		}
		time.Sleep(4 * time.Millisecond)
	}
	want := int(int64(w.total()) - lost.Load())
	require.Eventually(t, func() bool { return w.done() >= want }, 10*time.Second, time.Millisecond)
	w.caughtUp()
	require.NoError(t, stop())
	require.Equal(t, want, w.done(), "%d records lost in %d failures", lost.Load(), failures.Load())
	require.Positive(t, lost.Load())
}

// A sender's barrier goes around with the records: what lies behind it was sent after the sender's cut, and must not be taken
// before the receiver's, or it would be in a checkpoint whose sender makes it again.
func TestNothingIsTakenFromAFeedbackEdgeAheadOfItsTime(t *testing.T) {
	for _, b := range []gate.Barrier{{ID: 1}, {ID: 1, Unaligned: true}, {ID: 1, Timeout: true}} {
		h := newTiming(t, true, slowTimerPlan(t, true, time.Now().Add(time.Hour), 0))
		h.feedbackOnly = true
		h.in.gate = gate.New(2, gate.Unaligned, gate.Feedback(0, 1))
		send := func(n int) {
			for range n {
				p, err := h.chain.Restore(parcelOf(t))
				require.NoError(t, err)
				h.in.channels[0].feedback = true
				h.in.channels[0].push(p)
			}
		}
		send(1)
		h.in.channels[0].pushBarrier(b)
		send(1)
		for _, what := range []string{"records", "barrier", "records"} {
			did := h.turned()
			for did == "other" { // an announcement
				did = h.turned()
			}
			require.Equal(t, what, did, "%v", b)
			if what == "barrier" {
				last := h.events[len(h.events)-1]
				require.Equal(t, evBarrier, last.kind)
				require.EqualValues(t, 100, last.ack.around.taken[h.in.channels[0]])
			}
		}
		h.inbox.barrier(b) // from the coordinator, too late
		require.Equal(t, "other", h.turned())
		require.Equal(t, "nothing", h.turned())
	}
}

// What a task has taken from a feedback edge and not processed, the rest of a long parcel, is in no checkpoint either.
func TestWhatIsLeftOfAParcelOfAFeedbackEdgeIsCounted(t *testing.T) {
	var seen []string
	plan := seenPlan(t, &seen)
	h := newHearing(t, 1)
	h.feedbackOnly, h.in.gate = true, gate.New(1, gate.Unaligned, gate.Feedback(0))
	h.in.replay = []topology.Parcel{sentParcel(t, plan, "a", "b"), sentParcel(t, plan, "c")}
	require.NoError(t, h.onBarrier(gate.Barrier{ID: 7}))
	last := h.events[len(h.events)-1]
	require.Equal(t, evBarrier, last.kind)
	p := &pending{acks: map[element.TaskID]taskAck{h.id: last.ack}}
	require.EqualValues(t, 3, p.looping())
}
