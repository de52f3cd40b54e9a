package txn

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/checkpoint/checkpointtest"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// env is a broker with two topics of four partitions and a member of the consumer group, whose identity the fence hands
// out.
type env struct {
	t   *testing.T
	ctx context.Context
	bed *testbed.Bed
	tap testbed.Tap
	cfg kafka.Config

	in, out, group, markers string

	admin  *kgo.Client
	member *kgo.Client
	topic  kafka.Topic

	mu    sync.Mutex
	ended []Stats
	inits []int
}

func newEnv(t *testing.T) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	b := testbed.New(t)
	e := &env{t: t, ctx: ctx, bed: b, cfg: kafka.Config{Brokers: b.Brokers, Logger: slog.New(slog.DiscardHandler)}}
	e.in, e.out, e.group = b.Topic("in", 4, nil), b.Topic("out", 4, nil), b.Name("app")
	e.markers = e.group + "-checkpoints"
	e.cfg.Extra = []kgo.Opt{e.tap.Opt()}
	e.admin = e.newClient()
	topics, err := kafka.DescribeTopics(ctx, e.admin, []string{e.in})
	require.NoError(t, err)
	e.topic = topics[e.in]
	e.member = e.newClient(kgo.ConsumerGroup(e.group), kgo.ConsumeTopics(e.in), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.Eventually(t, func() bool { m, g := e.member.GroupMetadata(); return m != "" && g >= 0 }, 10*time.Second, 5*time.Millisecond)
	return e
}

func (e *env) newClient(opts ...kgo.Opt) *kgo.Client {
	cl, err := kafka.NewClient(e.cfg, opts...)
	require.NoError(e.t, err)
	e.t.Cleanup(cl.Close)
	return cl
}

func (e *env) fence([]checkpoint.OffsetCommit) (string, int32, string, error) {
	m, g := e.member.GroupMetadata()
	return m, g, "", nil
}

// config is that of a manager of this application; two with the same config fence each other.
func (e *env) config() Config {
	return Config{Kafka: e.cfg, Application: e.group, Instance: "i1", Group: e.group, Incarnation: 0xabc, Fence: e.fence,
		Timeout: 30 * time.Second, EndTimeout: 5 * time.Second, Linger: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Hooks: Hooks{
			Ended:       func(s Stats) { e.mu.Lock(); e.ended = append(e.ended, s); e.mu.Unlock() },
			Initialised: func(s int) { e.mu.Lock(); e.inits = append(e.inits, s); e.mu.Unlock() },
		}}
}

func (e *env) manager(change ...func(*Config)) *Manager {
	e.t.Helper()
	cfg := e.config()
	for _, f := range change {
		f(&cfg)
	}
	m, err := NewManager(cfg)
	require.NoError(e.t, err)
	e.t.Cleanup(m.Close)
	require.NoError(e.t, m.Init(e.ctx))
	return m
}

func (e *env) produce(m *Manager, values ...string) {
	e.t.Helper()
	recs := make([]kgo.Record, len(values))
	for i, v := range values {
		recs[i] = kgo.Record{Topic: e.out, Partition: int32(i % 4), Key: []byte("k"), Value: []byte(v)}
	}
	require.NoError(e.t, m.ProduceBatch(e.ctx, recs))
}

// commitOf is checkpoint id with the same offset and a handle on both of two partitions.
func (e *env) commitOf(id element.CheckpointID, offset int64, handle string) checkpoint.Commit {
	c := checkpoint.Commit{Name: element.CheckpointName{ID: id, Incarnation: 0xabc}}
	if id > 0 {
		c.Permit = checkpointtest.Permit(id)
	}
	for p := range int32(2) {
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{
			Position: element.Position{TopicPartition: element.TopicPartition{Topic: e.in, Partition: p}, TopicID: e.topic.ID,
				PartitionCount: e.topic.Partitions, Offset: offset, LeaderEpoch: -1},
			Metadata: handle,
		})
	}
	return c
}

// checkpoint produces, seals and commits.
func (e *env) checkpoint(m *Manager, id element.CheckpointID, values ...string) error {
	e.t.Helper()
	if len(values) > 0 {
		e.produce(m, values...)
	}
	if err := m.Seal(e.ctx, id); err != nil {
		return err
	}
	return m.Commit(e.ctx, e.commitOf(id, int64(id)*10, fmt.Sprintf("h%d", id)))
}

// committed reads what the group has stored for both partitions, waiting for open transactions; it must be the same.
func (e *env) committed() (offset int64, handle string) {
	e.t.Helper()
	tps := []element.TopicPartition{{Topic: e.in, Partition: 0}, {Topic: e.in, Partition: 1}}
	got, err := kafka.StableOffsets(e.ctx, e.admin, e.group, tps)
	require.NoError(e.t, err)
	require.Equal(e.t, got[tps[0]], got[tps[1]], "partitions of one checkpoint")
	c := got[tps[0]]
	if !c.Found {
		return -1, ""
	}
	return c.Offset, c.Metadata
}

// read gives the values of a topic that a read_committed reader sees, per partition in order, one after the other. It
// fails if a transaction stays open on the topic.
func (e *env) read(topic string) []string {
	e.t.Helper()
	desc, err := kafka.DescribeTopics(e.ctx, e.admin, []string{topic})
	require.NoError(e.t, err)
	var tps []element.TopicPartition
	for p := range desc[topic].Partitions {
		tps = append(tps, element.TopicPartition{Topic: topic, Partition: p})
	}
	// Kafka answers EndTxn before the markers are in the partitions, and readers see the records only then.
	var ends map[element.TopicPartition]element.Position
	require.Eventually(e.t, func() bool {
		stable, err := kafka.StableEndOffsets(e.ctx, e.admin, tps)
		require.NoError(e.t, err)
		ends, err = kafka.EndOffsets(e.ctx, e.admin, tps)
		require.NoError(e.t, err)
		return maps.Equal(stable, ends)
	}, 5*time.Second, 5*time.Millisecond, "a transaction is open on %s", topic)
	values := []string{}
	for _, tp := range tps {
		values = append(values, e.readPartition(tp, ends[tp].Offset)...)
	}
	return values
}

func (e *env) readPartition(tp element.TopicPartition, end int64) []string {
	if end == 0 {
		return nil
	}
	cl := e.newClient(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{tp.Topic: {tp.Partition: kgo.NewOffset().At(0)}}))
	defer cl.Close()
	var values []string
	for next := int64(0); next < end; {
		fs := cl.PollFetches(e.ctx)
		require.NoError(e.t, fs.Err())
		fs.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}
