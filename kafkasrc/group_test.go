package kafkasrc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

func (b *bed) join(t *testing.T, instance string, change ...func(*GroupConfig)) *Group {
	t.Helper()
	gc := GroupConfig{Kafka: b.cfg, Group: b.Name("g"), InstanceID: instance, SessionTimeout: 6 * time.Second, Topics: []string{b.in}, Logger: testLog()}
	for _, c := range change {
		c(&gc)
	}
	g, err := JoinGroup(t.Context(), gc)
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

func quick(gc *GroupConfig) { gc.SessionTimeout = 600 * time.Millisecond }

// owns waits until the groups own all partitions of the topic between them, each n of them, and none twice.
func owns(t *testing.T, total int, groups ...*Group) {
	t.Helper()
	var last string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		seen := map[element.TopicPartition]int{}
		even := true
		for _, g := range groups {
			ps := g.Current().Partitions
			even = even && len(ps) >= total/len(groups)
			for _, p := range ps {
				seen[p]++
			}
		}
		if even && len(seen) == total {
			for p, n := range seen {
				require.Equal(t, 1, n, "%v has several owners", p)
			}
			return
		}
		last = fmt.Sprint(seen)
	}
	t.Fatalf("no even ownership of %d partitions, but %s", total, last)
}

func TestGroupOwnsAndFencesAndFetchesNothing(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	cl := client(t, k.cfg)
	produce(t, cl, k.rec(0, "k", "v"))
	fetched := k.tap.Watch(nil, kmsg.Fetch)
	joined := k.tap.Watch(nil, kmsg.JoinGroup)
	g := k.join(t, "i1")
	require.LessOrEqual(t, g.Current().Epoch, uint64(1))
	<-g.Changes()
	owns(t, 4, g)
	a := g.Current()
	require.EqualValues(t, 1, a.Epoch)
	require.Equal(t, []element.TopicPartition{k.tp(0), k.tp(1), k.tp(2), k.tp(3)}, a.Partitions)
	f, err := g.Fence(claims(g))
	require.NoError(t, err)
	require.Equal(t, k.Name("g"), f.Group)
	require.Equal(t, "i1", f.InstanceID)
	require.NotEmpty(t, f.Member)
	require.GreaterOrEqual(t, f.Generation, int32(1))
	for _, other := range []uint64{0, a.Epoch + 1, a.Epoch - 1} {
		_, err = g.Fence([]element.Claim{{TopicPartition: k.tp(0), Epoch: other}})
		requireRejoin(t, err)
	}
	a.Partitions[0].Topic = "changed"
	require.Equal(t, k.tp(0), g.Current().Partitions[0], "Current gives a copy")
	time.Sleep(300 * time.Millisecond)
	require.Zero(t, fetched.Hits())
	require.Positive(t, joined.Hits())
	require.NoError(t, g.Err())
}

func TestRestartInPlaceIsImmediate(t *testing.T) {
	k := newBed(t, 4)
	a, b := k.join(t, "i1"), k.join(t, "i2")
	owns(t, 4, a, b)
	least := time.Hour // how long one of them takes on a busy machine is the machine's matter
	for range 3 {
		before, epoch, held := a.Current().Partitions, b.Current().Epoch, claims(b)
		a.Close()
		require.Empty(t, a.Current().Partitions)
		start := time.Now()
		a = k.join(t, "i1")
		<-a.Changes()
		least = min(least, time.Since(start))
		require.Equal(t, before, a.Current().Partitions)
		require.Equal(t, epoch, b.Current().Epoch, "the other member must not notice")
		_, err := b.Fence(held)
		require.NoError(t, err)
	}
	require.Less(t, least, time.Second)
}

func TestFenceFailsAfterRevoke(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	var revoked atomic.Pointer[[]element.TopicPartition]
	var inside, after error
	var a *Group
	held := make(chan []element.Claim, 1)
	a = k.join(t, "i1", func(gc *GroupConfig) {
		gc.BeforeRevoke = func(ctx context.Context, gone []element.TopicPartition) {
			_, hasEnd := ctx.Deadline()
			if !hasEnd {
				t.Error("no bound")
			}
			c := <-held
			_, inside = a.Fence(c)
			held <- c
			revoked.Store(&gone)
		}
	})
	owns(t, 4, a)
	before, all := a.Current().Epoch, claims(a)
	held <- all
	b := k.join(t, "i2")
	owns(t, 4, a, b)
	require.NotNil(t, revoked.Load())
	require.NoError(t, inside, "while partitions are being revoked the epoch still holds: a last checkpoint is possible")
	_, after = a.Fence(all)
	requireRejoin(t, after)
	now := a.Current()
	require.Greater(t, now.Epoch, before)
	for _, gone := range *revoked.Load() {
		require.False(t, slices.Contains(now.Partitions, gone))
	}
	_, err := a.Fence(claims(a))
	require.NoError(t, err)
}

func TestLeaveGivesPartitionsUpAtOnce(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	a, b := k.join(t, "i1"), k.join(t, "i2")
	owns(t, 4, a, b)
	held := claims(a)
	start := time.Now()
	require.NoError(t, a.Leave(within(t, 10*time.Second)))
	_, err := a.Fence(held)
	requireRejoin(t, err)
	owns(t, 4, b)
	require.Less(t, time.Since(start), 5*time.Second, "before the session times out")
	require.NoError(t, a.Leave(within(t, 10*time.Second)), "leaving twice is no error")
	a.Close()
	a.Close()
}

