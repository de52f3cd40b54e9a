package kafkasrc

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

func testLog() *slog.Logger {
	if os.Getenv("KAFKA_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

func TestMain(m *testing.M) { testbed.Main(m) }

// bed is a broker with one input topic.
type bed struct {
	*testbed.Bed
	cfg kafka.Config
	tap *testbed.Tap // on the connections of all clients that are made with cfg
	in  string       // the topic
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
	b := &bed{Bed: tb, tap: &testbed.Tap{}, in: tb.Name("in")}
	b.cfg = kafka.Config{Brokers: tb.Brokers, Logger: testLog(), Extra: []kgo.Opt{b.tap.Opt(), kgo.MetadataMaxAge(time.Minute)}} // what is heard in time is told by somebody
	if partitions > 0 {
		b.CreateTopic(b.in, partitions, nil)
	}
	return b
}

func (b *bed) tp(p int32) element.TopicPartition { return tp(b.in, p) }

func (b *bed) at(p int32, offset int64) element.Position { return at(b.in, p, offset) }

func (b *bed) rec(p int32, key, value string) *kgo.Record {
	return &kgo.Record{Topic: b.in, Partition: p, Key: []byte(key), Value: []byte(value)}
}

func client(t *testing.T, cfg kafka.Config, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kafka.NewClient(cfg, append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
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

func at(topic string, p int32, offset int64) element.Position {
	return element.Position{TopicPartition: tp(topic, p), Offset: offset, LeaderEpoch: -1}
}

func produce(t *testing.T, cl *kgo.Client, recs ...*kgo.Record) {
	t.Helper()
	for _, r := range recs { // one by one: one batch each, so that compaction has something to remove
		require.NoError(t, cl.ProduceSync(within(t, 10*time.Second), r).FirstErr())
	}
}

// reading is a Fetcher that runs in the background and collects what it delivers.
type reading struct {
	*Fetcher
	cancel context.CancelFunc
	done   chan error

	mu  sync.Mutex
	got []element.Delivery
}

func (b *bed) read(t *testing.T, positions ...element.Position) *reading {
	t.Helper()
	return readWith(t, FetcherConfig{Kafka: b.cfg, Positions: positions, Logger: testLog(), MaxWait: 50 * time.Millisecond})
}

func readWith(t *testing.T, fc FetcherConfig) *reading {
	t.Helper()
	f, err := NewFetcher(fc)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r := &reading{Fetcher: f, cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- f.Run(ctx, r.take) }()
	t.Cleanup(func() { cancel(); f.Close() })
	return r
}

func (r *reading) take(_ context.Context, d element.Delivery) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, d)
	return nil
}

func (r *reading) next(tp element.TopicPartition) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := int64(-1)
	for _, d := range r.got {
		if d.From == tp {
			next = d.Next
		}
	}
	return next
}

func (r *reading) records(tp element.TopicPartition) []element.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var recs []element.Record
	for _, d := range r.got {
		if d.From == tp {
			recs = append(recs, d.Records...)
		}
	}
	return recs
}

func (r *reading) values(tp element.TopicPartition) []string {
	var vs []string
	for _, rec := range r.records(tp) {
		vs = append(vs, string(rec.Value))
	}
	return vs
}

// reaches waits until the position of a partition is offset, and checks I5 over all deliveries.
func (r *reading) reaches(t *testing.T, tp element.TopicPartition, offset int64) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); r.next(tp) < offset && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	require.Equal(t, offset, r.next(tp))
	r.mu.Lock()
	defer r.mu.Unlock()
	last := map[element.TopicPartition]int64{}
	for _, d := range r.got {
		if !d.Ended { // an end may be where the position is
			require.Greater(t, d.Next, last[d.From])
		}
		for _, rec := range d.Records {
			require.GreaterOrEqual(t, rec.Offset, last[d.From])
			last[d.From] = rec.Offset + 1
		}
		require.GreaterOrEqual(t, d.Next, last[d.From])
		last[d.From] = d.Next
	}
}

func (r *reading) fails(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the fetcher goes on")
		return nil
	}
}

func requireStop(t *testing.T, err error, code fault.Code, says ...string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
	require.Equal(t, code, fault.CodeOf(err), "%v", err)
	for _, s := range says {
		require.Contains(t, err.Error(), s)
	}
}

func requireRejoin(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, fault.Rejoin, fault.RecoveryOf(err), "%v", err)
}

var errFull = errors.New("downstream has failed")
