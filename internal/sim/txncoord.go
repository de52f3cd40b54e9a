package sim

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

type txnStatus uint8

const (
	empty txnStatus = iota
	ongoing
	preparing // PrepareCommit or PrepareAbort: the markers are being written
	complete
)

func (s txnStatus) String() string {
	return [...]string{"Empty", "Ongoing", "Prepare", "Complete"}[s]
}

// txnState is what the transaction coordinator knows of one transactional id. The epoch grows with every transaction
// (transaction.version 2), so a request that belongs to an earlier one is known by it.
type txnState struct {
	id     string
	epoch  int32
	state  txnStatus
	commit bool // of preparing and complete: which way
	parts  []*outLog
	group  bool
	timer  int // tells a timeout check whether it still means this transaction
}

func (b *broker) txn(id string) *txnState {
	for _, t := range b.txns {
		if t.id == id {
			return t
		}
	}
	t := &txnState{id: id}
	b.txns = append(b.txns, t)
	return t
}

// initProducer fences the holder of an id and ends what it left open; the new holder waits for that.
func (b *broker) initProducer(id string) reply {
	t := b.txn(id)
	if b.w.cfg.Bug == IDReused {
		if t.state == preparing {
			return reply{code: kerr.ConcurrentTransactions.Code}
		}
		return reply{epoch: t.epoch}
	}
	switch t.state {
	case ongoing:
		b.prepare(t, false)
		return reply{code: kerr.ConcurrentTransactions.Code}
	case preparing:
		return reply{code: kerr.ConcurrentTransactions.Code}
	}
	t.epoch++
	t.state, t.parts, t.group = empty, nil, false
	return reply{epoch: t.epoch}
}

// enter checks the epoch of a request that adds to the transaction, and begins it if it is the first.
func (b *broker) enter(t *txnState, epoch int32) int16 {
	switch {
	case epoch != t.epoch:
		return kerr.InvalidProducerEpoch.Code
	case t.state == preparing:
		return kerr.ConcurrentTransactions.Code
	case t.state != ongoing:
		t.state, t.parts, t.group = ongoing, nil, false
		t.timer++
		this := t.timer
		b.w.outside(nil, transactionLimit+b.w.lag(20*time.Millisecond), kTxnTimeout, func() {
			if t.state == ongoing && t.timer == this {
				b.w.tracef(nil, "  transaction of %s timed out", t.id)
				b.w.counts.TimedOut++
				b.w.check.timedOut(t.id)
				b.prepare(t, false)
			}
		})
	}
	return 0
}

// produce appends a batch, once.
func (b *broker) produce(id string, epoch int32, part, seq int, recs []outRecord) reply {
	t, l := b.txn(id), b.out[part]
	if epoch != t.epoch {
		return reply{code: kerr.InvalidProducerEpoch.Code}
	}
	next := l.seqs[seqKey{t, epoch}]
	switch {
	case seq < next:
		return reply{} // a duplicate
	case seq > next:
		return reply{code: kerr.OutOfOrderSequenceNumber.Code}
	}
	if c := b.enter(t, epoch); c != 0 {
		return reply{code: c}
	}
	l.seqs[seqKey{t, epoch}] = seq + len(recs)
	if _, ok := l.open[t]; !ok {
		l.open[t] = len(l.entries)
		t.parts = append(t.parts, l)
	}
	for _, r := range recs {
		l.entries = append(l.entries, outEntry{outRecord: r, txn: t})
	}
	return reply{}
}

// end is EndTxn. A request that is one epoch behind is a repetition, of which the first has had its effect, or comes
// from somebody whose transaction has timed out.
func (b *broker) end(id string, epoch int32, commit bool) reply {
	t := b.txn(id)
	switch {
	case epoch == t.epoch && t.state == ongoing:
		b.prepare(t, commit)
		return reply{epoch: t.epoch}
	case epoch == t.epoch && t.state == preparing:
		return reply{code: kerr.ConcurrentTransactions.Code}
	case epoch == t.epoch && !commit:
		t.epoch++
		return reply{epoch: t.epoch}
	case epoch == t.epoch:
		return reply{code: kerr.InvalidTxnState.Code}
	case epoch == t.epoch-1 && (t.state == preparing || t.state == complete):
		switch {
		case t.commit != commit:
			return reply{code: kerr.InvalidTxnState.Code}
		case t.state == preparing:
			return reply{code: kerr.ConcurrentTransactions.Code}
		}
		return reply{epoch: t.epoch}
	}
	return reply{code: kerr.ProducerFenced.Code}
}

// prepare is the decision. It is final and durable; the markers that tell it to every partition follow one by one.
func (b *broker) prepare(t *txnState, commit bool) {
	before := b.group.effective()
	t.state, t.commit = preparing, commit
	t.epoch++
	if commit && t.group {
		b.group.decided(t)
		b.w.check.offsetsMoved(before, b.group.effective())
	}
	most := b.w.faults.markerLag()
	left := len(t.parts)
	if t.group {
		left++
	}
	done := func() {
		if left--; left == 0 {
			t.state = complete
		}
	}
	for _, l := range t.parts {
		b.w.outside(nil, b.w.lag(most), kMarker, func() {
			l.decide(t, commit)
			b.w.check.read(l)
			done()
		})
	}
	if t.group {
		b.w.outside(nil, b.w.lag(most), kMarker, func() {
			b.group.decide(t, commit)
			done()
		})
	}
	if left == 0 {
		t.state = complete
	}
}
