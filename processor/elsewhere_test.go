package processor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// The checkpoint directory and the topic of the only source change in one start: no position of what is read names the old
// directory, and still nothing begins without its state unless that is wanted.
func TestAnotherDirectoryAndAnotherTopicAtOnceAreRefused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	plan := func(topic string) *topology.Plan {
		tb := topology.New("moved")
		topology.ToTopic(topology.FromTopic(tb, "in", topic, serde.Bytes(), serde.Bytes()), "out", outTopic(), serde.Bytes(), serde.Bytes())
		p, err := tb.Plan()
		require.NoError(t, err)
		return p
	}
	other := inTopic() + "-moved"
	adm := kadm.NewClient(b.cl)
	_, err := adm.CreateTopic(t.Context(), 2, -1, nil, other)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = adm.DeleteTopic(t.Context(), other) })
	caughtUp := func() {
		t.Helper()
		require.Eventually(t, func() bool { return b.lag("moved") == 0 }, 30*time.Second, 20*time.Millisecond)
	}
	cfg := b.config()
	stop := b.start(plan(inTopic()), cfg)
	b.produce(0, 40)
	caughtUp()
	require.NoError(t, stop())
	old := cfg.CheckpointsDir
	cfg.CheckpointsDir = t.TempDir()
	err = Run(t.Context(), plan(other), cfg)
	require.ErrorContains(t, err, "all would begin without state")
	require.ErrorContains(t, err, "--allow-dropped-state")
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	dropped := cfg
	dropped.AllowDroppedState = true
	stop = b.start(plan(other), dropped)
	require.NoError(t, b.cl.ProduceSync(t.Context(), &kgo.Record{Topic: other, Value: []byte("v")}).FirstErr())
	require.Eventually(t, func() bool {
		committed, err := kafka.GroupOffsets(t.Context(), b.cl, "moved", false)
		n := int64(0)
		for tp, c := range committed {
			if tp.Topic == other && c.Found {
				n += c.Offset
			}
		}
		return err == nil && n == 1
	}, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	stop = b.start(plan(other), cfg) // which has positions of its own by now
	require.NoError(t, stop())
	cfg.CheckpointsDir = old
	require.ErrorContains(t, Run(t.Context(), plan(other), cfg), "store id")
}

func TestWhatIsReadSaysWhetherTheDirectoryIsRight(t *testing.T) {
	handle := func(kind snapshot.HandleKind, store, cluster string, life uint64) kafka.Committed {
		h := snapshot.Handle{Kind: kind, Offset: 5, PartitionCount: 1, ClusterID: cluster, StoreID: store, Life: life}
		if kind == snapshot.HandleCheckpoint {
			h.Root = snapshot.RootRef{Path: "app/i/chk-1-0000000000000001.root", Name: element.CheckpointName{ID: 1, Incarnation: 1}}
		}
		text, err := h.Encode()
		require.NoError(t, err)
		return kafka.Committed{Found: true, Offset: 5, Metadata: text}
	}
	a, b := element.TopicPartition{Topic: "a"}, element.TopicPartition{Topic: "b"}
	for name, c := range map[string]struct {
		committed map[element.TopicPartition]kafka.Committed
		refused   bool
	}{
		"nothing is committed":                {},
		"of another directory":                {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleCheckpoint, "other", "c", 0)}, true},
		"of this one":                         {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleCheckpoint, "own", "c", 0)}, false},
		"without state":                       {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleEmpty, "other", "c", 0)}, false},
		"mirrored from another cluster":       {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleCheckpoint, "other", "d", 0)}, false},
		"of somebody else":                    {map[element.TopicPartition]kafka.Committed{a: {Found: true, Offset: 5, Metadata: "x"}}, false},
		"beside a topic that is read":         {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleCheckpoint, "other", "c", 0), b: handle(snapshot.HandleEmpty, "own", "c", 0)}, false},
		"of a life that a cancel has ended":   {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleCheckpoint, "other", "c", 0), {Topic: "a", Partition: 1}: handle(snapshot.HandleEmpty, "other", "c", 1)}, false},
		"of one partition among empty ones":   {map[element.TopicPartition]kafka.Committed{a: handle(snapshot.HandleCheckpoint, "other", "c", 1), {Topic: "a", Partition: 1}: handle(snapshot.HandleEmpty, "other", "c", 1)}, true},
		"a position that is not there at all": {map[element.TopicPartition]kafka.Committed{a: {}, b: {}}, false},
	} {
		err := elsewhere(c.committed, []string{"b"}, "c", "own")
		require.Equal(t, c.refused, err != nil, "%s: %v", name, err)
	}
}
