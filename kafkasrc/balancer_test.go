package kafkasrc

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

// asMember gives what the broker would pass on of a member to the leader.
func asMember(t *testing.T, b *copartitioned, id, instance string, interests []string, owned map[string][]int32, generation int32) kmsg.JoinGroupResponseMember {
	t.Helper()
	m := kmsg.NewJoinGroupResponseMember()
	m.MemberID = id
	if instance != "" {
		m.InstanceID = &instance
	}
	m.ProtocolMetadata = b.JoinGroupMetadata(interests, owned, generation)
	require.Equal(t, m.ProtocolMetadata, b.JoinGroupMetadata(interests, owned, generation), "other bytes would be a reason to balance")
	return m
}

func balanced(t *testing.T, b *copartitioned, counts map[string]int32, members ...kmsg.JoinGroupResponseMember) map[string][]byte {
	t.Helper()
	mb, topics, err := b.MemberBalancer(members)
	require.NoError(t, err)
	for topic := range topics {
		require.Contains(t, counts, topic)
	}
	mb.(kgo.GroupMemberBalancerInfo).SetBalanceInfo(kgo.BalanceInfo{Generation: 3})
	into, err := mb.(kgo.GroupMemberBalancerOrError).BalanceOrError(counts)
	require.NoError(t, err)
	require.Equal(t, into.IntoSyncAssignment(), into.IntoSyncAssignment())
	out := map[string][]byte{}
	for _, a := range into.IntoSyncAssignment() {
		out[a.MemberID] = a.MemberAssignment
	}
	return out
}

func TestBalancerTalksToItselfThroughTheBroker(t *testing.T) {
	topics := []string{"a", "b", "c"}
	leader, err := newCopartitioned(topics, [][]string{{"b", "a"}}, false)
	require.NoError(t, err)
	other, err := newCopartitioned(topics, [][]string{{"a", "b"}, {"c"}}, false)
	require.NoError(t, err)
	require.Equal(t, leader.together, other.together, "the order in the configuration does not matter, nor a group of one")
	counts := map[string]int32{"a": 4, "b": 4, "c": 2}
	out := balanced(t, leader, counts,
		asMember(t, leader, "m1", "i1", topics, map[string][]int32{"a": {0, 1, 2, 3}, "b": {0, 1, 2, 3}, "c": {0, 1}}, 3),
		asMember(t, other, "m2", "", topics, nil, -1))
	mine, err := leader.ParseSyncAssignment(out["m1"])
	require.NoError(t, err)
	require.Equal(t, map[string][]int32{"a": {0, 1}, "b": {0, 1}, "c": {0}}, mine)
	theirs, err := other.ParseSyncAssignment(out["m2"])
	require.NoError(t, err)
	require.Empty(t, theirs)
	have := func(n int32) func(string, int32) bool { return func(_ string, p int32) bool { return p < n } }
	require.Empty(t, other.rejoin("m2", have(2)))
	require.Contains(t, other.rejoin("m2", have(3)), "topic c has more than the 2 partitions")

	// Restarted with other topics, it is given what it had and takes of it what it still can.
	newer, err := newCopartitioned([]string{"a", "c", "d"}, [][]string{{"a", "d"}}, false)
	require.NoError(t, err)
	newer.JoinGroupMetadata([]string{"a", "c", "d"}, nil, -1)
	kept, err := newer.ParseSyncAssignment(out["m1"])
	require.NoError(t, err)
	require.Equal(t, map[string][]int32{"a": {0, 1}, "c": {0}}, kept)
	for range maxForcedRejoins {
		require.Contains(t, newer.rejoin("m1", have(0)), "other topics")
	}
	require.Empty(t, newer.rejoin("m1", have(0)), "it does not ask for ever")
	newer.JoinGroupMetadata([]string{"a", "c"}, nil, -1) // d cannot be seen yet
	kept, err = newer.ParseSyncAssignment(out["m1"])
	require.NoError(t, err)
	require.Equal(t, map[string][]int32{"c": {0}}, kept, "half a unit is none")
}

