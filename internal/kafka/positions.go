package kafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

type lister func(adm *kadm.Client, ctx context.Context, topics []string) (kadm.ListedOffsets, error)

// StartOffsets gives the first offset that each partition still has.
func StartOffsets(ctx context.Context, cl *kgo.Client, tps []element.TopicPartition) (map[element.TopicPartition]element.Position, error) {
	return positions(ctx, cl, tps, "start", func(adm *kadm.Client, ctx context.Context, topics []string) (kadm.ListedOffsets, error) {
		return adm.ListStartOffsets(ctx, topics...)
	})
}

// EndOffsets gives the offset after the last record of each partition (the high watermark, open transactions
// included).
func EndOffsets(ctx context.Context, cl *kgo.Client, tps []element.TopicPartition) (map[element.TopicPartition]element.Position, error) {
	return positions(ctx, cl, tps, "end", func(adm *kadm.Client, ctx context.Context, topics []string) (kadm.ListedOffsets, error) {
		return adm.ListEndOffsets(ctx, topics...)
	})
}

// StableEndOffsets gives the last stable offset of each partition: the end for a reader of committed records.
func StableEndOffsets(ctx context.Context, cl *kgo.Client, tps []element.TopicPartition) (map[element.TopicPartition]element.Position, error) {
	return positions(ctx, cl, tps, "last stable", func(adm *kadm.Client, ctx context.Context, topics []string) (kadm.ListedOffsets, error) {
		return adm.ListCommittedOffsets(ctx, topics...)
	})
}

// OffsetsForTime gives the first offset of each partition whose record is not older than t, the end where there is none.
// That end is as of before the search: a record that comes meanwhile is not passed over.
func OffsetsForTime(ctx context.Context, cl *kgo.Client, tps []element.TopicPartition, t time.Time) (map[element.TopicPartition]element.Position, error) {
	return positions(ctx, cl, tps, "timestamp", func(adm *kadm.Client, ctx context.Context, topics []string) (kadm.ListedOffsets, error) {
		ends, err := adm.ListEndOffsets(ctx, topics...)
		if err != nil {
			return nil, err
		}
		found, err := adm.ListOffsetsAfterMilli(ctx, t.UnixMilli(), topics...)
		for topic, partitions := range found {
			for p, at := range partitions {
				if end, ok := ends.Lookup(topic, p); ok && at.Err == nil && at.Timestamp < 0 { // none: kadm gives an end as of now
					partitions[p] = end
				}
			}
		}
		return found, err
	})
}

// positions lists offsets and joins them with topic ids and partition counts; the result has every asked partition.
func positions(ctx context.Context, cl *kgo.Client, tps []element.TopicPartition, kind string, list lister) (map[element.TopicPartition]element.Position, error) {
	out := make(map[element.TopicPartition]element.Position, len(tps))
	if len(tps) == 0 {
		return out, nil
	}
	topics := topicsOf(tps)
	known, err := describePartitions(ctx, cl, tps)
	if err != nil {
		return nil, err
	}
	for _, tp := range tps {
		if !has(known, tp) {
			return nil, fault.Stopf(fault.UnknownTopic, "partition %v does not exist: topic %s has %d partitions", tp, tp.Topic, known[tp.Topic].Partitions)
		}
	}
	adm := kadm.NewClient(cl)
	err = Again(ctx, cl, func(ctx context.Context) error { return listInto(ctx, adm, tps, known, list, out) })
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("read the %s offsets of %v: %w", kind, topics, err)
	case err != nil:
		return nil, Classify(err, "read the %s offsets of %v", kind, topics)
	}
	return out, nil
}

// describePartitions waits a second for partitions that are not there: not every broker knows at once of those that were
// added. The result may still lack some.
func describePartitions(ctx context.Context, cl *kgo.Client, tps []element.TopicPartition) (map[string]Topic, error) {
	start := time.Now()
	for {
		known, err := DescribeTopics(ctx, cl, topicsOf(tps))
		if err != nil || time.Since(start) > topicGrace || !slices.ContainsFunc(tps, func(tp element.TopicPartition) bool { return !has(known, tp) }) {
			return known, err
		}
		if err := sleep(ctx, topicPoll); err != nil {
			return nil, fmt.Errorf("waiting for partitions of topics %v: %w", topicsOf(tps), err)
		}
	}
}

func has(known map[string]Topic, tp element.TopicPartition) bool {
	return tp.Partition >= 0 && tp.Partition < known[tp.Topic].Partitions
}

func listInto(ctx context.Context, adm *kadm.Client, tps []element.TopicPartition, known map[string]Topic, list lister, out map[element.TopicPartition]element.Position) error {
	listed, err := list(adm, ctx, topicsOf(tps))
	if err != nil && len(listed) == 0 {
		return err
	}
	for _, tp := range tps {
		l, ok := listed.Lookup(tp.Topic, tp.Partition)
		if !ok {
			if err != nil {
				return err
			}
			return fmt.Errorf("%v: %w", tp, kerr.UnknownTopicOrPartition)
		}
		if l.Err != nil {
			return fmt.Errorf("%v: %w", tp, l.Err)
		}
		out[tp] = element.Position{
			TopicPartition: tp, TopicID: known[tp.Topic].ID, PartitionCount: known[tp.Topic].Partitions,
			Offset: l.Offset, LeaderEpoch: l.LeaderEpoch,
		}
	}
	return nil
}

func topicsOf(tps []element.TopicPartition) []string {
	topics := make([]string, 0, len(tps))
	for _, tp := range tps {
		topics = append(topics, tp.Topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}
