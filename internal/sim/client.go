package sim

import (
	"time"

	"github.com/millweir/millweir/txn"
	"github.com/twmb/franz-go/pkg/kerr"
)

// client is the model of a kgo client with a transactional id: it buffers, sends one batch per partition at a time,
// repeats what has no answer, and ends transactions. Its habits that matter are kept: a transaction into which nothing
// was produced is not ended at all, one whose records all failed is aborted even when a commit was asked for, and a
// failed id makes a commit fail without asking anybody.
type client struct {
	p     *process
	slot  int
	id    string
	epoch int32

	lanes    [3]lane // by output partition, the last is the marker topic
	produced int
	tried    bool // something was sent
	acked    int
	failed   int
	first    txn.Answer // of the first record that failed
	broken   bool       // the producer id has failed
	pid      *txnState  // without transactions: who produces
	seals    []*seal    // likewise: who waits
	closed   bool
	waiting  func() // called when nothing is buffered or in flight any more
}

// lane is what is buffered for one partition.
type lane struct {
	recs    []outRecord
	sending int // of recs, in flight
	seq     int
	tries   int
	queued  bool // a send step is queued
}

// maxTries is how often a batch is sent before its records fail.
const maxTries = 4

func (c *client) begin() {
	c.produced, c.tried, c.acked, c.failed, c.first = 0, false, 0, 0, txn.Answer{}
	for i := range c.lanes {
		c.lanes[i] = lane{}
	}
}

func (c *client) produce(part int, r outRecord) {
	c.produced++
	if c.broken {
		c.fail(1, txn.Answer{Code: kerr.InvalidProducerEpoch.Code})
		return
	}
	c.lanes[part].recs = append(c.lanes[part].recs, r)
	c.kick(part, c.p.w.lag(800*time.Microsecond))
}

func (c *client) kick(part int, after time.Duration) {
	l := &c.lanes[part]
	if l.queued || l.sending > 0 || len(l.recs) == 0 {
		return
	}
	l.queued = true
	c.p.w.do(c.p, after, kSend, func() {
		l.queued = false
		c.send(part)
	})
}

func (c *client) send(part int) {
	l := &c.lanes[part]
	if c.closed || l.sending > 0 || len(l.recs) == 0 {
		return
	}
	l.sending, c.tried = len(l.recs), true
	batch, epoch, seq := l.recs[:l.sending:l.sending], c.epoch, l.seq
	pid := c.pid
	apply := func() reply { return c.p.w.broker.produce(c.id, epoch, part, seq, batch) }
	if pid != nil {
		apply = func() reply { return c.p.w.broker.producePlain(pid, part, seq, batch) }
	}
	c.p.w.call(c.p, kApplyProduce, apply, func(r reply) {
		if c.closed || c.pid != pid {
			return
		}
		n := l.sending
		l.sending = 0
		switch {
		case !r.failed():
			l.tries = 0
			l.seq += n
			l.recs = l.recs[n:]
			c.acked += n
		case (r.lost || retriableCode(r.code)) && l.tries < maxTries:
			l.tries++
			// The same records under the same numbers: more must not be put into a batch that may have arrived.
			c.resend(part, n)
			return
		default:
			c.broken = true
			for i := range c.lanes {
				c.fail(len(c.lanes[i].recs), txn.Answer{Code: r.code, Lost: r.lost})
				c.lanes[i].recs, c.lanes[i].sending = nil, 0
			}
		}
		c.kick(part, 0)
		c.settled()
	})
}

// resend repeats a batch of n records after a pause.
func (c *client) resend(part, n int) {
	l := &c.lanes[part]
	l.queued = true
	c.p.w.do(c.p, c.p.w.lag(2*time.Millisecond), kSend, func() {
		l.queued = false
		rest := l.recs
		if len(rest) < n {
			return // dropped meanwhile
		}
		l.recs = rest[:n:n]
		c.send(part)
		l.recs = rest
	})
}

func (c *client) fail(n int, a txn.Answer) {
	if n > 0 && c.failed == 0 {
		c.first = a
	}
	c.failed += n
}

func (c *client) idle() bool {
	for i := range c.lanes {
		if len(c.lanes[i].recs) > 0 || c.lanes[i].sending > 0 {
			return false
		}
	}
	return true
}

func (c *client) settled() {
	c.sealed()
	if f := c.waiting; f != nil && c.idle() {
		c.waiting = nil
		f()
	}
}

// wait calls f once nothing is buffered or in flight.
func (c *client) wait(f func()) {
	c.waiting = f
	c.settled()
}

// drop forgets what is buffered; what is in flight is waited for.
func (c *client) drop(f func()) {
	for i := range c.lanes {
		l := &c.lanes[i]
		c.fail(len(l.recs)-l.sending, txn.Answer{Lost: true})
		l.recs = l.recs[:l.sending:l.sending]
	}
	c.wait(f)
}

// end is EndTransaction.
func (c *client) end(commit bool, done func(txn.Answer)) {
	switch {
	case commit && c.broken:
		done(txn.Answer{Code: kerr.OperationNotAttempted.Code})
	case c.acked == 0 && !c.tried && !c.broken: // kgo sends nothing
		done(txn.Answer{})
	case c.acked == 0 && !c.broken: // nothing is known to be in it: kgo aborts, whatever it was asked for
		c.sendEnd(false, done)
	default:
		c.sendEnd(commit, done)
	}
}

func (c *client) sendEnd(commit bool, done func(txn.Answer)) {
	w, epoch := c.p.w, c.epoch
	w.call(c.p, kApplyEnd, func() reply { return w.broker.end(c.id, epoch, commit) }, func(r reply) {
		switch {
		case c.closed:
			done(txn.Answer{Lost: true})
		case retriableCode(r.code):
			w.do(c.p, w.lag(time.Millisecond), kSend, func() { c.sendEnd(commit, done) })
		case r.failed():
			done(txn.Answer{Code: r.code, Lost: r.lost})
		default:
			c.epoch, c.broken = r.epoch, false
			done(txn.Answer{})
		}
	})
}
