package processor

import (
	"cmp"
	"context"
	"fmt"
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
// back: that costs no record, see Ends. What is refused does not keep the others from being renewed.
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
	var refused []error
	for some := range slices.Chunk(tps, endsAtOnce) {
		keep := make([]kadm.Offset, 0, len(some))
		for _, tp := range some {
			keep = append(keep, kadm.Offset{Topic: tp.Topic, Partition: tp.Partition, At: kept[tp].Offset, LeaderEpoch: -1, Metadata: kept[tp].Metadata})
		}
		no, err := renew(ctx, kadm.NewClient(r.cl), group, keep)
		refused = append(refused, no...)
		if err != nil {
			return kafka.Classify(err, "keep the ends of %d partitions in group %s", len(tps), group)
		}
	}
	if len(refused) > 0 {
		return kafka.Classify(refused[0], "keep %d of the ends of %d partitions in group %s, the first one", len(refused), len(tps), group)
	}
	return nil
}

// renew commits offsets, and gives an error for each that is refused. Where all are it may be for one of them, or since they are
// too many: then halves are tried. err says that the request was not answered.
func renew(ctx context.Context, adm *kadm.Client, group string, keep []kadm.Offset) (refused []error, err error) {
	offsets := kadm.Offsets{}
	for _, o := range keep {
		offsets.Add(o)
	}
	answers, err := adm.CommitOffsets(ctx, group, offsets)
	if err != nil {
		return nil, err
	}
	for _, o := range keep {
		if a, ok := answers.Lookup(o.Topic, o.Partition); ok && a.Err != nil {
			refused = append(refused, fmt.Errorf("%s/%d: %w", o.Topic, o.Partition, a.Err))
		}
	}
	if len(refused) < len(keep) || len(keep) == 1 || ctx.Err() != nil || kafka.IsRetriable(refused[0]) || kafka.IsDenied(refused[0]) || kafka.IsOwnershipLost(refused[0]) { // the last: somebody is in the group
		return refused, nil
	}
	refused = nil
	for half := range slices.Chunk(keep, (len(keep)+1)/2) {
		no, err := renew(ctx, adm, group, half)
		if refused = append(refused, no...); err != nil {
			return refused, err
		}
	}
	return refused, nil
}
