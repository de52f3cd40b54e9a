package kafkasrc

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

// all gives the partitions that a whole owner of these topics has.
func (c *cluster) all(topics []string) (tps []element.TopicPartition) {
	for _, topic := range topics {
		for p := range c.counts[topic] {
			tps = append(tps, element.TopicPartition{Topic: topic, Partition: p})
		}
	}
	slices.SortFunc(tps, element.TopicPartition.Compare)
	return tps
}

// playWhole is one round, in which one member gets everything that it is interested in, or nobody gets anything. One that
// has everything keeps it.
func (c *cluster) playWhole(t require.TestingT, missing ...int) (owner int) {
	topics := (&planner{members: c.members}).wanted()
	sitting := -1
	for i, m := range c.members {
		newest := !slices.ContainsFunc(c.members, func(o candidate) bool { return len(o.owned) > 0 && o.id != m.id && o.generation >= m.generation })
		has := map[element.TopicPartition]bool{}
		for _, tp := range m.owned {
			has[tp] = true
		}
		if newest && interested(m, topics) && len(m.owned) > 0 && !slices.ContainsFunc(topics, func(topic string) bool { return !has[element.TopicPartition{Topic: topic}] }) {
			sitting = i
		}
	}
	c.round++
	out := plan(c.members, c.counts)
	shuffled := slices.Clone(c.members)
	slices.Reverse(shuffled)
	require.Equal(t, out, plan(shuffled, c.counts), "the order of the members does not matter")
	require.Len(t, out, len(c.members))
	owner = -1
	for i, m := range c.members {
		if len(out[m.id]) == 0 {
			continue
		}
		require.Equal(t, -1, owner, "two members have something")
		owner = i
		require.Equal(t, c.all(slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return !slices.Contains(m.topics, topic) })), out[m.id])
		for _, o := range c.members {
			if o.id != m.id && len(o.owned) > 0 {
				require.Less(t, o.generation, m.generation, "%s may still be at work", o.id)
			}
		}
	}
	if sitting >= 0 {
		require.Equal(t, sitting, owner, "it lives and has everything")
	}
	for i := range c.members {
		if m := &c.members[i]; !slices.Contains(missing, i) {
			m.owned, m.generation = out[m.id], c.round
		}
	}
	return owner
}

// settleWhole gives the owner that stays.
func (c *cluster) settleWhole(t require.TestingT) int {
	owner := c.playWhole(t)
	for n := 0; owner < 0; n++ {
		require.Less(t, n, 2, "those who claim something give it up in one round")
		owner = c.playWhole(t)
	}
	require.Equal(t, owner, c.playWhole(t))
	return owner
}

func TestAWholeGroupHasOneOwner(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt, rapid.Bool().Draw(rt, "equal"))
		if rapid.Bool().Draw(rt, "was shared") {
			c.settle(rt)
		}
		c.members[rapid.IntRange(0, len(c.members)-1).Draw(rt, "whole")].whole = true
		c.settleWhole(rt)
		for range rapid.IntRange(0, 8).Draw(rt, "events") {
			c.wholeEvent(rt)
			if !wholly(c.members) {
				c.settle(rt)
				continue
			}
			c.settleWhole(rt)
		}
	})
}

