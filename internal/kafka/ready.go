package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
)

// brokerPatience is how long a broker may take to say what it knows of a topic. One that does not answer is not waited for.
const brokerPatience = 2 * time.Second

// awaitLeaders waits until every broker that answers lists a topic that was made a moment ago, with a leader for each
// partition. Before, one that is behind tells clients that there is no such topic.
func awaitLeaders(ctx context.Context, cl *kgo.Client, name string) error {
	meta, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return Classify(err, "read which brokers there are")
	}
	start := time.Now()
	for _, id := range meta.Brokers.NodeIDs() {
		for !listsLeaders(ctx, cl.Broker(int(id)), name) {
			if time.Since(start) > madeGrace {
				return fault.Restartf(fault.UnknownTopic, "topic %s was made a moment ago, and broker %d does not list it with a leader for each partition yet", name, id)
			}
			if err := sleep(ctx, topicPoll); err != nil {
				return err
			}
		}
	}
	return nil
}

// listsLeaders reports false when a broker answers and lists a topic not, or not with all leaders.
func listsLeaders(ctx context.Context, b *kgo.Broker, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &name
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, b)
	if err != nil {
		return true
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 || p.Leader < 0 {
				return false
			}
		}
		if t.ErrorCode != 0 || len(t.Partitions) == 0 {
			return false
		}
	}
	return true
}
