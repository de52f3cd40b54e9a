package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// committed is the group's offset of one input partition.
type committed struct {
	found    bool
	offset   int64
	metadata string
	seq      int // order in which the commits were written
}

// pendingOffsets are offsets in a transaction that has not ended.
type pendingOffsets struct {
	txn     *txnState
	offsets []committed // by input partition
}

type member struct {
	id, instance string
	last         time.Duration // of its heartbeat
	// revoking: it has to give up the partitions and say so.
	revoking bool
}

// group is the model of the consumer group: static members, generations, one owner of all partitions, offsets.
type group struct {
	b       *broker
	gen     int32
	members []*member
	owner   *member
	next    *member // gets the partitions when owner has given them up
	ids     int

	writes    int
	pending   []pendingOffsets
	committed []committed
	by        string // who committed last, and in which generation
	byGen     int32
	decisions map[string]bool // handles whose transaction was decided to commit
}

func newGroup(b *broker) *group {
	return &group{b: b, committed: make([]committed, b.w.cfg.Partitions), decisions: map[string]bool{}}
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

func (g *group) find(id string) *member {
	for _, m := range g.members {
		if m.id == id {
			return m
		}
	}
	return nil
}

// join adds a member. One that has the instance id of another takes its place, with its partitions and without a new
// generation: the former one is fenced.
func (g *group) join(instance string) reply {
	g.ids++
	m := &member{id: instance + "#" + strconv.Itoa(g.ids), instance: instance, last: g.b.w.now}
	for i, old := range g.members {
		if old.instance != instance {
			continue
		}
		g.members[i] = m
		m.revoking = old.revoking
		if g.owner == old {
			g.owner = m
		}
		if g.next == old {
			g.next = m
		}
		if m.revoking { // a new process has nothing to give up
			g.hand()
		}
		return g.answer(m)
	}
	g.members = append(g.members, m)
	g.gen++
	if g.owner == nil {
		g.owner = m
	}
	return g.answer(m)
}

func (g *group) answer(m *member) reply {
	return reply{member: m.id, gen: g.gen, assigned: g.owner == m && !m.revoking, revoking: m.revoking}
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

// move begins a rebalance that takes the partitions from their owner and gives them to another member. Cooperative:
// the owner gives them up first, and only then the next one gets them.
func (g *group) move() bool {
	if g.owner == nil || g.owner.revoking || len(g.members) < 2 {
		return false
	}
	i := slices.Index(g.members, g.owner)
	g.next = g.members[(i+1+g.b.w.rng.IntN(len(g.members)-1))%len(g.members)]
	g.gen++
	g.owner.revoking = true
	return true
}

// revoked is the second join of the cooperative protocol.
func (g *group) revoked(id string) reply {
	m := g.find(id)
	if m == nil {
		return reply{code: kerr.UnknownMemberID.Code}
	}
	if m.revoking {
		g.hand()
	}
	return g.answer(m)
}

// hand gives the partitions to the next owner in a new generation.
func (g *group) hand() {
	g.owner.revoking = false
	g.gen++
	if g.owner = g.next; g.owner == nil || !slices.Contains(g.members, g.owner) {
		g.owner = nil
		if len(g.members) > 0 {
			g.owner = g.members[0]
		}
	}
	g.next = nil
	g.b.w.counts.Takeovers++
}

// remove takes a member out, by its own wish or because its session is over.
func (g *group) remove(m *member) {
	g.members = slices.DeleteFunc(g.members, func(o *member) bool { return o == m })
	g.gen++
	if g.owner == m {
		g.hand()
	}
}

func (g *group) leave(id string) reply {
	if m := g.find(id); m != nil {
		g.remove(m)
	}
	return reply{}
}

// commitOffsets is TxnOffsetCommit. The group checks member and generation, not who owns the partitions; without
// a member nothing is checked.
func (g *group) commitOffsets(txnID string, epoch int32, id string, gen int32, instance string, offsets []committed) reply {
	all := func(code int16) reply {
		codes := make([]int16, len(offsets))
		for i := range codes {
			codes[i] = code
		}
		return reply{codes: codes}
	}
	if id != "" || gen >= 0 {
		if m, code := g.refuse(id, instance); m == nil {
			return all(code)
		}
		if gen != g.gen {
			return all(kerr.IllegalGeneration.Code)
		}
		if g.by != "" && g.byGen == gen && g.by != instance {
			g.b.w.violation("I8", "%s commits in generation %d, in which %s has committed", instance, gen, g.by)
		}
		g.by, g.byGen = instance, gen
	}
	t := g.b.txn(txnID)
	if code := g.b.enter(t, epoch); code != 0 {
		return all(code)
	}
	t.group = true
	offsets = slices.Clone(offsets)
	for i := range offsets {
		g.writes++
		offsets[i].seq = g.writes
	}
	g.pending = append(g.pending, pendingOffsets{txn: t, offsets: offsets})
	return all(0)
}

// decided notes the handles of a transaction that is going to be committed.
func (g *group) decided(t *txnState) {
	for _, p := range g.pending {
		if p.txn == t {
			for _, c := range p.offsets {
				g.decisions[c.metadata] = true
			}
		}
	}
}

// effective is what a stable read will give: the committed offsets, and those of transactions that are decided and whose
// marker is on the way. What was written later wins, whichever transaction ended first.
func (g *group) effective() []committed {
	out := slices.Clone(g.committed)
	for _, p := range g.pending {
		if p.txn.state == preparing && p.txn.commit {
			overlay(out, p.offsets)
		}
	}
	return out
}

func overlay(to, from []committed) {
	for i, c := range from {
		if c.found && c.seq > to[i].seq {
			to[i] = c
		}
	}
}

// decide is the marker in the offsets log.
func (g *group) decide(t *txnState, commit bool) {
	keep := g.pending[:0]
	for _, p := range g.pending {
		switch {
		case p.txn != t:
			keep = append(keep, p)
		case commit:
			overlay(g.committed, p.offsets)
		}
	}
	g.pending = keep
}

// fetch is OffsetFetch; a stable one is refused while a transaction is open on the offsets.
func (g *group) fetch(stable bool) reply {
	if stable && len(g.pending) > 0 {
		return reply{code: kerr.UnstableOffsetCommit.Code}
	}
	return reply{committed: slices.Clone(g.committed)}
}
