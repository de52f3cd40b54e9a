package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/txn"
)

// At-least-once: the manager is a model of txn.Plain. Its records are seen at once, a flush waits for those that came before it,
// one that fails makes every flush fail until there is another client, and a commit is sent until there is an answer that ends it.

// seal is a flush that waits: for so many records of each lane.
type seal struct {
	upTo [3]int
	done func()
}

// drivePlain is drive without transactions.
func (m *manager) drivePlain(ev txn.Event, j job, done func(error)) {
	over := func(err error) {
		m.busy = false
		done(err)
		if !m.busy && len(m.turn) > 0 {
			f := m.turn[0]
			m.turn = m.turn[1:]
			f()
		}
	}
	m.busy = true
	switch ev.Kind {
	case txn.EvInit:
		m.initPlain(over)
	case txn.EvSeal:
		m.sealPlain(j.over, over)
	case txn.EvCommit:
		j.m, j.until = m, m.p.w.now+m.p.w.patience
		all := j.commit.Offsets
		if !m.p.w.pieces {
			j.commitPlain(all, over)
			return
		}
		j.commitPieces(all, over)
	case txn.EvReopen:
		over(m.failure())
	case txn.EvAbort:
		m.closeClient(0)
		over(nil)
	default:
		over(nil)
	}
}

// failure is that of the first record that failed since the client was made.
func (m *manager) failure() error {
	switch c := m.clients[0]; {
	case c == nil:
		return fault.New(fault.Restart, fault.Failed, "there is no client")
	case c.failed > 0:
		return fault.New(fault.Restart, fault.Failed, "%d records failed: %+v", c.failed, c.first)
	}
	return nil
}

func (m *manager) initPlain(done func(error)) {
	m.closeClient(0)
	w := m.p.w
	w.call(m.p, kApplyInit, func() reply { return reply{} }, func(r reply) {
		if retriableCode(r.code) {
			w.do(m.p, w.lag(2e6), kSend, func() { m.initPlain(done) })
			return
		}
		if r.failed() {
			done(fault.New(fault.Restart, fault.Failed, "init: %+v", r))
			return
		}
		m.clients[0] = &client{p: m.p, pid: &txnState{}}
		done(nil)
	})
}

// sealPlain waits until what was produced so far is acknowledged, or something has failed.
func (m *manager) sealPlain(over func() bool, done func(error)) {
	c := m.clients[0]
	if c == nil {
		done(m.failure())
		return
	}
	if over == nil {
		over = never
	}
	s := &seal{}
	for i := range c.lanes {
		s.upTo[i] = c.lanes[i].seq + len(c.lanes[i].recs)
	}
	ended := false
	s.done = func() {
		if ended {
			return
		}
		ended = true
		c.seals = slices.DeleteFunc(c.seals, func(o *seal) bool { return o == s })
		err := m.failure()
		if err == nil && !c.acknowledged(s) && m.p.w.cfg.Bug != SealUnawaited {
			err = fault.New(fault.Restart, fault.Failed, "the flush was interrupted")
		}
		if m.p.w.cfg.Bug == FailureForgotten && c.failed > 0 {
			c.failed, c.broken, c.pid, err = 0, false, &txnState{}, nil
			for i := range c.lanes {
				c.lanes[i] = lane{}
			}
		}
		done(err)
	}
	c.seals = append(c.seals, s)
	m.p.onCancel(over, s.done)
	if m.p.w.cfg.Bug == SealUnawaited {
		s.done()
		return
	}
	c.settled()
}

func (c *client) acknowledged(s *seal) bool {
	for i := range c.lanes {
		if c.lanes[i].seq < s.upTo[i] {
			return false
		}
	}
	return true
}

// sealed ends the flushes that have nothing more to wait for.
func (c *client) sealed() {
	for _, s := range slices.Clone(c.seals) {
		if c.failed > 0 || c.closed || c.acknowledged(s) {
			s.done()
		}
	}
}

// commitPieces sends the offsets one by one, as those of very many partitions go in several requests.
func (j *job) commitPieces(offsets []checkpoint.OffsetCommit, done func(error)) {
	if len(offsets) == 0 {
		done(nil)
		return
	}
	j.commitPlain(offsets[:1], func(err error) {
		if err != nil {
			done(err)
			return
		}
		j.m.p.w.counts.Pieces++
		j.taken = true
		j.commitPieces(offsets[1:], done)
	})
}

