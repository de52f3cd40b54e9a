package txn

import (
	"context"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

// BatchSize is the size on the wire, to the byte.
func TestBatchSizeIsTheSizeOnTheWire(t *testing.T) {
	testbed.Alongside(t)
	rapid.Check(t, func(t *rapid.T) {
		bytes := func(label string) []byte {
			n := rapid.OneOf(rapid.IntRange(-1, 70), rapid.IntRange(8000, 9000)).Draw(t, label)
			if n < 0 {
				return nil
			}
			return make([]byte, n)
		}
		r := kgo.Record{Key: bytes("key"), Value: bytes("value")}
		wire := kmsg.Record{Key: r.Key, Value: r.Value}
		for range rapid.IntRange(0, 70).Draw(t, "headers") {
			h := kgo.RecordHeader{Key: strings.Repeat("h", rapid.IntRange(0, 70).Draw(t, "header")), Value: bytes("header value")}
			r.Headers = append(r.Headers, h)
			wire.Headers = append(wire.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		wire.Length = int32(len(wire.AppendTo(nil)) - 1) // a length of 0 takes one byte
		batch := kmsg.RecordBatch{NumRecords: 1, Records: wire.AppendTo(nil)}
		require.EqualValues(t, len(batch.AppendTo(nil)), BatchSize(&r))
	})
}

func TestBatchLimits(t *testing.T) {
	cfg := limited(map[string]int32{"tiny": 1, "large": 10 << 20, "huge": 1 << 30})
	for topic, want := range map[string]int32{"": 1 << 20, "unknown": 1 << 20, "tiny": 512, "large": 10 << 20, "huge": DefaultMaxBufferedBytes} {
		require.Equal(t, want, cfg.batchMaxBytes(topic), topic)
	}
	for asked, want := range map[int32]int32{0: mostRequest, 1: kafka.RequestOverhead + leastBatch, 100_000: 100_000, 1 << 30: mostRequest} {
		cfg.RequestMaxBytes = func() int32 { return asked }
		require.Equal(t, want, cfg.requestMaxBytes())
		require.LessOrEqual(t, cfg.batchMaxBytes("unknown"), want-kafka.RequestOverhead, "a batch fits into a request")
		cl, err := kafka.NewClient(kafka.Config{Brokers: []string{"127.0.0.1:1"}}, cfg.produceOpts(cfg.newLimits())...)
		require.NoError(t, err)
		require.Equal(t, want, cl.OptValue(kgo.BrokerMaxWriteBytes))
		cl.Close()
	}
}

// A record that is as large as its topic takes goes out, one that is a byte larger does not, and batches of several are never larger
// than the broker takes. The client leaves out the last three bytes only where it has not produced to the broker yet.
func TestTheLargestRecordThatATopicTakes(t *testing.T) {
	testbed.Alongside(t)
	const most = 3000
	for more, want := range map[int]error{-1: nil, 0: nil, 1: kerr.MessageTooLarge} {
		e := newEnv(t)
		e.lower(strconv.Itoa(most))
		m := e.manager(func(c *Config) { c.TopicMaxBytes = func(string) (int32, bool) { return most, true } })
		acked := make(chan error, 1)
		require.NoError(t, m.Produce(e.ctx, &kgo.Record{Topic: e.out}, func(_ *kgo.Record, err error) { acked <- err }))
		require.NoError(t, <-acked)
		r := kgo.Record{Topic: e.out, Value: make([]byte, most)}
		r.Value = r.Value[:2*most-int(BatchSize(&r))+more]
		require.EqualValues(t, most+more, BatchSize(&r))
		require.NoError(t, m.Produce(e.ctx, &r, func(_ *kgo.Record, err error) { acked <- err }))
		require.ErrorIs(t, <-acked, want)
		if want != nil {
			continue
		}
		var recs []kgo.Record
		for i := range 5000 {
			recs = append(recs, kgo.Record{Topic: e.out, Value: make([]byte, i*i*31%400)})
			if i%100 == 0 {
				recs = append(recs, r)
			}
		}
		require.NoError(t, m.ProduceBatch(e.ctx, recs))
		require.NoError(t, e.checkpoint(m, 1))
	}
}

// Batches that become smaller for a topic whose limit is not known become so until the largest record that was refused is just taken by
// the client: where batches were larger, a topic that takes the record might refuse others for them.
func TestBatchesBecomeAsSmallAsARefusedRecordAllows(t *testing.T) {
	cfg, r := limited(nil), &kgo.Record{Topic: "out", Value: make([]byte, 3000)}
	cfg.refusals = new(refusals)
	l := cfg.newLimits()
	for l.batch("out"); ; l.batch("out") {
		f := newFailure(r, kerr.MessageTooLarge)
		if !l.hope(f) {
			break
		}
		l.learn(f)
		l = cfg.newLimits()
	}
	require.EqualValues(t, BatchSize(r)+clientExtra, l.batch("out"))
}

// limited is a Config with the limits of topics.
func limited(most map[string]int32) Config {
	return Config{BatchMaxBytes: DefaultBatchMaxBytes, MaxBufferedBytes: DefaultMaxBufferedBytes, MaxBufferedRecords: 1000,
		TopicMaxBytes: func(topic string) (int32, bool) { return most[topic], most[topic] > 0 }}
}

// lower sets the topic's largest message at the broker.
func (e *env) lower(most string) {
	set, err := e.bed.Admin().AlterTopicConfigs(e.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &most}}, e.out)
	require.NoError(e.t, err)
	require.NoError(e.t, set[0].Err)
}

// committer is what Manager and Plain have in common here.
type committer interface {
	Init(ctx context.Context) error
	ProduceBatch(ctx context.Context, recs []kgo.Record) error
	Seal(ctx context.Context, id element.CheckpointID) error
	Abort(ctx context.Context) error
}

// The brokers take smaller requests than before, which they only show by ending the connection.
func TestALoweredLimitOfRequestsIsReadAnew(t *testing.T) {
	testbed.Alongside(t)
	for _, kind := range []string{"manager", "plain"} {
		t.Run(kind, func(t *testing.T) {
			e := newEnv(t)
			most := atomic.Int32{}
			cfg := e.config()
			cfg.RequestMaxBytes = most.Load
			var c committer
			if kind == "plain" {
				c = e.plain(func(c *Config) { *c = cfg })
			} else {
				c = e.manager(func(c *Config) { *c = cfg })
			}
			const small = 40_000
			e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Before: func(r kmsg.Request) error {
				if n := len(r.AppendTo(nil)); n > small {
					return io.ErrUnexpectedEOF
				}
				return nil
			}})
			try := func(id element.CheckpointID) error {
				var recs []kgo.Record
				for i := range 200 {
					recs = append(recs, kgo.Record{Topic: e.out, Partition: int32(i % 4), Value: make([]byte, 1000)})
				}
				if err := c.ProduceBatch(e.ctx, recs); err != nil {
					return err
				}
				return c.Seal(e.ctx, id)
			}
			began := time.Now()
			err := try(1)
			require.ErrorIs(t, err, errCut)
			require.Equal(t, fault.Restart, fault.RecoveryOf(err))
			_ = c.Abort(e.ctx)
			require.Less(t, time.Since(began), 10*time.Second)
			most.Store(small)
			for id := range element.CheckpointID(DefaultSlots) {
				require.NoError(t, c.Init(e.ctx))
				require.NoError(t, try(id+2))
				require.NoError(t, c.Abort(e.ctx))
			}
		})
	}
}

