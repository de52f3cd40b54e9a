package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// A source keeps its name and gets another topic with fewer partitions, which grows later: the partitions that are added have
// nothing to do with those of the old topic that had their numbers.
func TestATopicThatASourceHasGotGrows(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "got"
	other := inTopic() + "-got"
	adm := kadm.NewClient(b.cl)
	_, err := adm.CreateTopic(t.Context(), 2, -1, nil, other)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = adm.DeleteTopic(t.Context(), other) })
	plan := func(topic string) *topology.Plan {
		tb := topology.New(app)
		topology.ToTopic(topology.FromTopic(tb, "in", topic, serde.Bytes(), serde.Bytes()), "out", outTopic(), serde.Bytes(), serde.Bytes())
		p, err := tb.Plan()
		require.NoError(t, err)
		return p
	}
	put, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(100*time.Millisecond))
	require.NoError(t, err)
	defer put.Close()
	done := func(topic string, partitions int32, each int64) {
		t.Helper()
		for p := range partitions {
			require.Eventually(t, func() bool { // a partition that was added a moment ago is not known everywhere
				return put.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: p, Value: []byte("v")}).FirstErr() == nil
			}, 20*time.Second, 20*time.Millisecond)
		}
		require.Eventually(t, func() bool {
			committed, err := kafka.GroupOffsets(t.Context(), b.cl, app, false)
			n := 0
			for tp, c := range committed {
				if tp.Topic == topic && c.Offset >= each {
					n++
				}
			}
			return err == nil && n == int(partitions)
		}, 30*time.Second, 20*time.Millisecond)
	}
	cfg := b.config()
	stop := b.start(plan(inTopic()), cfg)
	done(inTopic(), 4, 1)
	require.NoError(t, stop())
	require.ErrorContains(t, Run(t.Context(), plan(other), cfg), "give the source back its topic")
	cfg.AllowDroppedState = true
	stop = b.start(plan(other), cfg)
	done(other, 2, 1)
	require.NoError(t, stop())
	cfg.AllowDroppedState = false
	_, err = adm.CreatePartitions(t.Context(), 2, other)
	require.NoError(t, err)
	stop = b.start(plan(other), cfg)
	done(other, 4, 1)
	require.NoError(t, stop())
}
