package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/topology"
)

// reads answers the engine's questions about positions with a client of its own.
type reads struct {
	cl    *kgo.Client
	group string
	// waiting, when set, is called every stableLong while a stable read waits.
	waiting func(context.Context)
}

// stableLong is a wait for open transactions that is longer than a commit should take: whoever has them may have died.
const stableLong = time.Second

var _ engine.Offsets = reads{}

// Stable reads the group's committed offsets.
func (r reads) Stable(ctx context.Context, tps []element.TopicPartition) (map[element.TopicPartition]engine.Committed, error) {
	defer r.whileWaiting(ctx)()
	got, err := kafka.StableOffsets(ctx, r.cl, r.group, tps)
	if err != nil {
		return nil, err
	}
	out := make(map[element.TopicPartition]engine.Committed, len(got))
	for tp, c := range got {
		out[tp] = engine.Committed{Found: c.Found, Offset: c.Offset, LeaderEpoch: c.LeaderEpoch, Metadata: c.Metadata}
	}
	return out, nil
}

// whileWaiting calls waiting now and then until the returned function is called, which waits for it.
func (r reads) whileWaiting(ctx context.Context) (stop func()) {
	if r.waiting == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, stableLong) == nil {
			r.waiting(ctx)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// Start resolves start positions. A partition without a committed offset of ours starts at its beginning unless the
// source says latest. The latest position is the last stable offset, not the end of the log: records of a transaction
// that is still open come after it, since a read_committed reader has not seen them.
func (r reads) Start(ctx context.Context, start topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error) {
	list := kafka.StartOffsets
	if start.Kind == topology.StartLatest {
		list = kafka.StableEndOffsets
	}
	got, err := list(ctx, r.cl, tps)
	if err != nil {
		return nil, err
	}
	out := make(map[element.TopicPartition]int64, len(got))
	for tp, pos := range got {
		out[tp] = pos.Offset
	}
	return out, nil
}

// Topics describes topics as they are now.
func (r reads) Topics(ctx context.Context, names []string) (map[string]engine.Topic, error) {
	got, err := kafka.DescribeTopics(ctx, r.cl, names)
	if err != nil {
		return nil, err
	}
	out := make(map[string]engine.Topic, len(got))
	for _, name := range names {
		t, ok := got[name]
		if !ok {
			return nil, fmt.Errorf("topic %s is not described", name)
		}
		out[name] = engine.Topic{ID: t.ID, Partitions: t.Partitions}
	}
	return out, nil
}
