package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/checkpoint/checkpointtest"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
)

const (
	inTopic, outTopic = "in", "out"
	group             = "app"
)

// env is an embedded broker with a member of the consumer group, whose identity the fence hands out.
type env struct {
	t       *testing.T
	ctx     context.Context
	cluster *kfake.Cluster
	cfg     kafka.Config
	admin   *kgo.Client
	member  *kgo.Client
	topic   kafka.Topic

	mu    sync.Mutex
	ended []Stats
	inits []int

	// cut makes every connection break right after an EndTxn request went out on it: the broker does the work, the
	// answer is lost.
	cut atomic.Bool
}

// cutConn is a connection that env.cut breaks.
type cutConn struct {
	net.Conn
	cut    *atomic.Bool
	broken atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	// A request is one Write: four bytes of length, two of the api key.
	if c.cut.Load() && len(b) > 6 && b[4] == 0 && b[5] == byte(kmsg.EndTxn) {
		c.broken.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.broken.Load() {
		return 0, errors.New("connection cut")
	}
	return n, err
}

func newEnv(t *testing.T, opts ...kfake.Opt) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, inTopic, outTopic)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	e := &env{t: t, ctx: ctx, cluster: c, cfg: kafka.Config{Brokers: c.ListenAddrs(), Logger: slog.New(slog.DiscardHandler)}}
	e.cfg.Extra = []kgo.Opt{kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: conn, cut: &e.cut}, nil
	})}
	e.admin = e.newClient()
	topics, err := kafka.DescribeTopics(ctx, e.admin, []string{inTopic})
	require.NoError(t, err)
	e.topic = topics[inTopic]
	e.member = e.newClient(kgo.ConsumerGroup(group), kgo.ConsumeTopics(inTopic), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.Eventually(t, func() bool { m, g := e.member.GroupMetadata(); return m != "" && g >= 0 }, 10*time.Second, 5*time.Millisecond)
	return e
}

func (e *env) newClient(opts ...kgo.Opt) *kgo.Client {
	cl, err := kafka.NewClient(e.cfg, opts...)
	require.NoError(e.t, err)
	e.t.Cleanup(cl.Close)
	return cl
}

func (e *env) fence(uint64) (string, int32, string, error) {
	m, g := e.member.GroupMetadata()
	return m, g, "", nil
}

// config is that of a manager of this application; two with the same config fence each other.
func (e *env) config() Config {
	return Config{Kafka: e.cfg, Application: group, Instance: "i1", Group: group, Incarnation: 0xabc, Fence: e.fence,
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
		recs[i] = kgo.Record{Topic: outTopic, Partition: int32(i % 4), Key: []byte("k"), Value: []byte(v)}
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
			Position: element.Position{TopicPartition: element.TopicPartition{Topic: inTopic, Partition: p}, TopicID: e.topic.ID,
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
	return m.Commit(e.ctx, e.commitOf(id, int64(id)*10, fmt.Sprintf("h%d", id)), 1)
}

// committed reads what the group has stored for both partitions, waiting for open transactions; it must be the same.
func (e *env) committed() (offset int64, handle string) {
	e.t.Helper()
	tps := []element.TopicPartition{{Topic: inTopic, Partition: 0}, {Topic: inTopic, Partition: 1}}
	got, err := kafka.StableOffsets(e.ctx, e.admin, group, tps)
	require.NoError(e.t, err)
	require.Equal(e.t, got[tps[0]], got[tps[1]], "partitions of one checkpoint")
	c := got[tps[0]]
	if !c.Found {
		return -1, ""
	}
	return c.Offset, c.Metadata
}

// read gives the values of a topic that a read_committed reader sees, per partition in order, one after the other. It
// fails if a transaction is open on the topic.
func (e *env) read(topic string) []string {
	e.t.Helper()
	desc, err := kafka.DescribeTopics(e.ctx, e.admin, []string{topic})
	require.NoError(e.t, err)
	var tps []element.TopicPartition
	for p := range desc[topic].Partitions {
		tps = append(tps, element.TopicPartition{Topic: topic, Partition: p})
	}
	stable, err := kafka.StableEndOffsets(e.ctx, e.admin, tps)
	require.NoError(e.t, err)
	ends, err := kafka.EndOffsets(e.ctx, e.admin, tps)
	require.NoError(e.t, err)
	require.Equal(e.t, ends, stable, "a transaction is open on %s", topic)
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
