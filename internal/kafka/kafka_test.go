package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bed is a broker with one topic, unless it has none.
type bed struct {
	*testbed.Bed
	cfg Config
	in  string
}

// newBed makes the topic with so many partitions, or none for 0.
func newBed(t *testing.T, partitions int32, opts ...kfake.Opt) *bed {
	t.Helper()
	return fill(testbed.New(t, opts...), partitions)
}

func fakeBed(t *testing.T, partitions int32, reason string, opts ...kfake.Opt) (*bed, *kfake.Cluster) {
	t.Helper()
	b, c := testbed.NewFake(t, reason, opts...)
	return fill(b, partitions), c
}

func fill(tb *testbed.Bed, partitions int32) *bed {
	b := &bed{Bed: tb, cfg: Config{Brokers: tb.Brokers, Logger: slog.New(slog.DiscardHandler)}, in: tb.Name("in")}
	if partitions > 0 {
		b.CreateTopic(b.in, partitions, nil)
	}
	return b
}

func (b *bed) tp(p int32) element.TopicPartition { return tp(b.in, p) }

func client(t *testing.T, cfg Config, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := NewClient(cfg, opts...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func tp(topic string, p int32) element.TopicPartition {
	return element.TopicPartition{Topic: topic, Partition: p}
}

func TestProbeTellsTheCluster(t *testing.T) {
	b := newBed(t, 3)
	in, out := b.in, b.Topic("out", 1, nil)
	meta, err := b.Admin().BrokerMetadata(t.Context())
	require.NoError(t, err)
	got, err := Probe(within(t, 5*time.Second), b.cfg, Need{Topics: []string{in, out}, TransactionTimeout: time.Minute})
	require.NoError(t, err)
	require.NotEmpty(t, got.ID)
	require.Equal(t, meta.Cluster, got.ID)
	require.EqualValues(t, 2, got.TransactionVersion)
	require.Equal(t, 15*time.Minute, got.TransactionMaxTimeout)
	require.Len(t, got.Topics, 2)
	require.EqualValues(t, 3, got.Topics[in].Partitions)
	require.False(t, got.Topics[in].ID.IsZero())
	require.NotEqual(t, got.Topics[in].ID, got.Topics[out].ID)
}

func requireStop(t *testing.T, err error, code fault.Code, says ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
	for _, s := range says {
		require.Contains(t, err.Error(), s)
	}
	require.NotContains(t, err.Error(), "\n")
}

func TestProbeOfAnUnreachableBrokerIsBoundedAndNamesIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	start := time.Now()
	_, err = Probe(t.Context(), Config{Brokers: []string{addr}, Reach: 700 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, Need{})
	requireStop(t, err, fault.Unreachable, addr, "700ms", "connection refused")
	require.Less(t, time.Since(start), 3*time.Second)
}

func TestProbeOfAServerThatNeverAnswersIsBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	start := time.Now()
	_, err = Probe(t.Context(), Config{Brokers: []string{l.Addr().String()}, Reach: 700 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}, Need{})
	requireStop(t, err, fault.Unreachable, l.Addr().String())
	require.Less(t, time.Since(start), 3*time.Second)
}

func TestProbeOfAServerThatIsNotKafka(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, err = Probe(t.Context(), Config{Brokers: []string{l.Addr().String()}, Reach: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)}, Need{})
	requireStop(t, err, fault.Unreachable, l.Addr().String())
}

func TestProbeRefusesOldClusters(t *testing.T) {
	for name, v := range map[string]*kversion.Versions{"3.8": kversion.V3_8_0(), "2.8": kversion.V2_8_0()} {
		t.Run(name, func(t *testing.T) {
			b, _ := fakeBed(t, 0, "an old version", kfake.MaxVersions(v))
			_, err := Probe(within(t, 5*time.Second), b.cfg, Need{})
			requireStop(t, err, fault.BrokerTooOld, "Kafka 4.0", "transaction.version=2")
		})
	}
	t.Run("downgraded feature", func(t *testing.T) {
		b, _ := fakeBed(t, 0, "the feature transaction.version is lowered for the whole cluster")
		_, err := b.Admin().UpdateFeatures(t.Context(), false, kadm.FeatureUpdate{Feature: "transaction.version", MaxVersionLevel: 1, UpgradeType: 2})
		require.NoError(t, err)
		_, err = Probe(within(t, 5*time.Second), b.cfg, Need{})
		requireStop(t, err, fault.BrokerTooOld, "transaction.version 1")
	})
}

