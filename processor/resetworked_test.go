package processor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// Between the plan of a reset, which is asked about, and its doing an instance has started, worked and ended. What it has done
// was not in the plan, and stays.
func TestAResetOfWhatWasNotThereIsRefused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "planned"
	cfg := b.config()
	cfg.CheckpointsDir, cfg.MemoryThreshold = filepath.Join(b.dir, "checkpoints"), -1
	work := func(all int) {
		stop := b.start(countByKey(t, app), cfg)
		b.put(100)
		require.Eventually(t, func() bool { return len(b.counts()) >= all && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
	}
	work(100)
	early, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	work(200)
	late, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	err = early.Do(t.Context())
	require.Equal(t, fault.GroupActive, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "nothing is deleted: ")
	again, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.Equal(t, late, again)
	require.NoError(t, again.Do(t.Context()))
	gone, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.True(t, gone.Empty())
}

// The names of the groups beside an application's may be those of others: a reset takes and changes only what is its own.
func TestAResetLeavesTheGroupsOfOthers(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "neighbour"
	cfg := b.config()
	stop := b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	for _, g := range []string{endsGroup(app), lifeGroup(app)} {
		b.groups[g] = true
		b.commitsPlain(g, 7)
	}
	r, err := PlanReset(t.Context(), app, cfg)
	require.NoError(t, err)
	require.Equal(t, []string{app}, r.Groups)
	require.NoError(t, r.Do(t.Context()))
	for _, g := range []string{endsGroup(app), lifeGroup(app)} {
		left, err := kadm.NewClient(b.cl).FetchOffsets(t.Context(), g)
		require.NoError(t, err)
		for p := range int32(4) {
			at, _ := left.Lookup(inTopic(), p)
			require.EqualValues(t, 7, at.At, "%s, partition %d", g, p)
			require.Empty(t, at.Metadata, "%s, partition %d", g, p)
		}
	}
}

// A cancel that deletes, and does not know of what others have committed since, is told apart from one that failed.
func TestWhoCommittedBehindACancelHasAnErrorOfItsOwn(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "behind"
	cfg := b.config()
	cfg.CheckpointsDir, cfg.MemoryThreshold = filepath.Join(b.dir, "checkpoints"), -1
	stop := b.start(countByKey(t, app), cfg)
	b.put(100)
	require.Eventually(t, func() bool { return len(b.counts()) >= 100 && b.lag(app) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	_, err := forget(t.Context(), app, cfg.withDefaults(), anyLife, anyLife, []string{"of before"})
	require.ErrorIs(t, err, errBehind)
	require.Equal(t, fault.NotRunning, fault.CodeOf(err))
}