func TestCloseWithoutLeaveKeepsTheMembership(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	a, b := k.join(t, "i1"), k.join(t, "i2")
	owns(t, 4, a, b)
	a.Close()
	time.Sleep(700 * time.Millisecond)
	require.Len(t, b.Current().Partitions, 2)
}

func TestSessionExpiryMovesPartitions(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	a := k.join(t, "i1", quick)
	owns(t, 4, a)
	old := a.Current().Epoch
	b := k.join(t, "i2", quick)
	owns(t, 4, a, b)
	epoch, held := a.Current().Epoch, claims(a)
	require.Greater(t, epoch, old)

	// i1 goes silent: its heartbeats and joins do not reach the group.
	var silent atomic.Bool
	silent.Store(true)
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup}, Before: func(req kmsg.Request) error {
		if silent.Load() && instanceOf(req) == "i1" {
			return errors.New("cut off")
		}
		return nil
	}})
	owns(t, 4, b)
	silent.Store(false)
	owns(t, 4, a, b)
	require.Greater(t, a.Current().Epoch, epoch)
	_, err := a.Fence(held)
	requireRejoin(t, err)
	_, err = a.Fence(claims(a))
	require.NoError(t, err)
	require.NoError(t, a.Err())
}

// claims are those to all that a group owns now.
func claims(g *Group) []element.Claim { return claimsOf(g.Current()) }

func claimsOf(a Assignment) []element.Claim {
	var all []element.Claim
	for _, tp := range a.Partitions {
		all = append(all, element.Claim{TopicPartition: tp, Epoch: a.Since[tp]})
	}
	return all
}

func instanceOf(kreq kmsg.Request) string {
	var id *string
	switch r := kreq.(type) {
	case *kmsg.HeartbeatRequest:
		id = r.InstanceID
	case *kmsg.JoinGroupRequest:
		id = r.InstanceID
	case *kmsg.SyncGroupRequest:
		id = r.InstanceID
	}
	if id == nil {
		return ""
	}
	return *id
}

func TestCloseDoesNotWaitForOtherMembers(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	joining := make(chan struct{}, 1)
	release := make(chan struct{})
	defer close(release)
	// The answer to a join waits, as while another member is slow to give partitions up.
	k.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.JoinGroup}, Mute: release, Before: func(kmsg.Request) error {
		select {
		case joining <- struct{}{}:
		default:
		}
		return nil
	}})
	g := k.join(t, "i1")
	<-joining
	start := time.Now()
	g.Close()
	require.Less(t, time.Since(start), closeGrace+2*time.Second)
}

func TestSecondProcessOfOneInstanceFencesTheFirst(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	a := k.join(t, "i1", quick)
	owns(t, 4, a)
	held := claims(a)
	b := k.join(t, "i1", quick)
	require.Eventually(t, func() bool { return a.Err() != nil }, 10*time.Second, 5*time.Millisecond)
	requireStop(t, a.Err(), fault.Fenced, `instance id "i1"`, "another process")
	_, err := a.Fence(held)
	require.Error(t, err)
	require.Empty(t, a.Current().Partitions)
	owns(t, 4, b)
	time.Sleep(500 * time.Millisecond)
	owns(t, 4, b)
	require.NoError(t, b.Err(), "the fenced one must not fence back")
	select {
	case <-a.Changes():
	default:
		t.Fatal("the error must be told by Changes")
	}
}

func TestGroupErrorsThatEndTheMembership(t *testing.T) {
	testbed.Alongside(t)
	t.Run("denied", func(t *testing.T) {
		k, c := fakeBed(t, 1, "the broker refuses a join")
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.GroupAuthorizationFailed})
		g := k.join(t, "i1")
		<-g.Changes()
		requireStop(t, g.Err(), fault.Denied, "group "+k.Name("g"))
	})
	t.Run("session timeout", func(t *testing.T) {
		k := newBed(t, 1)
		g := k.join(t, "i1", func(gc *GroupConfig) { gc.SessionTimeout = 2 * time.Hour })
		<-g.Changes()
		requireStop(t, g.Err(), fault.BadFile, "2h0m0s", "group.max.session.timeout.ms")
	})
	t.Run("transient", func(t *testing.T) {
		k, c := fakeBed(t, 1, "errors of the broker that pass")
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.UnknownServerError, Count: 2})
		g := k.join(t, "i1")
		owns(t, 1, g)
		require.NoError(t, g.Err())
	})
}

func TestNewPartitionsAreShared(t *testing.T) {
	k := newBed(t, 2)
	g := k.join(t, "i1")
	owns(t, 2, g)
	epoch := g.Current().Epoch
	cl := client(t, k.cfg)
	_, err := kadm.NewClient(cl).CreatePartitions(t.Context(), 1, k.in)
	require.NoError(t, err)
	k.waitFor(t, 3)
	g.cl.ForceMetadataRefresh() // otherwise within seconds
	owns(t, 3, g)
	require.Greater(t, g.Current().Epoch, epoch)
}

func TestJoinGroupChecksItsConfig(t *testing.T) {
	for _, gc := range []GroupConfig{{InstanceID: "i", Topics: []string{"t"}}, {Group: "g", Topics: []string{"t"}}, {Group: "g", InstanceID: "i"}, {Group: "g", InstanceID: "i", Topics: []string{"t"}}} {
		_, err := JoinGroup(t.Context(), gc)
		require.Error(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := JoinGroup(ctx, GroupConfig{})
	require.ErrorIs(t, err, context.Canceled)
}