// commitPlain reads the fence and sends the offsets, until they are committed or there is no hope.
func (j *job) commitPlain(send []checkpoint.OffsetCommit, done func(error)) {
	p, w := j.m.p, j.m.p.w
	member, gen, err := p.fence(j.commit.Offsets, j.stale)
	if err != nil {
		done(err)
		return
	}
	offsets := make([]committed, len(w.broker.in))
	for _, o := range send {
		offsets[o.Position.Partition] = committed{found: true, offset: o.Position.Offset, metadata: o.Metadata}
	}
	sent := w.broker.group.sent()
	w.call(p, kApplyOffsets, func() reply { return w.broker.group.commitPlain(member, gen, p.name, offsets, sent) }, func(r reply) {
		if r.code != 0 {
			r.codes = []int16{r.code}
		}
		worst := int16(0)
		for _, c := range r.codes {
			worst = max(worst, c)
		}
		j.stale = worst == kerr.IllegalGeneration.Code
		j.taken = j.taken || r.lost
		again := r.lost || j.stale || retriableCode(worst)
		switch {
		case !r.lost && worst == 0:
			done(nil)
		case again && w.now < j.until && !p.attemptOver():
			j.pause = min(max(1e6, 2*j.pause), 16e6)
			w.do(p, j.pause, kSend, func() { j.commitPlain(send, done) })
		case j.stale, worst == kerr.UnknownMemberID.Code:
			done(fault.New(fault.Rejoin, fault.Failed, "commit: code %d", worst))
		case worst == kerr.FencedInstanceID.Code:
			done(fault.Stopf(fault.Fenced, "commit: code %d", worst))
		case j.taken:
			done(fault.New(fault.Unconfirmed, fault.Failed, "commit: no answer"))
		default:
			done(fault.New(fault.Restart, fault.Failed, "commit: code %d", worst))
		}
	})
}

// startsAsBefore is the engine's.
func (p *process) startsAsBefore(part int, offset int64) int64 {
	if !p.w.plain {
		return offset
	}
	if was, ok := p.began[part]; ok {
		return was
	}
	if p.began == nil {
		p.began = map[int]int64{}
	}
	p.began[part] = offset
	return offset
}

func (p *process) attemptOver() bool { return p.attempt == nil || p.attempt.over }

// producePlain appends a batch, once, for every reader to see.
func (b *broker) producePlain(pid *txnState, part, seq int, recs []outRecord) reply {
	l, key := b.out[part], seqKey{txn: pid}
	switch next := l.seqs[key]; {
	case seq < next:
		return reply{} // a duplicate
	case seq > next:
		return reply{code: kerr.OutOfOrderSequenceNumber.Code}
	}
	l.seqs[key] = seq + len(recs)
	for _, r := range recs {
		l.entries = append(l.entries, outEntry{outRecord: r, txn: pid, fate: visible})
	}
	b.w.check.read(l)
	return reply{}
}

// sent is how often each partition has been committed when a request is sent.
func (g *offsetStore) sent() [maxPartitions]int { return g.times }

// lateBy is how many commits a copy of an earlier one may be overtaken by. That one was taken as another copy: the network holds
// no packet back for longer than it takes to begin again and make a checkpoint.
const lateBy = 1

// commitPlain is OffsetCommit. What is committed already may be so again, by a copy that comes late.
func (g *group) commitPlain(id string, gen int32, instance string, offsets []committed, sent [maxPartitions]int) reply {
	all := func(code int16) reply { return reply{codes: []int16{code}} }
	if m, code := g.refuse(id, instance); m == nil {
		return all(code)
	}
	if gen != g.gen {
		g.b.w.counts.StaleGenerations++
		return all(kerr.IllegalGeneration.Code)
	}
	offsets = slices.Clone(offsets)
	for p := range offsets {
		o := &offsets[p]
		if !o.found {
			continue
		}
		if by := g.by[p]; by.instance != "" && by.gen == gen && by.instance != instance {
			g.b.w.violation("I8", "%s commits in/%d in generation %d, in which %s has committed it", instance, p, gen, by.instance)
		}
		g.by[p] = committer{instance, gen}
		if late := g.times[p] - sent[p]; late > lateBy || late > 0 && !g.decisions[o.metadata] {
			return reply{lost: true}
		}
	}
	before := g.effective()
	for p := range offsets {
		o := &offsets[p]
		if !o.found {
			continue
		}
		g.writes++
		o.seq = g.writes
		g.b.w.check.sentBack(p, *o, g.times[p] > sent[p])
		if g.committed[p].metadata != o.metadata {
			g.times[p]++
		}
		g.decisions[o.metadata] = true
		g.best[p] = max(g.best[p], o.offset)
	}
	g.comeBack(instance, offsets)
	overlay(g.committed, offsets)
	g.b.w.check.offsetsMoved(before, g.effective())
	return all(0)
}

// drawPlain makes a run one of at-least-once. Copies of commits that come late are what is special about it.
func (w *world) drawPlain() {
	rng := rand.New(rand.NewPCG(w.cfg.Seed, 0x706c61696e))
	w.plain, w.pieces = true, rng.IntN(3) == 0
	w.patience = [...]time.Duration{requestTimeout, 3 * requestTimeout, transactionLimit}[rng.IntN(3)]
	if w.x != nil {
		w.x.mode, w.x.timeout = gate.Counting, 0
	}
	for range 2 + rng.IntN(6) {
		w.outside(nil, time.Duration(rng.Int64N(int64(120*time.Millisecond))), kFault, func() {
			if !w.healed {
				w.arm(netFault{kind: [...]netKind{netDouble, netLate}[rng.IntN(2)], match: kApplyOffsets, count: 1 + rng.IntN(4)})
			}
		})
	}
}
