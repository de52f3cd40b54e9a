package processor

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

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