func TestProbeComparesTheTransactionTimeout(t *testing.T) {
	b := newBed(t, 0) // with Kafka's default of 15 minutes
	_, err := Probe(within(t, 5*time.Second), b.cfg, Need{TransactionTimeout: 16 * time.Minute})
	requireStop(t, err, fault.TransactionTimeout, "960000", "900000")
	_, err = Probe(within(t, 5*time.Second), b.cfg, Need{TransactionTimeout: 15 * time.Minute})
	require.NoError(t, err)
	// The broker itself says the same of an id.
	cl := client(t, b.cfg, kgo.TransactionalID(b.Name("x")), kgo.TransactionTimeout(16*time.Minute))
	_, _, err = cl.ProducerID(within(t, 5*time.Second))
	requireStop(t, Classify(err, "initialise x"), fault.TransactionTimeout)
}

func TestProbeGoesOnWhenTheMaximumMayNotBeRead(t *testing.T) {
	b, c := fakeBed(t, 0, "the broker's configuration may not be read", kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "30000"}))
	cfg := b.cfg
	c.ControlKey(int16(kmsg.DescribeConfigs), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.DescribeConfigsRequest)
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.Resources {
			rr := kmsg.NewDescribeConfigsResponseResource()
			rr.ResourceType, rr.ResourceName, rr.ErrorCode = r.ResourceType, r.ResourceName, kerr.ClusterAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, rr)
		}
		return resp, nil, true
	})
	var logged bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	got, err := Probe(within(t, 5*time.Second), cfg, Need{TransactionTimeout: time.Minute})
	require.NoError(t, err)
	require.Zero(t, got.TransactionMaxTimeout)
	require.Contains(t, logged.String(), "transaction.max.timeout.ms cannot be read")

	cl := client(t, cfg, kgo.TransactionalID("x"), kgo.TransactionTimeout(time.Minute))
	_, _, err = cl.ProducerID(within(t, 5*time.Second))
	requireStop(t, Classify(err, "initialise x"), fault.TransactionTimeout)
}

func TestProbeNamesAllMissingTopics(t *testing.T) {
	bed := newBed(t, 0)
	there, a, b := bed.Topic("there", 1, nil), bed.Name("a"), bed.Name("b")
	_, err := Probe(within(t, 5*time.Second), bed.cfg, Need{Topics: []string{b, there, a, a}})
	requireStop(t, err, fault.UnknownTopic, "["+a+" "+b+"]")
	require.NotContains(t, err.Error(), there+"]")
	only := bed.Name("only")
	_, err = Probe(within(t, 5*time.Second), bed.cfg, Need{Topics: []string{only}})
	requireStop(t, err, fault.UnknownTopic, "topic "+only+" does not exist")
}

func TestProbeWaitsForALateTopicAndItsID(t *testing.T) {
	b, c := fakeBed(t, 1, "a topic without an id for a while")
	asked := 0
	c.ControlKey(int16(kmsg.Metadata), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.MetadataRequest)
		if len(req.Topics) == 0 {
			return nil, nil, false
		}
		asked++
		if asked > 3 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		mt := kmsg.NewMetadataResponseTopic()
		mt.Topic = kmsg.StringPtr(b.in)
		if asked == 1 {
			mt.ErrorCode = kerr.UnknownTopicOrPartition.Code
		} else { // there, but without an id
			mt.Partitions = append(mt.Partitions, kmsg.NewMetadataResponseTopicPartition())
		}
		resp.Topics = append(resp.Topics, mt)
		return resp, nil, true
	})
	got, err := Probe(within(t, 8*time.Second), b.cfg, Need{Topics: []string{b.in}})
	require.NoError(t, err)
	require.False(t, got.Topics[b.in].ID.IsZero())
	require.Equal(t, 4, asked)
}

