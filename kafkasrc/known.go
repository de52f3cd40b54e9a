package kafkasrc

import (
	"fmt"
	"maps"
	"slices"
)

// Know tells the group how many partitions topics have now, as the cluster says: the clients of the members, the leader's too,
// may have heard of them some seconds ago. Where the assignment was made for fewer the group is balanced anew, with what this member
// knows; otherwise partitions that were added would be nobody's for that long, and an instance that needs all of them would
// stand still.
func (g *Group) Know(partitions map[string]int32) {
	if why := g.bal.know(partitions); why != "" {
		g.log.Info("the group is balanced anew", "why", why)
		g.cl.ForceRebalance()
	}
}

// KnowFewer tells the group that topics, with the partitions that they have now, have fewer than are assigned to this member: they were
// deleted and made anew since the assignment was made. A static member that starts in place of one that died is given such an
// assignment. The group is balanced anew, and what the assignment before was made for does not count for these topics.
func (g *Group) KnowFewer(partitions map[string]int32) {
	if why := g.bal.knowFewer(partitions); why != "" {
		g.log.Info("the group is balanced anew", "why", why)
		g.cl.ForceRebalance()
	}
}

// knowFewer keeps the counts for the next joins, and says why the group must be balanced anew, as rejoin does.
func (b *copartitioned) knowFewer(partitions map[string]int32) (why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range slices.Sorted(maps.Keys(partitions)) {
		n := int(partitions[t])
		if was, ok := b.made[t]; !ok || was <= n {
			continue
		}
		if b.anew == nil {
			b.anew = map[string]int{}
		}
		b.anew[t] = n
		delete(b.known, t)
		why = fmt.Sprintf("topic %s was made anew and has %d partitions, not the %d that the assignment was made for", t, n, b.made[t])
	}
	if why == "" || b.said == b.round { // nothing to say, or said since the last round
		return ""
	}
	if b.said, b.forced = b.round, b.forced+1; b.forced > maxForcedRejoins {
		return ""
	}
	return why
}

// know keeps the counts for the next join, and says why the group must be balanced anew, as rejoin does.
func (b *copartitioned) know(partitions map[string]int32) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	grown := false
	for t, n := range partitions {
		was, ok := b.made[t]
		grown = grown || ok && int(n) > max(was, b.known[t]) // asked for once
	}
	if b.known == nil {
		b.known = map[string]int{}
	}
	for t, n := range partitions {
		b.known[t] = int(n)
		if least, ok := b.anew[t]; ok && int(n) > least {
			delete(b.anew, t) // it has grown since it was made anew
		}
	}
	if !grown {
		return ""
	}
	return b.fewer(func(t string, n int) bool { return b.known[t] > n })
}

// noted gives what the leader is told: the counts of the last assignment, raised by what is known, but of topics that were made anew. It needs mu.
func (b *copartitioned) noted() map[string]int {
	if b.made == nil && len(b.known) == 0 {
		return nil
	}
	out := maps.Clone(b.made)
	if out == nil {
		out = map[string]int{}
	}
	for _, t := range b.interests {
		if n, ok := b.known[t]; ok {
			out[t] = max(out[t], n)
		}
		if n, ok := b.anew[t]; ok {
			out[t] = n
		}
	}
	return out
}
