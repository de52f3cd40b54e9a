package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// failingPersist fails some of the writes of changes, before or after they were made.
type failingPersist struct {
	Checkpoints
	fails func() bool
}

func (f failingPersist) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	out, err := f.Checkpoints.Persist(ctx, name, deltas)
	if f.fails() {
		return nil, fault.Restartf(fault.Failed, "planted: the store does not answer")
	}
	return out, err
}

// Checkpoints that fail are given up, and the next one covers their work; the attempt goes on, and nothing is lost or doubled.
func TestToleratedFailuresAreSubsumed(t *testing.T) {
	t.Parallel()
	plans := map[string]func(*testing.T) *topology.Plan{
		"chained":  countPlan,
		"exchange": func(t *testing.T) *topology.Plan { return exchangePlan(t, 3) },
	}
	for name, set := range modes {
		for kind, plan := range plans {
			t.Run(name+"/"+kind, func(t *testing.T) {
				w := newWorld(t, 3)
				var calls, attempts, abandoned atomic.Int64
				w.wrap = func(c Checkpoints) Checkpoints {
					return failingPersist{c, func() bool { return calls.Add(1)%3 != 0 }} // two of three
				}
				lis := &Listener{
					AttemptStarted: func(AttemptInfo) { attempts.Add(1) },
					AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
						if err != nil {
							t.Log(err)
						}
					},
					CheckpointAbandoned: func(ids []element.CheckpointID, _ checkpoint.FailureReason, _ error) {
						abandoned.Add(int64(len(ids)))
					},
				}
				cfg := w.config()
				set(&cfg)
				cfg.TolerableFailures, cfg.TransactionTimeout = 2, time.Hour
				if cfg.MaxConcurrent > 1 {
					cfg.TolerableFailures = checkpoint.Unlimited // failures of several in flight fall together
				}
				stop := w.startPlan(plan(t), cfg, w.ports(), lis)
				for range 60 {
					w.produce(50, 13)
					time.Sleep(time.Millisecond)
				}
				w.outputs()
				w.caughtUp()
				require.NoError(t, stop())
				w.exact()
				require.Greater(t, abandoned.Load(), int64(3))
				require.EqualValues(t, 1, attempts.Load(), "the attempt goes on")
			})
		}
	}
}

// One failure more than is tolerated ends the attempt, and the next one starts from the last commit.
func TestMoreFailuresThanAreToleratedEndTheAttempt(t *testing.T) {
	w := newWorld(t, 1)
	var calls, attempts atomic.Int64
	w.wrap = func(c Checkpoints) Checkpoints {
		return failingPersist{c, func() bool { n := calls.Add(1); return 3 <= n && n <= 5 }}
	}
	lis := &Listener{AttemptStarted: func(AttemptInfo) { attempts.Add(1) }}
	cfg := w.config()
	cfg.TolerableFailures, cfg.TransactionTimeout = 2, time.Hour
	stop := w.start(cfg, lis)
	w.produceUntil(func() bool { return attempts.Load() == 2 })
	w.outputs()
	require.NoError(t, stop())
	w.exact()
	require.EqualValues(t, 2, attempts.Load())
}

// hangingPersist does not come back from the first write of changes before it is told that nobody needs it any more.
type hangingPersist struct {
	Checkpoints
	hung *atomic.Bool
}

func (p hangingPersist) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	if p.hung.CompareAndSwap(false, true) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.Checkpoints.Persist(ctx, name, deltas)
}

// The work for a checkpoint that is given up ends with it, or the next one would wait for it.
func TestTheWritingOfAGivenUpCheckpointIsCancelled(t *testing.T) {
	w := newWorld(t, 2)
	var hung atomic.Bool
	w.wrap = func(c Checkpoints) Checkpoints { return hangingPersist{c, &hung} }
	cfg := w.config()
	cfg.TolerableFailures, cfg.CheckpointTimeout = checkpoint.Unlimited, 200*time.Millisecond
	var attempts, abandoned atomic.Int64
	stop := w.start(cfg, &Listener{
		AttemptStarted:      func(AttemptInfo) { attempts.Add(1) },
		CheckpointAbandoned: func([]element.CheckpointID, checkpoint.FailureReason, error) { abandoned.Add(1) },
	})
	w.produce(100, 7)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.True(t, hung.Load())
	require.EqualValues(t, 1, attempts.Load())
	require.Positive(t, abandoned.Load())
}

// Of several checkpoints that are given up at once the tasks hear of all: the barrier of any of them may be in their hands.
func TestTasksHearOfAllCheckpointsThatAreGivenUp(t *testing.T) {
	w := newWorld(t, 1)
	h := newHearing(t, 0)
	a := &attempt{r: &Runner{lis: &Listener{}}, ctx: t.Context(), order: []element.TaskID{h.id}, tasks: map[element.TaskID]*owned{h.id: {task: h.task}},
		sink: &worldSink{w: w, m: w.member}, released: &step{over: closed}}
	a.abandon(checkpoint.Abandon{IDs: []element.CheckpointID{7, 8, 9}})
	a.wg.Wait()
	it, ok := h.inbox.tryPopNotice()
	require.True(t, ok)
	require.Equal(t, span{7, 9}, it.abandoned)
}
