package embedded

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// member is a static member of the group "g" that sends each request by itself.
type member struct {
	t            *testing.T
	ctx          context.Context
	cl           *kgo.Client
	instance, id string
}

func newMember(ctx context.Context, t *testing.T, b *Broker, instance string) *member {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return &member{t: t, ctx: ctx, cl: cl, instance: instance}
}

// join sends a join and gives its answer when the round has all members.
func (m *member) join() <-chan *kmsg.JoinGroupResponse {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.InstanceID, req.ProtocolType = "g", m.id, &m.instance, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 60_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", []byte("any")
	req.Protocols = append(req.Protocols, p)
	answer := make(chan *kmsg.JoinGroupResponse, 1)
	go func() {
		resp, err := req.RequestWith(m.ctx, m.cl)
		if assert.NoError(m.t, err, "the join of %s", m.instance) {
			m.id = resp.MemberID
		}
		answer <- resp
	}()
	return answer
}

// sync asks for the plan, as the leader with one for these members.
func (m *member) sync(generation int32, plan ...string) <-chan *kmsg.SyncGroupResponse {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = "g", m.id, &m.instance, generation
	for _, id := range plan {
		a := kmsg.NewSyncGroupRequestGroupAssignment()
		a.MemberID, a.MemberAssignment = id, []byte("part of "+id)
		req.GroupAssignment = append(req.GroupAssignment, a)
	}
	answer := make(chan *kmsg.SyncGroupResponse, 1)
	go func() {
		resp, err := req.RequestWith(m.ctx, m.cl)
		assert.NoError(m.t, err, "the sync of %s", m.instance)
		answer <- resp
	}()
	return answer
}

// pair gives two members that have joined and have no plan yet; the first is the leader.
func pair(ctx context.Context, t *testing.T, b *Broker) (leader, other *member, generation int32) {
	leader, other = newMember(ctx, t, b, "a"), newMember(ctx, t, b, "b")
	first := <-leader.join()
	require.NotNil(t, first)
	require.Equal(t, leader.id, first.LeaderID)
	late := other.join()
	awaitRound(t, b)
	again := <-leader.join()
	require.NotNil(t, again)
	require.Equal(t, leader.id, again.LeaderID)
	require.NotNil(t, <-late)
	return leader, other, again.Generation
}

// awaitRound waits until the group gathers its members.
func awaitRound(t *testing.T, b *Broker) {
	t.Helper()
	require.Eventually(t, func() bool { return b.cluster.GroupInfo("g").State == "PreparingRebalance" }, 5*time.Second, time.Millisecond)
}

// A process that waits for the plan is killed and starts again under its instance id: the round ends when all have joined,
// and not with the rebalance timeout.
func TestGroupGoesOnAfterAMemberIsReplacedThatWaitsForThePlan(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	b, err := Start(ctx, Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	leader, killed, generation := pair(ctx, t, b)
	waits := killed.sync(generation)
	select {
	case got := <-waits:
		require.NotNil(t, got)
		require.Equal(t, kerr.RebalanceInProgress.Code, got.ErrorCode)
	case <-time.After(2 * syncHold):
	}
	restarted := newMember(ctx, t, b, "b")
	back := restarted.join()
	awaitRound(t, b)
	led := leader.join()
	for _, answer := range []*kmsg.JoinGroupResponse{<-back, <-led} {
		require.NotNil(t, answer)
		require.NoError(t, kerr.ErrorForCode(answer.ErrorCode))
		require.Greater(t, answer.Generation, generation)
	}
}

// What is kept back for the plan gets its part when the plan is there, also when it had to come again.
func TestGroupGivesThePlanToAMemberThatAsksForItFirst(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	b, err := Start(ctx, Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	leader, other, generation := pair(ctx, t, b)
	early := <-other.sync(generation)
	require.NotNil(t, early)
	require.Equal(t, kerr.RebalanceInProgress.Code, early.ErrorCode)
	same := <-other.join()
	require.NotNil(t, same)
	require.Equal(t, generation, same.Generation, "a member that comes back to the round begins no other")
	waits, planned := other.sync(generation), leader.sync(generation, leader.id, other.id)
	for _, m := range []struct {
		answer *kmsg.SyncGroupResponse
		id     string
	}{{<-waits, other.id}, {<-planned, leader.id}} {
		require.NotNil(t, m.answer)
		require.NoError(t, kerr.ErrorForCode(m.answer.ErrorCode))
		require.Equal(t, "part of "+m.id, string(m.answer.MemberAssignment))
	}
}
