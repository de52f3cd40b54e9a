package txn

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Step takes an event and gives the actions that answer it, in order. An event that does not fit the state changes
// nothing and is answered by a failed report.
func (m *Machine) Step(e Event) []Action {
	if m.closed && e.Kind != EvClose {
		return m.refuse("closed")
	}
	switch e.Kind {
	case EvInit:
		return m.init(e)
	case EvInitialised:
		return m.initialised(e)
	case EvProduce:
		return m.produce()
	case EvBegun:
		return m.begun(e)
	case EvSeal:
		return m.seal(e)
	case EvFlushed:
		return m.flushed(e)
	case EvReopen:
		return m.reopen()
	case EvCommit:
		return m.commit(e)
	case EvNoFence, EvOffsets, EvGaveUp:
		return m.offsets(e)
	case EvCut:
		return m.cut(e)
	case EvAbort:
		return m.abort()
	case EvDropped:
		return m.dropped(e)
	case EvEnded:
		return m.ended(e)
	case EvClose:
		return m.close()
	}
	return m.refuse(fmt.Sprintf("unknown event %d", e.Kind))
}

// init replaces every slot that cannot begin a transaction. It may come in any state: what is open then belongs to an
// attempt that is over, and InitProducerID aborts it.
func (m *Machine) init(e Event) []Action {
	var acts []Action
	m.want, m.initLeft, m.initBad = wantInit, 0, Report{}
	for i, s := range m.slots {
		if s.usable() && !slices.Contains(e.Outdated, i) {
			continue
		}
		if s != Closed && s != Fenced && s != Unconfirmed {
			acts = append(acts, Action{Kind: ActClose, Slot: i})
		}
		m.slots[i] = Closed
		m.initLeft++
		acts = append(acts, Action{Kind: ActInit, Slot: i})
	}
	if m.initLeft == 0 {
		return m.done()
	}
	return acts
}

func (m *Machine) initialised(e Event) []Action {
	if m.want != wantInit || m.initLeft == 0 || e.Slot < 0 || e.Slot >= len(m.slots) || m.slots[e.Slot] != Closed {
		return m.refuse("no initialisation was asked for")
	}
	m.initLeft--
	var acts []Action
	if e.Answer.OK() {
		m.slots[e.Slot] = Ready
	} else {
		acts = append(acts, Action{Kind: ActClose, Slot: e.Slot})
		m.initBad = harder(m.initBad, failed(StepInit, e.Answer))
	}
	switch {
	case m.initLeft > 0:
		return acts
	case m.initBad.Failed:
		return append(acts, m.report(m.initBad))
	}
	return append(acts, m.done()...)
}

// ready says why no transaction can begin now, or "". All slots must be usable: one that is not may still have a
// transaction open on the broker, and two must never overlap.
func (m *Machine) ready() string {
	for i, s := range m.slots {
		if !s.usable() {
			return fmt.Sprintf("slot %d is %s", i, s)
		}
	}
	return ""
}

func (m *Machine) begin(w intent, id element.CheckpointID) []Action {
	if why := m.ready(); why != "" {
		return m.refuse(why)
	}
	m.want, m.checkpoint, m.marked = w, id, false
	return []Action{{Kind: ActBegin, Slot: m.cur}}
}

func (m *Machine) produce() []Action {
	if m.slots[m.cur] == Open {
		m.want = wantProduce
		return m.done()
	}
	return m.begin(wantProduce, 0)
}

func (m *Machine) begun(e Event) []Action {
	if !m.slots[m.cur].usable() || (m.want != wantProduce && m.want != wantSeal) {
		return m.refuse("no begin was asked for")
	}
	if !e.Answer.OK() {
		return m.lose(Closed, failed(StepBegin, e.Answer))
	}
	m.slots[m.cur] = Open
	if m.want == wantSeal {
		return m.flush(true)
	}
	return m.done()
}

func (m *Machine) flush(marker bool) []Action {
	m.slots[m.cur] = Flushing
	if !marker {
		return []Action{{Kind: ActFlush, Slot: m.cur}}
	}
	m.marked = true
	return []Action{{Kind: ActMarker, Slot: m.cur}, {Kind: ActFlush, Slot: m.cur}}
}

func (m *Machine) seal(e Event) []Action {
	if m.slots[m.cur] == Open {
		m.want, m.checkpoint = wantSeal, e.Checkpoint
		return m.flush(e.Produced == 0)
	}
	return m.begin(wantSeal, e.Checkpoint)
}

func (m *Machine) flushed(e Event) []Action {
	switch {
	case m.slots[m.cur] != Flushing:
		return m.refuse("no flush was asked for")
	case !e.Answer.OK() || e.Failed > 0:
		return m.fail(failed(StepProduce, e.Answer))
	case e.Acked > 0:
		m.slots[m.cur] = Sealed
		return m.done()
	case !m.marked:
		return m.flush(true)
	}
	r := failed(StepProduce, Answer{Lost: true})
	r.Reason = "the marker record was not acknowledged"
	return m.fail(r)
}

