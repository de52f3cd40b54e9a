package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/kafka"
)

// workload is COUNT's input: uniformly drawn keys, a big-endian amount at the beginning of the value.
type workload struct {
	records, keys, valueSize int
	partitions               int32
	seed                     uint64
}

// next is a splitmix64 step.
func next(s *uint64) uint64 {
	*s += 0x9E3779B97F4A7C15
	z := *s
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

// load fills the input topic.
func load(ctx context.Context, brokers []string, topic string, w workload) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxBufferedRecords(200_000), kgo.ProducerBatchMaxBytes(1<<20))
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, err := kafka.EnsureTopic(ctx, cl, topic, w.partitions, nil); err != nil {
		return fmt.Errorf("create %s: %w", topic, err)
	}
	state := w.seed
	failed := make(chan error, 1) // the first failure
	for i := range w.records {
		x := next(&state)
		value := make([]byte, w.valueSize)
		binary.BigEndian.PutUint64(value, uint64(int64(uint32(x)%1500)))
		rec := &kgo.Record{Key: fmt.Appendf(nil, "key-%08d", int(x>>32)%w.keys), Value: value}
		cl.Produce(ctx, rec, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		if i%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
