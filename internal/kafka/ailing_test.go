package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestPartitionsThatCannotBeWrittenToAreNamed(t *testing.T) {
	b, fake := fakeBed(t, 0, "metadata of partitions without leader or replicas")
	cl := client(t, b.cfg)
	topics := []string{b.Topic("b", 1, nil), b.Topic("a", 12, nil)}
	ailing, err := Ailing(within(t, 10*time.Second), cl, topics)
	require.NoError(t, err)
	require.Empty(t, ailing)

	fake.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, topic := range req.(*kmsg.MetadataRequest).Topics {
			rt := kmsg.NewMetadataResponseTopic()
			rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
			for p := range int32(12) {
				rp := kmsg.NewMetadataResponseTopicPartition()
				rp.Partition, rp.Replicas, rp.ISR = p, []int32{0, 1, 2}, []int32{0, 1, 2}
				switch {
				case *topic.Topic == topics[0] && p == 7:
					rp.Leader, rp.ISR = -1, nil
				case *topic.Topic == topics[1] && p > 0:
					rp.ISR = []int32{0, 1}
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	ailing, err = Ailing(within(t, 10*time.Second), cl, topics)
	require.NoError(t, err)
	require.Len(t, ailing, mostAiling)
	require.Equal(t, []string{topics[0] + "/7 has no leader", topics[1] + "/1 has 2 of 3 replicas in sync"}, ailing[:2])
}
