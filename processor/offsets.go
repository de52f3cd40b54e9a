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
	// run is the run that this process takes part in; see runs.go.
	run int64
	// life is that of the application at the start of this process; see snapshot.Handle.
	life uint64
	// waiting, when set, is called every stableLong while a stable read waits.
	waiting func(context.Context)
	// learnt, when set, is told what Topics has found.
	learnt func(partitions map[string]int32)
	// fewer, when set, is told of topics that have fewer partitions than are assigned.
	fewer func(partitions map[string]int32)
	// owned, when set, gives the partitions that are assigned: a topic has at least those.
	owned func() []element.TopicPartition
}

// A broker may learn of added partitions after the one that the group's leader asked.
const (
	grownPoll  = 20 * time.Millisecond
	grownGrace = 5 * time.Second
)

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
	if err := refuseEnds(r.group, got); err != nil {
		return nil, err
	}
	if err := r.sameLife(ctx, got); err != nil {
		return nil, err
	}
	out := make(map[element.TopicPartition]engine.Committed, len(got))
	for tp, c := range got {
		out[tp] = engine.Committed{Found: c.Found, Offset: c.Offset, LeaderEpoch: c.LeaderEpoch, Metadata: ofThisLife(c.Metadata, r.life)}
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

// Topics describes topics as they are now. It waits for a topic that seems to have fewer partitions than are assigned; where that
// stays so, the topic was made anew since they were, and the group is told.
func (r reads) Topics(ctx context.Context, names []string) (map[string]engine.Topic, error) {
	got, err := kafka.DescribeTopics(ctx, r.cl, names)
	few := r.outgrown(got)
	for start := time.Now(); err == nil && len(few) > 0 && time.Since(start) < grownGrace; few = r.outgrown(got) {
		if err = sleep(ctx, grownPoll); err == nil {
			got, err = kafka.DescribeTopics(ctx, r.cl, names)
		}
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]engine.Topic, len(got))
	counts := make(map[string]int32, len(got))
	for _, name := range names {
		t, ok := got[name]
		if !ok {
			return nil, fmt.Errorf("topic %s is not described", name)
		}
		out[name] = engine.Topic{ID: t.ID, Partitions: t.Partitions}
		counts[name] = t.Partitions
	}
	if r.learnt != nil {
		r.learnt(counts)
	}
	if len(few) > 0 && r.fewer != nil { // as it was waited for: what is assigned by now may be of a topic that has just grown
		r.fewer(few)
	}
	return out, nil
}

// outgrown gives the topics of which partitions are assigned that they do not have, yet or any more, and how many they have.
func (r reads) outgrown(topics map[string]kafka.Topic) map[string]int32 {
	if r.owned == nil {
		return nil
	}
	few := map[string]int32{}
	for _, tp := range r.owned() {
		if t, asked := topics[tp.Topic]; asked && tp.Partition >= t.Partitions {
			few[tp.Topic] = t.Partitions
		}
	}
	return few
}
