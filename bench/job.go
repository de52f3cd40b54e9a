package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/millweir/millweir/processor"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// total is a running count and sum; its encoding is 16 bytes, big endian, and also the output's value.
type total struct{ n, sum int64 }

type totalSerde struct{}

func (totalSerde) Name() string   { return "count-sum" }
func (totalSerde) FixedSize() int { return 16 }

func (totalSerde) Append(dst []byte, t total) ([]byte, error) {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.n))
	return binary.BigEndian.AppendUint64(dst, uint64(t.sum)), nil
}

func (totalSerde) Decode(b []byte) (total, error) {
	if len(b) != 16 {
		return total{}, fmt.Errorf("%d bytes, want 16", len(b))
	}
	return total{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}, nil
}

// job is COUNT in the Go DSL: a running count and sum per key, one output per input. With a parallelism above 0 the
// records go through a local exchange to so many subtasks, as if they were grouped by another key; it stays the same key,
// so that the output can be verified like the others.
func job(ctx context.Context, brokers []string, in, out, group, dir string, interval time.Duration, parallelism int) error {
	b := topology.New(group)
	src := topology.FromTopic(b, "in", in, serde.Bytes(), serde.Bytes())
	if parallelism > 0 {
		src = topology.GroupBy(src, "by-key", serde.Bytes(), serde.Bytes(), func(k, _ []byte) []byte { return k }, topology.Parallelism(parallelism))
	}
	totals := topology.Aggregate(src, "totals", totalSerde{}, func(t total, v []byte) total {
		return total{t.n + 1, t.sum + int64(binary.BigEndian.Uint64(v))}
	})
	topology.ToTopic(totals, "out", out, serde.Bytes(), totalSerde{})
	plan, err := b.Plan()
	if err != nil {
		return err
	}
	return processor.Run(ctx, plan, processor.Config{
		Brokers: brokers, DataDir: dir, Interval: interval, InstanceID: group + "-1",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}
