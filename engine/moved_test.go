package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// seenPersist looks at what checkpoints are made of, and fails some. Those in flight together are written side by side, so in
// any order, and some come to nothing because one before them did; roots are written one after the other.
type seenPersist struct {
	Checkpoints
	see  func(id element.CheckpointID, deltas []snapshot.TaskDelta) error
	root func(id element.CheckpointID)
}

func (s seenPersist) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	if err := s.see(name.ID, deltas); err != nil {
		return nil, err
	}
	return s.Checkpoints.Persist(ctx, name, deltas)
}

func (s seenPersist) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	s.root(root.Name.ID)
	return s.Checkpoints.WriteRoot(ctx, root)
}

// State that came from other tasks counts as committed: its first checkpoint has all of it, and so has the one that follows
// first ones which were given up, also of those in flight together. What follows has changes only.
func TestTheFirstCheckpointOfStateThatMovedIsWhole(t *testing.T) {
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			cfg := w.config()
			set(&cfg)
			stop := w.startPlan(exchangePlan(t, 1), cfg, w.ports(), nil)
			w.produce(600, 300)
			w.outputs()
			w.caughtUp()
			require.NoError(t, stop())
			var mu sync.Mutex
			var calls int
			whole := map[element.CheckpointID]bool{} // of the subtasks
			var fulls []bool                         // the same of those that got a root
			w.wrap = func(c Checkpoints) Checkpoints {
				return seenPersist{c, func(id element.CheckpointID, deltas []snapshot.TaskDelta) error {
					mu.Lock()
					defer mu.Unlock()
					if calls++; calls <= 2 {
						return errPlanted
					}
					moved := slices.DeleteFunc(slices.Clone(deltas), func(d snapshot.TaskDelta) bool { return !strings.HasPrefix(d.Task.Source, "by-key") })
					if len(moved) == 3 {
						whole[id] = !slices.ContainsFunc(moved, func(d snapshot.TaskDelta) bool { return !d.Full })
					}
					return nil
				}, func(id element.CheckpointID) {
					mu.Lock()
					defer mu.Unlock()
					if full, ok := whole[id]; ok {
						fulls = append(fulls, full)
					}
				}}
			}
			cfg.TolerableFailures, cfg.TransactionTimeout = checkpoint.Unlimited, time.Hour
			var attempts atomic.Int64
			stop = w.startPlan(exchangePlan(t, 3), cfg, w.ports(), &Listener{AttemptStarted: func(AttemptInfo) { attempts.Add(1) }})
			begun := w.total()
			w.produceUntil(func() bool {
				mu.Lock()
				defer mu.Unlock()
				return w.total() >= begun+800 && len(fulls) > 1 && slices.Contains(fulls, false)
			})
			w.outputs()
			w.caughtUp()
			require.NoError(t, stop())
			require.EqualValues(t, 1, attempts.Load())
			mu.Lock()
			require.Greater(t, len(fulls), 1)
			require.True(t, fulls[0])
			require.Contains(t, fulls, false)
			mu.Unlock()
			w.wrap = nil
			stop = w.startPlan(exchangePlan(t, 3), w.config(), w.ports(), nil)
			w.produce(600, 300)
			w.outputs()
			require.NoError(t, stop())
			w.exact()
		})
	}
}