func TestProbeWithoutAndWithAWrongPassword(t *testing.T) {
	b, c := fakeBed(t, 0, "a listener with SASL", kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "p"))
	cfg := b.cfg
	_, err := Probe(within(t, 5*time.Second), cfg, Need{})
	requireStop(t, err, fault.Unreachable, "SASL")
	cfg.Extra = []kgo.Opt{kgo.SASL(plain.Auth{User: "u", Pass: "p"}.AsMechanism())}
	_, err = Probe(within(t, 5*time.Second), cfg, Need{})
	require.NoError(t, err)
	// kfake closes the connection where a broker gives this answer first.
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := kreq.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, kmsg.StringPtr("wrong user or password")
		return resp, nil, true
	})
	start := time.Now()
	_, err = Probe(within(t, 10*time.Second), cfg, Need{})
	requireStop(t, err, fault.Denied, "refuses access")
	require.Less(t, time.Since(start), 5*time.Second, "it does not wait for the bound")
}

func TestEnsureTopicCreatesOnceAndLeavesWhatIsThere(t *testing.T) {
	b := newBed(t, 0)
	cl, name := client(t, b.cfg), b.Name("app-checkpoints")
	id, err := EnsureTopic(within(t, 5*time.Second), cl, name, 2, map[string]*string{"cleanup.policy": kmsg.StringPtr("compact")})
	require.NoError(t, err)
	require.False(t, id.IsZero())
	again, err := EnsureTopic(within(t, 5*time.Second), cl, name, 7, nil)
	require.NoError(t, err)
	require.Equal(t, id, again)
	topics, err := DescribeTopics(within(t, 5*time.Second), cl, []string{name})
	require.NoError(t, err)
	require.EqualValues(t, 2, topics[name].Partitions)
}

