package processor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
)

// An instance that died leaves a transaction open, with outputs and offsets in it. Its successor goes by another name:
// it must wait for the transaction's timeout neither to read the offsets nor until readers see its output.
func TestASuccessorEndsWhatADeadInstanceLeftOpen(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	app := "gone" + inTopic()
	plan := countPlan(t, app)
	shared := filepath.Join(b.dir, "checkpoints")
	as := func(instance string) Config {
		cfg := b.config()
		cfg.InstanceID, cfg.DataDir, cfg.CheckpointsDir = instance, filepath.Join(b.dir, instance), shared
		cfg.SessionTimeout = 6 * time.Second
		return cfg
	}
	b.produce(0, 500)
	stop := b.start(plan, as("a"))
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	adm := kadm.NewClient(b.cl)
	_, err := adm.LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("a"))
	require.NoError(t, err)
	leaveOpen(t, b, app+"-a-1", app)

	b.produce(500, 500)
	began := time.Now()
	stop = b.start(plan, as("b"))
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Eventually(t, func() bool {
		stable, err := adm.ListCommittedOffsets(t.Context(), outTopic())
		require.NoError(t, err)
		high, err := adm.ListEndOffsets(t.Context(), outTopic())
		require.NoError(t, err)
		open := false
		high.Each(func(o kadm.ListedOffset) {
			s, _ := stable.Lookup(o.Topic, o.Partition)
			open = open || s.Offset != o.Offset
		})
		return !open
	}, 5*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
	require.EqualValues(t, 1000, r.RecordsOut)
}

// An answer that may pass must not leave the transaction of a dead instance to its timeout: the successor's stable read of
// the offsets in it would wait for that.
func TestASuccessorEndsWhatIsOpenInSpiteOfAnAnswerThatMayPass(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "the broker answers with an error of its own")
	b := bedOn(t, tb)
	app := "gone" + inTopic()
	as := func(instance string) Config {
		cfg := b.config()
		cfg.InstanceID, cfg.DataDir, cfg.CheckpointsDir = instance, filepath.Join(b.dir, instance), filepath.Join(b.dir, "checkpoints")
		cfg.SessionTimeout = 6 * time.Second
		return cfg
	}
	b.produce(0, 500)
	stop := b.start(countPlan(t, app), as("a"))
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	_, err := tb.Admin().LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("a"))
	require.NoError(t, err)
	leaveOpen(t, b, app+"-a-1", app)
	answers := fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, TxnID: app + "-a-1", Err: kerr.RequestTimedOut, Count: 2})
	b.produce(500, 500)
	began := time.Now()
	stop = b.start(countPlan(t, app), as("b"))
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, 2, answers.Hits())
	require.NoError(t, stop())
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
}

// leaveOpen begins a transaction under an id, writes an output and an offset into it, and goes away.
func leaveOpen(t *testing.T, b *bed, id, group string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID(id), kgo.TransactionTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer cl.Close()
	require.NoError(t, cl.BeginTransaction())
	require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: outTopic(), Partition: 0, Value: make([]byte, 16)}).FirstErr())
	topics, err := kadm.NewClient(cl).ListTopics(t.Context(), inTopic())
	require.NoError(t, err)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.Group = id, group
	req.ProducerID, req.ProducerEpoch, err = cl.ProducerID(t.Context())
	require.NoError(t, err)
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = inTopic(), topics[inTopic()].ID
	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset, rp.LeaderEpoch = 0, 1, -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), cl)
	require.NoError(t, err)
	require.Zero(t, resp.Topics[0].Partitions[0].ErrorCode)
}
