package engine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
)

// A broker that asks for an abort and another try gets it, as often as between two commits is nothing to worry about, and a
// restart strategy that allows none does not see it. One that asks for ever is a failure.
func TestWhatTheBrokerAsksForIsNoFailureUntilItNeverEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var tries atomic.Int64
	var forever atomic.Bool
	w.onCommit = func(checkpoint.Commit) (bool, error) {
		if n := tries.Add(1); n <= mostAsked || forever.Load() {
			class := []fault.Recovery{fault.Restart, fault.Unconfirmed}[n%2] // as to Produce and to EndTxn
			return false, fault.New(class, fault.Failed, "commit: %w", fmt.Errorf("%w: TRANSACTION_ABORTABLE", fault.ErrAsked))
		}
		return true, nil
	}
	cfg := w.config()
	cfg.LossDelay, cfg.Restart = time.Millisecond, restart.Config{Strategy: restart.None}
	r, err := New(countPlan(t), cfg, w.ports(), nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	w.produce(50, 5)
	w.caughtUp()
	require.Greater(t, tries.Load(), int64(mostAsked))
	w.exact()
	forever.Store(true)
	tries.Store(0)
	w.produce(50, 5)
	err = <-done
	require.ErrorContains(t, err, "gives up after 0 restarts")
	require.ErrorIs(t, err, fault.ErrAsked)
	require.EqualValues(t, mostAsked+1, tries.Load())
}
