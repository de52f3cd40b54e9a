package kafkasrc

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// cluster is a group in which rounds are played: who is in it, what each has, and the topics.
type cluster struct {
	counts  map[string]int32
	members []candidate
	round   int32
}

func newCluster(rt *rapid.T, equal bool) *cluster {
	c := &cluster{counts: map[string]int32{}}
	for i := range rapid.IntRange(1, 5).Draw(rt, "topics") {
		c.counts[fmt.Sprint("t", i)] = rapid.Int32Range(1, 9).Draw(rt, "partitions")
	}
	topics := slices.Sorted(maps.Keys(c.counts))
	var together [][]string
	for rest := topics; len(rest) > 0; {
		n := rapid.IntRange(1, len(rest)).Draw(rt, "together")
		if n > 1 {
			together = append(together, rest[:n])
		}
		rest = rest[n:]
	}
	for range rapid.IntRange(1, 6).Draw(rt, "members") {
		c.join(rt, equal, topics, together)
	}
	return c
}

func (c *cluster) join(rt *rapid.T, equal bool, topics []string, together [][]string) {
	m := candidate{id: fmt.Sprintf("m%02d", len(c.members)+int(c.round)*10), generation: -1, topics: topics, together: together}
	m.name = m.id
	if !equal {
		m.topics = rapid.SliceOfNDistinct(rapid.SampledFrom(topics), 1, len(topics), rapid.ID[string]).Draw(rt, "interests")
		slices.Sort(m.topics)
		if rapid.Bool().Draw(rt, "knows no groups") {
			m.together = nil
		}
	}
	c.members = append(c.members, m)
}

// play is one round: plan, give up, take over. The missing members do not hear of it: the next round began before.
func (c *cluster) play(t require.TestingT, missing ...int) map[string][]element.TopicPartition {
	c.round++
	out := plan(c.members, c.counts)
	shuffled := slices.Clone(c.members)
	slices.Reverse(shuffled)
	require.Equal(t, out, plan(shuffled, c.counts), "the order of the members does not matter")
	c.safe(t, out)
	for i := range c.members {
		if m := &c.members[i]; !slices.Contains(missing, i) {
			m.owned, m.generation = out[m.id], c.round
		}
	}
	return out
}

// safe checks what must hold in every round, whatever the members claim.
func (c *cluster) safe(t require.TestingT, out map[string][]element.TopicPartition) {
	require.Len(t, out, len(c.members))
	owner := map[element.TopicPartition]string{}
	for _, m := range c.members {
		require.Contains(t, out, m.id)
		for _, tp := range out[m.id] {
			require.Empty(t, owner[tp], "%v has two owners", tp)
			owner[tp] = m.id
			require.Contains(t, m.topics, tp.Topic)
			require.Less(t, tp.Partition, c.counts[tp.Topic])
		}
	}
	best := map[element.TopicPartition]int32{}
	for _, m := range c.members {
		for _, tp := range m.owned {
			if g, ok := best[tp]; !ok || m.generation > g {
				best[tp] = m.generation
			}
		}
	}
	for _, m := range c.members {
		for _, tp := range m.owned {
			if o := owner[tp]; o != "" && o != m.id {
				require.Less(t, m.generation, best[tp], "%v goes to %s while %s still has it", tp, o, m.id)
			}
		}
	}
	for _, g := range groups(c.members) { // units are whole
		for p := range int32(9) {
			var owners []string
			for _, topic := range g {
				if p < c.counts[topic] {
					owners = append(owners, owner[element.TopicPartition{Topic: topic, Partition: p}])
				}
			}
			require.LessOrEqual(t, len(slices.Compact(owners)), 1, "unit %v %d", g, p)
		}
	}
}

// settle plays until nothing changes any more.
func (c *cluster) settle(t require.TestingT) {
	var last map[string][]element.TopicPartition
	for n := 0; ; n++ {
		require.LessOrEqual(t, n, 3, "two rounds, and one that shows that it is over")
		out := c.play(t)
		if last != nil && fmt.Sprint(last) == fmt.Sprint(out) {
			break
		}
		last = out
	}
	owned := map[element.TopicPartition]bool{}
	wanted := map[string]bool{}
	for _, m := range c.members {
		for _, tp := range m.owned {
			owned[tp] = true
		}
		for _, topic := range m.topics {
			wanted[topic] = true
		}
	}
	for topic := range wanted {
		for p := range c.counts[topic] {
			require.True(t, owned[element.TopicPartition{Topic: topic, Partition: p}], "%s/%d has no owner", topic, p)
		}
	}
}

