package processor

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// countTopics counts what topics have by key, behind an exchange.
func countTopics(t *testing.T, app string, topics []string) *topology.Plan {
	t.Helper()
	tb := topology.New(app)
	in := topology.FromTopics(tb, "in", topics, serde.Bytes(), serde.Bytes())
	byKey := topology.GroupBy(in, "by-key", serde.Bytes(), serde.Bytes(), func(k, _ []byte) []byte { return k })
	topology.ToTopic(topology.Count(byKey, "count"), "out", outTopic(), serde.Bytes(), serde.Int64())
	p, err := tb.Plan()
	require.NoError(t, err)
	return p
}

// One of two topics ahead of an exchange is taken out, and back, and out, and created anew before it is back.
func TestATopicIsTakenOutAndComesBack(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	adm := kadm.NewClient(b.cl)
	b.groups["takenout"] = true
	north, south := "north-"+inTopic(), "south-"+inTopic()
	t.Cleanup(func() { _, _ = adm.DeleteTopics(t.Context(), north, south) })
	for _, name := range []string{north, south} {
		_, err := adm.CreateTopic(t.Context(), 1, 1, nil, name)
		require.NoError(t, err)
	}
	produce := func(topic string) {
		r := &kgo.Record{Topic: topic, Key: []byte("k"), Value: binary.BigEndian.AppendUint64(nil, 1)}
		cl, err := kgo.NewClient(b.cl.Opts()...) // which has not seen the topic that was deleted
		require.NoError(t, err)
		defer cl.Close()
		require.NoError(t, cl.ProduceSync(t.Context(), r).FirstErr())
	}
	plan := func(topics ...string) *topology.Plan { return countTopics(t, "takenout", topics) }
	var want []int
	counts := func(cfg Config, to int, topics ...string) {
		for n := len(want) + 1; n <= to; n++ {
			want = append(want, n)
		}
		stop := b.start(plan(topics...), cfg)
		require.Eventually(t, func() bool { return len(b.output()) >= to }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
		require.Equal(t, want, b.output(), "each record is counted once")
	}

	produce(north)
	produce(south)
	counts(b.config(), 2, north, south)
	for n := range 3 { // more checkpoints than are retained
		produce(north)
		counts(b.config(), 3+n, north)
	}
	produce(south)
	counts(b.config(), 6, north, south)
	produce(north)
	counts(b.config(), 7, north)

	_, err := adm.DeleteTopics(t.Context(), south)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := adm.CreateTopic(t.Context(), 1, 1, nil, south)
		return err == nil
	}, 10*time.Second, 50*time.Millisecond)
	produce(south)
	err = Run(t.Context(), plan(north, south), b.config())
	require.ErrorContains(t, err, "deleted and created again")
	require.Equal(t, int(fault.HandleMismatch), ExitCode(err))
	require.ErrorContains(t, err, "--allow-dropped-state")
	_, _ = adm.DeleteOffsets(t.Context(), "takenout", kadm.TopicsSet{south: {0: {}}}) // as the message says; brokers may have done it
	cfg := b.config()
	cfg.AllowDroppedState = true
	counts(cfg, 8, north, south)
}
