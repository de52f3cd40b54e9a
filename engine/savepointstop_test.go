package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/snapshot"
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

// TestSavepointsOfOneCheckpointInOneDirectory: two that ask for it by different names get the same one.
func TestSavepointsOfOneCheckpointInOneDirectory(t *testing.T) {
	w := newWorld(t, 1)
	var opened atomic.Int64
	r, err := New(countPlan(t), w.config(), withSavepoints(w.ports(), &opened), nil)
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() > 50 })
	dir, other := t.TempDir(), t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	var waits []func(context.Context) (snapshot.SavepointRef, error)
	for i, d := range []string{dir, link, other, "file://" + link} {
		wait, err := r.SavepointAtStop(t.Context(), fmt.Sprintf("r%d", i), d)
		require.NoError(t, err)
		waits = append(waits, wait)
	}
	require.NoError(t, stop())
	var refs []snapshot.SavepointRef
	for _, wait := range waits {
		ref, err := wait(t.Context())
		require.NoError(t, err)
		refs = append(refs, ref)
	}
	require.Equal(t, refs[0], refs[1])
	require.Equal(t, refs[0], refs[3])
	require.NotEqual(t, refs[0].Path, refs[2].Path)
	for i, requests := range [][]string{{"r0", "r1", "r3"}, 2: {"r2"}} {
		if requests != nil {
			s, err := snapshot.OpenSavepoint(t.Context(), refs[i].Path)
			require.NoError(t, err)
			require.Equal(t, requests, s.Requests)
			require.NoError(t, s.Close())
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
