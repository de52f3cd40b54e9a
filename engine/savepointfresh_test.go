package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// A partition that nobody has read yet is in the savepoint of the checkpoint that commits its start position: no other instance
// has a part with it.
func TestASavepointHoldsAPartitionThatHasJustBeenTakenIn(t *testing.T) {
	t.Parallel()
	for name, final := range map[string]bool{"triggered": false, "at the end": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.assign(1)
			w.produce(40, 4)
			sealing, sealed := make(chan struct{}), make(chan struct{})
			var slow atomic.Bool
			w.onSeal = func(element.CheckpointID) error {
				if slow.CompareAndSwap(true, false) {
					close(sealing)
					<-sealed
				}
				return nil
			}
			cfg, joined := w.config(), make(chan struct{})
			cfg.Interval = time.Hour
			r, err := New(countPlan(t), cfg, withFrom(w.ports()), &Listener{Joined: func([]element.TopicPartition) { close(joined) }})
			require.NoError(t, err)
			stop := w.run(r)
			w.checkpointed(r, 20)

			// While a checkpoint is in flight the other partition comes, and a savepoint is asked for: both wait for the next one.
			slow.Store(true)
			w.produce(40, 4)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.Eventually(t, func() bool { return r.place(ctx, &request{}) == nil && isClosed(sealing) }, 8*time.Second, time.Millisecond)
			w.mu.Lock()
			w.gain(slices.Values([]int32{1}))
			w.mu.Unlock()
			<-joined
			q := &request{savepoint: "s1", dir: t.TempDir(), final: final}
			require.NoError(t, r.place(ctx, q))
			close(sealed)
			ans, err := q.await(ctx)
			require.NoError(t, err)

			s, err := snapshot.OpenSavepoint(ctx, ans.savepoint.Path)
			require.NoError(t, err)
			e := s.Root.Task(element.TaskID{Source: "in", Partition: 1})
			require.NotNil(t, e)
			require.Zero(t, e.Positions[0].Offset, "where it starts")
			require.NoError(t, s.Close())
			require.NoError(t, stop())

			begin := contents(t, ans.savepoint.Path)
			f := w.fork("fork", 2)
			stop = f.startPlan(countPlan(t), f.configOf("fork", ans.savepoint.Path), withFrom(f.ports()), nil)
			f.produce(40, 4)
			f.outputsFrom(begin)
			require.NoError(t, stop())
			f.exactFrom(begin)
		})
	}
}