// What was taken away from a member goes to nobody before it joins again. The process that was to do that may be gone, and
// the one that has its place under another member id knows of nothing that it would have to give up.
func TestARestartedMemberPaysWhatItsPredecessorOwes(t *testing.T) {
	b, err := newCopartitioned([]string{"a"}, nil, false)
	require.NoError(t, err)
	out := balanced(t, b, map[string]int32{"a": 4},
		asMember(t, b, "m1", "i1", []string{"a"}, map[string][]int32{"a": {0, 1, 2, 3}}, 3), asMember(t, b, "m2", "i2", []string{"a"}, nil, -1))
	all := func(string, int32) bool { return false }
	for member, owes := range map[string]bool{"m1": true, "m2": false} {
		_, err = b.ParseSyncAssignment(out[member])
		require.NoError(t, err)
		require.Empty(t, b.rejoin(member, all), "it does so by itself")
		require.Equal(t, owes, b.rejoin(member+"-restarted", all) != "")
	}
}

// A member whose sync was answered with a further round has a generation in which it was given nothing.
func TestAClaimIsOfTheRoundThatItWasGivenIn(t *testing.T) {
	b, err := newCopartitioned([]string{"a"}, nil, false)
	require.NoError(t, err)
	claims := func(owned map[string][]int32, joined int32) int32 {
		meta := kmsg.NewConsumerMemberMetadata()
		require.NoError(t, meta.ReadFrom(b.JoinGroupMetadata([]string{"a"}, owned, joined)))
		return meta.Generation
	}
	require.EqualValues(t, -1, claims(nil, 2))
	out := balanced(t, b, map[string]int32{"a": 2}, asMember(t, b, "m1", "i1", []string{"a"}, nil, 2))
	owned, err := b.ParseSyncAssignment(out["m1"])
	require.NoError(t, err)
	require.Equal(t, map[string][]int32{"a": {0, 1}}, owned)
	require.EqualValues(t, 3, claims(owned, 3))
	require.EqualValues(t, 3, claims(owned, 7))
	_, err = b.ParseSyncAssignment(nil)
	require.NoError(t, err)
	require.EqualValues(t, -1, claims(nil, 8))
}

func TestBalancerTakesNothingForGranted(t *testing.T) {
	b, err := newCopartitioned([]string{"a"}, nil, false)
	require.NoError(t, err)
	got, err := b.ParseSyncAssignment(nil)
	require.NoError(t, err)
	require.Empty(t, got, "a member that the leader does not know yet")
	require.Contains(t, b.rejoin("m1", func(string, int32) bool { return true }), "made without this instance")
	_, err = b.ParseSyncAssignment([]byte{1, 2})
	require.Error(t, err)
	var a kmsg.ConsumerMemberAssignment
	a.UserData = []byte("{")
	_, err = b.ParseSyncAssignment(a.AppendTo(nil))
	require.ErrorContains(t, err, "note")
	a.UserData = make([]byte, maxNote+1)
	_, err = b.ParseSyncAssignment(a.AppendTo(nil))
	require.ErrorContains(t, err, "bytes")

	m := asMember(t, b, "m1", "i1", []string{"a"}, nil, -1)
	m.ProtocolMetadata = m.ProtocolMetadata[:5]
	_, _, err = b.MemberBalancer([]kmsg.JoinGroupResponseMember{m})
	require.Error(t, err)
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.UserData = 3, []string{"a"}, []byte("x")
	m.ProtocolMetadata = meta.AppendTo(nil)
	mb, _, err := b.MemberBalancer([]kmsg.JoinGroupResponseMember{m})
	require.NoError(t, err)
	_, err = mb.(kgo.GroupMemberBalancerOrError).BalanceOrError(map[string]int32{"a": 1})
	require.ErrorContains(t, err, "member i1")

	for says, groups := range map[string][][]string{"not consumed": {{"a", "b"}}, "twice": {{"a"}, {"a"}}} {
		_, err = newCopartitioned([]string{"a"}, groups, false)
		require.ErrorContains(t, err, says)
	}
	_, err = JoinGroup(t.Context(), GroupConfig{Group: "g", InstanceID: "i", Topics: []string{"a"}, CoPartitioned: [][]string{{"x"}}})
	require.ErrorContains(t, err, "not consumed")
}

