package sim

import (
	"fmt"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	application = "app"
	inTopic     = "in"
	clusterID   = "cluster"
)

var inTopicID = element.TopicID{1}

// inRecord is one entry of an input partition. A gap is what compaction or a transaction marker leaves: an offset
// without a record.
type inRecord struct {
	offset int64
	key    byte
	skip   bool // the topology filters it out: neither state nor output
	gap    bool
}

type inLog struct {
	recs  []inRecord
	avail int // how many of them have been appended
	wait  []func()
}

// broker is the model of the cluster: input logs, output logs, transaction and group coordinator.
type broker struct {
	w     *world
	in    []inLog
	out   []*outLog
	txns  []*txnState // in the order of their first use
	group *group
	// latest: a partition without committed offset starts at its end.
	latest bool
}

func newBroker(w *world) *broker {
	b := &broker{w: w, latest: w.chance(40)}
	b.group = newGroup(b)
	for p := range w.cfg.Partitions {
		n := 10 + w.rng.IntN(20)
		if w.cfg.script != nil {
			n = w.cfg.script.records
		}
		log := inLog{recs: make([]inRecord, n)}
		for i := range log.recs {
			r := &log.recs[i]
			r.offset, r.key = int64(i), byte('a'+8*p+w.rng.IntN(3))
			r.skip, r.gap = w.chance(15), w.chance(8)
		}
		b.in = append(b.in, log)
		w.counts.Records += n
	}
	for range 3 { // the last one is the marker topic
		b.out = append(b.out, &outLog{b: b, open: map[*txnState]int{}, seqs: map[seqKey]int{}})
	}
	return b
}

const markerPartition = 2

// start lets the inputs arrive: some at once, the rest over the time of the faults. Now and then a stretch of records is
// filtered out as a whole, so that there are transactions of offsets alone.
func (b *broker) start() {
	for p := range b.in {
		log := &b.in[p]
		if b.w.cfg.script != nil {
			log.avail = b.w.cfg.script.first
			if end, ends := b.w.endOf(p); ends {
				log.avail = int(end)
			}
			continue
		}
		if from := b.w.rng.IntN(len(log.recs)); b.w.chance(50) {
			for i := from; i < min(from+6, len(log.recs)); i++ {
				log.recs[i].skip = true
			}
		}
		log.avail = b.w.rng.IntN(len(log.recs) / 2)
		if end, ends := b.w.endOf(p); ends {
			log.avail = int(end)
		}
		if b.w.stall.quiet(p) {
			log.avail = max(log.avail, min(4, len(log.recs)))
		} else {
			b.appendLater(p)
		}
	}
	for p := range b.in {
		if p == 0 || !b.w.chance(40) {
			b.group.seen |= bit(p)
			continue
		}
		b.w.outside(nil, b.w.lag(60*time.Millisecond), kAppend, func() { b.group.discover(bit(p)) })
	}
	b.group.watch()
}

func (b *broker) appendLater(p int) {
	pause := 12 * time.Millisecond
	if b.w.long {
		pause = 60 * time.Millisecond
	}
	b.w.outside(nil, b.w.lag(pause), kAppend, func() {
		if log := &b.in[p]; log.avail < len(log.recs) {
			b.append(p, 1+b.w.rng.IntN(3))
			b.appendLater(p)
		}
	})
}

func (b *broker) append(p, n int) {
	log := &b.in[p]
	log.avail = min(log.avail+n, len(log.recs))
	waiting := log.wait
	log.wait = nil
	for _, f := range waiting {
		f()
	}
}

func (b *broker) appendAll() {
	for p := range b.in {
		b.append(p, len(b.in[p].recs))
	}
}

// startOf is where a partition that nobody has read yet starts.
func (b *broker) startOf(p int) reply {
	if b.latest {
		return reply{next: int64(b.in[p].avail)}
	}
	return reply{}
}

// openTxns lists the ids that have a transaction open.
func (b *broker) openTxns() reply {
	var r reply
	for _, t := range b.txns {
		if t.state == ongoing {
			r.names = append(r.names, t.id)
		}
	}
	return r
}

// fetch gives up to most entries from an offset on.
func (b *broker) fetch(by *process, p int, from int64, most int) reply {
	b.w.check.fetched(by, p, from)
	log := &b.in[p]
	if from > int64(log.avail) {
		return reply{code: kerr.OffsetOutOfRange.Code}
	}
	to := min(int(from)+most, log.avail)
	r := reply{next: int64(to)}
	for _, rec := range log.recs[from:to] {
		if !rec.gap {
			r.recs = append(r.recs, rec)
		}
	}
	return r
}

func (b *broker) summary() string {
	s := fmt.Sprintf("group: %d members;", len(b.group.members))
	for i, c := range b.group.committed {
		s += fmt.Sprintf(" in/%d at %d of %d (%s);", i, c.offset, len(b.in[i].recs), b.group.past[i])
	}
	for _, t := range b.txns {
		if t.state == ongoing || t.state == preparing {
			s += fmt.Sprintf(" %s is %s;", t.id, t.state)
		}
	}
	for _, p := range b.w.procs {
		s += fmt.Sprintf(" %s: %s;", p.label, p.status())
	}
	return s
}

// outRecord is one record of an output partition: the count of a key after one input record.
type outRecord struct {
	key   byte
	count int64
	from  int32 // input partition
	at    int64 // and offset
}

// outEntry is a record together with the transaction that it belongs to.
type outEntry struct {
	outRecord
	txn  *txnState
	fate fate
}

type fate uint8

const (
	undecided fate = iota
	visible
	dropped
)

type seqKey struct {
	txn   *txnState
	epoch int32
}

// outLog is one output partition: its entries, and the first entry of each transaction that is open in it.
type outLog struct {
	b       *broker
	entries []outEntry
	open    map[*txnState]int
	seqs    map[seqKey]int // next sequence number: a batch that comes twice is taken once
	read    int            // how far a reader of committed records has come
	// A recovery from the store comes behind so many entries: the keys go on from these counts there.
	again int
	back  map[byte]int64
}

// decide is the transaction marker: everything that the transaction has open here becomes visible or not.
func (l *outLog) decide(t *txnState, commit bool) {
	first, ok := l.open[t]
	if !ok {
		return
	}
	delete(l.open, t)
	for i := first; i < len(l.entries); i++ {
		if e := &l.entries[i]; e.txn == t && e.fate == undecided {
			e.fate = dropped
			if commit {
				e.fate = visible
			}
		}
	}
}

// stable is the last stable offset: up to there nothing is open.
func (l *outLog) stable() int {
	lso := len(l.entries)
	for _, first := range l.open {
		lso = min(lso, first)
	}
	return lso
}