func (m *Machine) reopen() []Action {
	if m.slots[m.cur] != Sealed {
		return m.refuse("nothing is sealed")
	}
	m.want, m.slots[m.cur] = wantProduce, Open
	return m.done()
}

func (m *Machine) commit(e Event) []Action {
	switch {
	case m.slots[m.cur] != Sealed:
		return m.refuse("not sealed")
	case e.Checkpoint != m.checkpoint:
		return m.refuse(fmt.Sprintf("sealed for checkpoint %d", m.checkpoint))
	}
	m.want = wantCommit
	switch {
	case e.HandleBytes > MaxHandle:
		return m.fail(Report{Failed: true, Step: StepHandle, Recovery: fault.Stop, Code: fault.Failed,
			Reason: fmt.Sprintf("%d bytes, a broker takes %d", e.HandleBytes, MaxHandle)})
	case e.Partitions == 0:
		return m.fail(Report{Failed: true, Step: StepOffsets, Recovery: fault.Restart, Code: fault.Failed,
			Reason: "no partition to commit"})
	}
	m.slots[m.cur] = OffsetsSent
	m.pieces, m.piece, m.stale = max(1, e.Pieces), 0, 0
	return []Action{{Kind: ActOffsets, Slot: m.cur}}
}

func (m *Machine) offsets(e Event) []Action {
	if m.slots[m.cur] != OffsetsSent {
		return m.refuse("no offsets were sent")
	}
	switch e.Kind {
	case EvNoFence:
		return m.fail(failed(StepFence, e.Answer))
	case EvGaveUp:
		r := failed(StepOffsets, Answer{Lost: true})
		r.Reason = "no time left to try again"
		return m.fail(r)
	}
	if e.Answer.Lost {
		return m.fail(failed(StepOffsets, e.Answer))
	}
	var bad, large Report
	again := len(e.Codes) == 0
	if slices.Contains(e.Codes, kerr.IllegalGeneration.Code) {
		m.stale++
	}
	for _, c := range e.Codes {
		switch {
		case c == 0:
		case slices.Contains(retriable, c), c == kerr.IllegalGeneration.Code && m.stale <= maxStale:
			again = true
		case slices.Contains(tooMuch, c):
			large = harder(large, failed(StepOffsets, Answer{Code: c, Final: e.Answer.Final}))
		default:
			bad = harder(bad, failed(StepOffsets, Answer{Code: c}))
		}
	}
	switch {
	case bad.Failed:
		return m.fail(bad)
	case large.Failed && len(e.Codes) > 1:
		return []Action{{Kind: ActCut, Slot: m.cur, Piece: m.piece}}
	case large.Failed:
		return m.fail(large)
	case again:
		return []Action{{Kind: ActRetryOffsets, Slot: m.cur, Piece: m.piece}}
	case m.piece+1 < m.pieces:
		m.piece++
		m.stale = 0
		return []Action{{Kind: ActOffsets, Slot: m.cur, Piece: m.piece}}
	}
	m.slots[m.cur] = Ending
	return []Action{{Kind: ActCommit, Slot: m.cur}}
}

// cut goes on with the piece that was refused as it is now. Whatever part of it was accepted is accepted again: the same
// offsets in the same transaction.
func (m *Machine) cut(e Event) []Action {
	if m.slots[m.cur] != OffsetsSent {
		return m.refuse("no offsets were sent")
	}
	m.pieces, m.stale = max(m.piece+1, e.Pieces), 0
	return []Action{{Kind: ActOffsets, Slot: m.cur, Piece: m.piece}}
}

// maxStale is how often offsets are sent again that were refused for their generation. The broker takes the group to the
// next generation before this member has read the answer to its join: what was sent between carries the old one,
//
//	broker: generation 7 -> 8, answers the join
//	                                             instance: reads generation 7, sends the offsets
//	broker: ILLEGAL_GENERATION
//	                                             instance: the answer to the join arrives: 8
//
// though nothing that it owns has moved. Each send reads member, generation and ownership anew, so that a resend is as
// good as a first send. A member that was expelled gets another code. With the pauses between it is about a second.
const maxStale = 50

func (m *Machine) abort() []Action {
	m.want = wantAbort
	switch m.slots[m.cur] {
	case Open, Sealed:
		return m.fail(Report{})
	case Flushing, OffsetsSent, Ending, Aborting:
		return m.refuse("a request is being worked on")
	}
	return m.done() // nothing is open
}

