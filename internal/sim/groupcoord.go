package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// maxPartitions bounds the input partitions of a run, so that a set of them is a mask.
const maxPartitions = 4

// mask is a set of input partitions.
type mask uint8

func bit(p int) mask          { return 1 << p }
func (m mask) has(p int) bool { return m&bit(p) != 0 }
func (m mask) each(f func(int)) {
	for p := range maxPartitions {
		if m.has(p) {
			f(p)
		}
	}
}

type member struct {
	id, instance string
	last         time.Duration // of its heartbeat
}

// group is the model of the consumer group: static members, generations, the cooperative hand-over of partitions. The
// assignment is sticky and balanced. A partition that is to move is taken from its owner first: he says that he has given
// it up, or his session ends, and only then, in a new generation, another one gets it.
type group struct {
	offsetStore
	b       *broker
	gen     int32
	members []*member
	ids     int

	seen  mask                   // partitions that the members know of; the others are still to come
	owner [maxPartitions]*member // who has it, as far as the group knows
	want  [maxPartitions]*member // who is to have it
	back  [maxPartitions]string  // the instance that gets it again as soon as another one has committed it
	past  [maxPartitions]string  // the instance that had it last
	// home has all partitions, or is to have them: tasks exchange records. nil: each partition has its own way.
	home *member
}

func newGroup(b *broker) *group {
	g := &group{b: b}
	g.offsetStore = newOffsetStore(b)
	return g
}

// watch expels members whose session is over.
func (g *group) watch() {
	g.b.w.outside(nil, heartbeatEvery/2, kSession, func() {
		for _, m := range slices.Clone(g.members) {
			if g.b.w.now-m.last > sessionTimeout {
				g.b.w.tracef(nil, "  session of %s (%s) is over", m.id, m.instance)
				g.remove(m)
			}
		}
		g.watch()
	})
}

// discover makes partitions known to the members.
func (g *group) discover(parts mask) {
	if g.seen|parts != g.seen {
		g.seen |= parts
		g.rebalance()
	}
}

func (g *group) find(id string) *member {
	for _, m := range g.members {
		if m.id == id {
			return m
		}
	}
	return nil
}

// join adds a member. One that has the instance id of another takes its place, with its partitions and without a new
// generation: the former one is fenced. A new process has nothing that it would have to give up.
func (g *group) join(instance string) reply {
	g.ids++
	m := &member{id: instance + "#" + strconv.Itoa(g.ids), instance: instance, last: g.b.w.now}
	for i, old := range g.members {
		if old.instance != instance {
			continue
		}
		g.members[i] = m
		if g.home == old {
			g.home = m
		}
		free := false
		for p := range g.owner {
			if g.want[p] == old {
				g.want[p] = m
			}
			if g.owner[p] == old {
				g.owner[p] = m
				if g.want[p] != m {
					g.owner[p], free = nil, true
				}
			}
		}
		if free {
			g.gen++
			g.grant()
		}
		return g.answer(m)
	}
	g.members = append(g.members, m)
	g.rebalance()
	return g.answer(m)
}

// answer tells a member what it has, and what of that it has to give up.
func (g *group) answer(m *member) reply {
	r := reply{member: m.id, gen: g.gen}
	for p := range g.owner {
		switch {
		case g.owner[p] != m:
		case g.want[p] == m:
			r.owned |= bit(p)
		default:
			r.revoking |= bit(p)
		}
	}
	return r
}

func (g *group) refuse(id, instance string) (*member, int16) {
	m := g.find(id)
	if m != nil {
		return m, 0
	}
	for _, o := range g.members {
		if o.instance == instance && id != "" {
			return nil, kerr.FencedInstanceID.Code
		}
	}
	return nil, kerr.UnknownMemberID.Code
}

func (g *group) heartbeat(id, instance string) reply {
	m, code := g.refuse(id, instance)
	if m == nil {
		return reply{code: code}
	}
	m.last = g.b.w.now
	return g.answer(m)
}

// describe names the instances that are members.
func (g *group) describe() reply {
	var r reply
	for _, m := range g.members {
		r.names = append(r.names, m.instance)
	}
	return r
}

