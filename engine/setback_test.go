package engine

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// A delayed copy of a commit may arrive behind the next one: the group stands at a checkpoint that is complete and kept, and
// not the newest one. At least once the next start goes on from there, also from start positions; a group that is set back
// further, or exactly once at all, was set back by somebody.
func TestADelayedCopySetsBackByOneOverARestart(t *testing.T) {
	for name, c := range map[string]struct {
		back        int // commits
		exactlyOnce bool
		fresh       bool
		refused     bool
	}{
		"by one":                 {back: 1},
		"to the start positions": {back: 1, fresh: true},
		"by two":                 {back: 2, refused: true},
		"exactly once":           {back: 1, exactlyOnce: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			cfg := w.config()
			if cfg.AtLeastOnce = !c.exactlyOnce; cfg.AtLeastOnce {
				w.loose()
			}
			var before []map[element.TopicPartition]Committed // each commit, the newest last
			w.onCommit = func(checkpoint.Commit) (bool, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				before = append(before, maps.Clone(w.committed))
				return true, nil
			}
			rounds, records := 4, 100
			if c.fresh {
				rounds, records = 1, 1 // one checkpoint
			}
			stop := w.start(cfg, nil)
			for range rounds {
				w.produce(records, 10)
				w.caughtUp()
			}
			require.NoError(t, stop())
			w.mu.Lock()
			again := int64(0)
			for tp, at := range before[len(before)-c.back] {
				again += w.committed[tp].Offset - at.Offset
				w.committed[tp] = at
			}
			w.mu.Unlock()
			newest := w.lastCommit()

			w.produce(100, 10)
			cfg = w.config()
			cfg.AtLeastOnce = !c.exactlyOnce
			if c.refused {
				r, err := New(countPlan(t), cfg, w.ports(), nil)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				require.Equal(t, fault.HandleMismatch, fault.CodeOf(r.Run(ctx)))
				return
			}
			stop = w.start(cfg, nil)
			w.caughtUp()
			require.NoError(t, stop())
			require.EqualValues(t, again, w.gaps(), "what the newer checkpoint covers comes again")
			require.Equal(t, w.inputs(), w.greatest(), "the state is that of the older one")
			require.Greater(t, w.lastCommit(), newest, "ids grow beyond the one that is given up")
		})
	}
}

// lastCommit gives the id of the newest commit that is not of start positions.
func (w *world) lastCommit() (id element.CheckpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.commits {
		if c > 0 {
			id = c
		}
	}
	return id
}
