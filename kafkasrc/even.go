package kafkasrc

import "slices"

// evener finds how many units of each group each member is to have: as even as the interests allow, and from there with
// as few units as possible leaving the members that have them. It knows numbers only, of members and of groups.
//
// An allotment is judged by three sums, each counting only where those before are equal: the squares of the members'
// totals, the squares of the members' shares of each group, and the units that stay where they are, which are to be
// many. The first is least exactly when no chain of moves (a unit from a to b, another from b to c …) leads from a
// member to one that has at least two fewer.
//
// The three sums are convex, so what is wanted is a flow of least cost, and an allotment has it exactly when no closed
// chain of moves makes it better. One that does is looked for by Bellman and Ford's method and carried out, until there
// is none. Since the search begins with what the members have, it is over at once when nothing has changed.
type evener struct {
	members, groups int
	may             []bool // member × group: is interested in all topics of it
	has             []int  // member × group: units that it has and may keep
	count           []int  // group: units

	share []int // member × group: the result
	total []int // member: units

	dist []cost // of the search; nodes are the members, the groups, and one for all totals
	from []int
}

// cost is the change of the three sums, the third negated.
type cost struct{ total, group, moved int }

func (c cost) plus(o cost) cost { return cost{c.total + o.total, c.group + o.group, c.moved + o.moved} }

func (c cost) less(o cost) bool {
	if c.total != o.total {
		return c.total < o.total
	}
	if c.group != o.group {
		return c.group < o.group
	}
	return c.moved < o.moved
}

func newEvener(members int, count []int) *evener {
	e := &evener{members: members, groups: len(count), count: count}
	e.may = make([]bool, members*e.groups)
	e.has = make([]int, members*e.groups)
	return e
}

func (e *evener) at(m, g int) int { return m*e.groups + g }

// solve fills share and total. Units of a group that no member may have are left out.
func (e *evener) solve() {
	e.share = slices.Clone(e.has)
	e.total = make([]int, e.members)
	for m := range e.members {
		for g := range e.groups {
			e.total[m] += e.has[e.at(m, g)]
		}
	}
	for g := range e.groups {
		free := e.count[g]
		for m := range e.members {
			free -= e.has[e.at(m, g)]
		}
		for range free {
			m := e.poorest(g)
			if m < 0 {
				break
			}
			e.share[e.at(m, g)]++
			e.total[m]++
		}
	}
	for {
		cycle := e.improvement()
		if cycle == nil {
			return
		}
		e.apply(cycle)
	}
}

// poorest is the member that a further unit of a group goes to at first, -1 if none may have it.
func (e *evener) poorest(g int) int {
	best := -1
	for m := range e.members {
		if !e.may[e.at(m, g)] {
			continue
		}
		if best < 0 || e.total[m] < e.total[best] || (e.total[m] == e.total[best] && e.share[e.at(m, g)] < e.share[e.at(best, g)]) {
			best = m
		}
	}
	return best
}

// improvement gives a closed chain that makes the allotment better, as nodes each of which hands a unit to the next;
// nil if there is none.
func (e *evener) improvement() []int {
	nodes := e.members + e.groups + 1
	e.dist = make([]cost, nodes)
	e.from = make([]int, nodes)
	for i := range e.from {
		e.from[i] = -1
	}
	for range nodes {
		if !e.relax() {
			return nil
		}
		if cycle := e.loop(); cycle != nil {
			return cycle
		}
	}
	return nil
}

// relax goes over all edges once, and says whether one of them made a way shorter.
func (e *evener) relax() bool {
	changed := false
	all := e.members + e.groups
	step := func(a, b int, c cost) {
		if c = e.dist[a].plus(c); c.less(e.dist[b]) {
			e.dist[b], e.from[b], changed = c, a, true
		}
	}
	for m := range e.members {
		if t := e.total[m]; t > 0 {
			step(all, m, cost{total: 1 - 2*t}) // it ends up with one less
		}
		for g := range e.groups {
			i, node := e.at(m, g), e.members+g
			if n := e.share[i]; n > 0 { // it gives a unit up
				c := cost{group: 1 - 2*n}
				if n <= e.has[i] {
					c.moved = 1
				}
				step(m, node, c)
			}
			if n := e.share[i]; e.may[i] { // it gets one
				c := cost{group: 2*n + 1}
				if n < e.has[i] {
					c.moved = -1
				}
				step(node, m, c)
			}
		}
		step(m, all, cost{total: 2*e.total[m] + 1}) // it ends up with one more
	}
	return changed
}

// loop gives a loop of the nodes' ways back, which is an improvement, nil if they have none.
func (e *evener) loop() []int {
	seen := make([]int, len(e.from)) // the walk that came by, from 1
	for start := range e.from {
		at := start
		for at >= 0 && seen[at] == 0 {
			seen[at] = start + 1
			at = e.from[at]
		}
		if at < 0 || seen[at] != start+1 {
			continue
		}
		cycle := []int{at}
		for n := e.from[at]; n != at; n = e.from[n] {
			cycle = append(cycle, n)
		}
		slices.Reverse(cycle)
		return cycle
	}
	return nil
}

func (e *evener) apply(cycle []int) {
	for i, a := range cycle {
		b := cycle[(i+1)%len(cycle)]
		switch all := e.members + e.groups; {
		case a == all || b == all:
		case a < e.members:
			e.share[e.at(a, b-e.members)]--
			e.total[a]--
		default:
			e.share[e.at(b, a-e.members)]++
			e.total[b]++
		}
	}
}
