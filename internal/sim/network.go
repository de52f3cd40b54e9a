package sim

import (
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// reply is the answer to any request; each kind of request reads its own fields.
type reply struct {
	code int16
	// lost: the client gave up waiting. Whether the request was carried out, or still will be, is not known.
	lost bool

	codes     []int16  // TxnOffsetCommit, by partition
	epoch     int32    // InitProducerID, EndTxn
	member    string   // JoinGroup
	gen       int32    // JoinGroup, Heartbeat
	owned     mask     // JoinGroup, Heartbeat: the partitions of this member
	revoking  mask     // Heartbeat: those that were, and it has to say that it gives them up
	names     []string // DescribeGroups, ListTransactions
	committed []committed
	recs      []inRecord // Fetch
	next      int64      // Fetch, ListOffsets
}

func (r reply) failed() bool { return r.lost || r.code != 0 }

// refusal reports which answer makes the client send the same request again by itself.
func retriableCode(c int16) bool {
	switch c {
	case kerr.ConcurrentTransactions.Code, kerr.NotCoordinator.Code, kerr.UnstableOffsetCommit.Code, kerr.CoordinatorLoadInProgress.Code:
		return true
	}
	return false
}

// call sends a request. apply is what the broker does with it; done gets the answer once, while the process lives.
// The network may lose the request or the answer, deliver either late, or the request twice, as the faults say.
func (w *world) call(p *process, k kind, apply func() reply, done func(reply)) {
	f := w.faults.take(p, k)
	there, back := w.lag(600*time.Microsecond), w.lag(600*time.Microsecond)
	answer := func(r reply) { w.do(p, back, kReply, func() { done(r) }) }
	most := 30 * time.Millisecond
	if w.plain && k == kApplyOffsets {
		most = 8 * time.Millisecond // about as long as it takes to make a checkpoint
	}
	late := func() { w.outside(p, there+w.lag(most), k, func() { apply() }) }
	give := func() { w.do(p, requestTimeout, kReply, func() { done(reply{lost: true}) }) }
	switch f.kind {
	case netNone:
		w.outside(p, there, k, func() { answer(apply()) })
		return
	case netLoseRequest:
		give()
	case netLoseReply:
		w.outside(p, there, k, func() { apply() })
		give()
	case netLate: // the client has given up when the request arrives
		late()
		give()
	case netDouble:
		w.outside(p, there, k, func() { answer(apply()) })
		late()
	case netSlow:
		w.outside(p, there+w.lag(20*time.Millisecond), k, func() { answer(apply()) })
	case netCode:
		w.outside(p, there, kRequest, func() { answer(reply{code: f.code}) })
	}
	w.tracef(p, "  network: %s of %s", f.kind, k)
}

type netKind uint8

const (
	netNone netKind = iota
	netLoseRequest
	netLoseReply
	netLate
	netDouble
	netSlow
	netCode
)

func (n netKind) String() string {
	return [...]string{"nothing", "request lost", "answer lost", "request late, the client gave up", "request doubled", "request slow", "refused for now"}[n]
}
