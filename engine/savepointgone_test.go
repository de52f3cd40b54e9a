package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// counted counts the savepoints that are written whole.
func counted(p Ports, n *atomic.Int64) Ports {
	write := p.WriteSavepoint
	p.WriteSavepoint = func(ctx context.Context, dir string, head snapshot.SavepointHead, tasks []snapshot.SavepointTask) (snapshot.SavepointRef, error) {
		ref, err := write(ctx, dir, head, tasks)
		if err == nil {
			n.Add(1)
		}
		return ref, err
	}
	return p
}

// The savepoint of a checkpoint that is given up goes with it: the next one writes it again, of the same request.
func TestTheSavepointOfAGivenUpCheckpointGoes(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t, 2), t.TempDir()
	var slow atomic.Bool
	var attempts, abandoned, written, opened atomic.Int64
	w.onSeal = func(element.CheckpointID) error {
		if slow.CompareAndSwap(true, false) {
			time.Sleep(500 * time.Millisecond)
		}
		return nil
	}
	cfg := w.config()
	cfg.Interval, cfg.TolerableFailures, cfg.CheckpointTimeout = 600*time.Millisecond, 1, 250*time.Millisecond
	r, err := New(countPlan(t), cfg, counted(withSavepoints(w.ports(), &opened), &written), &Listener{
		AttemptStarted:      func(AttemptInfo) { attempts.Add(1) },
		CheckpointAbandoned: func([]element.CheckpointID, checkpoint.FailureReason, error) { abandoned.Add(1) },
	})
	require.NoError(t, err)
	w.produce(100, 7)
	stop := w.run(r)
	w.checkpointed(r, 100)
	slow.Store(true)
	ref, err := r.Savepoint(t.Context(), "r1", dir)
	require.NoError(t, err)
	require.EqualValues(t, 1, abandoned.Load())
	require.EqualValues(t, 1, attempts.Load())
	require.EqualValues(t, 2, written.Load())
	list, err := snapshot.ListSavepoints(t.Context(), dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, ref.Path, list[0].Ref.Path)
	require.NoError(t, stop())
	w.exact()
}

// checkpointed takes checkpoints until there is an output for each of so many inputs.
func (w *world) checkpointed(r *Runner, inputs int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { _, _, _ = r.Checkpoint(w.t.Context()); return w.done() == inputs }, 8*time.Second, time.Millisecond)
}

// Nor does it stay where the attempt ends with the checkpoint: who asked for it is told that there is none.
func TestTheSavepointOfAnAttemptThatEndsGoes(t *testing.T) {
	t.Parallel()
	for _, final := range []bool{false, true} {
		w, dir := newWorld(t, 2), t.TempDir()
		var sick atomic.Bool
		var written, opened atomic.Int64
		w.wrap = func(c Checkpoints) Checkpoints { return failingRoots{c, &sick} }
		cfg := w.config()
		cfg.Interval = time.Hour
		r, err := New(countPlan(t), cfg, counted(withSavepoints(w.ports(), &opened), &written), nil)
		require.NoError(t, err)
		w.produce(100, 7)
		stop := w.run(r)
		w.checkpointed(r, 100)
		sick.Store(true)
		if final {
			wait, werr := r.StopWithSavepoint(t.Context(), "r1", dir)
			require.NoError(t, werr)
			_, err = wait(t.Context())
		} else {
			_, err = r.Savepoint(t.Context(), "r1", dir)
		}
		require.ErrorContains(t, err, "no space left")
		sick.Store(false)
		require.EqualValues(t, 1, written.Load())
		require.Eventually(t, func() bool {
			list, err := snapshot.ListSavepoints(t.Context(), dir)
			return err == nil && len(list) == 0
		}, 5*time.Second, time.Millisecond)
		require.NoError(t, stop())
	}
}

// So does that of a checkpoint whose commit failed, once the group says that it did. Where the commit happened, and its answer was
// lost, it stays.
func TestTheSavepointOfACommitThatFailedGoes(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"aborted": false, "answer lost": true} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorld(t, 2), t.TempDir()
			var spoil atomic.Bool
			var attempts, written, opened atomic.Int64
			w.onCommit = func(checkpoint.Commit) (apply bool, err error) {
				if spoil.CompareAndSwap(true, false) {
					return commits, errSpoiled
				}
				return true, nil
			}
			cfg := w.config()
			cfg.Interval = time.Hour
			r, err := New(countPlan(t), cfg, counted(withSavepoints(w.ports(), &opened), &written), &Listener{AttemptStarted: func(AttemptInfo) { attempts.Add(1) }})
			require.NoError(t, err)
			w.produce(100, 7)
			stop := w.run(r)
			w.checkpointed(r, 100)
			spoil.Store(true)
			_, err = r.Savepoint(t.Context(), "r1", dir)
			require.ErrorIs(t, err, errSpoiled)
			require.EqualValues(t, 1, written.Load())
			require.Eventually(t, func() bool { return attempts.Load() == 2 }, 8*time.Second, time.Millisecond)
			list, err := snapshot.ListSavepoints(t.Context(), dir)
			require.NoError(t, err)
			require.Equal(t, commits, len(list) == 1, "%v", list)
			require.NoError(t, stop())
			w.exact()
		})
	}
}
