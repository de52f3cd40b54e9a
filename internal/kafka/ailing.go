package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// mostAiling bounds how many partitions Ailing names.
const mostAiling = 10

// Ailing says which partitions of topics the cluster cannot write to at the moment, or might not: those without a leader and
// those with replicas that are out of sync, of which the topic's min.insync.replicas may ask for more. One text for each, the
// worst first, at most ten.
func Ailing(ctx context.Context, cl *kgo.Client, topics []string) ([]string, error) {
	listed, err := freshMetadata(ctx, cl, topics)
	if err != nil {
		return nil, Classify(err, "read the metadata of topics %v", topics)
	}
	var dead, short []string
	for _, topic := range slices.Sorted(slices.Values(topics)) {
		for _, p := range listed[topic].Partitions {
			switch {
			case p.Leader < 0:
				dead = append(dead, fmt.Sprintf("%s/%d has no leader", topic, p.Partition))
			case len(p.ISR) < len(p.Replicas):
				short = append(short, fmt.Sprintf("%s/%d has %d of %d replicas in sync", topic, p.Partition, len(p.ISR), len(p.Replicas)))
			}
		}
	}
	all := append(dead, short...)
	return all[:min(len(all), mostAiling)], nil
}