func TestPositions(t *testing.T) {
	b := newBed(t, 2)
	cl := client(t, b.cfg, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	ctx := within(t, 10*time.Second)
	for i := range 10 {
		r := &kgo.Record{Topic: b.in, Partition: 1, Value: []byte("v"), Timestamp: time.UnixMilli(int64(1000 * i))}
		require.NoError(t, cl.ProduceSync(ctx, r).FirstErr())
	}
	req := kadm.Offsets{}
	req.AddOffset(b.in, 1, 4, -1)
	_, err := kadm.NewClient(cl).DeleteRecords(ctx, req)
	require.NoError(t, err)
	both := []element.TopicPartition{b.tp(0), b.tp(1)}
	id := b.TopicID(b.in)

	start, err := StartOffsets(ctx, cl, both)
	require.NoError(t, err)
	require.EqualValues(t, 0, start[b.tp(0)].Offset)
	require.EqualValues(t, 4, start[b.tp(1)].Offset)
	require.EqualValues(t, 2, start[b.tp(1)].PartitionCount)
	require.Equal(t, element.TopicID(id), start[b.tp(1)].TopicID)
	end, err := EndOffsets(ctx, cl, both)
	require.NoError(t, err)
	require.EqualValues(t, 10, end[b.tp(1)].Offset)
	stable, err := StableEndOffsets(ctx, cl, both)
	require.NoError(t, err)
	require.EqualValues(t, 10, stable[b.tp(1)].Offset)
	at, err := OffsetsForTime(ctx, cl, both, time.UnixMilli(6500))
	require.NoError(t, err)
	require.EqualValues(t, 7, at[b.tp(1)].Offset)
	require.EqualValues(t, 0, at[b.tp(0)].Offset)
	late, err := OffsetsForTime(ctx, cl, both, time.UnixMilli(99_000))
	require.NoError(t, err)
	require.EqualValues(t, 10, late[b.tp(1)].Offset)

	_, err = StartOffsets(ctx, cl, []element.TopicPartition{b.tp(2)})
	requireStop(t, err, fault.UnknownTopic, b.in+"/2", "has 2 partitions")
	_, err = EndOffsets(ctx, cl, []element.TopicPartition{tp(b.Name("gone"), 0)})
	requireStop(t, err, fault.UnknownTopic, "gone")
}

func TestStableOffsetsReadsMetadataAndAbsence(t *testing.T) {
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	ctx := within(t, 10*time.Second)
	os := kadm.Offsets{}
	os.Add(kadm.Offset{Topic: b.in, Partition: 1, At: 7, LeaderEpoch: 3, Metadata: "handle"})
	require.NoError(t, kadm.NewClient(cl).CommitAllOffsets(ctx, b.Name("g"), os))
	got, err := StableOffsets(ctx, cl, b.Name("g"), []element.TopicPartition{b.tp(0), b.tp(1)})
	require.NoError(t, err)
	require.Equal(t, Committed{Offset: -1, LeaderEpoch: -1}, got[b.tp(0)])
	require.Equal(t, Committed{Offset: 7, LeaderEpoch: 3, Metadata: "handle", Found: true}, got[b.tp(1)])
	none, err := StableOffsets(ctx, cl, b.Name("never-seen"), []element.TopicPartition{b.tp(0)})
	require.NoError(t, err)
	require.False(t, none[b.tp(0)].Found)
	empty, err := StableOffsets(ctx, cl, b.Name("g"), nil)
	require.NoError(t, err)
	require.Empty(t, empty)
}

func unstable(c *kfake.Cluster, times int) *int {
	n := 0
	c.ControlKey(int16(kmsg.OffsetFetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.OffsetFetchRequest)
		n++
		if n > times || !req.RequireStable {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		g := kmsg.NewOffsetFetchResponseGroup()
		g.Group = req.Groups[0].Group
		for _, t := range req.Groups[0].Topics {
			rt := kmsg.NewOffsetFetchResponseGroupTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
				rp.Partition, rp.Offset = p, -1
				if p == 0 {
					rp.ErrorCode = kerr.UnstableOffsetCommit.Code
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			g.Topics = append(g.Topics, rt)
		}
		resp.Groups = append(resp.Groups, g)
		return resp, nil, true
	})
	return &n
}

func TestStableOffsetsWaitsForAnOpenTransactionQuickly(t *testing.T) {
	b, c := fakeBed(t, 2, "UNSTABLE_OFFSET_COMMIT on demand")
	n := unstable(c, 3)
	cl := client(t, b.cfg)
	start := time.Now()
	got, err := StableOffsets(within(t, 10*time.Second), cl, b.Name("g"), []element.TopicPartition{b.tp(0), b.tp(1)})
	require.NoError(t, err)
	require.Len(t, got, 2)
	require.Equal(t, 4, *n)
	require.Less(t, time.Since(start), 2*time.Second)
}

// A first commit of a group: until its transaction ends, neither its offset nor its absence may be read.
func TestStableOffsetsWaitsForTheEndOfATransaction(t *testing.T) {
	b := newBed(t, 2)
	ctx := within(t, 20*time.Second)
	for _, how := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		tx := client(t, b.cfg, kgo.TransactionalID(b.Name("x")), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		require.NoError(t, tx.BeginTransaction())
		require.NoError(t, tx.ProduceSync(ctx, &kgo.Record{Topic: b.in}).FirstErr())
		id, epoch, err := tx.ProducerID(ctx)
		require.NoError(t, err)
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = b.Name("x"), b.Name("g"), id, epoch, -1
		rt, rp, handle := kmsg.NewTxnOffsetCommitRequestTopic(), kmsg.NewTxnOffsetCommitRequestTopicPartition(), "handle"
		rp.Partition, rp.Offset, rp.Metadata = 1, 7, &handle
		rt.Topic, rt.TopicID, rt.Partitions = b.in, b.TopicID(b.in), append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := req.RequestWith(ctx, tx)
		require.NoError(t, err)
		require.NoError(t, kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode))
		type answer struct {
			got map[element.TopicPartition]Committed
			err error
		}
		read := make(chan answer, 1)
		var ended atomic.Bool
		reader := client(t, b.cfg)
		go func() {
			got, err := StableOffsets(ctx, reader, b.Name("g"), []element.TopicPartition{b.tp(1)})
			if err == nil && !ended.Load() && testbed.Real() {
				err = errors.New("read while the transaction was open")
			}
			read <- answer{got, err}
		}()
		time.Sleep(300 * time.Millisecond)
		ended.Store(true)
		require.NoError(t, tx.EndTransaction(ctx, how))
		a := <-read
		require.NoError(t, a.err)
		if testbed.Real() { // kfake has no such group before its first commit, and says so at once
			require.Equal(t, how == kgo.TryCommit, a.got[b.tp(1)].Found)
		}
		// Read after EndTransaction it is always the outcome, although the broker may not have written it yet.
		got, err := StableOffsets(ctx, reader, b.Name("g"), []element.TopicPartition{b.tp(1)})
		require.NoError(t, err)
		require.Equal(t, how == kgo.TryCommit, got[b.tp(1)].Found)
		tx.Close()
	}
}

func TestStableOffsetsEndsWithItsContext(t *testing.T) {
	b, c := fakeBed(t, 2, "UNSTABLE_OFFSET_COMMIT on demand")
	unstable(c, 1<<30)
	_, err := StableOffsets(within(t, 300*time.Millisecond), client(t, b.cfg), b.Name("g"), []element.TopicPartition{b.tp(0)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Contains(t, err.Error(), "group "+b.Name("g"))
}

func TestClassify(t *testing.T) {
	for err, want := range map[error]struct {
		fault.Recovery
		fault.Code
	}{
		kerr.GroupAuthorizationFailed:   {fault.Stop, fault.Denied},
		kerr.FencedInstanceID:           {fault.Stop, fault.Fenced},
		kerr.InvalidTransactionTimeout:  {fault.Stop, fault.TransactionTimeout},
		kerr.IllegalGeneration:          {fault.Rejoin, fault.Failed},
		kerr.UnknownMemberID:            {fault.Rejoin, fault.Failed},
		kerr.CoordinatorNotAvailable:    {fault.Restart, fault.Failed},
		&net.OpError{Op: "dial"}:        {fault.Restart, fault.Unreachable},
		fault.Stopf(fault.Corrupt, "x"): {fault.Stop, fault.Corrupt},
	} {
		got := Classify(fmt.Errorf("wrapped: %w", err), "do %d", 1)
		require.Equal(t, want.Recovery, fault.RecoveryOf(got), "%v", err)
		require.Equal(t, want.Code, fault.CodeOf(got), "%v", err)
		require.ErrorIs(t, got, err)
		require.True(t, strings.HasPrefix(got.Error(), "do 1: "))
	}
	require.NoError(t, Classify(nil, "x"))
	require.True(t, IsRetriable(kerr.ConcurrentTransactions))
	require.True(t, IsRetriable(kerr.NotCoordinator))
	require.False(t, IsRetriable(context.Canceled))
	require.False(t, IsRetriable(kerr.ProducerFenced))
	require.True(t, IsFenced(kerr.InvalidProducerEpoch))
}

func TestNewClientNeedsBrokers(t *testing.T) {
	_, err := NewClient(Config{})
	require.Error(t, err)
	_, err = NewClient(Config{Brokers: make([]string, 65)})
	require.Error(t, err)
}

func TestLogBridgeLeavesRepeatsOut(t *testing.T) {
	var out bytes.Buffer
	b := newLogBridge(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	now := time.Unix(100, 0)
	b.now = func() time.Time { return now }
	require.Equal(t, kgo.LogLevelWarn, b.Level())
	for range 10 {
		b.Log(kgo.LogLevelWarn, "no connection", "addr", "x:1")
	}
	require.Equal(t, 1, strings.Count(out.String(), "no connection"))
	now = now.Add(repeatEvery)
	b.Log(kgo.LogLevelWarn, "no connection", "addr", "x:1")
	require.Equal(t, 2, strings.Count(out.String(), "no connection"))
	require.Contains(t, out.String(), "left_out=9")
	b.Log(kgo.LogLevelInfo, "joined")
	require.NotContains(t, out.String(), "joined", "kgo's info is our debug")
}

func TestLogBridgeFollowsTheLevel(t *testing.T) {
	for lvl, want := range map[slog.Level]kgo.LogLevel{
		slog.LevelDebug - 8: kgo.LogLevelDebug, slog.LevelDebug: kgo.LogLevelInfo, slog.LevelWarn: kgo.LogLevelWarn,
		slog.LevelError: kgo.LogLevelError, slog.LevelError + 4: kgo.LogLevelNone,
	} {
		b := newLogBridge(slog.New(slog.NewTextHandler(&bytes.Buffer{}, &slog.HandlerOptions{Level: lvl})))
		require.Equal(t, want, b.Level(), "%v", lvl)
	}
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	for i := range 100 {
		d := backoff(i)
		require.Greater(t, d, 30*time.Millisecond)
		require.LessOrEqual(t, d, backoffMost*6/5)
	}
	require.Less(t, backoff(1), 100*time.Millisecond)
	require.Greater(t, backoff(20), time.Second)
}

func TestTransactionTimeoutErrorNamesBothNumbers(t *testing.T) {
	requireStop(t, TransactionTimeoutError(time.Minute, time.Second), fault.TransactionTimeout, "60000", "1000")
	requireStop(t, TransactionTimeoutError(time.Minute, 0), fault.TransactionTimeout, "60000")
	require.False(t, errors.Is(TransactionTimeoutError(1, 1), context.Canceled))
}
