package kafkasrc

import "maps"

// Know tells the group how many partitions topics have now, as the cluster says: the clients of the members, the leader's too,
// may have heard of it a minute ago. Where the assignment was made for fewer the group is balanced anew, with what this member
// knows; otherwise partitions that were added would be nobody's for that minute, and an instance that needs all of them would
// stand still.
func (g *Group) Know(partitions map[string]int32) {
	if why := g.bal.know(partitions); why != "" {
		g.log.Info("the group is balanced anew", "why", why)
		g.cl.ForceRebalance()
	}
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
	}
	if !grown {
		return ""
	}
	return b.fewer(func(t string, n int) bool { return b.known[t] > n })
}

// noted gives what the leader is told: the counts of the last assignment, raised by what is known. It needs mu.
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
	}
	return out
}
