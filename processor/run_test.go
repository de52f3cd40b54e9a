package processor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// total is a count and a sum in 16 bytes.
type total struct{ n, sum int64 }

type totalSerde struct{}

func (totalSerde) Name() string   { return "test-total" }
func (totalSerde) FixedSize() int { return 16 }
func (totalSerde) Append(dst []byte, t total) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.n))
	return binary.BigEndian.AppendUint64(dst, uint64(t.sum)), nil
}
func (totalSerde) Decode(b []byte) (total, error) {
	if len(b) != 16 {
		return total{}, fmt.Errorf("%d bytes, want 16", len(b))
	}
	return total{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

func countPlan(t testing.TB, app string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.Bytes(), serde.Bytes())
	totals := topology.Aggregate(in, "totals", totalSerde{}, func(a total, v []byte) total {
		return total{a.n + 1, a.sum + int64(binary.BigEndian.Uint64(v))}
	})
	topology.ToTopic(totals, "out", outTopic(), serde.Bytes(), totalSerde{})
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// The topics of the test that runs have a suffix of their own where tests share a broker. It is in the environment for the
// processes that tests start.
const topicSuffix = "TEST_TOPIC_SUFFIX"

func inTopic() string  { return "in" + os.Getenv(topicSuffix) }
func outTopic() string { return "out" + os.Getenv(topicSuffix) }

func TestMain(m *testing.M) { testbed.Main(m) }

// bed is a broker with the topics of countPlan, four partitions each.
type bed struct {
	t      *testing.T
	addr   string
	dir    string
	cl     *kgo.Client
	groups map[string]bool // of services that ran, whose names are not the bed's own
}

func newBed(t *testing.T) *bed { return bedOn(t, testbed.New(t)) }

func bedOn(t *testing.T, tb *testbed.Bed) *bed {
	if testbed.Real() { // otherwise the broker is the test's own
		t.Setenv(topicSuffix, tb.Name(""))
	}
	tb.CreateTopic(inTopic(), 4, nil)
	tb.CreateTopic(outTopic(), 4, nil)
	cl, err := kgo.NewClient(kgo.SeedBrokers(tb.Brokers...), kgo.DefaultProduceTopic(inTopic()))
	require.NoError(t, err)
	b := &bed{t: t, addr: tb.Brokers[0], dir: t.TempDir(), cl: cl, groups: map[string]bool{}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for g := range b.groups {
			_, _ = kadm.NewClient(cl).DeleteGroups(ctx, g) // housekeeping on a broker that lives on
		}
		cl.Close()
	})
	return b
}

func (b *bed) produce(from, n int) {
	b.t.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		v := binary.BigEndian.AppendUint64(nil, uint64(from+i))
		recs[i] = &kgo.Record{Key: fmt.Appendf(nil, "key-%03d", (from+i)%300), Value: v}
	}
	require.NoError(b.t, b.cl.ProduceSync(b.t.Context(), recs...).FirstErr())
}

func (b *bed) config() Config {
	level := slog.LevelWarn
	if os.Getenv("KAFKA_LOG") != "" {
		level = slog.LevelDebug
	}
	return Config{Brokers: []string{b.addr}, DataDir: b.dir, Backend: Memory, Interval: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
}

// lag is what the group has not committed yet.
func (b *bed) lag(group string) int64 {
	b.groups[group] = true
	adm := kadm.NewClient(b.cl)
	ends, err := adm.ListCommittedOffsets(b.t.Context(), inTopic())
	require.NoError(b.t, err)
	committed, err := adm.FetchOffsets(b.t.Context(), group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return 1 // the service has not joined yet
	}
	require.NoError(b.t, err)
	var lag int64
	ends.Each(func(o kadm.ListedOffset) {
		at, _ := committed.Lookup(o.Topic, o.Partition)
		lag += o.Offset - at.At
	})
	return lag
}

// start runs the plan in the background; stop ends it gracefully and gives its error.
func (b *bed) start(plan *topology.Plan, cfg Config) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, plan, cfg) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Second):
			return fmt.Errorf("the service did not stop within 20 s")
		}
	}
	b.t.Cleanup(func() { _ = stop() })
	return stop
}

// verify reads the topics once every marker is in the output: Kafka answers the end of a transaction before that.
func (b *bed) verify() verify.Report {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		r, err := verify.Verify(b.t.Context(), verify.Config{Kafka: kafka.Config{Brokers: []string{b.addr}}, Input: inTopic(), Output: outTopic(), Format: verify.Binary})
		require.NoError(b.t, err)
		if r.OpenOffsets == 0 || time.Now().After(end) {
			require.Zero(b.t, r.OpenOffsets, "a transaction is open")
			return r
		}
	}
}

func TestCountIsExactOverGracefulRestarts(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	plan := countPlan(t, "count")
	for round := range 3 {
		b.produce(round*2000, 2000)
		stop := b.start(plan, b.config())
		require.Eventually(t, func() bool { return b.lag("count") == 0 }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
	}
	r := b.verify()
	require.True(t, r.Exact(), "%+v", r)
	require.EqualValues(t, 6000, r.RecordsOut)
}

// Idle: no transaction, no file.
func TestNothingMovedCommitsNothing(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.produce(0, 100)
	var commits []element.CheckpointID
	cfg := b.config()
	cfg.Listener.CheckpointCompleted = func(s checkpoint.CheckpointStats) { commits = append(commits, s.ID) }
	stop := b.start(countPlan(t, "idle"), cfg)
	require.Eventually(t, func() bool { return b.lag("idle") == 0 }, 20*time.Second, 20*time.Millisecond)
	time.Sleep(10 * cfg.Interval)
	require.NoError(t, stop())
	require.LessOrEqual(t, len(commits), 3)
}

// The repair that a message asks for, such as setting offsets back, needs a group without members.
func TestAFinalStopLeavesTheGroup(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	require.NoError(t, b.cl.ProduceSync(t.Context(), &kgo.Record{Key: []byte("k"), Value: []byte("short")}).FirstErr())
	cfg := b.config()
	cfg.Restart.Exponential = restart.Exponential{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond, Jitter: -1}
	err := Run(t.Context(), countPlan(t, "leaves"), cfg)
	require.ErrorContains(t, err, "offset 0")
	require.Equal(t, 30, ExitCode(err))
	groups, err := kadm.NewClient(b.cl).DescribeGroups(t.Context(), "leaves")
	require.NoError(t, err)
	require.Empty(t, groups["leaves"].Members)
}
