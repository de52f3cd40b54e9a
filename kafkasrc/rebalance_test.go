package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

// commits sends the offset of one partition in a transaction, and gives the broker's answer to it.
func (b *bed) commits(t *testing.T, tx *kgo.Client, f Fence, partition int32) string {
	ctx := within(t, 10*time.Second)
	require.NoError(t, tx.BeginTransaction())
	require.NoError(t, tx.ProduceSync(ctx, b.rec(partition, "k", "marker")).FirstErr())
	id, epoch, err := tx.ProducerID(ctx)
	require.NoError(t, err)
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, _ = tx.OptValue(kgo.TransactionalID).(string)
	req.Group, req.ProducerID, req.ProducerEpoch = f.Group, id, epoch
	req.MemberID, req.Generation, req.InstanceID = f.Member, f.Generation, &f.InstanceID
	rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	rp.Partition, rp.Offset = partition, 1
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = b.in, b.TopicID(b.in)
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	for {
		resp, err := req.RequestWith(ctx, tx)
		require.NoError(t, err)
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
		if errors.Is(err, kerr.ConcurrentTransactions) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		require.NoError(t, tx.EndTransaction(ctx, kgo.TransactionEndTry(err == nil)))
		if err == nil {
			return "NONE"
		}
		var ke *kerr.Error
		require.ErrorAs(t, err, &ke)
		return ke.Message
	}
}

func ofInstance(id string) func(kmsg.Request) bool {
	return func(req kmsg.Request) bool { return instanceOf(req) == id }
}

// A last checkpoint may take longer than the session: the member goes on beating and is not expelled, and what it commits
// counts, at the beginning and at the end.
func TestWhileTheGroupWaitsTheMemberBeatsAndCommits(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	tx := client(t, k.cfg, kgo.TransactionalID(k.Name("tx")))
	beats := k.tap.Watch(ofInstance("i1"), kmsg.Heartbeat)
	var mu sync.Mutex
	var a *Group
	var said []string
	var beat int
	var members []string
	began := make(chan struct{})
	mu.Lock()
	a = k.join(t, "i1", quick, func(gc *GroupConfig) {
		gc.BeforeRevoke = func(ctx context.Context, gone []element.TopicPartition) {
			mu.Lock()
			defer mu.Unlock()
			held := claims(a)
			try := func() {
				f, err := a.Fence(held)
				if err != nil {
					said = append(said, err.Error())
					return
				}
				members = append(members, f.Member)
				said = append(said, k.commits(t, tx, f, gone[0].Partition))
			}
			close(began)
			before := beats.Hits()
			try()
			time.Sleep(3 * gc.SessionTimeout)
			try()
			beat = beats.Hits() - before
			if ctx.Err() != nil {
				said = append(said, "the budget has ended")
			}
		}
	})
	owns(t, 4, a)
	first := a.Current()
	mu.Unlock()
	b := k.join(t, "i2", quick)
	<-began
	time.Sleep(100 * time.Millisecond)
	require.Empty(t, b.Current().Partitions, "nobody gets what is being given up")
	require.Equal(t, first, a.Current(), "and it is still owned")
	owns(t, 4, a, b)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"NONE", "NONE"}, said)
	require.GreaterOrEqual(t, beat, 5, "heartbeats")
	require.Equal(t, members[0], members[1])
	for tp, since := range a.Current().Since {
		require.Equal(t, first.Since[tp], since, "%v stayed all the time", tp)
	}
}

// What a member may commit in each phase of a round that another one has begun: with the generation that Fence gives,
// everything; with one that was read before the round, nothing once the round has a new one.
func TestCommitsInEachPhaseOfARound(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	tx := client(t, k.cfg, kgo.TransactionalID(k.Name("tx")))
	a := k.join(t, "i1")
	owns(t, 4, a)
	held := claims(a)
	stable, err := a.Fence(held)
	require.NoError(t, err)
	require.Equal(t, "NONE", k.commits(t, tx, stable, 0))

	// i1 learns of the round by a heartbeat; its join and its sync are held back.
	join, sync := make(chan struct{}), make(chan struct{})
	var joins, syncs atomic.Int32
	hold := func(n *atomic.Int32, until chan struct{}) func(kmsg.Request) error {
		return func(kmsg.Request) error {
			n.Add(1)
			<-until
			return nil
		}
	}
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup}, When: ofInstance("i1"), Before: hold(&joins, join)})
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.SyncGroup}, When: ofInstance("i1"), Before: hold(&syncs, sync)})
	b := k.join(t, "i2")
	require.Eventually(t, func() bool { return joins.Load() > 0 }, 10*time.Second, time.Millisecond)
	waiting, err := a.Fence(held)
	require.NoError(t, err)
	require.Equal(t, stable, waiting, "the group waits for this member: it is in the old generation")
	require.Equal(t, "NONE", k.commits(t, tx, waiting, 0))

	close(join)
	require.Eventually(t, func() bool { return syncs.Load() > 0 }, 10*time.Second, time.Millisecond)
	joined, err := a.Fence(held)
	require.NoError(t, err)
	require.Greater(t, joined.Generation, stable.Generation, "joined, and not told yet what it has: all that it had")
	require.Equal(t, stable.Member, joined.Member)
	require.Equal(t, "ILLEGAL_GENERATION", k.commits(t, tx, waiting, 0))
	require.Equal(t, "NONE", k.commits(t, tx, joined, 0))

	close(sync)
	owns(t, 4, a, b)
	_, err = a.Fence(held)
	requireRejoin(t, err)
	kept, err := a.Fence(claims(a))
	require.NoError(t, err)
	require.Equal(t, "NONE", k.commits(t, tx, kept, a.Current().Partitions[0].Partition))
	require.NoError(t, a.Err(), fmt.Sprint(kept))
}

