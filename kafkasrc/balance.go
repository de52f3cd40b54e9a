package kafkasrc

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// candidate is a member of the group as the balancer sees it.
type candidate struct {
	id         string // of the member
	name       string // the instance id, or the member id: what the order goes by
	topics     []string
	together   [][]string
	whole      bool  // it cannot do with a part of the partitions
	generation int32 // of the round that owned was given in
	owned      []element.TopicPartition
	made       map[string]int // the partition counts that its last assignment was made for
	anew       map[string]int // of topics that it knows to have been made anew with fewer
	noted      string         // the name of who had everything in its last assignment, in a whole group
}

// unit is what goes to a member as a whole: partition number partition of the topics of a group that have it.
type unit struct {
	group     int
	partition int32
}

// plan says what each member gets, by member id. See copartitioned for what holds.
//
// It is a pure function of its arguments, and the order of members and of what they own does not matter. counts are the
// numbers of partitions.
func plan(members []candidate, counts map[string]int32) map[string][]element.TopicPartition {
	if wholly(members) {
		return planWhole(members, counts)
	}
	p := newPlanner(members, counts)
	p.allot()
	return p.hand()
}

type planner struct {
	members []candidate
	counts  map[string]int32
	claims  map[element.TopicPartition][]int // members that name a partition as theirs, the one that has it first
	groups  [][]string
	may     [][]bool // group, member
	owner   map[unit]int
	to      map[unit]int // the result, before anything is withheld
}

func newPlanner(members []candidate, counts map[string]int32) *planner {
	p := &planner{members: slices.Clone(members), claims: map[element.TopicPartition][]int{}, owner: map[unit]int{}, to: map[unit]int{}}
	slices.SortFunc(p.members, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.id, b.id)) })
	for m := range p.members {
		for _, tp := range p.members[m].owned {
			p.claims[tp] = append(p.claims[tp], m)
		}
	}
	for tp, ms := range p.claims {
		slices.SortFunc(ms, func(a, b int) int {
			return cmp.Or(cmp.Compare(p.members[b].generation, p.members[a].generation), cmp.Compare(a, b))
		})
		p.claims[tp] = slices.Compact(ms)
	}
	p.counts = p.known(counts)
	p.groups = groups(p.members)
	for _, topics := range p.groups {
		may := make([]bool, len(p.members))
		for m := range p.members {
			may[m] = interested(p.members[m], topics)
		}
		p.may = append(p.may, may)
	}
	p.owners()
	return p
}

// known completes the counts. A topic whose metadata the leader could not load has none there; it is taken to have the
// partitions that the members have, else all would stop for a moment.
func (p *planner) known(counts map[string]int32) map[string]int32 {
	known := make(map[string]int32, len(counts))
	for topic, n := range counts {
		known[topic] = n
	}
	for tp := range p.claims {
		if counts[tp.Topic] == 0 {
			known[tp.Topic] = max(known[tp.Topic], tp.Partition+1)
		}
	}
	return known
}

// raised completes the counts by what earlier assignments were made for: the metadata of a member that has just become the
// leader may be some seconds older than those of the last one, and topics do not shrink. One that a member was given too much of was made
// anew, and has what such members say, the one that knows of most.
func raised(members []candidate, counts map[string]int32) map[string]int32 {
	out := maps.Clone(counts)
	for _, m := range members {
		for topic, n := range m.made {
			if _, wanted := out[topic]; wanted && n <= maxPartitions {
				out[topic] = max(out[topic], int32(n))
			}
		}
	}
	said := map[string]int32{}
	for _, m := range members {
		for topic, n := range m.anew {
			if _, wanted := out[topic]; wanted && n > 0 && n <= maxPartitions {
				said[topic] = max(said[topic], int32(n))
			}
		}
	}
	maps.Copy(out, said)
	return out
}

