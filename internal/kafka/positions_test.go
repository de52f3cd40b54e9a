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
