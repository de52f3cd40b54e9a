package kafkasrc

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/element"
)

// The clients of a group hear of added partitions after a while; a member that knows of them does not wait for that,
// whoever the leader is.
func TestAddedPartitionsThatAMemberKnowsAreSharedAtOnce(t *testing.T) {
	k := newBed(t, 2)
	leader := k.join(t, "i1")
	owns(t, 2, leader)
	other := k.join(t, "i2")
	owns(t, 1, leader)
	owns(t, 1, other)
	adm := kadm.NewClient(client(t, k.cfg))
	for i, who := range []*Group{other, leader} {
		n := 3 + i
		_, err := adm.CreatePartitions(t.Context(), 1, k.in)
		require.NoError(t, err)
		k.waitFor(t, n)
		began := time.Now()
		who.Know(map[string]int32{k.in: int32(n)})
		require.Eventually(t, func() bool { return len(leader.Current().Partitions)+len(other.Current().Partitions) == n }, 20*time.Second, 10*time.Millisecond)
		require.Less(t, time.Since(began), 10*time.Second)
	}
	was := leader.Current().Epoch
	leader.Know(map[string]int32{k.in: 4}) // nothing new: nobody is disturbed
	other.Know(map[string]int32{k.in: 4, "another": 9})
	time.Sleep(300 * time.Millisecond)
	require.Equal(t, was, leader.Current().Epoch)
}

// A topic is made anew with fewer partitions under a group that goes on, or while a static member is dead. A member that was given what
// is not there says so, and the group shares out what is, whoever leads it: the leader's client may keep what it has seen for long.
func TestATopicThatIsMadeAnewWithFewerPartitionsIsSharedAnew(t *testing.T) {
	k := newBed(t, 4)
	leader := k.join(t, "i1")
	owns(t, 4, leader)
	other := k.join(t, "i2")
	owns(t, 2, leader)
	owns(t, 2, other)
	adm := kadm.NewClient(client(t, k.cfg))
	_, err := adm.DeleteTopic(t.Context(), k.in)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := adm.CreateTopic(t.Context(), 2, -1, nil, k.in)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	k.waitFor(t, 2)
	shared := func(groups ...*Group) bool {
		even := true
		for _, g := range groups {
			tps := g.Current().Partitions
			if slices.ContainsFunc(tps, func(tp element.TopicPartition) bool { return tp.Partition >= 2 }) {
				g.KnowFewer(map[string]int32{k.in: 2})
			}
			even = even && len(tps) == 1
		}
		return even
	}
	require.Eventually(t, func() bool { return shared(leader, other) }, 20*time.Second, 100*time.Millisecond)
	leader.Close()
	again := k.join(t, "i1") // in place of it
	require.Eventually(t, func() bool { return shared(again, other) }, 20*time.Second, 100*time.Millisecond)
}

// A member that has not looked at a topic since it was made anew, as one that stands by, does not bring back what it had before.
func TestWhatAMemberKnewBeforeATopicWasMadeAnewDoesNotCount(t *testing.T) {
	topics, counts := []string{"a", "b"}, map[string]int32{"a": 4, "b": 2}
	one, err := newCopartitioned(topics, nil, false)
	require.NoError(t, err)
	other, err := newCopartitioned(topics, nil, false)
	require.NoError(t, err)
	var has, others map[string][]int32
	round := func() {
		out := balanced(t, other, counts, asMember(t, one, "m1", "i1", topics, has, 3), asMember(t, other, "m2", "i2", topics, others, 3))
		has, err = one.ParseSyncAssignment(out["m1"])
		require.NoError(t, err)
		others, err = other.ParseSyncAssignment(out["m2"])
		require.NoError(t, err)
	}
	there := func(topic string, p int32) bool { return topic == "b" && p < 2 }
	round()
	for _, b := range []*copartitioned{one, other} {
		require.Empty(t, b.know(map[string]int32{"a": 4, "b": 2}))
	}
	require.NotEmpty(t, one.knowFewer(map[string]int32{"a": 2}))
	for range 3 { // the client of the leader may be slow to hear of it
		round()
		counts["a"] = 2
		require.Equal(t, 2, other.made["a"])
		require.Empty(t, other.rejoin("m2", there))
		require.Empty(t, one.rejoin("m1", there))
	}
	other.JoinGroupMetadata(topics, others, 3)
	require.NotEmpty(t, other.know(map[string]int32{"a": 3, "b": 2}))
	require.Equal(t, 3, other.noted()["a"], "it grows")
}