// wholeEvent lets members come, go, sleep and change their minds, and topics grow.
func (c *cluster) wholeEvent(rt *rapid.T) {
	pick := func(label string) int { return rapid.IntRange(0, len(c.members)-1).Draw(rt, label) }
	topics := slices.Sorted(maps.Keys(c.counts))
	switch rapid.IntRange(0, 5).Draw(rt, "event") {
	case 0:
		c.join(rt, rapid.Bool().Draw(rt, "equal"), topics, nil)
		c.members[len(c.members)-1].whole = rapid.Bool().Draw(rt, "whole")
	case 1:
		if len(c.members) > 1 {
			i := pick("leaves")
			c.members = slices.Delete(c.members, i, i+1)
		}
	case 2: // restarts while a round is on, perhaps as the other kind
		i := pick("restarts")
		c.members[i].owned, c.members[i].generation, c.members[i].whole = nil, -1, rapid.Bool().Draw(rt, "whole")
	case 3:
		topic := rapid.SampledFrom(topics).Draw(rt, "grows")
		c.counts[topic] = min(9, c.counts[topic]+1)
	case 4: // rounds that not all hear of
		for range rapid.IntRange(1, 3).Draw(rt, "rounds") {
			if wholly(c.members) {
				c.playWhole(rt, rapid.SliceOfNDistinct(rapid.IntRange(0, len(c.members)-1), 1, len(c.members), rapid.ID[int]).Draw(rt, "missing")...)
			}
		}
	case 5: // sleeps while the others go on, and comes back with its claims
		i := pick("sleeps")
		m := c.members[i]
		if c.members = slices.Delete(c.members, i, i+1); len(c.members) > 0 && wholly(c.members) {
			for range rapid.IntRange(0, 3).Draw(rt, "rounds") {
				c.playWhole(rt)
			}
		}
		m.id += "x"
		c.members = append(c.members, m)
	}
}

func TestTheOwnerOfAWholeGroup(t *testing.T) {
	counts := map[string]int32{"a": 4, "b": 2}
	both := []string{"a", "b"}
	m := func(id string, generation int32, topics []string, owned ...element.TopicPartition) candidate {
		return candidate{id: id, name: id, topics: topics, whole: true, generation: generation, owned: owned}
	}
	all := append(tps("a", 0, 1, 2, 3), tps("b", 0, 1)...)
	got := func(ms ...candidate) string {
		who := ""
		for id, tps := range plan(ms, counts) {
			if len(tps) > 0 {
				who += fmt.Sprint(id, len(tps))
			}
		}
		return who
	}
	require.Equal(t, "m16", got(m("m2", -1, both), m("m1", -1, both)), "nobody has anything: the first by name")
	require.Equal(t, "m26", got(m("m1", -1, both), m("m2", 4, both, all...)), "who has it keeps it")
	require.Equal(t, "m26", got(m("m1", -1, both), m("m2", 4, both, all[:5]...)), "and gets what is added")
	require.Equal(t, "", got(m("m1", 4, both, all[:2]...), m("m2", 4, both, all[2:]...)), "both must stop first")
	require.Equal(t, "m26", got(m("m1", 5, both), m("m2", 4, both, all[2:]...)), "the one with the most")
	require.Equal(t, "m26", got(m("m1", 3, both, all...), m("m2", 4, both, all...)), "who slept has no title")
	require.Equal(t, "", got(m("m1", 4, []string{"a"}, all[:4]...), m("m2", -1, both)), "the first with the new topics is to have it")
	require.Equal(t, "m26", got(m("m1", 5, []string{"a"}), m("m2", 5, both)))
	require.Equal(t, "m14", got(m("m1", 4, []string{"a"}, all[:4]...), m("m2", 4, []string{"b"})), "nobody knows both")
	heard := m("m2", 4, both)
	heard.noted = "m3"
	require.Equal(t, "m36", got(m("m1", -1, both), heard, m("m3", -1, both)), "it restarted while a round was on")
	require.Equal(t, "m26", got(m("m1", -1, both), m("m2", 4, both, all...), m("m3", -1, both)), "which is nothing against having it")
	older := m("m1", 3, both)
	older.noted = "m1"
	require.Equal(t, "m36", got(older, heard, m("m3", -1, both)))
	shared := m("m1", 4, both, all...)
	shared.whole = false
	require.Equal(t, "m16", got(shared, m("m2", -1, both)), "one that shares can have everything, too")
}