// pair makes every topic's partition of one number go to one member.
func pair(topics ...string) func(*GroupConfig) {
	return func(gc *GroupConfig) { gc.Topics, gc.CoPartitioned = topics, [][]string{topics} }
}

// holds waits until the groups share so many units of the topics, evenly and whole, and gives who has which.
func holds(t *testing.T, units int, topics []string, groups ...*Group) map[int32]int {
	t.Helper()
	var last string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		owner := map[element.TopicPartition]int{}
		even := true
		for i, g := range groups {
			ps := g.Current().Partitions
			even = even && len(ps)/len(topics) >= units/len(groups) && len(ps) <= len(topics)*((units+len(groups)-1)/len(groups))
			for _, p := range ps {
				if other, taken := owner[p]; taken {
					t.Fatalf("%v belongs to %d and %d", p, other, i)
				}
				owner[p] = i
			}
		}
		byUnit, whole := map[int32]int{}, len(owner) == units*len(topics)
		for p, i := range owner {
			if o, seen := byUnit[p.Partition]; seen && o != i {
				whole = false
			}
			byUnit[p.Partition] = i
		}
		if even && whole {
			return byUnit
		}
		last = fmt.Sprint(owner)
	}
	t.Fatalf("no even ownership of %d whole units, but %s", units, last)
	return nil
}

func changed(before, after map[int32]int) (n int) {
	for u, i := range before {
		if after[u] != i {
			n++
		}
	}
	return n
}

func TestUnitsFollowMembersThatComeAndGo(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 6, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	topics := []string{k.in, k.Topic("other", 6, nil)}
	with := pair(topics...)
	a := k.join(t, "i1", with)
	one := holds(t, 6, topics, a)
	b := k.join(t, "i2", with)
	two := holds(t, 6, topics, a, b)
	require.Equal(t, 3, changed(one, two), "a member that comes gets its share, nothing else moves")
	c := k.join(t, "i3", with, quick)
	three := holds(t, 6, topics, a, b, c)
	require.Equal(t, 2, changed(two, three))

	// Killed: its session ends. The others keep what they have.
	c.abandon()
	again := holds(t, 6, topics, a, b)
	require.Equal(t, 2, changed(three, again))
	// Left: at once.
	epoch := b.Current().Epoch
	require.NoError(t, a.Leave(within(t, 10*time.Second)))
	holds(t, 6, topics, b)
	require.Equal(t, epoch+1, b.Current().Epoch, "what it had stays, what is new comes at once")
}

func TestAHalfIsNeverOwned(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	topics := []string{k.in, k.Topic("other", 4, nil)}
	var mu sync.Mutex
	var halves []string
	check := func(who string, a Assignment) {
		per := map[int32]int{}
		for _, p := range a.Partitions {
			per[p.Partition]++
		}
		mu.Lock()
		defer mu.Unlock()
		for u, n := range per {
			if n != len(topics) {
				halves = append(halves, fmt.Sprintf("%s has %d topics of unit %d", who, n, u))
			}
		}
	}
	var all []*Group
	watch := func(g *Group, who string) *Group {
		all = append(all, g)
		go func() {
			for {
				select {
				case <-g.Changes():
					check(who, g.Current())
				case <-g.polled:
					return
				}
			}
		}()
		return g
	}
	watch(k.join(t, "i1", pair(topics...)), "i1")
	for i := 2; i <= 4; i++ {
		who := fmt.Sprint("i", i)
		watch(k.join(t, who, pair(topics...)), who)
		holds(t, 4, topics, all...)
	}
	for len(all) > 1 {
		require.NoError(t, all[0].Leave(within(t, 10*time.Second)))
		all = all[1:]
		holds(t, 4, topics, all...)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, halves)
}

