package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/txn"
	"github.com/twmb/franz-go/pkg/kerr"
)

// manager drives the real txn.Machine as txn.Manager does: actions in order, what came of them fed back, until it
// reports.
type manager struct {
	p       *process
	suffix  string
	machine *txn.Machine
	clients [slots]*client

	busy bool // a request is being worked on; the next one waits for its turn
	turn []func()
	late []lateRecord // of a planted bug
}

type lateRecord struct {
	part int
	rec  outRecord
}

func newManager(p *process, suffix string) *manager {
	return &manager{p: p, suffix: suffix, machine: txn.NewMachine(slots)}
}

// job is one request: its actions that are still to be done, and what they work with.
type job struct {
	m      *manager
	acts   []txn.Action
	rep    txn.Report
	cause  error
	over   func() bool // the caller's context has ended
	commit *checkpoint.Commit
	stale  bool          // the last answer was ILLEGAL_GENERATION
	until  time.Duration // no new try of the offsets after this
	pause  time.Duration
	taken  bool // without transactions: something may be committed
	done   func(error)
}

func never() bool { return false }

// drive runs a request; done gets its outcome.
func (m *manager) drive(ev txn.Event, j job, done func(error)) {
	if m.busy {
		m.turn = append(m.turn, func() { m.drive(ev, j, done) })
		return
	}
	if m.p.w.plain {
		m.drivePlain(ev, j, done)
		return
	}
	m.busy = true
	j.m, j.done = m, done
	if j.over == nil {
		j.over = never
	}
	j.until = m.p.w.now + transactionLimit
	if ev.Kind == txn.EvSeal {
		if c := m.clients[m.machine.Current()]; c != nil && m.machine.State(m.machine.Current()) == txn.Open {
			ev.Produced = int64(c.produced)
		}
	}
	j.acts = m.machine.Step(ev)
	j.next()
}

// next does actions until one has to be waited for.
func (j *job) next() {
	for len(j.acts) > 0 {
		a := j.acts[0]
		if a.Kind == txn.ActInit {
			j.initAll()
			return
		}
		j.acts = j.acts[1:]
		switch a.Kind {
		case txn.ActReport:
			j.rep = a.Report
		case txn.ActClose:
			j.m.closeClient(a.Slot)
		case txn.ActMarker:
			if j.m.p.w.cfg.Bug != NoMarker {
				j.m.clients[a.Slot].produce(markerPartition, outRecord{})
			}
		case txn.ActBegin:
			j.begin(j.m.clients[a.Slot])
		default:
			j.exec(a)
			return
		}
	}
	j.m.busy = false
	j.done(j.errorOf())
	if m := j.m; !m.busy && len(m.turn) > 0 {
		f := m.turn[0]
		m.turn = m.turn[1:]
		f()
	}
}

// fed takes what came of an action.
func (j *job) fed(ev txn.Event) {
	j.acts = append(j.acts, j.m.machine.Step(ev)...)
	j.next()
}

// initAll initialises several ids at once.
func (j *job) initAll() {
	n := 0
	for n < len(j.acts) && j.acts[n].Kind == txn.ActInit {
		n++
	}
	inits := j.acts[:n]
	j.acts = j.acts[n:]
	left, evs := n, make([]txn.Event, n)
	for i, a := range inits {
		j.m.initSlot(a.Slot, func(ans txn.Answer) {
			evs[i] = txn.Event{Kind: txn.EvInitialised, Slot: a.Slot, Answer: ans}
			if left--; left > 0 {
				return
			}
			for _, ev := range evs {
				j.acts = append(j.acts, j.m.machine.Step(ev)...)
			}
			j.next()
		})
	}
}

func (m *manager) initSlot(slot int, done func(txn.Answer)) {
	w := m.p.w
	c := &client{p: m.p, slot: slot, id: fmt.Sprintf("%s-%s%s-%d", application, m.p.name, m.suffix, slot)}
	if w.cfg.Bug == IDReused {
		c.id = fmt.Sprintf("%s-%d", application, slot)
	}
	m.clients[slot] = c
	var try func()
	try = func() {
		w.call(m.p, kApplyInit, func() reply { return w.broker.initProducer(c.id) }, func(r reply) {
			if retriableCode(r.code) {
				w.do(m.p, w.lag(2*time.Millisecond), kSend, try)
				return
			}
			c.epoch = r.epoch
			done(txn.Answer{Code: r.code, Lost: r.lost})
		})
	}
	try()
}

func (m *manager) closeClient(slot int) {
	if c := m.clients[slot]; c != nil {
		c.closed = true
		m.clients[slot] = nil
		c.sealed()
		if f := c.waiting; f != nil {
			c.waiting = nil
			f()
		}
	}
}

func (j *job) begin(c *client) {
	c.begin()
	for _, l := range j.m.late {
		c.produce(l.part, l.rec)
	}
	j.m.late = nil
	ev := txn.Event{Kind: txn.EvBegun}
	if c.broken {
		ev.Answer.Code = kerr.InvalidProducerEpoch.Code
	}
	j.acts = append(j.acts, j.m.machine.Step(ev)...)
}

