package engine

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

// forget deletes the group's committed offsets.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.committed = map[element.TopicPartition]Committed{}
}

// recoveries collects what a listener is told.
func recoveries() (*Listener, func() []snapshot.Recovery) {
	var mu sync.Mutex
	var got []snapshot.Recovery
	return &Listener{Recovering: func(r snapshot.Recovery) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r)
		}}, func() []snapshot.Recovery {
			mu.Lock()
			defer mu.Unlock()
			return got
		}
}

func TestOffsetsThatAreGoneAreTakenFromTheStoreWhenAskedFor(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.forget()
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(r.Run(t.Context())), "it ends by itself")

	cfg := w.config()
	cfg.RecoverFromStore = true
	lis, told := recoveries()
	stop = w.start(cfg, lis)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Len(t, told(), 1)
	require.Equal(t, snapshot.ReasonOffsetsExpired, told()[0].Reason)
	require.Equal(t, "nothing: no later checkpoint is known", told()[0].Tasks[0].Repeats())
}

func TestARecoveryIsCommittedBeforeTheFirstRecordAndNeedsNoSecondOne(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	before, err := w.repo.List(t.Context())
	require.NoError(t, err)
	w.forget()

	cfg := w.config()
	cfg.RecoverFromStore = true
	stop = w.start(cfg, nil)
	w.caughtUp() // no record moves: the offsets are those of the recovery itself
	require.NoError(t, stop())
	for p := range w.logs {
		h, err := snapshot.ParseHandle(w.committed[tp(int32(p))].Metadata)
		require.NoError(t, err)
		require.Equal(t, snapshot.HandleCheckpoint, h.Kind)
		require.Greater(t, h.Root.Name.ID, before[0].Ref.Name.ID, "above every id in the store")
		root, err := w.repo.ReadRoot(t.Context(), h.Root)
		require.NoError(t, err)
		require.Equal(t, before[0].Ref, *root.Predecessor)
		require.Equal(t, before[0].Root.Tasks, root.Tasks)
	}

	lis, told := recoveries()
	stop = w.start(w.config(), lis)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Empty(t, told())
}

func TestTheWishToRecoverChangesNothingWhileTheHandlesAreValid(t *testing.T) {
	w := newWorld(t, 2)
	cfg := w.config()
	cfg.RecoverFromStore = true
	lis, told := recoveries()
	for range 2 {
		stop := w.start(cfg, lis)
		w.produce(500, 20)
		w.caughtUp()
		require.NoError(t, stop())
	}
	w.exact()
	require.Empty(t, told())
}

func TestOffsetsThatWentBackAreRefusedAndRecovered(t *testing.T) {
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	old := w.committed
	w.committed = map[element.TopicPartition]Committed{}
	for k, v := range old {
		w.committed[k] = v
	}
	stop = w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.committed = old

	cfg := w.config()
	cfg.RecoverFromStore = true
	lis, told := recoveries()
	stop = w.start(cfg, lis)
	w.produce(100, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Len(t, told(), 1)
	require.Contains(t, []snapshot.Reason{snapshot.ReasonStaleHandle, snapshot.ReasonRootUnusable}, told()[0].Reason, "the old root may be cleaned away by now")
}
