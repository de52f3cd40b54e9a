package processor

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/topology"
)

// Taken for an empty group, one that may not be described would have its members' transactions ended as those of
// instances that are gone.
func TestAGroupThatCannotBeSeenIsNotEmpty(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	defer c.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer cl.Close()
	s := &service{plan: &topology.Plan{Application: "app"}, reads: reads{cl: cl, group: "app"}, instance: "i"}

	members, err := s.members(t.Context())
	require.NoError(t, err, "a group that does not exist has nobody in it")
	require.Empty(t, members)

	c.ControlKey(int16(kmsg.DescribeGroups), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := kreq.ResponseKind().(*kmsg.DescribeGroupsResponse)
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group, g.ErrorCode = "app", kerr.GroupAuthorizationFailed.Code
		resp.Groups = append(resp.Groups, g)
		return resp, nil, true
	})
	_, err = s.members(t.Context())
	require.ErrorIs(t, err, kerr.GroupAuthorizationFailed)
}
