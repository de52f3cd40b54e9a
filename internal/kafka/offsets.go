package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
)

// Committed is a group's committed offset of one partition.
type Committed struct {
	// Offset is the next offset to read; -1 when nothing is committed.
	Offset int64
	// LeaderEpoch is that of the last record below Offset, -1 if not known.
	LeaderEpoch int32
	Metadata    string
	// Found says whether the group has an offset for the partition at all.
	Found bool
}

const (
	stableFirst = 20 * time.Millisecond
	stableMost  = 250 * time.Millisecond
)

// ErrUnstable says that the end of the context, not an answer, ended the wait for open transactions.
var ErrUnstable = errors.New("have commits in an open transaction")

// StableOffsets reads the committed offsets of exactly these partitions once no open transaction can still change
// them: while the broker says UNSTABLE_OFFSET_COMMIT it asks again, after 20 ms rising to 250 ms, until ctx ends. Errors
// that may pass are borne for 30 s in a row, 10 s while no broker answers. The result has every asked partition.
func StableOffsets(ctx context.Context, cl *kgo.Client, group string, tps []element.TopicPartition) (map[element.TopicPartition]Committed, error) {
	out := make(map[element.TopicPartition]Committed, len(tps))
	wait, todo := stableFirst, tps
	for len(todo) > 0 {
		err := Again(ctx, cl, func(ctx context.Context) error {
			unstable, err := fetchStable(ctx, cl, group, todo, out)
			if err == nil {
				todo = unstable
			}
			return err
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("read the offsets of group %s: %w", group, err)
		case err != nil:
			return nil, Classify(err, "read the offsets of group %s", group)
		case len(todo) == 0:
			return out, nil
		}
		if serr := sleep(ctx, wait); serr != nil {
			return nil, fmt.Errorf("read the offsets of group %s: %w (%d partitions %w, first %v)", group, serr, len(todo), ErrUnstable, todo[0])
		}
		wait = min(stableMost, wait*2)
	}
	return out, nil
}

// fetchStable asks once, puts what is stable into out and gives the partitions to ask again.
func fetchStable(ctx context.Context, cl *kgo.Client, group string, tps []element.TopicPartition, out map[element.TopicPartition]Committed) ([]element.TopicPartition, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	req.Groups = []kmsg.OffsetFetchRequestGroup{stableGroup(group, tps)}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if len(resp.Groups) != 1 {
		return nil, fmt.Errorf("the broker answered for %d groups instead of one", len(resp.Groups))
	}
	g := resp.Groups[0]
	if err := kerr.ErrorForCode(g.ErrorCode); errors.Is(err, kerr.GroupIDNotFound) {
		for _, tp := range tps { // a group that nobody has used yet has no offsets, open transactions included
			out[tp] = Committed{Offset: -1, LeaderEpoch: -1}
		}
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	asked := make(map[element.TopicPartition]bool, len(tps))
	for _, tp := range tps {
		asked[tp] = true
	}
	var again []element.TopicPartition
	for _, t := range g.Topics {
		for _, p := range t.Partitions {
			tp := element.TopicPartition{Topic: t.Topic, Partition: p.Partition}
			if !asked[tp] {
				continue
			}
			delete(asked, tp)
			if err := kerr.ErrorForCode(p.ErrorCode); errors.Is(err, kerr.UnstableOffsetCommit) {
				again = append(again, tp)
				continue
			} else if err != nil {
				return nil, fmt.Errorf("%v: %w", tp, err)
			}
			out[tp] = committedOf(p)
		}
	}
	if len(asked) > 0 {
		return nil, fmt.Errorf("the broker left out %d of %d partitions", len(asked), len(tps))
	}
	return again, nil
}

func committedOf(p kmsg.OffsetFetchResponseGroupTopicPartition) Committed {
	c := Committed{Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Found: p.Offset >= 0}
	if p.Metadata != nil {
		c.Metadata = *p.Metadata
	}
	if !c.Found {
		c.Offset, c.LeaderEpoch = -1, -1
	}
	return c
}

func stableGroup(group string, tps []element.TopicPartition) kmsg.OffsetFetchRequestGroup {
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	byTopic := make(map[string]int)
	for _, tp := range tps {
		i, ok := byTopic[tp.Topic]
		if !ok {
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic = tp.Topic
			i = len(g.Topics)
			byTopic[tp.Topic] = i
			g.Topics = append(g.Topics, t)
		}
		g.Topics[i].Partitions = append(g.Topics[i].Partitions, tp.Partition)
	}
	return g
}

// GroupOffsets gives all that a group has committed, nothing for a group that does not exist. stable waits for open transactions, as
// StableOffsets does.
func GroupOffsets(ctx context.Context, cl *kgo.Client, group string, stable bool) (map[element.TopicPartition]Committed, error) {
	var all kadm.OffsetResponses
	err := Again(ctx, cl, func(ctx context.Context) (err error) {
		if all, err = kadm.NewClient(cl).FetchOffsets(ctx, group); err == nil {
			err = all.Error()
		}
		return err
	})
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, Classify(err, "read the offsets of group %s", group)
	}
	out := map[element.TopicPartition]Committed{}
	var tps []element.TopicPartition
	all.Each(func(o kadm.OffsetResponse) {
		tp := element.TopicPartition{Topic: o.Topic, Partition: o.Partition}
		tps = append(tps, tp)
		out[tp] = Committed{Offset: o.At, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, Found: o.At >= 0}
	})
	if stable && len(tps) > 0 {
		return StableOffsets(ctx, cl, group, tps)
	}
	return out, nil
}