// groups gives the topics that somebody is interested in, those that any member wants together in one group. A group
// that no member is interested in as a whole falls apart.
func groups(members []candidate) [][]string {
	wanted := map[string]string{} // a topic of the same group, itself at the root
	root := func(t string) string {
		for wanted[t] != t {
			t = wanted[t]
		}
		return t
	}
	for _, m := range members {
		for _, t := range m.topics {
			wanted[t] = t
		}
	}
	for _, m := range members {
		for _, g := range m.together {
			first := ""
			for _, t := range g {
				if _, ok := wanted[t]; !ok {
					continue
				}
				if first != "" {
					a, b := root(first), root(t)
					wanted[max(a, b)] = min(a, b)
				}
				first = t
			}
		}
	}
	byRoot := map[string][]string{}
	for t := range wanted {
		byRoot[root(t)] = append(byRoot[root(t)], t)
	}
	var all [][]string
	for _, topics := range byRoot {
		slices.Sort(topics)
		if len(topics) == 1 || slices.ContainsFunc(members, func(m candidate) bool { return interested(m, topics) }) {
			all = append(all, topics)
			continue
		}
		for _, t := range topics {
			all = append(all, []string{t})
		}
	}
	slices.SortFunc(all, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return all
}

func interested(m candidate, topics []string) bool {
	return !slices.ContainsFunc(topics, func(t string) bool { return !slices.Contains(m.topics, t) })
}

// units is how many units a group has.
func (p *planner) units(g int) (n int32) {
	for _, t := range p.groups[g] {
		n = max(n, p.counts[t])
	}
	return n
}

// partitions gives the partitions of a unit.
func (p *planner) partitions(u unit) []element.TopicPartition {
	var tps []element.TopicPartition
	for _, t := range p.groups[u.group] {
		if u.partition < p.counts[t] {
			tps = append(tps, element.TopicPartition{Topic: t, Partition: u.partition})
		}
	}
	return tps
}

// owners finds who has which unit and may keep it: who has the most of its partitions.
func (p *planner) owners() {
	for g := range p.groups {
		for n := range p.units(g) {
			u, parts := unit{g, n}, map[int]int{}
			best := -1
			for _, tp := range p.partitions(u) {
				if c := p.claims[tp]; len(c) > 0 && p.may[g][c[0]] {
					parts[c[0]]++
					if m := c[0]; best < 0 || parts[m] > parts[best] || (parts[m] == parts[best] && m < best) {
						best = m
					}
				}
			}
			if best >= 0 {
				p.owner[u] = best
			}
		}
	}
}

// allot decides who is to have which unit.
func (p *planner) allot() {
	count := make([]int, len(p.groups))
	for g := range p.groups {
		count[g] = int(p.units(g))
	}
	e := newEvener(len(p.members), count)
	for g := range p.groups {
		for m := range p.members {
			e.may[e.at(m, g)] = p.may[g][m]
		}
	}
	for u, m := range p.owner {
		e.has[e.at(m, u.group)]++
	}
	e.solve()
	for g := range p.groups {
		left := make([]int, len(p.members))
		for m := range left {
			left[m] = e.share[e.at(m, g)]
		}
		var free []unit
		for n := range int32(count[g]) {
			u := unit{g, n}
			if m, has := p.owner[u]; has && left[m] > 0 {
				left[m]--
				p.to[u] = m
				continue
			}
			free = append(free, u)
		}
		m := 0
		for _, u := range free {
			for m < len(left) && left[m] == 0 {
				m++
			}
			if m == len(left) {
				break // nobody may have it
			}
			left[m]--
			p.to[u] = m
		}
	}
}

// hand gives the units out, except those of which another member may still be at work on a part: it gives the part up
// with the answer to this round and joins again, and then the unit goes to its new owner, whole.
func (p *planner) hand() map[string][]element.TopicPartition {
	out := make(map[string][]element.TopicPartition, len(p.members))
	for _, m := range p.members {
		out[m.id] = nil
	}
	for u, m := range p.to {
		tps := p.partitions(u)
		if slices.ContainsFunc(tps, func(tp element.TopicPartition) bool { return !p.free(tp, m) }) {
			continue
		}
		out[p.members[m].id] = append(out[p.members[m].id], tps...)
	}
	for id := range out {
		slices.SortFunc(out[id], element.TopicPartition.Compare)
	}
	return out
}

// free says whether a member may have a partition now: nobody claims it, or it has it already. Two claims of one
// generation cannot be; should they, all give it up.
func (p *planner) free(tp element.TopicPartition, m int) bool {
	c := p.claims[tp]
	if len(c) == 0 {
		return true
	}
	return c[0] == m && (len(c) == 1 || p.members[c[1]].generation < p.members[m].generation)
}
