package processor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/snapshot"
)

// An instance with new partitions looks at those of the others, too, and waits while one of them commits. When that one
// dies just then, it was alive when the search for open transactions was made: the wait is for its session, not for its
// transaction.
func TestAnOwnerThatDiesWhileItsCommitIsWaitedFor(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	app := "waited" + inTopic()
	const session = 6 * time.Second
	cfg := b.config()
	cfg.InstanceID, cfg.DataDir, cfg.CheckpointsDir = "b", filepath.Join(b.dir, "b"), filepath.Join(b.dir, "checkpoints")
	cfg.SessionTimeout = session

	repo, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: cfg.CheckpointsDir, Application: app, Instance: "a", NumRetained: 1})
	require.NoError(t, err)
	require.NoError(t, repo.Announce(t.Context()))
	require.NoError(t, repo.Close())
	owner, err := kafkasrc.JoinGroup(t.Context(), kafkasrc.GroupConfig{
		Kafka: kafka.Config{Brokers: []string{b.addr}}, Group: app, InstanceID: "a", SessionTimeout: session, Topics: []string{inTopic()}})
	require.NoError(t, err)
	defer owner.Close()
	owns := func(n int) func() bool { return func() bool { return len(owner.Current().Partitions) == n } }
	require.Eventually(t, owns(4), 20*time.Second, 20*time.Millisecond)
	leaveOpen(t, b, app+"-a-1", app) // in partition 0, which it keeps

	b.produce(0, 500)
	stop := b.start(countPlan(t, app), cfg)
	require.Eventually(t, owns(2), 20*time.Second, 20*time.Millisecond)
	require.Contains(t, owner.Current().Partitions, element.TopicPartition{Topic: inTopic()})
	time.Sleep(time.Second)
	owner.Close()
	began := time.Now()
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.Less(t, time.Since(began), session+2*time.Second)
	require.NoError(t, stop())
	_, err = kadm.NewClient(b.cl).LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("b"))
	require.NoError(t, err)
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
	require.EqualValues(t, 500, r.RecordsOut)
}
