package embedded

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// member is a static member of the group "g" that sends each request by itself.
type member struct {
	t            *testing.T
	ctx          context.Context
	cl           *kgo.Client
	instance, id string
	session      time.Duration
}

func newMember(ctx context.Context, t *testing.T, b *Broker, instance string, session time.Duration) *member {
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return &member{t: t, ctx: ctx, cl: cl, instance: instance, session: session}
}

// join sends a join and gives its answer when the round has all members.
func (m *member) join() <-chan *kmsg.JoinGroupResponse {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.InstanceID, req.ProtocolType = "g", m.id, &m.instance, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(m.session.Milliseconds()), 60_000
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

// impatient gives a broker whose groups may have sessions far below a second.
func impatient(t *testing.T) *Broker {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(100*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	end, err := MendGroups(c)
	require.NoError(t, err)
	t.Cleanup(end)
	return &Broker{cluster: c, addr: c.ListenAddrs()[0]}
}

const longSession = 10 * time.Second

// pair gives two members that have joined and have no plan yet; the first is the leader.
func pair(ctx context.Context, t *testing.T, b *Broker, first, second time.Duration) (leader, other *member, generation int32) {
	leader, other = newMember(ctx, t, b, "a", first), newMember(ctx, t, b, "b", second)
	alone := <-leader.join()
	require.NotNil(t, alone)
	require.Equal(t, leader.id, alone.LeaderID)
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
	leader, killed, generation := pair(ctx, t, b, longSession, longSession)
	waits := killed.sync(generation)
	select {
	case got := <-waits:
		require.NotNil(t, got)
		require.Equal(t, kerr.RebalanceInProgress.Code, got.ErrorCode)
	case <-time.After(2 * syncHold):
	}
	restarted := newMember(ctx, t, b, "b", longSession)
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
	leader, other, generation := pair(ctx, t, b, longSession, longSession)
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

// A member that has joined waits for one that is frozen, for longer than its own session: it stays a member, and the round
// ends when the session of the frozen one does.
func TestGroupKeepsAMemberThatWaitsForTheOthers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b := impatient(t)
	waits, frozen, generation := pair(ctx, t, b, 400*time.Millisecond, 1200*time.Millisecond)
	planned := waits.sync(generation, waits.id, frozen.id)
	require.NotNil(t, <-planned)
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID, beat.Generation = "g", waits.id, generation
	_, err := beat.RequestWith(ctx, waits.cl)
	require.NoError(t, err)

	last := <-waits.join()
	require.NotNil(t, last)
	require.NoError(t, kerr.ErrorForCode(last.ErrorCode))
	require.Greater(t, last.Generation, generation)
	require.Equal(t, waits.id, last.LeaderID)
	require.Len(t, last.Members, 1)
}

// The leader is killed and starts again under its instance id: in a stable group it takes its place without a round, and without
// a plan. It is the leader all the same, so its next join begins a round, in which it waits.
func TestGroupKeepsALeaderThatWasReplacedAndWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b := impatient(t)
	killed, frozen, generation := pair(ctx, t, b, 400*time.Millisecond, 1200*time.Millisecond)
	planned := killed.sync(generation, killed.id, frozen.id)
	require.NotNil(t, <-planned)
	waits := newMember(ctx, t, b, "a", 400*time.Millisecond)
	back := <-waits.join()
	require.NotNil(t, back)
	require.Equal(t, generation, back.Generation, "no round")
	require.Equal(t, waits.id, back.LeaderID)
	require.True(t, back.SkipAssignment)
	part := <-waits.sync(generation)
	require.NotNil(t, part)
	require.NoError(t, kerr.ErrorForCode(part.ErrorCode))

	last := <-waits.join()
	require.NotNil(t, last)
	require.NoError(t, kerr.ErrorForCode(last.ErrorCode))
	require.Greater(t, last.Generation, generation)
	require.Equal(t, waits.id, last.LeaderID)
	require.Len(t, last.Members, 1)
}

// A join that is past its look whether the keeper closes has begun what close waits for.
func TestTheKeeperClosesBehindAJoin(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	defer c.Close()
	k, err := keepSessions(c)
	require.NoError(t, err)
	k.mu.Lock() // as joins does
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		k.close()
	}()
	select {
	case <-closed:
		t.Error("closed while a join is in the middle")
	case <-k.ctx.Done():
		t.Error("stopped while a join is in the middle")
	case <-time.After(50 * time.Millisecond):
	}
	k.mu.Unlock()
	<-closed
}

// A member is killed when its round has ended. The next one, which it never joins, goes on without it when its session ends.
func TestGroupGoesOnWithoutAMemberThatIsKilledBetweenTwoRounds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b := impatient(t)
	leader, killed, generation := pair(ctx, t, b, 2*time.Second, 2*time.Second)
	round := killed.join() // the same one again, before the plan is there
	require.NotNil(t, <-round)
	planned := leader.sync(generation, leader.id, killed.id)
	require.NotNil(t, <-planned)
	asks := leader.join() // for another round, within the time of one heartbeat
	back := killed.join()
	require.NotNil(t, <-back)
	again := <-asks
	require.NotNil(t, again)
	planned = leader.sync(again.Generation, leader.id, killed.id)
	require.NotNil(t, <-planned)

	last := <-leader.join()
	require.NotNil(t, last)
	require.NoError(t, kerr.ErrorForCode(last.ErrorCode))
	require.Greater(t, last.Generation, again.Generation)
	require.Len(t, last.Members, 1)
}
