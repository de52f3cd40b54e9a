//go:build unix

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/hanging"
	"github.com/millweir/millweir/processor"
)

// A commit whose partitions have no leader at that moment is answered as done, and Kafka 4.4 never writes its markers. They
// are found, also by the command, nothing else is, a service that waits for the offsets says so, and they are written as was
// decided: readers get the record.
func TestRealALostMarkerIsFoundAndWritten(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{Nodes: 3, Heap: "384m", Properties: map[string]string{"offsets.topic.replication.factor": "1"}})
	if b.External {
		t.Skip("the cluster was not started here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	brokers := strings.Split(b.Addr, ",")
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	require.NoError(t, err)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	createOn(t, ctx, cl, "in", 3)
	createOn(t, ctx, cl, "out", 3)
	meta, err := adm.Metadata(ctx, "in")
	require.NoError(t, err)
	topicID := meta.Topics["in"].ID
	app := groupOn(t, ctx, adm, 3)
	lost, sound := producerOff(t, ctx, brokers, adm, 3), producerOff(t, ctx, brokers, adm, 3)

	require.NoError(t, lost.BeginTransaction())
	require.NoError(t, lost.ProduceSync(ctx, &kgo.Record{Topic: "out", Value: []byte("lost")}).FirstErr())
	commitWithin(t, ctx, lost, app, topicID)
	require.NoError(t, b.Kill(3))
	require.Eventually(t, func() bool {
		m, err := adm.Metadata(ctx, "out")
		return err == nil && m.Topics["out"].Partitions[0].Leader < 0
	}, time.Minute, 50*time.Millisecond, "the partition keeps its leader")
	require.NoError(t, lost.EndTransaction(ctx, kgo.TryCommit))
	require.Eventually(t, func() bool {
		listed, err := adm.ListTransactions(ctx, nil, []string{"CompleteCommit"})
		return err == nil && len(listed) == 1
	}, time.Minute, 50*time.Millisecond, "the transaction does not become complete")
	require.NoError(t, b.RestartUnmended(ctx, 3))

	require.NoError(t, sound.BeginTransaction()) // what is merely open is not taken for one that hangs
	require.NoError(t, sound.ProduceSync(ctx, &kgo.Record{Topic: "out", Value: []byte("open")}).FirstErr())
	found, err := hanging.Find(ctx, cl, app, []string{"out", "there-is-no-such-topic"})
	require.NoError(t, err)
	require.NoError(t, found.Denied)
	require.Empty(t, found.Unsure)
	require.Len(t, found.Hanging, 2, "%v", found)
	require.Equal(t, "out/0 from offset 0", found.Hanging[1].String())

	file := filepath.Join(t.TempDir(), "service.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `application: %s
kafka: {brokers: %q}
data-dir: %q
state: {checkpoints: {dir: %q}}
sources:
  in: {topic: in, key: string, value: string}
sinks:
  out: {from: in, topic: out, key: string, value: string}
`, app, b.Addr, t.TempDir(), t.TempDir()), 0o644))
	service := startProcess(t, processorBinary(t), []string{"run", file})
	service.await("have lost the end of a transaction")
	service.kill()
	for _, c := range []struct {
		args        []string
		code, found int
	}{{nil, 1, 2}, {[]string{"--end"}, 0, 2}, {nil, 0, 0}} {
		p := startProcess(t, processorBinary(t), append([]string{"transactions", file, "--output", "json"}, c.args...))
		code := p.exit(time.Minute)
		var got []processor.HangingTransaction
		require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &got), p.stderr.tail(3))
		require.Equal(t, c.code, code, "%v: %+v", c.args, got)
		require.Len(t, got, c.found)
		for _, g := range got {
			require.Equal(t, "commit", g.Decision)
		}
	}
	offsets, err := adm.FetchOffsets(ctx, app)
	require.NoError(t, err)
	at, _ := offsets.Lookup("in", 0)
	require.EqualValues(t, 17, at.At)

	r, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer r.Close()
	records := r.PollFetches(ctx).Records()
	require.Len(t, records, 1)
	require.Equal(t, "lost", string(records[0].Value))
	require.NoError(t, sound.EndTransaction(ctx, kgo.TryCommit))
	require.Equal(t, "open", string(r.PollFetches(ctx).Records()[0].Value))
}

// createOn makes a topic of one partition on one broker.
func createOn(t *testing.T, ctx context.Context, cl *kgo.Client, topic string, broker int32) {
	t.Helper()
	at := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	at.Replicas = []int32{broker}
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, -1, -1
	one.ReplicaAssignment = append(one.ReplicaAssignment, at)
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, one)
	resp, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.Zero(t, resp.Topics[0].ErrorCode)
}

// producerOff makes a transactional producer whose coordinator is not on that broker.
func producerOff(t *testing.T, ctx context.Context, brokers []string, adm *kadm.Client, broker int32) *kgo.Client {
	t.Helper()
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s-%d-%d", t.Name(), time.Now().UnixNano(), i)
		cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(id))
		require.NoError(t, err)
		_, _, err = cl.ProducerID(ctx)
		require.NoError(t, err)
		if adm.FindTxnCoordinators(ctx, id)[id].NodeID != broker {
			t.Cleanup(cl.Close)
			return cl
		}
		cl.Close()
	}
}

// groupOn gives the name of a group whose offsets are on that broker.
func groupOn(t *testing.T, ctx context.Context, adm *kadm.Client, broker int32) string {
	t.Helper()
	for i := 0; ; i++ {
		name := fmt.Sprintf("app-%d", i)
		if adm.FindGroupCoordinators(ctx, name)[name].NodeID == broker {
			return name
		}
		require.NoError(t, ctx.Err())
	}
}

// commitWithin commits the offset 17 of partition 0 of the topic in within the client's open transaction.
func commitWithin(t *testing.T, ctx context.Context, cl *kgo.Client, group string, topic [16]byte) {
	t.Helper()
	id, epoch, err := cl.ProducerID(ctx)
	require.NoError(t, err)
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Offset = 17
	one := kmsg.NewTxnOffsetCommitRequestTopic()
	one.Topic, one.TopicID, one.Partitions = "in", topic, append(one.Partitions, p)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, _ = cl.OptValue(kgo.TransactionalID).(string)
	req.Group, req.ProducerID, req.ProducerEpoch, req.Topics = group, id, epoch, append(req.Topics, one)
	resp, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.Zero(t, resp.Topics[0].Partitions[0].ErrorCode)
}