func TestStaticRestartMovesNothing(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 6)
	topics := []string{k.in, k.Topic("other", 6, nil)}
	var all []*Group
	for i := range 3 {
		all = append(all, k.join(t, fmt.Sprint("i", i), pair(topics...)))
	}
	before := holds(t, 6, topics, all...)
	for i := range all { // the leader is one of them
		epochs := []uint64{all[0].Current().Epoch, all[1].Current().Epoch, all[2].Current().Epoch}
		all[i].Close()
		all[i] = k.join(t, fmt.Sprint("i", i), pair(topics...))
		require.Equal(t, before, holds(t, 6, topics, all...))
		time.Sleep(700 * time.Millisecond) // time for a rejoin that should not be
		require.Equal(t, before, holds(t, 6, topics, all...))
		for j := range all {
			if j != i {
				require.Equal(t, epochs[j], all[j].Current().Epoch, "instance %d must not notice", j)
			}
		}
	}
}

func TestStandbysTakeOver(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 2)
	var all []*Group
	for i := range 4 {
		all = append(all, k.join(t, fmt.Sprint("i", i)))
	}
	// Settled: two own one each, two wait. Two that wait alone may also be a moment at which one owns both and the fourth
	// has not joined.
	var owners []*Group
	require.Eventually(t, func() bool {
		owners = owners[:0]
		idle := 0
		for _, g := range all {
			switch now := g.Current(); {
			case len(now.Partitions) == 1:
				owners = append(owners, g)
			case now.Epoch > 0 && len(now.Partitions) == 0:
				idle++
			}
		}
		return idle == 2 && len(owners) == 2
	}, 20*time.Second, 5*time.Millisecond)
	for _, g := range owners { // not who owns something by then: one that waited may have taken over the first's
		require.NoError(t, g.Leave(within(t, 10*time.Second)))
	}
	all = slices.DeleteFunc(all, func(g *Group) bool { return slices.Contains(owners, g) })
	require.Len(t, all, 2)
	owns(t, 2, all...)
}

// A rolling upgrade adds a topic that goes with the old one. The restarts are static: without more, the broker gives the
// old assignments and nobody would get the new topic.
func TestRollingUpgradeSharesTheNewTopic(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	topics := []string{k.in, k.Topic("added", 4, nil)}
	var all []*Group
	for i := range 3 {
		all = append(all, k.join(t, fmt.Sprint("i", i)))
	}
	owns(t, 4, all...)
	for i := range all {
		all[i].Close()
		all[i] = k.join(t, fmt.Sprint("i", i), pair(topics...))
		require.Eventually(t, func() bool {
			n := 0
			for _, g := range all[:i+1] {
				n += len(g.Current().Partitions)
			}
			for _, g := range all[i+1:] {
				n += len(g.Current().Partitions) // none: the old topic goes with the new one
			}
			return n == 8
		}, 20*time.Second, 10*time.Millisecond, "after restart %d", i)
	}
	holds(t, 4, topics, all...)
}

func TestPartitionsAddedWhileAStaticLeaderRestartsAreShared(t *testing.T) {
	k := newBed(t, 2)
	g := k.join(t, "i1")
	owns(t, 2, g)
	g.Close()
	_, err := kadm.NewClient(client(t, k.cfg)).CreatePartitions(t.Context(), 1, k.in)
	require.NoError(t, err)
	k.waitFor(t, 3)
	g = k.join(t, "i1")
	owns(t, 3, g)
}

// waitFor returns when the metadata show so many partitions.
func (b *bed) waitFor(t *testing.T, partitions int) {
	t.Helper()
	require.Eventually(t, func() bool {
		topics, err := b.Admin().ListTopics(t.Context(), b.in)
		return err == nil && len(topics[b.in].Partitions) == partitions
	}, 10*time.Second, 10*time.Millisecond)
}
