package engine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// After a cancel that keeps no state everything is committed, and the next start begins empty where it ended.
func TestACancelThatKeepsNoState(t *testing.T) {
	t.Parallel()
	for kind, plan := range map[string]*topology.Plan{"chained": countPlan(t), "exchange": exchangePlan(t, 2)} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			r, err := New(plan, w.config(), w.ports(), nil)
			require.NoError(t, err)
			stop := w.run(r)
			w.produceUntil(func() bool { return w.done() > 100 })
			r.Forget()
			require.NoError(t, stop())
			require.True(t, r.Forgotten())
			w.mu.Lock()
			w.output = nil // what came before is exact by other tests; from here on counts begin at 1
			for p, log := range w.logs {
				require.LessOrEqual(t, w.committed[tp(int32(p))].Offset, int64(len(log)))
			}
			w.mu.Unlock()
			left := 0
			w.mu.Lock()
			for p, log := range w.logs {
				left += len(log) - int(w.committed[tp(int32(p))].Offset)
			}
			w.mu.Unlock()
			var empty atomic.Int64
			stop = w.startPlan(plan, w.config(), w.ports(), &Listener{StartsEmpty: func(element.TaskID, element.CheckpointName) { empty.Add(1) }})
			w.produce(70, 7)
			require.Eventually(t, func() bool { return w.done() >= left+70 }, 10*time.Second, time.Millisecond)
			require.NoError(t, stop())
			require.EqualValues(t, 2, empty.Load(), "it says so")
			lowest := map[string]int64{}
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, rec := range w.output {
				n, err := serde.Int64().Decode(rec.Value)
				require.NoError(t, err)
				require.Equal(t, lowest[string(rec.Key)]+1, n)
				lowest[string(rec.Key)] = n
			}
		})
	}
}

// When that cannot be committed, the state stays and the next start goes on with it.
func TestACancelThatCannotForgetKeepsTheState(t *testing.T) {
	w := newWorld(t, 2)
	var cancelled atomic.Bool
	w.onCommit = func(c checkpoint.Commit) (bool, error) {
		if cancelled.Load() && !c.Permit.Valid() {
			return false, errors.New("planted")
		}
		return true, nil
	}
	var failed atomic.Int64
	r, err := New(countPlan(t), w.config(), w.ports(), &Listener{ForgetFailed: func(error) { failed.Add(1) }})
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() > 100 })
	cancelled.Store(true)
	r.Forget()
	require.NoError(t, stop())
	require.False(t, r.Forgotten())
	require.EqualValues(t, 1, failed.Load())
	w.onCommit = nil
	stop = w.start(w.config(), nil)
	w.produce(70, 7)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}
