package engine

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// The commit of a start position without an answer may come late, behind the one of the next attempt. With start latest the two
// would differ, and the start of what is being read would move.
func TestAStartWithoutAnAnswerIsSentAgainAsItWas(t *testing.T) {
	for name, exactlyOnce := range map[string]bool{"at least once": false, "exactly once": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := topology.New(app)
			in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.StartAt(topology.Latest()))
			topology.ToTopic(in, "out", "out", serde.String(), serde.String())
			plan, err := b.Plan()
			require.NoError(t, err)
			w := newWorld(t, 1)
			w.produce(5, 7)
			cfg := w.config()
			if cfg.AtLeastOnce = !exactlyOnce; cfg.AtLeastOnce {
				w.loose()
			}
			var mu sync.Mutex
			var starts []element.Position
			w.onCommit = func(c checkpoint.Commit) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				if c.Name.ID > 0 {
					return true, nil
				}
				starts = append(starts, c.Offsets[0].Position)
				w.produce(3, 7)
				if len(starts) < 3 {
					return false, fault.New(fault.Unconfirmed, fault.Failed, "no answer")
				}
				return true, nil
			}
			r, err := New(plan, cfg, w.ports(), nil)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			w.caughtUp()
			cancel()
			require.NoError(t, <-done)
			mu.Lock()
			defer mu.Unlock()
			require.Len(t, starts, 3)
			want := []int64{5, 5, 5}
			if exactlyOnce { // the transaction is over before the next attempt reads
				want = []int64{5, 8, 11}
			}
			for i, at := range starts {
				require.Equal(t, want[i], at.Offset)
			}
		})
	}
}
