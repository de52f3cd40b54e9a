package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/serde/json"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// kindPlan has an exchange of some kind under one name, a slow step behind it, and a count by key behind that.
func kindPlan(t *testing.T, each time.Duration, exchange func(topology.Stream[string, string]) topology.Stream[string, string]) *topology.Plan {
	b := topology.New(app)
	x := exchange(topology.FromTopic(b, "in", "in", serde.String(), serde.String()))
	slow := topology.Map(x, "slow", func(_, v string) string { time.Sleep(each); return v })
	by := topology.GroupBy(slow, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	topology.ToTopic(topology.Count(by, "count"), "out", "out", serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

type stream = topology.Stream[string, string]

func asRebalance(s stream) stream {
	return topology.Rebalance(s, "x", serde.String(), serde.String(), topology.Parallelism(2))
}

func asGroupBy(s stream) stream {
	return topology.GroupBy(s, "x", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(3))
}

func asBroadcast(s stream) stream {
	return topology.Broadcast(s, "x", serde.String(), serde.String(), topology.Parallelism(1))
}

func asOtherCodec(s stream) stream {
	return topology.Rebalance(s, "x", serde.String(), json.Of[string](), topology.Parallelism(2))
}

// untold gives roots as a program wrote them that did not say over what kind of exchange records came.
type untold struct{ Checkpoints }

func (u untold) LoadRoots(ctx context.Context, refs []snapshot.RootRef) (map[snapshot.RootRef]snapshot.LoadedRoot, error) {
	roots, err := u.Checkpoints.LoadRoots(ctx, refs)
	for _, r := range roots {
		for i := range r.Root.Tasks {
			r.Root.Tasks[i].Exchange = snapshot.UnknownExchange
		}
	}
	return roots, err
}

// fly begins an application whose last checkpoint has records in flight over "x".
func fly(t *testing.T, exchange func(stream) stream) *world {
	w := newWorld(t, 2)
	w.produce(2000, 17)
	cfg := w.config()
	cfg.Unaligned, cfg.ChannelRecords, cfg.ShutdownTimeout = true, 64, 1
	kill := w.startPlan(kindPlan(t, 100*time.Microsecond, exchange), cfg, w.ports(), nil)
	require.Eventually(t, func() bool { return w.done() > 300 }, 10*time.Second, time.Millisecond)
	require.NoError(t, kill())
	_, inflight := w.asSavepoint()
	require.Positive(t, inflight)
	return w
}

// TestRecordsInFlightAreRefusedByAnotherKindOfExchange: else one key would have state in several subtasks, and records that
// are meant for all would reach one.
func TestRecordsInFlightAreRefusedByAnotherKindOfExchange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after func(stream) stream
		words         []string
	}{
		"rebalance to group-by": {asRebalance, asGroupBy, []string{"stage x", "over a rebalance", "now a group-by"}},
		"group-by to rebalance": {asGroupBy, asRebalance, []string{"stage x", "over a group-by", "now a rebalance"}},
		"group-by to broadcast": {asGroupBy, asBroadcast, []string{"stage x", "over a group-by", "now a broadcast"}},
		"another codec":         {asRebalance, asOtherCodec, []string{"stage x", "another key or value codec"}},
	} {
		for _, old := range []bool{false, true} {
			if old {
				name += ", a root that does not say it"
			}
			t.Run(name, func(t *testing.T) {
				w := fly(t, c.before)
				if old {
					w.wrap = func(c Checkpoints) Checkpoints { return untold{c} }
				}
				after, cfg := kindPlan(t, 0, c.after), w.config()
				r, err := New(after, cfg, w.ports(), nil)
				require.NoError(t, err)
				err = r.Run(t.Context())
				require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
				require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
				for i, word := range append(c.words, "stop gracefully", "--allow-dropped-state") {
					if old && i == 1 {
						word = "another k"
					}
					require.ErrorContains(t, err, word)
				}

				// The way out: as it was, to a graceful stop. Then it is changed, and nothing is lost.
				stop, done := w.startPlan(kindPlan(t, 0, c.before), cfg, w.ports(), nil), w.done()
				require.Eventually(t, func() bool { return w.done() > done }, 10*time.Second, time.Millisecond)
				require.NoError(t, stop())
				w.wrap = nil
				w.produce(100, 17)
				stop = w.startPlan(after, cfg, w.ports(), nil)
				w.outputs()
				require.NoError(t, stop())
				w.exact()
			})
		}
	}
}

// TestRecordsInFlightOfAnotherKindMayBeLetGo: the flag lets them go, tells how many, and what comes then is exact.
func TestRecordsInFlightOfAnotherKindMayBeLetGo(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(stream) stream{"kind": asGroupBy, "codec": asOtherCodec} {
		for _, old := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := fly(t, asRebalance)
				if old {
					w.wrap = func(c Checkpoints) Checkpoints { return untold{c} }
				}
				var gone atomic.Int64
				cfg := w.config()
				cfg.AllowDropped = true
				stop := w.startPlan(kindPlan(t, 0, after), cfg, w.ports(), &Listener{Dropped: func(d snapshot.DroppedStage) {
					if d.Stage == "x" {
						gone.Add(d.InFlight)
					}
				}})
				require.Eventually(t, func() bool { return gone.Load() > 0 && w.done() == w.total()-int(gone.Load()) }, 10*time.Second, time.Millisecond,
					"%d went", gone.Load())
				require.NoError(t, stop())
			})
		}
	}
}

// besides gives roots that also hold a task with state of a source that the plan does not have.
type besides struct{ Checkpoints }

func (b besides) LoadRoots(ctx context.Context, refs []snapshot.RootRef) (map[snapshot.RootRef]snapshot.LoadedRoot, error) {
	roots, err := b.Checkpoints.LoadRoots(ctx, refs)
	for _, r := range roots {
		r.Root.Tasks = append(r.Root.Tasks, snapshot.TaskEntry{Task: element.TaskID{Source: "other"}, States: r.Root.Tasks[0].States})
	}
	return roots, err
}

// TestASourceThatIsTakenOutWithItsStateIsRefused where an exchange keeps all of an application in one instance. Without one
// the source may be another instance's, which has been changed before this one: its state is none of this one's business.
func TestASourceThatIsTakenOutWithItsStateIsRefused(t *testing.T) {
	w := newWorld(t, 2)
	plan := func() *topology.Plan { return exchangePlan(t, 2) }
	w.cut(plan(), aligned, 100)
	w.wrap = func(c Checkpoints) Checkpoints { return besides{c} }
	r, err := New(plan(), w.config(), w.ports(), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "no such source")

	cfg := w.config()
	cfg.AllowDropped = true
	var dropped atomic.Pointer[snapshot.DroppedStage]
	stop := w.startPlan(plan(), cfg, w.ports(), &Listener{Dropped: func(d snapshot.DroppedStage) { dropped.Store(&d) }})
	w.produce(100, 7)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
	require.Equal(t, "other", dropped.Load().Stage)
	require.Equal(t, 1, dropped.Load().Subtasks)
}

func TestASourceOfAnotherInstanceIsLeftToIt(t *testing.T) {
	w := newWorld(t, 2)
	w.cut(countPlan(t), aligned, 100)
	w.wrap = func(c Checkpoints) Checkpoints { return besides{c} }
	stop := w.startPlan(countPlan(t), w.config(), w.ports(), &Listener{Dropped: func(snapshot.DroppedStage) { t.Error("dropped") }})
	w.produce(100, 7)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}
