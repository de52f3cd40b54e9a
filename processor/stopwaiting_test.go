package processor

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
)

// A cancel between a failed attempt and the next one takes no last checkpoint, says so, and deletes nothing.
func TestACancelBetweenTwoAttemptsSaysSo(t *testing.T) {
	b := newBed(t)
	cfg, o := b.instance("a")
	cfg.Interval, cfg.Retention = 200*time.Millisecond, DeleteOnCancellation
	cfg.Restart.Exponential.InitialBackoff, cfg.Restart.Exponential.MaxBackoff = time.Minute, time.Minute
	broken := new(atomic.Bool)
	cfg.Decorate = func(p *engine.Ports) { p.Checkpoints = guarded{p.Checkpoints, nil, broken} }
	done := make(chan error, 1)
	go func() { done <- Run(context.Background(), countPlan(t, "waiting"), cfg) }()
	o.says("/readyz", 200, "processing")
	b.produce(0, 100)
	require.Eventually(t, func() bool { return sum(o.metrics("number_of_completed_checkpoints")) > 0 }, 20*time.Second, 20*time.Millisecond)
	broken.Store(true)
	b.produce(100, 100)
	o.says("/readyz", 503, "another one follows")
	_, err := o.client().Cancel(t.Context(), admin.Cancel{})
	require.Equal(t, fault.Unfinished, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "and deletes no checkpoints: the last attempt had failed")
	require.NoError(t, <-done)
	files, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, "*", "*", "chk-*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
}
