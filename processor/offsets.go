package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/kafka"
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