// shares counts the units of each member, by group.
func (c *cluster) shares() (perGroup [][]int, total []int) {
	gs := groups(c.members)
	total = make([]int, len(c.members))
	for _, g := range gs {
		n := make([]int, len(c.members))
		for i, m := range c.members {
			units := map[int32]bool{}
			for _, tp := range m.owned {
				if slices.Contains(g, tp.Topic) {
					units[tp.Partition] = true
				}
			}
			n[i] = len(units)
			total[i] += n[i]
		}
		perGroup = append(perGroup, n)
	}
	return perGroup, total
}

func TestPlanIsEvenWithEqualInterests(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt, true)
		c.settle(rt)
		for range rapid.IntRange(0, 5).Draw(rt, "events") {
			c.event(rt, true)
			c.settle(rt)
			perGroup, total := c.shares()
			require.LessOrEqual(rt, slices.Max(total)-slices.Min(total), 1, "%v", total)
			for _, n := range perGroup {
				require.LessOrEqual(rt, slices.Max(n)-slices.Min(n), 1, "%v", perGroup)
			}
		}
	})
}

// event lets members come, go and be replaced, and topics grow.
func (c *cluster) event(rt *rapid.T, equal bool) {
	topics, together := slices.Sorted(maps.Keys(c.counts)), c.members[0].together
	switch rapid.IntRange(0, 5).Draw(rt, "event") {
	case 0:
		c.join(rt, equal, topics, together)
	case 1:
		if len(c.members) > 1 {
			i := rapid.IntRange(0, len(c.members)-1).Draw(rt, "leaves")
			c.members = slices.Delete(c.members, i, i+1)
		}
	case 2: // a static member restarts while a round is on: it knows nothing
		i := rapid.IntRange(0, len(c.members)-1).Draw(rt, "restarts")
		c.members[i].owned, c.members[i].generation = nil, -1
	case 3:
		topic := rapid.SampledFrom(topics).Draw(rt, "grows")
		c.counts[topic] = min(9, c.counts[topic]+rapid.Int32Range(1, 3).Draw(rt, "by"))
	case 4: // rounds that not all live to see the end of
		for range rapid.IntRange(1, 3).Draw(rt, "rounds") {
			c.play(rt, rapid.SliceOfNDistinct(rapid.IntRange(0, len(c.members)-1), 1, len(c.members), rapid.ID[int]).Draw(rt, "missing")...)
		}
	case 5: // one sleeps through some rounds and comes back with its claims
		i := rapid.IntRange(0, len(c.members)-1).Draw(rt, "sleeps")
		m := c.members[i]
		if c.members = slices.Delete(c.members, i, i+1); len(c.members) > 0 {
			for range rapid.IntRange(0, 3).Draw(rt, "rounds") {
				c.play(rt)
			}
		}
		m.id += "x"
		c.members = append(c.members, m)
		c.play(rt, len(c.members)-1)
	}
}

func TestPlanSettlesWithAnyInterests(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt, false)
		c.settle(rt)
		for range rapid.IntRange(0, 5).Draw(rt, "events") {
			c.event(rt, false)
			c.settle(rt)
			c.fair(rt)
		}
	})
}

// fair checks that no unit can go from a member to one with two fewer, by one move.
func (c *cluster) fair(rt *rapid.T) {
	gs := groups(c.members)
	perGroup, total := c.shares()
	for g := range gs {
		for a := range c.members {
			for b, m := range c.members {
				if perGroup[g][a] > 0 && interested(m, gs[g]) {
					require.LessOrEqual(rt, total[a]-total[b], 1, "%s could give one of %v to %s", c.members[a].id, gs[g], m.id)
				}
			}
		}
	}
}

// Members claim anything, in any generation: nobody is given what another may still be at work on, and it settles.
func TestPlanOfConflictingClaims(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt, false)
		c.round = 5
		for i := range c.members {
			m := &c.members[i]
			m.generation = rapid.Int32Range(1, 5).Draw(rt, "generation")
			for topic, n := range c.counts {
				for p := range n + 1 { // also one that is not there
					if rapid.IntRange(0, 3).Draw(rt, "claims") == 0 {
						m.owned = append(m.owned, element.TopicPartition{Topic: topic, Partition: p})
					}
				}
			}
		}
		c.settle(rt)
	})
}

// The plan is compared with every possible one, in small.
func TestPlanIsTheBestThereIs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		members, groups := rapid.IntRange(1, 3).Draw(rt, "members"), rapid.IntRange(1, 2).Draw(rt, "groups")
		count := rapid.SliceOfN(rapid.IntRange(0, 4), groups, groups).Draw(rt, "units")
		e := newEvener(members, count)
		for g := range groups {
			left := count[g]
			for m := range members {
				e.may[e.at(m, g)] = m == 0 || rapid.Bool().Draw(rt, "may")
				if e.may[e.at(m, g)] {
					e.has[e.at(m, g)] = rapid.IntRange(0, left).Draw(rt, "has")
					left -= e.has[e.at(m, g)]
				}
			}
		}
		e.solve()
		for g := range groups {
			sum := 0
			for m := range members {
				sum += e.share[e.at(m, g)]
				require.True(rt, e.may[e.at(m, g)] || e.share[e.at(m, g)] == 0)
			}
			require.Equal(rt, count[g], sum)
		}
		best := e.judge(e.share)
		e.each(func(share []int) {
			require.False(rt, e.judge(share).less(best), "%v is better than %v", share, e.share)
		})
	})
}