// What stays with a member while others come and go keeps its claims, over any number of rounds.
func TestClaimsOfWhatStaysHoldOverRounds(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	a := k.join(t, "i1")
	owns(t, 4, a)
	b := k.join(t, "i2")
	owns(t, 4, a, b)
	held := claims(a)
	was, err := a.Fence(held)
	require.NoError(t, err)
	for range 2 {
		c := k.join(t, "i3")
		require.Eventually(t, func() bool { return len(c.Current().Partitions) == 1 }, 20*time.Second, 5*time.Millisecond)
		require.NoError(t, c.Leave(within(t, 10*time.Second)))
		owns(t, 4, a, b)
	}
	kept := 0
	for _, c := range held {
		f, err := a.Fence([]element.Claim{c})
		if err == nil {
			kept++
			require.Equal(t, was.Member, f.Member)
			require.Greater(t, f.Generation, was.Generation)
		} else {
			requireRejoin(t, err) // it was i3's for a while
		}
	}
	require.Positive(t, kept)
}

// A member that slept while it was to join is expelled, and comes back with its claims: it gets nothing back by them,
// it cannot commit, and it is not asked for a last checkpoint.
func TestAZombieThatComesBackTakesNothing(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	var asked atomic.Int32
	a := k.join(t, "i1", quick, func(gc *GroupConfig) {
		gc.BeforeRevoke = func(context.Context, []element.TopicPartition) { asked.Add(1) }
	})
	owns(t, 4, a)
	held := claims(a)
	var sleeping sync.WaitGroup
	sleeping.Add(1)
	var joins atomic.Int32
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup}, When: ofInstance("i1"), Before: func(kmsg.Request) error {
		joins.Add(1)
		sleeping.Wait()
		return nil
	}})
	b := k.join(t, "i2", quick)
	owns(t, 4, b)
	require.Positive(t, joins.Load())
	before := b.Current()
	require.Len(t, a.Current().Partitions, 4, "it does not know yet")
	sleeping.Done()
	require.Eventually(t, func() bool { return len(a.Current().Partitions) == 2 }, 20*time.Second, time.Millisecond)
	owns(t, 4, a, b)
	_, err := a.Fence(held)
	requireRejoin(t, err)
	for _, c := range held {
		_, err := a.Fence([]element.Claim{c})
		requireRejoin(t, err)
	}
	for tp, since := range b.Current().Since {
		require.Equal(t, before.Since[tp], since, "%v stayed where it was", tp)
	}
	require.Zero(t, asked.Load())
	_, err = a.Fence(claims(a))
	require.NoError(t, err)
}

// A session may be longer than a round waits. Then who does not join in time stays in the group, with what it said when it joined
// last, and what it was given since is given to another one. It comes back as the same member: it must not commit what it had,
// and is not asked for a last checkpoint.
func TestAMemberThatARoundDidNotWaitForTakesNothing(t *testing.T) {
	testbed.Alongside(t)
	if !testbed.Real() {
		t.Skip("the embedded broker expels who does not join in time, whatever its session is")
	}
	k := newBed(t, 4)
	slow := func(gc *GroupConfig) { gc.SessionTimeout, gc.RebalanceTimeout = 30*time.Second, 3*time.Second }
	var asked atomic.Int32
	leader := k.join(t, "i1", slow)
	owns(t, 4, leader)
	a := k.join(t, "i2", slow, func(gc *GroupConfig) {
		gc.BeforeRevoke = func(context.Context, []element.TopicPartition) { asked.Add(1) }
	})
	owns(t, 4, leader, a)
	held := claims(a)
	require.Len(t, held, 2)
	sleeping := make(chan struct{})
	var joins atomic.Int32
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup}, When: ofInstance("i2"), Before: func(kmsg.Request) error {
		joins.Add(1)
		<-sleeping
		return nil
	}})
	b := k.join(t, "i3", slow)
	both := func() bool {
		return slices.ContainsFunc(b.Current().Partitions, func(tp element.TopicPartition) bool { return slices.Contains(a.Current().Partitions, tp) })
	}
	require.Eventually(t, both, 30*time.Second, 10*time.Millisecond, "what it had is given away")
	require.Positive(t, joins.Load())
	close(sleeping)
	require.Eventually(t, func() bool { return !both() }, 30*time.Second, time.Millisecond)
	owns(t, 4, leader, a, b)
	for _, c := range held {
		_, err := a.Fence([]element.Claim{c})
		requireRejoin(t, err)
	}
	require.Zero(t, asked.Load())
	_, err := a.Fence(claims(a))
	require.NoError(t, err)
}
