package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// Who waits for a checkpoint when the group moves partitions is told that it did not go at the moment; a failure stays one.
func TestWhoWaitsForACheckpointIsToldWhetherItFailed(t *testing.T) {
	for _, c := range []struct {
		cause error
		code  fault.Code
	}{
		{fault.New(fault.Rejoin, fault.Failed, "the group took orders/0 away"), fault.NotRunning},
		{errors.New("the disk is gone"), fault.Failed},
		{fmt.Errorf("checkpoint 7: %w", fault.Restartf(fault.CheckpointDir, "checkpoint directory d: it is full")), fault.CheckpointDir},
		{fault.Stopf(fault.OK, "it has outlived the application"), fault.NotRunning},
		{fmt.Errorf("the attempt: %w", errStopped), fault.NotRunning},
		{fmt.Errorf("the attempt: %w", errRedrawn), fault.NotRunning},
		{errStandBy, fault.NotRunning},
		{errGained, fault.NotRunning},
		{errUnsaved, fault.NotRunning},
		{errFinished, fault.NotRunning},
	} {
		q := &request{reply: make(chan answer, 1)}
		a := &attempt{requests: []*request{q}}
		a.unserved(c.cause)
		err := (<-q.reply).err
		require.ErrorIs(t, err, c.cause)
		require.Equal(t, c.code, fault.CodeOf(err))
		require.Empty(t, a.requests)
	}
}

// waitingPersist lets no write of changes begin until it is told to go on.
type waitingPersist struct {
	Checkpoints
	begun chan element.CheckpointID
	on    chan struct{}
}

func (p waitingPersist) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	select {
	case p.begun <- name.ID:
		<-p.on
	case <-p.on:
	}
	return p.Checkpoints.Persist(ctx, name, deltas)
}

// Who asks for a checkpoint wants what he has seen to be in it: one that was in flight then is no answer.
func TestWhoAsksForACheckpointGetsALaterOne(t *testing.T) {
	w := newWorld(t, 1)
	wait := waitingPersist{begun: make(chan element.CheckpointID), on: make(chan struct{})}
	w.wrap = func(c Checkpoints) Checkpoints { wait.Checkpoints = c; return wait }
	cfg := w.config()
	cfg.Interval = time.Hour // but for the first one
	stop := w.start(cfg, nil)
	w.produce(10, 2)
	inFlight := <-wait.begun
	w.produce(10, 2)
	require.Eventually(t, func() bool {
		s, err := w.r.Status(t.Context())
		return err == nil && len(s.Tasks) == 1 && s.Tasks[0].Records == 20
	}, 5*time.Second, time.Millisecond)
	q := &request{}
	require.NoError(t, w.r.place(t.Context(), q))
	close(wait.on)
	ans, err := q.await(t.Context())
	require.NoError(t, err)
	require.False(t, ans.skipped)
	require.Greater(t, ans.stats.ID, inFlight)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}