func (e *evener) judge(share []int) (c cost) {
	for m := range e.members {
		total := 0
		for g := range e.groups {
			n := share[e.at(m, g)]
			total += n
			c.group += n * n
			c.moved -= min(n, e.has[e.at(m, g)])
		}
		c.total += total * total
	}
	return c
}

// each calls fn with every allotment.
func (e *evener) each(fn func(share []int)) {
	share := make([]int, len(e.has))
	var fill func(g, m, left int)
	fill = func(g, m, left int) {
		switch {
		case g == e.groups:
			fn(share)
		case m == e.members:
			if left == 0 {
				next := 0
				if g+1 < e.groups {
					next = e.count[g+1]
				}
				fill(g+1, 0, next)
			}
		default:
			most := left
			if !e.may[e.at(m, g)] {
				most = 0
			}
			for n := 0; n <= most; n++ {
				share[e.at(m, g)] = n
				fill(g, m+1, left-n)
			}
			share[e.at(m, g)] = 0
		}
	}
	fill(0, 0, e.count[0])
}

// moved counts the units that are with another member than before.
func moved(before, after []candidate) (n int) {
	was := map[element.TopicPartition]string{}
	for _, m := range before {
		for _, tp := range m.owned {
			was[tp] = m.id
		}
	}
	for _, m := range after {
		for _, tp := range m.owned {
			if w, had := was[tp]; had && w != m.id {
				n++
			}
		}
	}
	return n
}

func TestAMemberThatComesOnlyGetsAndOneThatGoesOnlyGives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, partitions := rapid.IntRange(1, 8).Draw(rt, "members"), rapid.Int32Range(1, 40).Draw(rt, "partitions")
		c := &cluster{counts: map[string]int32{"in": partitions}}
		for range n {
			c.join(rt, true, []string{"in"}, nil)
		}
		c.settle(rt)
		before := slices.Clone(c.members)
		c.join(rt, true, []string{"in"}, nil)
		c.settle(rt)
		joined := c.members[n]
		require.Len(rt, joined.owned, int(partitions)/(n+1))
		require.Equal(rt, len(joined.owned), moved(before, c.members))
		before = slices.Clone(c.members)
		c.members = slices.Delete(slices.Clone(c.members), 0, 1)
		lost := before[0].owned
		c.settle(rt)
		require.Equal(rt, len(lost), moved(before, c.members))
	})
}

func TestNothingMovesWhenNothingChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt, rapid.Bool().Draw(rt, "equal"))
		c.settle(rt)
		before := slices.Clone(c.members)
		c.play(rt)
		for i, m := range c.members {
			require.Equal(rt, before[i].owned, m.owned)
		}
		// A static member that restarts while a round is on claims nothing; the others keep what they have, and it gets
		// the rest back, but for units that others may have just as well.
		i := rapid.IntRange(0, len(c.members)-1).Draw(rt, "restarts")
		c.members[i].owned, c.members[i].generation, c.members[i].id = nil, -1, "anew"
		c.play(rt)
		for j, m := range c.members {
			if j != i {
				require.Subset(rt, m.owned, before[j].owned)
			}
		}
	})
}

func tps(topic string, ps ...int32) (all []element.TopicPartition) {
	for _, p := range ps {
		all = append(all, tp(topic, p))
	}
	return all
}

func TestAUnitMovesWholeAndOnlyWhenItIsFree(t *testing.T) {
	counts := map[string]int32{"a": 2, "b": 3}
	both, group := []string{"a", "b"}, [][]string{{"a", "b"}}
	one := candidate{id: "m1", name: "i1", topics: both, together: group, generation: 4, owned: append(tps("a", 0, 1), tps("b", 0, 1, 2)...)}
	two := candidate{id: "m2", name: "i2", topics: both, together: group, generation: -1}
	out := plan([]candidate{one, two}, counts)
	require.Equal(t, append(tps("a", 0, 1), tps("b", 0, 1)...), out["m1"])
	require.Empty(t, out["m2"], "m1 must give the unit up first")
	one.owned, one.generation = out["m1"], 5
	out = plan([]candidate{one, two}, counts)
	require.Equal(t, tps("b", 2), out["m2"])

	// Each has a half, as after a change of the groups: the unit goes to one of them when the other has let go.
	one.owned, two.owned, two.generation = tps("a", 0, 1), tps("b", 0, 1, 2), 5
	out = plan([]candidate{one, two}, counts)
	require.Empty(t, out["m1"])
	require.Equal(t, tps("b", 2), out["m2"])
	one.owned, two.owned = nil, tps("b", 2)
	out = plan([]candidate{one, two}, counts)
	require.Equal(t, append(tps("a", 0, 1), tps("b", 0, 1)...), out["m1"])
	require.Equal(t, tps("b", 2), out["m2"])
}

