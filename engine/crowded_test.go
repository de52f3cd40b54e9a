package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/topology"
)

// Tasks that hold more than may be uncommitted take nothing before the next commit. When the checkpoint for it fails and that is
// tolerated, the next one does not wait for the interval, which may be an hour.
func TestWhatStandsForACheckpointThatFailedDoesNotStandForTheInterval(t *testing.T) {
	for kind, plan := range map[string]*topology.Plan{"chained": countPlan(t), "exchange": exchangePlan(t, 2)} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			var calls, abandoned atomic.Int64
			w.wrap = func(c Checkpoints) Checkpoints {
				return failingPersist{c, func() bool { return calls.Add(1) <= 2 }}
			}
			cfg := w.config()
			cfg.Interval, cfg.UncommittedLimit, cfg.TolerableFailures = time.Hour, 1, 3
			stop := w.startPlan(plan, cfg, w.ports(), &Listener{
				CheckpointAbandoned: func([]element.CheckpointID, checkpoint.FailureReason, error) { abandoned.Add(1) },
			})
			w.produce(200, 7)
			w.caughtUp()
			require.EqualValues(t, 2, abandoned.Load())
			require.NoError(t, stop())
			w.exact()
		})
	}
}

// Nor does one that asks for a checkpoint early ask for the next one with every batch: what fails at once is tried again after a
// pause, so that the failures that are tolerated last for a while.
func TestAnEarlyCheckpointThatFailsAtOnceIsNotTriedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var sick atomic.Bool
	var abandoned atomic.Int64
	w.wrap = func(c Checkpoints) Checkpoints { return failingPersist{c, sick.Load} }
	cfg := w.config()
	cfg.Interval, cfg.UncommittedLimit, cfg.TolerableFailures = time.Hour, 20_000, checkpoint.Unlimited
	stop := w.startPlan(countPlan(t), cfg, w.ports(), &Listener{
		CheckpointAbandoned: func([]element.CheckpointID, checkpoint.FailureReason, error) { abandoned.Add(1) },
	})
	const keys = 1 << 20
	w.produce(1, keys)
	w.caughtUp() // the first checkpoint is behind
	sick.Store(true)
	begun := time.Now()
	for abandoned.Load() == 0 {
		w.produce(20, keys)
		time.Sleep(time.Millisecond)
	}
	for range 50 {
		w.produce(1, keys)
		time.Sleep(10 * time.Millisecond)
	}
	n := abandoned.Load()
	// One may be asked for while another one is in flight: it follows that at once.
	require.LessOrEqual(t, n, 2*(1+int64(time.Since(begun)/crowdedPause)), "then there is a pause")
	sick.Store(false)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}

// The share of each becomes smaller when tasks join. One that holds twice its new share takes nothing any more, and so would not
// ask for the checkpoint that it stands for.
func TestATaskWhoseShareHasShrunkIsCrowded(t *testing.T) {
	a := &attempt{r: &Runner{cfg: Config{UncommittedLimit: 1000}}, tasks: map[element.TaskID]*owned{}}
	for p := range int32(4) {
		a.tasks[element.TaskID{Source: "in", Partition: p}] = &owned{task: &task{stats: &taskStats{}}}
		a.tasks[element.TaskID{Source: "in"}].stats.uncommitted.Store(900)
		a.share()
		require.Equal(t, p > 1, a.crowded(), "each may have %d", 1000/(p+1))
	}
}

// A task that asks for a checkpoint right behind one that has failed gets it when the pause is over, also where its share has
// become larger, as when idle partitions leave: it does not ask again when it has filled that.
func TestWhoAsksEarlyBehindAFailureIsNotForgotten(t *testing.T) {
	in := element.TaskID{Source: "in"}
	a := &attempt{
		r: &Runner{cfg: Config{UncommittedLimit: 1000}}, tasks: map[element.TaskID]*owned{in: {task: &task{stats: &taskStats{}}}},
		co: checkpoint.New(checkpoint.Config{Interval: time.Hour, Timeout: time.Minute}, 0), retry: make(chan time.Time),
	}
	a.co.AddTask(0, in)
	a.co.Moved(0, in)
	a.tasks[in].stats.uncommitted.Store(900)
	a.share()
	require.Empty(t, a.tryAgain(), "nobody has asked, and nobody holds more than its share")
	a.retry = make(chan time.Time)
	now, err := a.handle(event{kind: evEarly, task: in})
	require.NoError(t, err)
	require.Empty(t, now, "one has just failed")
	later := a.tryAgain()
	require.Len(t, later, 1)
	require.IsType(t, checkpoint.Trigger{}, later[0])
}
