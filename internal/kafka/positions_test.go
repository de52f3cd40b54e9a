package kafka

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

// Nothing is as late as asked for, so it is the end. A record comes between the two questions: the end is
// from before it.
func TestARecordThatComesDuringASearchByTimeIsNotPassedOver(t *testing.T) {
	b := newBed(t, 1)
	ctx := within(t, 10*time.Second)
	writer := client(t, b.cfg)
	write := func(at time.Time) {
		require.NoError(t, writer.ProduceSync(ctx, &kgo.Record{Topic: b.in, Value: []byte("v"), Timestamp: at}).FirstErr())
	}
	write(time.UnixMilli(1000))
	tap, searched := &testbed.Tap{}, atomic.Bool{}
	tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.ListOffsets}, After: func(req kmsg.Request, _ kmsg.Response) {
		if r := req.(*kmsg.ListOffsetsRequest); r.Topics[0].Partitions[0].Timestamp == 2000 && searched.CompareAndSwap(false, true) {
			write(time.UnixMilli(2000))
		}
	}})
	cfg := b.cfg
	cfg.Extra = append(cfg.Extra, tap.Opt())
	got, err := OffsetsForTime(ctx, client(t, cfg), []element.TopicPartition{b.tp(0)}, time.UnixMilli(2000))
	require.NoError(t, err)
	require.True(t, searched.Load())
	require.EqualValues(t, 1, got[b.tp(0)].Offset)
}

// What a client learnt a moment ago is of no use when the topic has grown since.
func TestAddedPartitionsAreSeenAtOnce(t *testing.T) {
	b := newBed(t, 1)
	ctx, cl := within(t, 20*time.Second), client(t, b.cfg)
	grow := func() {
		_, err := b.Admin().CreatePartitions(ctx, 1, b.in)
		require.NoError(t, err)
	}
	for n := int32(1); n <= 3; n++ {
		require.Eventually(t, func() bool {
			got, err := DescribeTopics(ctx, cl, []string{b.in})
			require.NoError(t, err)
			return got[b.in].Partitions == n
		}, metadataMinAge/2, time.Millisecond)
		grow()
	}
	// It was assigned, so it is there, and the broker that is asked will know.
	later := time.AfterFunc(200*time.Millisecond, grow)
	defer later.Stop()
	got, err := StartOffsets(ctx, cl, []element.TopicPartition{b.tp(4)})
	require.NoError(t, err)
	require.EqualValues(t, 5, got[b.tp(4)].PartitionCount)
}
