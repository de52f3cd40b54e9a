package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// loose makes the world one without transactions: what is written is there at once, and what a commit covers is only the
// positions.
func (w *world) loose() { w.plain = true }

// gaps checks at-least-once: every value of every key is there, and says how many are there more than once.
func (w *world) gaps() (repeats int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[string]int64{}
	for _, log := range w.logs {
		for _, r := range log {
			want[string(r.Key)]++
		}
	}
	seen := map[string]map[int64]int{}
	for _, r := range w.output {
		n, err := serde.Int64().Decode(r.Value)
		require.NoError(w.t, err)
		if seen[string(r.Key)] == nil {
			seen[string(r.Key)] = map[int64]int{}
		}
		seen[string(r.Key)][n]++
	}
	for key, n := range want {
		for v := int64(1); v <= n; v++ {
			require.Positive(w.t, seen[key][v], "key %s: value %d is missing", key, v)
		}
		for _, times := range seen[key] {
			repeats += times - 1
		}
	}
	return repeats
}

// crash runs a plan through losses and ends of the attempt, in at-least-once mode.
func (w *world) crash(plan *topology.Plan, cfg Config) {
	w.t.Helper()
	stop := w.startPlan(plan, cfg, w.ports(), nil)
	for i := range 8 {
		until := w.done() + 50
		w.produceUntil(func() bool { return w.done() > until })
		if i%2 == 0 {
			w.assign(len(w.logs)) // everything is lost and comes back
		}
	}
	require.Eventually(w.t, func() bool { return w.done() >= w.total() }, 10*time.Second, time.Millisecond)
	w.caughtUp()
	require.NoError(w.t, stop())
}

// Without fan-in the state is exact also at least once: the greatest count of a key is the number of its records.
func TestAtLeastOnceWithoutFanInKeepsTheStateExact(t *testing.T) {
	w := newWorld(t, 2)
	w.loose()
	cfg := w.config()
	cfg.AtLeastOnce = true
	w.crash(countPlan(t), cfg)
	repeats := w.gaps()
	require.Equal(t, w.inputs(), w.greatest(), "the state is exact")
	require.Positive(t, repeats, "nothing came again: the test does not show what the mode means")
}

// With fan-in, records behind a barrier may be in the state and come again: nothing is missing, counts may be too high.
func TestAtLeastOnceWithFanInLosesNothing(t *testing.T) {
	t.Parallel()
	over := 0
	for i := 0; i < 10 && over == 0; i++ {
		w := newWorld(t, 4)
		w.loose()
		cfg := w.config()
		cfg.AtLeastOnce, cfg.ChannelRecords = true, 4
		w.crash(slowPlan(t, 2, 20*time.Microsecond), cfg)
		w.gaps()
		greatest := w.greatest()
		for key, n := range w.inputs() {
			require.GreaterOrEqual(t, greatest[key], n, "key %s", key)
			over += int(greatest[key] - n)
		}
	}
	require.Positive(t, over, "no record was ever in the state and processed again: the test does not show what the mode means")
	t.Logf("%d records were counted more than once", over)
}

func (w *world) inputs() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int64{}
	for _, log := range w.logs {
		for _, r := range log {
			n[string(r.Key)]++
		}
	}
	return n
}

func (w *world) greatest() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int64{}
	for _, r := range w.output {
		v, err := serde.Int64().Decode(r.Value)
		require.NoError(w.t, err)
		n[string(r.Key)] = max(n[string(r.Key)], v)
	}
	return n
}

// Without snapshots nothing is written, positions are committed all the same, and every attempt begins with empty state.
func TestNoSnapshots(t *testing.T) {
	for kind, plan := range map[string]*topology.Plan{"chained": countPlan(t), "exchange": exchangePlan(t, 2)} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			stop := w.startPlan(plan, w.config(), w.ports(), nil) // with checkpoints first
			w.produce(100, 5)
			w.outputs()
			require.NoError(t, stop())
			w.loose()
			cfg := w.config()
			cfg.AtLeastOnce, cfg.NoSnapshots = true, true
			cfg.AllowDropped = true
			started := make(chan AttemptInfo, 10)
			stop = w.startPlan(plan, cfg, w.ports(), &Listener{AttemptStarted: func(i AttemptInfo) { started <- i }}) // lets their state go
			<-started
			require.NoError(t, stop())
			cfg.AllowDropped = false
			w.wrap = func(c Checkpoints) Checkpoints { return noWrites{c, t} }
			stop = w.startPlan(plan, cfg, w.ports(), nil)
			w.produce(100, 5)
			w.outputs()
			w.caughtUp()
			r := w.r
			_, _, err := r.Checkpoint(t.Context())
			require.ErrorContains(t, err, "checkpointing.interval: disabled")
			_, err = r.Savepoint(t.Context(), "", t.TempDir())
			require.ErrorContains(t, err, "checkpointing.interval: disabled")
			_, err = r.StopWithSavepoint(t.Context(), "", t.TempDir())
			require.Equal(t, fault.NotRunning, fault.CodeOf(err))
			require.NoError(t, stop())
			w.mu.Lock()
			n, err := serde.Int64().Decode(w.output[100].Value)
			w.mu.Unlock()
			require.NoError(t, err)
			require.EqualValues(t, 1, n, "the state began empty")
			w.wrap, w.plain = nil, false
			stop = w.startPlan(plan, w.config(), w.ports(), nil) // and with checkpoints again: empty at the committed positions
			w.produce(100, 5)
			w.outputs()
			require.NoError(t, stop())
			w.mu.Lock()
			defer w.mu.Unlock()
			require.Len(t, w.output, 300)
		})
	}
}

// noWrites fails the test when anything is written to the checkpoints or read from them.
type noWrites struct {
	Checkpoints
	t *testing.T
}

func (n noWrites) Persist(context.Context, element.CheckpointName, []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	n.t.Error("changes are written")
	return nil, errPlanted
}

func (n noWrites) WriteRoot(context.Context, *snapshot.Root) (snapshot.RootRef, error) {
	n.t.Error("a root is written")
	return snapshot.RootRef{}, errPlanted
}

func (n noWrites) LoadRoots(context.Context, []snapshot.RootRef) (map[snapshot.RootRef]snapshot.LoadedRoot, error) {
	n.t.Error("roots are read")
	return nil, errPlanted
}
