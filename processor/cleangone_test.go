package processor

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
)

// An instance left, another one went on with its chains. What it left goes, but for the runs that are still in use; and
// nothing goes while somebody in the group, or something among its offsets, cannot be told.
func TestWhatAnInstanceThatIsGoneLeftIsCleaned(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	app := "cleaned" + inTopic()
	plan := countPlan(t, app)
	as := func(instance string) Config {
		cfg := b.config()
		cfg.InstanceID, cfg.DataDir, cfg.CheckpointsDir = instance, filepath.Join(b.dir, instance), filepath.Join(b.dir, "checkpoints")
		cfg.SessionTimeout = 6 * time.Second
		return cfg
	}
	adm, produced := kadm.NewClient(b.cl), 0
	feed := func(times int) {
		for range times {
			b.produce(produced, 200)
			produced += 200
			require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
		}
	}
	stop := b.start(plan, as("a"))
	feed(2)
	require.NoError(t, stop())
	_, err := adm.LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("a"))
	require.NoError(t, err)
	stop = b.start(plan, as("b"))
	feed(5)

	cfg := as("c").withDefaults()
	s := &service{plan: plan, cfg: cfg, log: cfg.Logger, instance: "c", reads: reads{cl: b.cl, group: app}}
	require.NoError(t, s.openCluster(t.Context()))
	require.NoError(t, s.openCheckpoints(t.Context()))
	defer s.close()
	require.Equal(t, time.Hour, s.grace())
	s.cfg.TransactionTimeout = 2 * time.Hour
	require.Equal(t, 4*time.Hour, s.grace(), "a transaction may still be open")
	s.cfg.SessionTimeout = 5 * time.Hour
	require.Equal(t, 5*time.Hour, s.grace(), "a member may still sleep")
	s.cfg = cfg
	roots := func() (names []string) {
		infos, err := s.repo.List(t.Context())
		require.NoError(t, err)
		for _, i := range infos {
			names = append(names, i.Instance)
		}
		return names
	}
	require.Contains(t, roots(), "a")

	require.NoError(t, stop())
	_, err = adm.LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("b"))
	require.NoError(t, err)
	stranger, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumerGroup(app), kgo.ConsumeTopics(outTopic()))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		members, err := s.members(t.Context())
		return err == nil && len(members) == 1
	}, 20*time.Second, 50*time.Millisecond)
	_, err = s.cleanGone(t.Context())
	require.ErrorContains(t, err, "nothing is deleted")
	require.ErrorContains(t, err, "has no instance id")
	require.Contains(t, roots(), "a")
	stranger.LeaveGroup()
	stranger.Close()

	var offsets kadm.Offsets
	offsets.AddOffset(outTopic(), 0, 1, -1)
	require.NoError(t, adm.CommitAllOffsets(t.Context(), app, offsets))
	_, err = s.cleanGone(t.Context())
	require.ErrorIs(t, err, snapshot.ErrHandleForeign)
	require.ErrorContains(t, err, outTopic())
	require.Contains(t, roots(), "a")
	_, err = adm.DeleteOffsets(t.Context(), app, kadm.TopicsSet{outTopic(): {0: {}}})
	require.NoError(t, err)

	stop = b.start(plan, as("b"))
	feed(1)
	require.Eventually(t, func() bool { return !slices.Contains(roots(), "a") }, 5*time.Second, 20*time.Millisecond, "the service does it after its first checkpoint")
	require.NoError(t, s.repo.VerifyAll(t.Context(), nil, func(v snapshot.Verified) { require.Empty(t, v.Damage) }))
	feed(1)
	require.NoError(t, stop())
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
	require.EqualValues(t, produced, r.RecordsOut)
}
