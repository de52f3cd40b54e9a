package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// The newest checkpoint is damaged, and the ones before are of a time when the topic had fewer partitions: all go back, and the
// partition that was added since begins at its beginning once more. A process that ends right behind that is no obstacle.
func TestARecoveryBehindAPartitionThatWasAdded(t *testing.T) {
	t.Parallel()
	for kind, exchange := range map[string]bool{"chained": false, "exchange": true} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			plan := latestPlan(t, exchange)
			for range 2 {
				stop := w.startPlan(plan, w.config(), w.ports(), nil)
				w.produce(100, 7)
				w.caughtUp()
				require.NoError(t, stop())
			}
			before, err := w.repo.List(t.Context())
			require.NoError(t, err)
			w.added(30)
			w.assign(3)
			stop := w.startPlan(plan, w.config(), w.ports(), nil)
			w.caughtUp()
			require.NoError(t, stop())
			now, err := w.repo.List(t.Context())
			require.NoError(t, err)
			for i := range max(1, int(now[0].Ref.Name.ID-before[0].Ref.Name.ID)) {
				w.damageRoot(i)
			}
			r, err := New(plan, w.config(), w.ports(), nil)
			require.NoError(t, err)
			err = r.Run(t.Context())
			require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%v", err)
			require.True(t, snapshot.RefusalOf(err).Recoverable(), "%v", err)

			cfg := w.config()
			cfg.RecoverFromStore = true
			w.mu.Lock()
			w.output = nil
			w.mu.Unlock()
			lis, told := recoveries()
			stop = w.startPlan(plan, cfg, w.ports(), lis)
			if !assert.Eventually(t, func() bool { return len(told()) == 1 && w.done() >= 30 }, 10*time.Second, time.Millisecond) {
				require.NoError(t, stop())
			}
			w.caughtUp()
			require.NoError(t, stop())
			require.Len(t, told()[0].Added, 1)
			require.GreaterOrEqual(t, w.done(), 30)
			stop = w.startPlan(plan, w.config(), w.ports(), nil)
			w.produce(100, 7)
			w.caughtUp()
			require.NoError(t, stop())
		})
	}
}

// A topic grew while nothing that reads it had state, then a step with state came, and the way leads back behind it: the step is
// bound to the partitions of now. A process that ends right behind that is no obstacle.
func TestARecoveryThatBindsAStepToThePartitionsOfNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	plan := latestPlan(t, false)
	stop := w.startPlan(plan, w.config(), w.ports(), nil)
	w.produceUntil(func() bool { return w.done() > 20 })
	w.caughtUp()
	require.NoError(t, stop())
	w.added(30)
	w.assign(3)
	stop = w.startPlan(plan, w.config(), w.ports(), nil)
	w.caughtUp()
	require.NoError(t, stop())
	w.forget()

	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.StartAt(topology.Earliest()))
	topology.ToTopic(topology.Count(in, "count"), "out", "out", serde.String(), serde.Int64())
	plan, err := b.Plan()
	require.NoError(t, err)
	cfg := w.config()
	cfg.RecoverFromStore = true
	w.produce(100, 7)
	w.endsEarly(plan, cfg)
	stop = w.startPlan(plan, w.config(), w.ports(), nil)
	w.produce(100, 7)
	w.caughtUp()
	require.NoError(t, stop())
}
