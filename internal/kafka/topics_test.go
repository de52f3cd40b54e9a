package kafka

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

// A topic that was just made is listed late by brokers that are busy.
func TestEnsureTopicWaitsUntilTheBrokersListWhatItMade(t *testing.T) {
	b, fake := fakeBed(t, 0, "metadata without a topic that is there")
	cl, topic := client(t, b.cfg), b.Name("late")
	late := fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: topic, Err: kerr.UnknownTopicOrPartition, Count: -1})
	defer time.AfterFunc(2*topicGrace, late.Remove).Stop()
	id, err := EnsureTopic(within(t, 10*time.Second), cl, topic, 1, nil)
	require.NoError(t, err)
	require.False(t, id.IsZero())
}

// What was just made can be used through every broker when EnsureTopic returns: a client that asks the one that learns of it
// late is told that there is no such topic.
func TestEnsureTopicWaitsForEveryBroker(t *testing.T) {
	b, fake := fakeBed(t, 0, "one broker that is behind", kfake.NumBrokers(3))
	cl, topic := client(t, b.cfg), b.Name("late")
	late := fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Nodes: []int32{1}, Topic: topic, Err: kerr.UnknownTopicOrPartition, Count: -1})
	var known atomic.Bool
	defer time.AfterFunc(topicGrace/2, func() { known.Store(true); late.Remove() }).Stop()
	_, err := EnsureTopic(within(t, 10*time.Second), cl, topic, 3, nil)
	require.NoError(t, err)
	require.True(t, known.Load(), "a broker does not know it yet")

	// One that was there is not waited for.
	late = fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Nodes: []int32{1}, Topic: topic, Err: kerr.LeaderNotAvailable, Count: -1})
	defer late.Remove()
	_, err = EnsureTopic(within(t, 10*time.Second), cl, topic, 3, nil)
	require.NoError(t, err)
}

// Brokers refuse two topics whose names differ in '.' and '_' only, since their metrics would have one name. No new attempt
// cures that.
func TestEnsureTopicNamesACollision(t *testing.T) {
	b := newBed(t, 0)
	cl := client(t, b.cfg)
	ctx := within(t, 10*time.Second)
	_, err := EnsureTopic(ctx, cl, b.Name("a.x"), 1, nil)
	require.NoError(t, err)
	_, err = EnsureTopic(ctx, cl, b.Name("a_x"), 1, nil)
	require.ErrorContains(t, err, b.Name("a_x"))
	require.ErrorContains(t, err, "differs only in '.' and '_'")
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
}

func TestTheLargestBatchFitsIntoARequest(t *testing.T) {
	b, _ := fakeBed(t, 0, "a broker with another socket.request.max.bytes", kfake.BrokerConfigs(map[string]string{"socket.request.max.bytes": "2000000"}))
	small, large := b.Topic("small", 1, map[string]*string{"max.message.bytes": kmsg.StringPtr("1000")}), b.Topic("large", 1, map[string]*string{"max.message.bytes": kmsg.StringPtr("3000000")})
	limits, err := ReadLimits(within(t, 10*time.Second), client(t, b.cfg), []string{small, large})
	require.NoError(t, err)
	require.Equal(t, Limits{Batch: map[string]int32{small: 1000, large: 2_000_000 - RequestOverhead}, Request: 2_000_000}, limits)
}
