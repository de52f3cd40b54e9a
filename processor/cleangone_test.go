package processor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
)

// An instance left, another one went on with its chains. What it left goes, but for the runs that are still in use; nothing
// goes while somebody in the group cannot be told, and beside a handle that leads elsewhere only what newer checkpoints supersede.
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

	named, err := s.committedRoots(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, named)
	offset := kadm.Offset{Topic: outTopic(), At: 1, LeaderEpoch: -1}
	commit := func() {
		require.NoError(t, adm.CommitAllOffsets(t.Context(), app, kadm.Offsets{outTopic(): {0: offset}}))
	}
	commit()
	still, err := s.committedRoots(t.Context())
	require.NoError(t, err, "no source reads the topic")
	require.ElementsMatch(t, named, still)
	committed, err := adm.FetchOffsets(t.Context(), app)
	require.NoError(t, err)
	o, ok := committed.Lookup(inTopic(), 0)
	require.True(t, ok)
	h, err := snapshot.ParseHandle(o.Metadata)
	require.NoError(t, err)
	h.StoreID = "00000000-0000-4000-8000-000000000000"
	offset.Metadata, err = h.Encode()
	require.NoError(t, err)
	commit()
	rep, err := s.cleanGone(t.Context())
	require.ErrorContains(t, err, "only what cannot be named is deleted")
	require.ErrorContains(t, err, "committed offset 1 of "+outTopic()+"/0")
	require.ErrorContains(t, err, "belongs to a checkpoint directory with store id "+h.StoreID)
	require.Positive(t, rep.Deleted)
	require.NotContains(t, roots(), "a", "superseded by the roots of b")
	require.NoError(t, s.repo.VerifyAll(t.Context(), nil, func(v snapshot.Verified) { require.Empty(t, v.Damage) }))
	_, err = adm.DeleteOffsets(t.Context(), app, kadm.TopicsSet{outTopic(): {0: {}}})
	require.NoError(t, err)

	stop = b.start(plan, as("b"))
	feed(1)
	require.NoError(t, s.repo.VerifyAll(t.Context(), nil, func(v snapshot.Verified) { require.Empty(t, v.Damage) }))
	feed(1)
	require.NoError(t, stop())
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
	require.EqualValues(t, produced, r.RecordsOut)
}

// An offset that is no handle names nothing where no source reads; on a source's topic it has taken a handle's place.
func TestOffsetsThatAreNoHandlesNameNothingBesideTheSources(t *testing.T) {
	s := &service{plan: countPlan(t, "app"), repo: &snapshot.Repository{}, reads: reads{group: "app"}}
	root := snapshot.RootRef{Name: element.CheckpointName{ID: 7, Incarnation: 1}, Path: "app/a/chk-7-0000000000000001.root"}
	h := snapshot.Handle{Kind: snapshot.HandleCheckpoint, Root: root, Offset: 5, LeaderEpoch: -1, ClusterID: "c", PartitionCount: 1}
	text, err := h.Encode()
	require.NoError(t, err)
	h = h.WithoutState(h.Life)
	h.StoreID = "00000000-0000-4000-8000-000000000000"
	empty, err := h.Encode()
	require.NoError(t, err)
	at := func(topic string, p int32) element.TopicPartition {
		return element.TopicPartition{Topic: topic, Partition: p}
	}
	offsets := map[element.TopicPartition]kafka.Committed{
		at(inTopic(), 0):   {Found: true, Offset: 5, Metadata: text},
		at(inTopic(), 1):   {},
		at("elsewhere", 0): {Found: true, Offset: 3},
		at("elsewhere", 1): {Found: true, Offset: 3, Metadata: "mirrored"},
		at("removed", 0):   {Found: true, Offset: 5, Metadata: empty}, // of another directory, and leads to no file
	}
	roots, err := s.namedRoots(offsets)
	require.NoError(t, err)
	require.Equal(t, []snapshot.RootRef{root}, roots)

	offsets[at("removed", 2)] = kafka.Committed{Found: true, Offset: 4, Metadata: text[:len(text)-1]}
	offsets[at("removed", 1)] = kafka.Committed{Found: true, Offset: 4, Metadata: text[:len(text)-1]}
	for range 20 {
		roots, err = s.namedRoots(offsets)
		require.ErrorIs(t, err, snapshot.ErrHandlesUnread)
		require.ErrorIs(t, err, snapshot.ErrHandleDamaged)
		require.Equal(t, []snapshot.RootRef{root}, roots, "the others are named all the same")
		require.Regexp(t, "of removed/1 in group app.*; committed offset 4 of removed/2 in group app", err.Error(), "the same text each time: it is told once")
	}
	delete(offsets, at("removed", 1))
	delete(offsets, at("removed", 2))

	offsets[at(inTopic(), 1)] = kafka.Committed{Found: true, Offset: 9, Metadata: "consumer"}
	_, err = s.namedRoots(offsets)
	require.ErrorIs(t, err, snapshot.ErrHandleForeign)
	for p := range int32(9) {
		offsets[at("removed", p)] = kafka.Committed{Found: true, Offset: 4, Metadata: text[:len(text)-1]}
	}
	_, err = s.namedRoots(offsets)
	require.ErrorContains(t, err, "; and 7 more", "of ten")
	require.NotContains(t, err.Error(), "removed/2")
}
