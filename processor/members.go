package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
)

// othersLast is how much longer than its session a member may be seen that was stopped.
const othersLast = 2 * time.Second

// others lists the other members of the group.
func (s *service) others(ctx context.Context) ([]engine.Member, error) {
	members, _, err := describeMembers(ctx, s.reads.cl, s.plan.Application)
	var out []engine.Member
	for _, m := range members {
		if m.instance != s.instance {
			out = append(out, engine.Member{ID: m.id, Name: fmt.Sprintf("%s (%s)", m.instance, m.host)})
		}
	}
	return out, err
}

// othersHave lists the partitions that the group has given to its other members, none while it is being shared out.
func (s *service) othersHave(ctx context.Context) ([]element.TopicPartition, error) {
	members, settled, err := describeMembers(ctx, s.reads.cl, s.plan.Application)
	var out []element.TopicPartition
	for _, m := range members {
		if settled && m.instance != s.instance {
			out = append(out, m.partitions...)
		}
	}
	return out, err
}

// members lists who is in the group. A group that the cluster does not describe is an error, never an empty group: who
// cannot be seen may be alive. One that does not exist has nobody in it.
func (s *service) members(ctx context.Context) ([]kadm.DescribedGroupMember, error) {
	app := s.plan.Application
	var groups kadm.DescribedGroups
	err := kafka.Again(ctx, s.reads.cl, func(ctx context.Context) (err error) {
		groups, err = kadm.NewClient(s.reads.cl).DescribeGroups(ctx, app)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := groups[app].Err; err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("describe group %s: %w", app, err)
	}
	if len(groups[app].Members) == 0 {
		return nil, kafkasrc.Foreign(ctx, s.reads.cl, app)
	}
	return groups[app].Members, nil
}
