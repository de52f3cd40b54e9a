package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
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

// Another directory than before, or one that was lost, is what an operator's mistake looks like: nothing may begin empty there.
func TestThereIsNoRecoveryFromAnEmptyStore(t *testing.T) {
	w := newWorld(t, 2)
	w.produce(500, 20)
	cfg := w.config()
	cfg.RecoverFromStore = true
	r, err := New(countPlan(t), cfg, w.ports(), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, w.repo.Location())
	require.Empty(t, w.committed)
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
	lis, told := recoveries()
	for _, cfg.RecoverFromStore = range []bool{false, true, true} {
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

// others is who else is in the group, as a test says.
type others struct {
	mu  sync.Mutex
	are []Member
}

func (o *others) set(ms ...Member) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.are = ms
}

func (o *others) get(context.Context) ([]Member, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.are), nil
}

// Members that were stopped keep partitions until their sessions are over. A recovery with the others alone would leave these
// without a way back: what comes later has no such wish.
func TestARecoveryWaitsForAllPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.forget()
	w.assign(2)

	cfg, ports, o := w.config(), w.ports(), &others{}
	cfg.RecoverFromStore, cfg.OthersLast = true, 10*time.Second
	ports.Others = o.get
	o.set(Member{ID: "b-1", Name: "b (host)"})
	lis, told := recoveries()
	waits := make(chan Parted, 10)
	lis.Parted = func(p Parted) { waits <- p }
	stop = w.startWith(cfg, ports, lis)
	require.Equal(t, Parted{Missing: []element.TopicPartition{tp(2)}, Others: []Member{{ID: "b-1", Name: "b (host)"}}, AtMost: 10 * time.Second}, <-waits)
	o.set() // its session is over
	require.Empty(t, (<-waits).Others)
	require.Empty(t, told())
	w.mu.Lock()
	require.Empty(t, w.committed, "nothing is committed for a part")
	w.mu.Unlock()

	w.assign(3)
	w.produce(500, 20)
	w.caughtUp()
	require.Len(t, told(), 1)
	require.Len(t, told()[0].Tasks, 3, "together")

	// Later partitions are shared as always, over attempts that fail too.
	o.set(Member{ID: "b-2", Name: "b (host)"})
	w.assign(2)
	failed := make(chan struct{})
	w.mu.Lock()
	w.onCommit = func(checkpoint.Commit) (bool, error) {
		w.onCommit = nil
		close(failed)
		return false, fault.Restartf(fault.Failed, "planned")
	}
	w.mu.Unlock()
	w.produce(500, 20)
	select {
	case <-failed:
	case <-time.After(8 * time.Second):
		require.Fail(t, "no checkpoint is begun")
	}
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.committed[w.at(0)].Offset == int64(len(w.logs[0])) && w.committed[w.at(1)].Offset == int64(len(w.logs[1]))
	}, 8*time.Second, time.Millisecond, "it waits for partitions that are another's")
	require.NoError(t, stop())
}

func TestARecoveryIsRefusedBesideAMemberThatLives(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	before, err := w.repo.List(t.Context())
	require.NoError(t, err)
	w.forget()
	w.assign(1)

	cfg, ports, o := w.config(), w.ports(), &others{}
	cfg.RecoverFromStore, cfg.OthersLast = true, 700*time.Millisecond
	ports.Others = o.get
	o.set(Member{ID: "b-1", Name: "b (host)"})
	lis, told := recoveries()
	lis.Parted = func(p Parted) {
		if p.Others[0].ID == "b-1" {
			o.set(Member{ID: "b-2", Name: "b (host)"}) // it has started again
		}
	}
	r, err := New(countPlan(t), cfg, ports, lis)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.GroupActive, fault.CodeOf(err))
	for _, text := range []string{"nothing is changed", "in/1, in/2", "b (host)", "--recover-from-store"} {
		require.ErrorContains(t, err, text)
	}
	require.Empty(t, told())
	require.Empty(t, w.committed)
	after, err := w.repo.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A partition that goes between the wait and the commit takes nothing along: nothing is committed, and it is waited for.
func TestARecoveryThatLosesAPartitionBeforeItsCommitWaitsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.forget()

	cfg := w.config()
	cfg.RecoverFromStore = true
	lis, told := recoveries()
	waits := make(chan Parted, 1000)
	lis.Parted = func(p Parted) { waits <- p }
	ports := w.ports()
	ports.Others = new(others).get
	var once sync.Once
	w.onCommit = func(checkpoint.Commit) (bool, error) {
		once.Do(func() { w.assign(1) })
		return true, nil
	}
	stop = w.startWith(cfg, ports, lis)
	require.Equal(t, []element.TopicPartition{tp(1)}, (<-waits).Missing)
	w.mu.Lock()
	require.Empty(t, w.committed)
	w.mu.Unlock()
	w.assign(2)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Len(t, told(), 2)
}

func TestTheWishToRecoverNeedsNoOtherPartitionsWhileTheHandlesAreValid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	stop := w.start(w.config(), nil)
	w.produce(500, 20)
	w.caughtUp()
	require.NoError(t, stop())
	w.assign(1)
	cfg := w.config()
	cfg.RecoverFromStore = true
	began := make(chan AttemptInfo, 10)
	stop = w.start(cfg, &Listener{AttemptStarted: func(i AttemptInfo) { began <- i }})
	require.Equal(t, 1, (<-began).Tasks)
	require.NoError(t, stop())
}
