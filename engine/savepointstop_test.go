package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// A savepoint at the stop has everything that was committed: nothing is processed behind it.
func TestASavepointAtTheStopIsNotBehindTheCommits(t *testing.T) {
	t.Parallel()
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
				wait, err := r.StopWithSavepoint(t.Context(), "", t.TempDir())
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
	var asked []*request
	for i, d := range []string{dir, link, other, "file://" + link} {
		asked = append(asked, &request{savepoint: fmt.Sprintf("s%d", i), id: fmt.Sprintf("r%d", i), dir: d, final: true, reply: make(chan answer, 1)})
	}
	require.NoError(t, r.ask(t.Context(), func(a *attempt) error { // before the loop does anything else
		for _, q := range asked {
			require.NoError(t, a.take(q))
		}
		return nil
	}))
	var refs []snapshot.SavepointRef
	for _, q := range asked {
		ans, err := q.await(t.Context())
		require.NoError(t, err)
		refs = append(refs, ans.savepoint)
	}
	require.NoError(t, stop())
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

// TestWhatCannotEndWithItsSavepointGoesOn: the last checkpoint is taken, the savepoint is not, and another attempt follows. With
// a directory that can be written the end comes by itself, also when nobody waits for it.
func TestWhatCannotEndWithItsSavepointGoesOn(t *testing.T) {
	for kind, plan := range map[string]*topology.Plan{"chained": countPlan(t), "exchange": exchangePlan(t, 3)} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			var opened, attempts atomic.Int64
			lis := &Listener{AttemptStarted: func(AttemptInfo) { attempts.Add(1) },
				AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) { assert.NoError(t, err, "no failure") }}
			r, err := New(plan, w.config(), withSavepoints(w.ports(), &opened), lis)
			require.NoError(t, err)
			over := make(chan error, 1)
			go func() { over <- r.Run(t.Context()) }()
			w.produceUntil(func() bool { return w.done() > 100 })
			file := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			for range 2 {
				wait, err := r.StopWithSavepoint(t.Context(), "", file)
				require.NoError(t, err)
				_, err = wait(t.Context())
				require.ErrorContains(t, err, "savepoint directory "+file)
				until := w.done() + 100
				w.produceUntil(func() bool { return w.done() > until })
			}
			require.False(t, r.Halted())
			require.EqualValues(t, 3, attempts.Load())
			dir := t.TempDir()
			_, err = r.StopWithSavepoint(t.Context(), "", dir)
			require.NoError(t, err)
			require.NoError(t, <-over)
			require.True(t, r.Halted())
			list, err := snapshot.ListSavepoints(t.Context(), dir)
			require.NoError(t, err)
			require.Len(t, list, 1)
			require.Equal(t, w.counts(), contents(t, list[0].Ref.Path), "what was committed, and nothing else")
		})
	}
}

// TestNobodyEndsWithASavepointOfACheckpointThatFails: the attempt fails, and the next one goes on.
func TestNobodyEndsWithASavepointOfACheckpointThatFails(t *testing.T) {
	w := newWorld(t, 2)
	var opened atomic.Int64
	var fail atomic.Bool
	w.wrap = func(c Checkpoints) Checkpoints { return failingRoots{c, &fail} }
	r, err := New(countPlan(t), w.config(), withSavepoints(w.ports(), &opened), nil)
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() > 50 })
	fail.Store(true)
	wait, err := r.StopWithSavepoint(t.Context(), "", t.TempDir())
	if err == nil {
		_, err = wait(t.Context())
	}
	require.Error(t, err)
	fail.Store(false)
	until := w.done() + 100
	w.produceUntil(func() bool { return w.done() > until })
	require.False(t, r.Halted())
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

// failingRoots writes no roots, when told so.
type failingRoots struct {
	Checkpoints
	fail *atomic.Bool
}

func (f failingRoots) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	if f.fail.Load() {
		return snapshot.RootRef{}, errors.New("no space left")
	}
	return f.Checkpoints.WriteRoot(ctx, root)
}

func TestASavepointAtTheStopIsRefusedWhenThereIsNone(t *testing.T) {
	w := newWorld(t, 1)
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	_, err = r.StopWithSavepoint(t.Context(), "", t.TempDir())
	require.ErrorContains(t, err, "nothing is being processed")
}
