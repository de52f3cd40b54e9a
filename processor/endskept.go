package processor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/topology"
)

// A broker forgets the offsets of a group without members some time after they were committed (offsets.retention.minutes, seven
// days), and the group of the ends has none. A run may take longer, or go on for ever beside a source without an end. So who
// runs says the ends again now and then.
const endsRenewal = time.Hour

// renewing says the ends again until the function that it gives is called, which waits for that.
func (s *service) renewing() (enough func()) {
	kept := func(src topology.SourcePlan) bool { return src.End.Bounded() && src.End.Kind != topology.EndByOffset }
	if !slices.ContainsFunc(s.plan.Sources, kept) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	every := cmp.Or(s.cfg.endsRenewal, endsRenewal)
	go func() {
		defer close(done)
		for sleep(ctx, every) == nil {
			if err := s.reads.renewEnds(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("could not say the ends of the run again, trying on: the brokers forget them some time after they were kept", "group", endsGroup(s.application), "error", err)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// renewEnds commits what is kept as it is. Somebody else may keep another end between the read and the commit, and has it set
// back: that costs no record, see Ends.
func (r reads) renewEnds(ctx context.Context) error {
	group := endsGroup(r.group)
	kept, err := kafka.GroupOffsets(ctx, r.cl, group, false)
	if err != nil {
		return err
	}
	var tps []element.TopicPartition
	for tp, c := range kept {
		if isEnd(c) {
			tps = append(tps, tp)
		}
	}
	slices.SortFunc(tps, element.TopicPartition.Compare)
	for some := range slices.Chunk(tps, endsAtOnce) {
		keep := kadm.Offsets{}
		for _, tp := range some {
			keep.Add(kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: kept[tp].Offset, LeaderEpoch: -1, Metadata: kept[tp].Metadata})
		}
		if err := kadm.NewClient(r.cl).CommitAllOffsets(ctx, group, keep); err != nil {
			return kafka.Classify(err, "keep the ends of %d partitions in group %s", len(tps), group)
		}
	}
	return nil
}