// A static member that restarts gets the assignment of before, without a round. If that was made for sharing and it
// cannot do with a part, it takes nothing and asks for a round.
func TestAWholeMemberTakesNoPart(t *testing.T) {
	sharing, err := newCopartitioned([]string{"a"}, nil, false)
	require.NoError(t, err)
	whole, err := newCopartitioned([]string{"a"}, nil, true)
	require.NoError(t, err)
	counts := map[string]int32{"a": 4}
	none := func(string, int32) bool { return false }
	old := balanced(t, sharing, counts, asMember(t, sharing, "m1", "i1", []string{"a"}, nil, -1), asMember(t, sharing, "m2", "i2", []string{"a"}, nil, -1))
	whole.JoinGroupMetadata([]string{"a"}, nil, -1)
	got, err := whole.ParseSyncAssignment(old["m1"])
	require.NoError(t, err)
	require.Empty(t, got)
	require.Contains(t, whole.rejoin("m1x", none), "part of the partitions")

	// The leader need not be one that wants it so.
	now := balanced(t, sharing, counts, asMember(t, whole, "m1", "i1", []string{"a"}, nil, -1), asMember(t, sharing, "m2", "i2", []string{"a"}, nil, -1))
	whole.JoinGroupMetadata([]string{"a"}, nil, -1)
	got, err = whole.ParseSyncAssignment(now["m1"])
	require.NoError(t, err)
	require.Equal(t, map[string][]int32{"a": {0, 1, 2, 3}}, got)
	require.Empty(t, whole.rejoin("m1", none))
	sharing.JoinGroupMetadata([]string{"a"}, nil, -1)
	got, err = sharing.ParseSyncAssignment(now["m2"])
	require.NoError(t, err)
	require.Empty(t, got)

	// Back to sharing: what it had is taken, until the round that it asks for.
	sharing.JoinGroupMetadata([]string{"a"}, nil, -1)
	got, err = sharing.ParseSyncAssignment(now["m1"])
	require.NoError(t, err)
	require.Len(t, got["a"], 4)
	require.NotEmpty(t, sharing.rejoin("m1x", none))
}

func whole(gc *GroupConfig) { gc.Whole = true }

// watchOwners records every moment at which two groups have something, or one has a part.
type watchOwners struct {
	t    *testing.T
	stop chan struct{}
	done chan []string
}

// watched looks at the groups every millisecond. Two reads of one moment are two moments: an owner is taken for one only
// when it still is after the others were read.
func watched(t *testing.T, groups func() []*Group) *watchOwners {
	w := &watchOwners{t: t, stop: make(chan struct{}), done: make(chan []string, 1)}
	go func() {
		var wrong []string
		for {
			select {
			case <-w.stop:
				w.done <- wrong
				return
			case <-time.After(time.Millisecond):
			}
			gs := groups()
			for i, a := range gs {
				before := a.Current()
				if len(before.Partitions) == 0 {
					continue
				}
				for j, b := range gs {
					if n := len(b.Current().Partitions); i != j && n > 0 && a.Current().Epoch == before.Epoch {
						wrong = append(wrong, fmt.Sprintf("%s has %d partitions and %s has %d", a.cfg.InstanceID, len(before.Partitions), b.cfg.InstanceID, n))
					}
				}
			}
		}
	}()
	return w
}

func (w *watchOwners) fine() {
	w.t.Helper()
	close(w.stop)
	require.Empty(w.t, <-w.done)
}

// ownerOf waits until one of the groups has everything.
func ownerOf(t *testing.T, total int, groups ...*Group) *Group {
	t.Helper()
	var owner *Group
	require.Eventually(t, func() bool {
		owner = nil
		for _, g := range groups {
			if len(g.Current().Partitions) == total {
				owner = g
			}
		}
		return owner != nil
	}, 20*time.Second, 5*time.Millisecond, "no owner of %d partitions", total)
	return owner
}

func requireOwner(t *testing.T, want, got *Group, msg ...any) {
	t.Helper()
	require.Equal(t, want.cfg.InstanceID, got.cfg.InstanceID, msg...)
}

