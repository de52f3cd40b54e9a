package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
)

// Who asks may give up while the loop answers: the answer is thrown away whole, and nobody reads what is being written. (With
// -race.)
func TestAnAnswerThatNobodyWaitsForAnyMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	a := &attempt{r: r, ctx: t.Context(), events: make(chan event), co: checkpoint.New(r.cfg.checkpointing(), 0)}
	r.running.Store(a)
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan bool)
		go func() {
			s, err := r.Status(ctx)
			gaveUp <- err != nil && s.Told.IsZero() || err == nil && !s.Told.IsZero()
		}()
		e := <-a.events
		cancel()
		require.NoError(t, e.ask())
		require.True(t, <-gaveUp, "it has an answer, or an error")
	}
}
