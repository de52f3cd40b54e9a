package processor

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
)

// TestACancelWithoutItsSavepointGoesOn: who wants a savepoint does not want to end without one.
func TestACancelWithoutItsSavepointGoesOn(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "saved"
	b.groups[app] = true
	cfg, a := b.instance("a")
	var full atomic.Bool
	full.Store(true)
	cfg.Decorate = func(p *engine.Ports) {
		write := p.WriteSavepoint
		p.WriteSavepoint = func(ctx context.Context, dir string, head snapshot.SavepointHead, tasks []snapshot.SavepointTask) (snapshot.SavepointRef, error) {
			if full.Load() {
				return snapshot.SavepointRef{}, fault.Restartf(fault.CheckpointDir, "savepoint directory %s is full", dir)
			}
			return write(ctx, dir, head, tasks)
		}
	}
	var stopping atomic.Int64
	cfg.Stopping = func() { stopping.Add(1) }
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), countPlan(t, app), cfg) }()
	a.says("/readyz", 200, "processing")
	b.produce(0, 500)
	dir := filepath.Join(b.dir, "savepoints")
	cancel := func() Outcome {
		out, err := SendAll(t.Context(), app, cfg, Send{Command: CancelCommand, Savepoint: true, Dir: dir, Timeout: 20 * time.Second})
		require.NoError(t, err)
		require.Len(t, out.Replies, 1)
		return out
	}
	out := cancel()
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(out.Err()), "%v", out.Err())
	require.ErrorContains(t, out.Err(), "is full")
	require.ErrorContains(t, out.Err(), "the instance goes on")
	require.Zero(t, stopping.Load())
	a.says("/readyz", 200, "processing")
	b.produce(500, 500)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)

	full.Store(false)
	out = cancel()
	require.NoError(t, out.Err())
	require.NotEmpty(t, out.Replies[0].Path)
	require.NoError(t, <-done)
	require.EqualValues(t, 1, stopping.Load())
}
