package processor

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/topology"
)

// Start resolves start positions. A partition without a committed offset of ours starts at its beginning unless the
// source says something else. The latest position is the last stable offset, not the end of the log: records of a
// transaction that is still open come after it, since a read_committed reader has not seen them.
func (r reads) Start(ctx context.Context, start topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	var got map[element.TopicPartition]element.Position
	var err error
	switch start.Kind {
	case topology.StartByOffset:
		return r.startByOffset(ctx, start, tps)
	case topology.StartByTime, topology.StartByAge:
		got, err = kafka.OffsetsForTime(ctx, r.cl, tps, start.Time(time.Now()))
	case topology.StartLatest:
		got, err = kafka.StableEndOffsets(ctx, r.cl, tps)
	default:
		got, err = kafka.StartOffsets(ctx, r.cl, tps)
	}
	if err != nil {
		return nil, err
	}
	out := make(map[element.TopicPartition]int64, len(got))
	for tp, pos := range got {
		out[tp] = pos.Offset
	}
	return out, nil
}

// startByOffset takes the offsets that are named, once they are known to be in the log, and resolves the others.
func (r reads) startByOffset(ctx context.Context, start topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	named := start.Offsets()
	var asked, others []element.TopicPartition
	for _, tp := range tps {
		if _, ok := named[tp.Partition]; ok {
			asked = append(asked, tp)
		} else {
			others = append(others, tp)
		}
	}
	first, err := kafka.StartOffsets(ctx, r.cl, tps)
	if err != nil {
		return nil, err
	}
	for tp, pos := range first { // all of one topic
		for _, p := range slices.Sorted(maps.Keys(named)) {
			if p >= pos.PartitionCount {
				return nil, fault.Stopf(fault.BadFile, "the start offsets of topic %s name partition %d, but it has %d partitions", tp.Topic, p, pos.PartitionCount)
			}
		}
	}
	last, err := kafka.EndOffsets(ctx, r.cl, asked)
	if err != nil {
		return nil, err
	}
	out := map[element.TopicPartition]int64{}
	if len(others) > 0 {
		if out, err = r.Start(ctx, start.Others(), others); err != nil {
			return nil, err
		}
	}
	for _, tp := range asked {
		offset := named[tp.Partition]
		if offset < first[tp].Offset || offset > last[tp].Offset {
			return nil, fault.Stopf(fault.BadFile, "topic %s partition %d is to start at offset %d, but it has offsets %d to %d", tp.Topic, tp.Partition, offset, first[tp].Offset, last[tp].Offset)
		}
		out[tp] = offset
	}
	return out, nil
}

// onMissing says, by topic, what is done when a position is gone.
func (s *service) onMissing() map[string]kafkasrc.Missing {
	out := map[string]kafkasrc.Missing{}
	for _, src := range s.plan.Sources {
		switch src.OnMissing {
		case topology.MissingEarliest:
			out[src.Topic] = kafkasrc.EarliestOnMissing
		case topology.MissingLatest:
			out[src.Topic] = kafkasrc.LatestOnMissing
		}
	}
	return out
}
