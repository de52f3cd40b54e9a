package engine

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// latestPlan copies records from where the log ends at the first start on, over an exchange if wanted.
func latestPlan(t *testing.T, exchange bool) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String(), topology.StartAt(topology.Latest()))
	if exchange {
		in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
	}
	topology.ToTopic(in, "out", "out", serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// added appends a partition with records to the topic of the world.
func (w *world) added(records int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var log []element.Record
	for i := range records {
		log = append(log, element.Record{Key: []byte("new"), Value: []byte("x"), Offset: int64(i)})
	}
	w.logs = append(w.logs, log)
}

// offsetsLost are ways in which no offset leads to a checkpoint any more.
var offsetsLost = map[string]func(*world){
	"expired": (*world).forget,
	"damaged": func(w *world) {
		for p, c := range w.committed {
			c.Metadata = c.Metadata[:len(c.Metadata)-2]
			w.committed[p] = c
		}
	},
}

// An instance that gets nothing but a partition that was added does not take the application for a new one when the offsets of the
// other partitions tell nothing any more: their owner is refused, and the checkpoints say how many there were.
func TestAnAddedPartitionBesideOffsetsThatAreLost(t *testing.T) {
	t.Parallel()
	for name, lose := range offsetsLost {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			stop := w.startPlan(latestPlan(t, false), w.config(), w.ports(), nil)
			w.produceUntil(func() bool { return w.done() > 20 })
			w.caughtUp()
			require.NoError(t, stop())
			lose(w)
			before := w.done()
			w.added(30)
			w.assign(0)
			w.mu.Lock()
			w.gain(slices.Values([]int32{2}))
			w.mu.Unlock()
			for range 2 {
				stop = w.startPlan(latestPlan(t, false), w.config(), w.ports(), nil)
				require.Eventually(t, func() bool { return w.done() == before+30 }, 5*time.Second, time.Millisecond)
				require.NoError(t, stop())
			}
		})
	}
}

// What a recovery from the store goes back to also says how many partitions there were: one that was added since is read from its
// beginning, as it is where the committed offsets say it.
func TestAPartitionAddedBeforeARecoveryStartsAtItsBeginning(t *testing.T) {
	t.Parallel()
	for kind, exchange := range map[string]bool{"chained": false, "exchange": true} {
		for name, lose := range offsetsLost {
			t.Run(kind+"/"+name, func(t *testing.T) {
				w := newWorld(t, 2)
				stop := w.startPlan(latestPlan(t, exchange), w.config(), w.ports(), nil)
				w.produceUntil(func() bool { return w.done() > 20 })
				w.caughtUp()
				require.NoError(t, stop())
				lose(w)
				before := w.done()
				w.added(30)
				w.assign(3)

				cfg := w.config()
				cfg.RecoverFromStore = true
				lis, told := recoveries()
				stop = w.startPlan(latestPlan(t, exchange), cfg, w.ports(), lis)
				w.caughtUp()
				require.NoError(t, stop())
				require.Len(t, told(), 1)
				require.Equal(t, before+30, w.done())
			})
		}
	}
}

// Checkpoints of before there was an exchange are gone back to, and the process ends at once: the root that it leaves knows the exchange,
// and is no older one's.
func TestARecoveryIntoANewExchangeLeavesARootThatKnowsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for range 2 {
		stop := w.startPlan(latestPlan(t, false), w.config(), w.ports(), nil)
		w.produce(100, 7)
		w.caughtUp()
		require.NoError(t, stop())
	}
	w.forget()
	cfg := w.config()
	cfg.RecoverFromStore = true
	w.produce(100, 7)
	w.endsEarly(latestPlan(t, true), cfg)
	infos, err := w.repo.List(t.Context())
	require.NoError(t, err)
	newest := slices.MaxFunc(slices.DeleteFunc(infos, func(i snapshot.RootInfo) bool { return !i.Marked }), func(a, b snapshot.RootInfo) int { return cmp.Compare(a.Ref.Name.ID, b.Ref.Name.ID) })
	require.True(t, slices.ContainsFunc(newest.Root.Tasks, func(e snapshot.TaskEntry) bool { return e.Parallelism == 2 && len(e.Runs) == 0 }))
	require.NotNil(t, newest.Root.Predecessor)
	stop := w.startPlan(latestPlan(t, true), w.config(), w.ports(), nil)
	w.caughtUp()
	require.NoError(t, stop())
}
