package engine

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/topology"
)

// A savepoint at the stop has everything that was committed: nothing is processed behind it.
func TestASavepointAtTheStopIsNotBehindTheCommits(t *testing.T) {
	plans := map[string]func(*testing.T) *topology.Plan{
		"chained":  countPlan,
		"exchange": func(t *testing.T) *topology.Plan { return exchangePlan(t, 3) },
	}
	for name, set := range modes {
		for kind, plan := range plans {
			t.Run(name+"/"+kind, func(t *testing.T) {
				w := newWorld(t, 3)
				cfg := w.config()
				set(&cfg)
				var opened atomic.Int64
				r, err := New(plan(t), cfg, withSavepoints(w.ports(), &opened), nil)
				require.NoError(t, err)
				stop := w.run(r)
				w.produceUntil(func() bool { return w.done() > 300 })
				w.produce(200, 7) // so that there is something to do when it stops
				wait, err := r.SavepointAtStop(t.Context(), "", t.TempDir())
				require.NoError(t, err)
				require.NoError(t, stop())
				ref, err := wait(t.Context())
				require.NoError(t, err)
				require.Equal(t, w.counts(), contents(t, ref.Path), "what was committed, and nothing else")
			})
		}
	}
}

func TestASavepointAtTheStopIsRefusedWhenThereIsNone(t *testing.T) {
	w := newWorld(t, 1)
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	_, err = r.SavepointAtStop(t.Context(), "", t.TempDir())
	require.ErrorContains(t, err, "nothing is being processed")
}