// fail starts the abort of the open transaction; r is reported when it has ended.
func (m *Machine) fail(r Report) []Action {
	m.failure = r
	m.slots[m.cur] = Aborting
	return []Action{{Kind: ActDrop, Slot: m.cur}}
}

func (m *Machine) dropped(e Event) []Action {
	switch {
	case m.slots[m.cur] != Aborting:
		return m.refuse("nothing is being aborted")
	case e.Answer.OK():
		return []Action{{Kind: ActAbort, Slot: m.cur}}
	}
	// Records may still be in flight. With EndTxn sent now they could land in the next transaction.
	return m.lose(Closed, m.abortFailure(e.Answer))
}

func (m *Machine) ended(e Event) []Action {
	switch m.slots[m.cur] {
	case Ending:
		switch {
		case e.Answer.OK():
			return m.leave(Committed, Report{State: Committed})
		case slices.Contains(fencing, e.Answer.Code):
			return m.lose(Fenced, failed(StepCommit, e.Answer))
		}
		return m.lose(Unconfirmed, failed(StepCommit, e.Answer))
	case Aborting:
		switch {
		case !e.Answer.OK() && slices.Contains(fencing, e.Answer.Code):
			return m.lose(Fenced, m.abortFailure(e.Answer))
		case !e.Answer.OK():
			return m.lose(Closed, m.abortFailure(e.Answer))
		case m.failure.replace:
			return m.lose(Closed, m.failure)
		}
		r := m.failure
		r.State = Aborted
		return m.leave(Aborted, r)
	}
	return m.refuse("nothing is being ended")
}

// abortFailure is the report of an abort that did not succeed either. The first cause stays the cause, unless the
// abort shows that the id was taken over, which is the harder news.
func (m *Machine) abortFailure(a Answer) Report {
	r := m.failure
	if !r.Failed || (slices.Contains(fencing, a.Code) && r.Recovery != fault.Stop) {
		r = failed(StepAbort, a)
	}
	return r
}

// lose ends the transaction together with its client. Whatever it was, it is not known to be committed.
func (m *Machine) lose(s State, r Report) []Action {
	slot := m.cur
	if s == Closed && r.Code == fault.Fenced && r.Recovery == fault.Rejoin {
		s = Fenced
	}
	if r.State = s; s == Closed {
		r.State = Aborted
	}
	return append([]Action{{Kind: ActClose, Slot: slot}}, m.leave(s, r)...)
}

// leave sets the final state of the current transaction and moves on to the next slot.
func (m *Machine) leave(s State, r Report) []Action {
	r.ended = true
	var acts []Action
	if s == Closed && r.replace && r.Code != fault.Fenced {
		acts = m.distrust()
	}
	acts = append(acts, m.report(r))
	m.slots[m.cur] = s
	m.cur = (m.cur + 1) % len(m.slots)
	m.failure = Report{}
	return acts
}

// distrust has the clients of the other slots replaced as well: an id that the broker has forgotten, or a topic that is
// another one now, is no matter of one slot, and to find that out slot by slot would cost an attempt each.
func (m *Machine) distrust() (acts []Action) {
	for i, s := range m.slots {
		if i != m.cur && s.usable() {
			m.slots[i] = Closed
			acts = append(acts, Action{Kind: ActClose, Slot: i})
		}
	}
	return acts
}

func (m *Machine) close() []Action {
	var acts []Action
	for i, s := range m.slots {
		if s != Closed && s != Fenced && s != Unconfirmed {
			acts = append(acts, Action{Kind: ActClose, Slot: i})
		}
		m.slots[i] = Closed
	}
	m.closed = true
	return append(acts, m.report(Report{State: Closed}))
}

func (m *Machine) report(r Report) Action {
	m.want = wantNothing
	return Action{Kind: ActReport, Slot: m.cur, Report: r}
}

func (m *Machine) done() []Action { return []Action{m.report(Report{State: m.slots[m.cur]})} }

// refuse answers a request that does not fit the state; the state stays. A new attempt starts with Init, which mends
// whatever led here.
func (m *Machine) refuse(why string) []Action {
	return []Action{{Kind: ActReport, Slot: m.cur, Report: Report{State: m.slots[m.cur], Failed: true, Step: StepOrder,
		Recovery: fault.Restart, Code: fault.Failed, Reason: why}}}
}

func failed(step Step, a Answer) Report {
	r := Report{Failed: true, Step: step, replace: mustReplace(step, a)}
	r.Recovery, r.Code = verdict(step, a)
	return r
}

// harder keeps the report that asks for the harder recovery, the earlier one if they are equal.
func harder(a, b Report) Report {
	if !a.Failed || (b.Failed && b.Recovery > a.Recovery) {
		b.replace = a.replace || b.replace
		return b
	}
	a.replace = a.replace || b.replace
	return a
}