// exec does an action that has an answer.
func (j *job) exec(a txn.Action) {
	c := j.m.clients[a.Slot]
	if c == nil {
		j.fed(txn.Event{Kind: txn.EvEnded, Answer: txn.Answer{Lost: true}})
		return
	}
	switch a.Kind {
	case txn.ActFlush:
		j.flush(c)
	case txn.ActOffsets:
		j.pause = 0
		j.sendOffsets(c, a.Piece)
	case txn.ActRetryOffsets:
		j.pause = min(max(time.Millisecond, 2*j.pause), 16*time.Millisecond)
		j.m.p.w.do(j.m.p, j.pause, kSend, func() {
			if j.m.p.w.now > j.until || j.over() {
				j.fed(txn.Event{Kind: txn.EvGaveUp})
				return
			}
			j.sendOffsets(c, a.Piece)
		})
	case txn.ActDrop:
		c.drop(func() { j.fed(txn.Event{Kind: txn.EvDropped}) })
	case txn.ActCommit:
		c.end(true, func(ans txn.Answer) { j.ended(c, ans) })
	case txn.ActAbort:
		c.end(false, func(ans txn.Answer) { j.fed(txn.Event{Kind: txn.EvEnded, Answer: ans}) })
	}
}

// ended takes the answer to a commit. The planted bug aborts when there is none.
func (j *job) ended(c *client, ans txn.Answer) {
	ev := txn.Event{Kind: txn.EvEnded, Answer: ans}
	if ans.Lost && j.m.p.w.cfg.Bug == AbortAfterUnknown {
		j.m.p.trustMemory = true
		c.sendEnd(false, func(txn.Answer) { j.fed(ev) })
		return
	}
	j.fed(ev)
}

func (j *job) flush(c *client) {
	p := j.m.p
	if bug := p.w.cfg.Bug; bug == NoMarker && c.produced == 0 {
		j.fed(txn.Event{Kind: txn.EvFlushed, Acked: 1})
		return
	} else if bug == LateProduce && p.w.chance(50) && j.m.takeLate(c) {
		j.fed(txn.Event{Kind: txn.EvFlushed, Acked: 1})
		return
	}
	done := false
	p.onCancel(j.over, func() {
		if f := c.waiting; f != nil && !done {
			c.waiting = nil
			f()
		}
	})
	c.wait(func() {
		done = true
		switch {
		case c.failed > 0:
			j.fed(txn.Event{Kind: txn.EvFlushed, Failed: int64(c.failed), Answer: c.first})
		case j.over() || c.closed:
			j.fed(txn.Event{Kind: txn.EvFlushed, Answer: txn.Answer{Lost: true}})
		default:
			j.fed(txn.Event{Kind: txn.EvFlushed, Acked: int64(c.acked)})
		}
	})
}

// takeLate is the planted bug: records without an answer are kept for the next transaction.
func (m *manager) takeLate(c *client) bool {
	any := false
	for part := range c.lanes {
		l := &c.lanes[part]
		for _, r := range l.recs[l.sending:] {
			if part != markerPartition {
				m.late = append(m.late, lateRecord{part, r})
				any = true
			}
		}
		if any {
			l.recs = l.recs[:l.sending:l.sending]
		}
	}
	return any && c.idle()
}

// sendOffsets reads the fence and sends TxnOffsetCommit for one piece once.
func (j *job) sendOffsets(c *client, piece int) {
	p, w := j.m.p, j.m.p.w
	id, gen, err := p.fence(j.commit.Offsets, j.stale)
	if err != nil {
		j.cause = err
		j.fed(txn.Event{Kind: txn.EvNoFence, Answer: txn.Answer{Lost: true}})
		return
	}
	instance := p.name
	if w.cfg.Bug == NoGeneration {
		id, gen, instance = "", -1, ""
	}
	offsets := make([]committed, len(w.broker.in))
	send := j.commit.Offsets
	if w.cfg.pieces {
		send = send[piece : piece+1]
	}
	for _, o := range send {
		offsets[o.Position.Partition] = committed{found: true, offset: o.Position.Offset, metadata: o.Metadata}
	}
	epoch := c.epoch
	w.call(p, kApplyOffsets, func() reply { return w.broker.group.commitOffsets(c.id, epoch, id, gen, instance, offsets) }, func(r reply) {
		ev := txn.Event{Kind: txn.EvOffsets, Codes: r.codes, Answer: txn.Answer{Lost: r.lost}}
		if r.code != 0 {
			ev.Codes = []int16{r.code}
		}
		j.stale = slices.Contains(ev.Codes, kerr.IllegalGeneration.Code)
		if j.stale {
			w.counts.Resent++
		}
		j.fed(ev)
	})
}

// piecesOf is how many requests the offsets of a commit go in.
func (c *Config) piecesOf(commit checkpoint.Commit) int {
	if c.pieces {
		return len(commit.Offsets)
	}
	return 1
}

// errorOf makes the caller's error of the report, classed as Manager does it.
func (j *job) errorOf() error {
	if !j.rep.Failed {
		return nil
	}
	rec, code := j.rep.Recovery, j.rep.Code
	var classed *fault.Error
	if errors.As(j.cause, &classed) && (j.rep.Step == txn.StepFence || j.rep.Step == txn.StepInit) {
		rec, code = classed.Recovery, classed.Code
	}
	return fault.New(rec, code, "transaction: %s: %s %v", j.rep.Step, j.rep.Reason, j.cause)
}
