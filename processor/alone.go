package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/internal/fault"
)

// alonePoll is how often the group is looked at while another member is in it.
const alonePoll = 250 * time.Millisecond

// awaitAlone waits, before it joins the group, until no other member is in it. One instance runs an application in this
// version; one that joined beside it would take partitions away and stop it for the time of two rebalances. A member
// that died stays listed until its session times out, and one that is being replaced leaves: so it waits for patience.
//
// Two instances that start at the same moment may both find the group empty. They are told apart later, by the engine.
func (s *service) awaitAlone(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	told := false
	for {
		other, err := s.otherMember(ctx)
		if err != nil {
			s.log.Warn("cannot see who is in the group, joining it all the same", "error", err)
			return nil
		}
		if other == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fault.Stopf(fault.NotAlone, "the group %s has another member, %s, and this version runs one instance per application: stop the other one, or choose another application name",
				s.plan.Application, other)
		}
		if !told {
			told = true
			s.log.Info("waiting for another member to leave the group", "member", other, "patience", patience)
		}
		select {
		case <-time.After(alonePoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// otherMember names a member of the group that is not this instance, "" when there is none.
func (s *service) otherMember(ctx context.Context) (string, error) {
	bounded, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	members, err := s.members(bounded)
	if err != nil {
		return "", err
	}
	for _, m := range members {
		if m.InstanceID == nil {
			return fmt.Sprintf("%s at %s", m.MemberID, m.ClientHost), nil
		}
		if *m.InstanceID != s.instance {
			return fmt.Sprintf("instance %s at %s", *m.InstanceID, m.ClientHost), nil
		}
	}
	return "", nil
}

// members lists who is in the group. A group that the cluster does not describe is an error, never an empty group: who
// cannot be seen may be alive. One that does not exist has nobody in it.
func (s *service) members(ctx context.Context) ([]kadm.DescribedGroupMember, error) {
	app := s.plan.Application
	groups, err := kadm.NewClient(s.reads.cl).DescribeGroups(ctx, app)
	if err != nil {
		return nil, err
	}
	if err := groups[app].Err; err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("describe group %s: %w", app, err)
	}
	return groups[app].Members, nil
}
