package engine

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// losses notes what a listener hears of state that goes.
type losses struct {
	mu      sync.Mutex
	held    []snapshot.HeldState
	unsaved []element.TaskID
	empty   []element.TaskID
	back    map[element.TaskID]snapshot.RootRef
	dropped []snapshot.DroppedStage
	started chan AttemptInfo
}

func (l *losses) listener() *Listener {
	note := func(f func()) { l.mu.Lock(); defer l.mu.Unlock(); f() }
	l.started, l.back = make(chan AttemptInfo, 100), map[element.TaskID]snapshot.RootRef{}
	return &Listener{
		AttemptStarted: func(i AttemptInfo) { l.started <- i },
		LetGo:          func(h snapshot.HeldState) { note(func() { l.held = append(l.held, h) }) },
		Unsaved: func(ts []element.TaskID, _ element.CheckpointName) {
			note(func() { l.unsaved = append(l.unsaved, ts...) })
		},
		StartsEmpty: func(t element.TaskID, _ element.CheckpointName) { note(func() { l.empty = append(l.empty, t) }) },
		TakenBack:   func(t element.TaskID, left snapshot.RootRef) { note(func() { l.back[t] = left }) },
		Dropped:     func(d snapshot.DroppedStage) { note(func() { l.dropped = append(l.dropped, d) }) },
	}
}

// TestNoSnapshotsOverState: state is let go on request only, then for all tasks at once whether a record comes or not, and the
// way back says so.
func TestNoSnapshotsOverState(t *testing.T) {
	for kind, plan := range map[string]*topology.Plan{"chained": countPlan(t), "exchange": exchangePlan(t, 2)} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			stop := w.startPlan(plan, w.config(), w.ports(), nil)
			w.produce(100, 5)
			w.outputs()
			require.NoError(t, stop())
			before := maps.Clone(w.committed)
			cfg := w.config()
			cfg.AtLeastOnce, cfg.NoSnapshots = true, true
			r, err := New(plan, cfg, w.ports(), nil)
			require.NoError(t, err)
			err = r.Run(t.Context())
			require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
			require.ErrorContains(t, err, "--allow-dropped-state")
			require.Equal(t, before, w.committed, "the way back is as it was")

			w.loose()
			cfg.AllowDropped = true
			var l losses
			stop = w.startPlan(plan, cfg, w.ports(), l.listener())
			<-l.started
			require.NoError(t, stop())
			require.Len(t, l.held, 1)
			require.NotEmpty(t, l.held[0].States)
			require.Empty(t, l.empty, "nothing was committed there that says so")
			for _, c := range w.committed {
				h, err := snapshot.ParseHandle(c.Metadata)
				require.NoError(t, err)
				require.Equal(t, snapshot.HandleUnsaved, h.Kind)
			}

			w.plain = false
			var back losses
			stop = w.startPlan(plan, w.config(), w.ports(), back.listener())
			w.produce(100, 5)
			w.outputs()
			require.NoError(t, stop())
			require.Equal(t, []element.TaskID{{Source: "in"}, {Source: "in", Partition: 1}}, slices.Compact(back.unsaved))
			require.Empty(t, back.empty)
			n, err := serde.Int64().Decode(w.output[100].Value)
			require.NoError(t, err)
			require.EqualValues(t, 1, n, "the state began empty")

			var after losses // and that is that
			stop = w.startPlan(plan, w.config(), w.ports(), after.listener())
			<-after.started
			require.NoError(t, stop())
			require.Empty(t, after.unsaved)
		})
	}
}

// statelessPlan copies records, over an exchange if wanted.
func statelessPlan(t *testing.T, source string, exchange bool) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, source, "in", serde.String(), serde.String())
	if exchange {
		in = topology.Rebalance(in, "spread", serde.String(), serde.String(), topology.Parallelism(2))
	}
	topology.ToTopic(in, "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// TestNoSnapshotsWithoutState: where there is no state nothing is asked, said or to be renamed back.
func TestNoSnapshotsWithoutState(t *testing.T) {
	for kind, exchange := range map[string]bool{"chained": false, "exchange": true} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			var l losses
			for i, name := range []string{"in", "other", "in", "in"} {
				cfg := w.config()
				cfg.NoSnapshots = i == 2
				cfg.AtLeastOnce, w.plain = cfg.NoSnapshots, cfg.NoSnapshots
				stop := w.startPlan(statelessPlan(t, name, exchange), cfg, w.ports(), l.listener())
				w.produce(50, 5)
				w.outputs()
				w.caughtUp()
				require.NoError(t, stop())
			}
			require.Empty(t, l.held)
			require.Empty(t, l.unsaved)
			require.Empty(t, l.dropped)
		})
	}
}

// TestNoSnapshotsLetsGoWhatJoinsLater: a partition that comes from an instance with checkpoints is let go with a commit of its
// own, though no record comes.
func TestNoSnapshotsLetsGoWhatJoinsLater(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(100, 5)
	w.outputs()
	require.NoError(t, stop())
	w.loose()
	cfg := w.config()
	cfg.AtLeastOnce, cfg.NoSnapshots, cfg.AllowDropped = true, true, true
	w.assign(1)
	var l losses
	stop = w.start(cfg, l.listener())
	<-l.started
	unsaved := func() (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range w.committed {
			if h, err := snapshot.ParseHandle(c.Metadata); err == nil && h.Kind == snapshot.HandleUnsaved {
				n++
			}
		}
		return n
	}
	require.Equal(t, 1, unsaved())
	w.assign(2)
	require.Eventually(t, func() bool { return unsaved() == 2 }, 5*time.Second, time.Millisecond)
	require.NoError(t, stop())
	require.Len(t, l.held, 2)
}

// TestNoSnapshotsOverForgottenOffsets: what the store knows of tasks that the group has forgotten is let go on request only, like
// state. What is committed then is not older than what lies there.
func TestNoSnapshotsOverForgottenOffsets(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(100, 5)
	w.caughtUp()
	require.NoError(t, stop())
	infos, err := w.repo.List(t.Context())
	require.NoError(t, err)
	newest := infos[0].Ref.Name.ID
	w.forget()

	cfg := w.config()
	cfg.AtLeastOnce, cfg.NoSnapshots, w.plain = true, true, true
	r, err := New(countPlan(t), cfg, w.ports(), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	require.True(t, snapshot.RefusalOf(err).Has(snapshot.ReasonOffsetsExpired), "%v", err)
	require.ErrorContains(t, err, "begin where the sources start with --allow-dropped-state")
	require.Empty(t, w.committed)

	w.loose()
	cfg.AllowDropped = true
	var l losses
	stop = w.start(cfg, l.listener())
	<-l.started
	require.NoError(t, stop())
	require.Len(t, l.held, 1)
	require.True(t, l.held[0].Forgotten)
	require.Equal(t, []element.TaskID{{Source: "in"}, {Source: "in", Partition: 1}}, l.held[0].Tasks)
	require.NotEmpty(t, l.held[0].States)
	for _, c := range w.committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		require.NoError(t, err)
		require.GreaterOrEqual(t, h.Root.Name.ID, newest)
	}

	w.plain = false
	stop = w.start(w.config(), nil) // what lies there is older
	w.produce(100, 5)
	w.caughtUp()
	require.NoError(t, stop())
	h, err := snapshot.ParseHandle(w.committed[tp(0)].Metadata)
	require.NoError(t, err)
	require.Greater(t, h.Root.Name.ID, newest)
}