// A topic's limit is lowered under a client that makes batches for the old one. As long as each record fits, a new attempt
// with the new limit cures it; however the attempt learns of the refusal, its clients are made anew.
func TestALoweredLimitIsCuredByANewAttempt(t *testing.T) {
	testbed.Alongside(t)
	for _, kind := range []string{"manager", "plain"} {
		for _, how := range []string{"seal", "produce"} {
			t.Run(kind+" learns by "+how, func(t *testing.T) {
				e := newEnv(t)
				most := int32(1 << 20)
				cfg := e.config()
				cfg.TopicMaxBytes = func(topic string) (int32, bool) { return most, topic == e.out }
				var c committer = e.manager(func(c *Config) { *c = cfg })
				if kind == "plain" {
					c = e.plain(func(c *Config) { *c = cfg })
				}
				batch := func() []kgo.Record {
					recs := make([]kgo.Record, 50)
					for i := range recs {
						recs[i] = kgo.Record{Topic: e.out, Value: make([]byte, 500)}
					}
					return recs
				}
				try := func(id element.CheckpointID) error {
					if err := c.ProduceBatch(e.ctx, batch()); err != nil {
						return err
					}
					if how == "produce" && id == 2 {
						require.Eventually(t, func() bool { return c.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out}}) != nil }, 5*time.Second, time.Millisecond)
						return c.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out}})
					}
					return c.Seal(e.ctx, id)
				}
				require.NoError(t, try(1))
				require.NoError(t, c.Abort(e.ctx))
				require.NoError(t, c.Init(e.ctx))
				e.lower("2000")
				err := try(2)
				require.ErrorIs(t, err, kerr.MessageTooLarge)
				require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
				require.Equal(t, fault.BadRecord, fault.CodeOf(err))
				require.ErrorContains(t, err, "read anew")
				require.NoError(t, c.Abort(e.ctx))
				most = 2000
				for id := range element.CheckpointID(DefaultSlots) {
					require.NoError(t, c.Init(e.ctx))
					require.NoError(t, try(id+3))
					require.NoError(t, c.Abort(e.ctx))
				}
				// What does not fit on its own is no matter of a new attempt.
				require.NoError(t, c.Init(e.ctx))
				require.NoError(t, c.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out, Value: make([]byte, 2000)}}))
				err = c.Seal(e.ctx, 9)
				require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
				require.Equal(t, fault.BadRecord, fault.CodeOf(err))
			})
		}
	}
}