func TestTheHighestGenerationOwns(t *testing.T) {
	counts := map[string]int32{"a": 2}
	now := candidate{id: "m1", name: "i1", topics: []string{"a"}, generation: 9, owned: tps("a", 0)}
	old := candidate{id: "m2", name: "i0", topics: []string{"a"}, generation: 7, owned: tps("a", 0, 1)}
	out := plan([]candidate{now, old}, counts)
	require.Equal(t, tps("a", 0), out["m1"], "it goes on, whatever one that slept says")
	require.Equal(t, tps("a", 1), out["m2"], "nobody else claims it")
	now.owned = tps("a", 0, 1)
	out = plan([]candidate{now, old}, counts)
	require.Len(t, out["m1"], 1)
	require.Empty(t, out["m2"], "its claim is no title")
}

func TestWhatTwoClaimAlikeNobodyKeeps(t *testing.T) {
	counts := map[string]int32{"a": 2}
	one := candidate{id: "m1", topics: []string{"a"}, generation: 3, owned: tps("a", 0, 1)}
	two := candidate{id: "m2", topics: []string{"a"}, generation: 3, owned: tps("a", 0)}
	out := plan([]candidate{one, two}, counts)
	require.Empty(t, out["m1"])
	require.Empty(t, out["m2"])
}

func TestATopicThatTheLeaderCannotSeeStaysWithItsOwners(t *testing.T) {
	m := candidate{id: "m1", name: "i1", topics: []string{"a", "b"}, generation: 1, owned: append(tps("a", 0), tps("b", 0, 3)...)}
	out := plan([]candidate{m}, map[string]int32{"a": 1, "b": 0})
	require.Equal(t, append(tps("a", 0), tps("b", 0, 1, 2, 3)...), out["m1"])
}

func TestARollingUpgradeThatAddsATopic(t *testing.T) {
	counts := map[string]int32{"a": 4, "b": 4, "c": 2}
	c := &cluster{counts: counts}
	for i := range 3 {
		c.members = append(c.members, candidate{id: fmt.Sprint("m", i), name: fmt.Sprint("i", i), topics: []string{"a", "c"}, generation: -1})
	}
	c.settle(t)
	for i := range c.members { // one after the other knows of b, which goes with a
		c.members[i].topics, c.members[i].together = []string{"a", "b", "c"}, [][]string{{"a", "b"}}
		c.settle(t)
		for _, m := range c.members[i+1:] {
			require.NotContains(t, fmt.Sprint(m.owned), "a/", "a goes with b, and it does not know b")
		}
	}
	perGroup, total := c.shares()
	require.Len(t, perGroup, 2)
	require.Equal(t, 2, slices.Max(total))
}

func TestGroupsThatNobodyWantsWholeFallApart(t *testing.T) {
	ms := []candidate{
		{id: "m1", topics: []string{"a"}, together: [][]string{{"a", "b"}, {"x", "y"}}},
		{id: "m2", topics: []string{"b", "c"}, together: [][]string{{"b", "c"}}},
	}
	require.Equal(t, [][]string{{"a"}, {"b"}, {"c"}}, groups(ms))
	ms[0].topics = []string{"a", "b", "c"}
	require.Equal(t, [][]string{{"a", "b", "c"}}, groups(ms), "both groups share b")
}

func BenchmarkPlan(b *testing.B) {
	counts := map[string]int32{}
	var topics []string
	for i := range 8 {
		topics = append(topics, fmt.Sprint("t", i))
		counts[topics[i]] = 256
	}
	c := &cluster{counts: counts}
	for i := range 100 {
		c.members = append(c.members, candidate{id: fmt.Sprintf("m%03d", i), name: fmt.Sprintf("i%03d", i), topics: topics, together: [][]string{topics[:2], topics[2:4]}})
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			plan(c.members, counts)
		}
	})
	for range 2 {
		c.round++
		out := plan(c.members, counts)
		for i := range c.members {
			c.members[i].owned, c.members[i].generation = out[c.members[i].id], c.round
		}
	}
	b.Run("one leaves", func(b *testing.B) {
		for b.Loop() {
			plan(c.members[1:], counts)
		}
	})
}