// rebalance begins a new generation: whoever has a partition keeps it unless he has too many.
func (g *group) rebalance() {
	g.gen++
	if len(g.members) == 0 {
		g.want = [maxPartitions]*member{}
		return
	}
	if g.b.w.x != nil {
		g.gather()
		return
	}
	n := 0
	g.seen.each(func(int) { n++ })
	most := (n + len(g.members) - 1) / len(g.members)
	load := map[*member]int{}
	var free []int
	g.seen.each(func(p int) {
		m := g.owner[p]
		if m == nil || load[m] >= most {
			free = append(free, p)
			return
		}
		g.want[p] = m
		load[m]++
	})
	for _, p := range free {
		least := g.members[0]
		for _, m := range g.members {
			if load[m] < load[least] {
				least = m
			}
		}
		g.want[p] = least
		load[least]++
	}
	g.grant()
}

// gather gives one member everything, rather the one that has it.
func (g *group) gather() {
	if g.home == nil {
		g.home = g.members[0]
		for _, m := range g.owner {
			if m != nil {
				g.home = m
			}
		}
	}
	g.seen.each(func(p int) { g.want[p] = g.home })
	g.grant()
}

// moveAll gives one member everything, not always at the same moment.
func (g *group) moveAll(m *member) {
	g.home = m
	g.gen++
	g.seen.each(func(p int) {
		if g.b.w.chance(80) {
			g.want[p] = m
			return
		}
		g.b.w.outside(nil, g.b.w.lag(10*time.Millisecond), kFault, func() {
			if g.home != nil && g.want[p] != g.home {
				g.want[p] = g.home
				g.gen++
				g.grant()
			}
		})
	})
}

// grant gives what nobody has to whom it is meant for.
func (g *group) grant() {
	for p, m := range g.want {
		if g.owner[p] != nil || m == nil {
			continue
		}
		g.owner[p] = m
		if g.past[p] != "" && g.past[p] != m.instance {
			g.b.w.counts.Takeovers++
		}
		g.past[p] = m.instance
	}
}

// move lets a partition go to another member, as an operator's or a lagging leader's idea. The next rebalance may send it
// back.
func (g *group) move() bool {
	return g.moveOne(g.b.w.rng.IntN(g.b.w.cfg.Partitions))
}

func (g *group) moveOne(p int) bool {
	if g.owner[p] == nil || len(g.members) < 2 {
		return false
	}
	i := slices.Index(g.members, g.owner[p])
	if g.b.w.x != nil {
		g.moveAll(g.members[(i+1+g.b.w.rng.IntN(len(g.members)-1))%len(g.members)])
		return true
	}
	g.want[p] = g.members[(i+1+g.b.w.rng.IntN(len(g.members)-1))%len(g.members)]
	g.gen++
	return true
}

// comeBack gives partitions back that were only lent.
func (g *group) comeBack(by string, offsets []committed) {
	for p, o := range offsets {
		if !o.found || g.back[p] == "" || g.back[p] == by {
			continue
		}
		for _, m := range g.members {
			if m.instance == g.back[p] && g.b.w.x != nil {
				g.moveAll(m)
			} else if m.instance == g.back[p] {
				g.want[p] = m
				g.gen++
			}
		}
		g.b.w.tracef(nil, "  LENT BACK in/%d to %s", p, g.back[p])
		g.back[p] = ""
	}
}

// revoked is the second join of the cooperative protocol: the member has given up what it was asked for.
func (g *group) revoked(id string, gone mask) reply {
	m := g.find(id)
	if m == nil {
		return reply{code: kerr.UnknownMemberID.Code}
	}
	m.last = g.b.w.now
	any := false
	gone.each(func(p int) {
		if g.owner[p] == m {
			g.owner[p], any = nil, true
		}
	})
	if any {
		g.gen++
		g.grant()
	}
	return g.answer(m)
}

// remove takes a member out, by its own wish or because its session is over. What it had is free at once.
func (g *group) remove(m *member) {
	g.members = slices.DeleteFunc(g.members, func(o *member) bool { return o == m })
	if g.home == m {
		g.home = nil
	}
	for p := range g.owner {
		if g.owner[p] == m {
			g.owner[p] = nil
		}
		if g.want[p] == m {
			g.want[p] = nil
		}
	}
	g.rebalance()
}

func (g *group) leave(id string) reply {
	if m := g.find(id); m != nil {
		g.remove(m)
	}
	return reply{}
}
