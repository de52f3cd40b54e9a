package kafkasrc

import (
	"slices"

	"github.com/millweir/millweir/element"
)

// wholly says that the group's partitions are not shared out: one member gets all of them. One member that needs it so is
// enough. It would compute wrong results with a part, while a member that could do with a part can have everything. So
// a change of a topology from one kind to the other goes member by member: the group is whole from the first member that
// wants it to the last.
func wholly(members []candidate) bool {
	return slices.ContainsFunc(members, func(m candidate) bool { return m.whole })
}

// planWhole gives all partitions of all topics to one member.
//
// The one that has them keeps them as long as it lives, whoever comes; among several that claim some, the one with the
// most, then the one that had everything before the members last heard of it (it has restarted in place, and claims
// nothing), then the first by name. A member that is interested in all topics is preferred to one that is not: in a change
// of the topics, the first member with the new set takes over. Where no member has them all, as when one topic takes
// the place of another, the owner gets what it is interested in and the rest goes to nobody.
//
// While any other member may still be at work on a part, nobody gets anything.
func planWhole(members []candidate, counts map[string]int32) map[string][]element.TopicPartition {
	p := newPlanner(members, counts)
	out := make(map[string][]element.TopicPartition, len(p.members))
	for _, m := range p.members {
		out[m.id] = nil
	}
	topics := p.wanted()
	owner := p.holder(topics)
	if owner < 0 {
		return out
	}
	var all []element.TopicPartition
	for _, topic := range topics {
		for n := range p.counts[topic] {
			tp := element.TopicPartition{Topic: topic, Partition: n}
			if !p.free(tp, owner) {
				return out
			}
			if slices.Contains(p.members[owner].topics, topic) {
				all = append(all, tp)
			}
		}
	}
	slices.SortFunc(all, element.TopicPartition.Compare)
	out[p.members[owner].id] = all
	return out
}

// wanted gives the topics that any member is interested in, sorted.
func (p *planner) wanted() []string {
	var topics []string
	for _, m := range p.members {
		topics = append(topics, m.topics...)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// holder is who has everything or is to have it, -1 when there is no member.
func (p *planner) holder(topics []string) int {
	has := make([]int, len(p.members))
	for tp, c := range p.claims {
		if tp.Partition < p.counts[tp.Topic] {
			has[c[0]]++
		}
	}
	last := lastHolder(p.members)
	better := func(a, b int) bool {
		switch x, y := interested(p.members[a], topics), interested(p.members[b], topics); {
		case x != y:
			return x
		case has[a] != has[b]:
			return has[a] > has[b]
		}
		return last != "" && p.members[a].name == last && p.members[b].name != last
	}
	best := -1
	for m := range p.members { // in the order of their names
		if best < 0 || better(m, best) {
			best = m
		}
	}
	return best
}

// lastHolder names the member that had everything in the newest assignment that any member knows of, "" when there is none.
func lastHolder(members []candidate) (name string) {
	newest := int32(-1)
	for _, m := range members {
		if m.noted != "" && (m.generation > newest || m.generation == newest && m.noted < name) {
			newest, name = m.generation, m.noted
		}
	}
	return name
}

// holderNow names who has everything by a plan; when nobody has, it stays as it was.
func holderNow(members []candidate, to map[string][]element.TopicPartition) string {
	if !wholly(members) {
		return ""
	}
	for _, m := range members {
		if len(to[m.id]) > 0 {
			return m.name
		}
	}
	return lastHolder(members)
}