func TestAWholeGroupFollowsItsMembers(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4, kfake.GroupMinSessionTimeout(100*time.Millisecond))
	second := k.Topic("second", 2, nil)
	topics := func(gc *GroupConfig) { gc.Topics = []string{k.in, second} }
	a := k.join(t, "i1", whole, topics, quick)
	requireOwner(t, a, ownerOf(t, 6, a))
	epoch := a.Current().Epoch
	b := k.join(t, "i0", whole, topics, quick)
	c := k.join(t, "i2", whole, topics, quick)
	all := []*Group{a, b, c}
	w := watched(t, func() []*Group { return all })
	for _, g := range []*Group{b, c} {
		require.Eventually(t, func() bool { return g.Current().Member }, 20*time.Second, time.Millisecond)
	}
	requireOwner(t, a, ownerOf(t, 6, all...))
	require.Equal(t, epoch, a.Current().Epoch, "others that come are not noticed")

	_, err := kadm.NewClient(client(t, k.cfg)).CreatePartitions(t.Context(), 2, k.in)
	require.NoError(t, err)
	k.waitFor(t, 6)
	a.cl.ForceMetadataRefresh()
	requireOwner(t, a, ownerOf(t, 8, all...), "what is added goes to the owner")

	began := time.Now()
	a.abandon() // killed
	next := ownerOf(t, 8, b, c)
	require.Less(t, time.Since(began), a.cfg.SessionTimeout+2*time.Second)
	require.NoError(t, next.Leave(within(t, 10*time.Second)))
	last := b
	if next == b {
		last = c
	}
	requireOwner(t, last, ownerOf(t, 8, last))
	w.fine()
}

func TestAWholeOwnerRestartsInPlace(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	a, b := k.join(t, "i2", whole), k.join(t, "i1", whole)
	owner := ownerOf(t, 4, a, b)
	other := b
	if owner == b {
		other = a
	}
	require.Eventually(t, func() bool { return other.Current().Member }, 20*time.Second, time.Millisecond)
	for i := range 4 {
		if i%2 == 1 { // while a round is on
			other.cl.ForceRebalance()
		}
		owner.Close()
		owner = k.join(t, owner.cfg.InstanceID, whole)
		require.True(t, owner == ownerOf(t, 4, owner, other), "round %d: the other has everything", i)
		require.Empty(t, other.Current().Partitions)
	}
}

// A topology gets an exchange, and the members are restarted with it one after the other, in place.
func TestARollingChangeToAWholeGroup(t *testing.T) {
	testbed.Alongside(t)
	k := newBed(t, 4)
	all := []*Group{k.join(t, "i1"), k.join(t, "i2"), k.join(t, "i3")}
	owns(t, 4, all...)
	for i := range all {
		all[i].Close()
		all[i] = k.join(t, all[i].cfg.InstanceID, whole)
		owner := ownerOf(t, 4, all...)
		for _, g := range all {
			if g != owner {
				require.Eventually(t, func() bool { return len(g.Current().Partitions) == 0 }, 10*time.Second, time.Millisecond)
			}
		}
	}
	for i := range all { // and back
		all[i].Close()
		all[i] = k.join(t, all[i].cfg.InstanceID)
	}
	owns(t, 4, all...)
}

func TestALeaderWithOldMetadataKnowsWhatTheMembersKnow(t *testing.T) {
	b, err := newCopartitioned([]string{"a"}, nil, false)
	require.NoError(t, err)
	owned := map[string][]int32{"a": {0, 1, 2}}
	first := balanced(t, b, map[string]int32{"a": 3}, asMember(t, b, "m1", "i1", []string{"a"}, nil, -1))
	got, err := b.ParseSyncAssignment(first["m1"])
	require.NoError(t, err)
	require.Equal(t, owned, got)
	for _, counts := range []map[string]int32{{"a": 2}, {"a": 0}} {
		out := balanced(t, b, counts, asMember(t, b, "m1", "i1", []string{"a"}, owned, 3))
		got, err = b.ParseSyncAssignment(out["m1"])
		require.NoError(t, err)
		require.Equal(t, owned, got)
		require.Empty(t, b.rejoin("m1", func(_ string, p int32) bool { return p < 3 }))
	}
	require.Equal(t, map[string]int32{"a": 2}, raised([]candidate{{made: map[string]int{"a": maxPartitions + 1, "gone": 4}}}, map[string]int32{"a": 2}))
}
