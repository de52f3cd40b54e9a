package txn

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// ledger is an independent account of what a broker would see; it checks the invariants of doc.go at every action.
type ledger struct {
	t         *rapid.T
	client    [3]bool // there is a client
	begun     [3]bool // a transaction is open, as far as is known
	dead      [3]bool // the client must not be used again
	marker    bool
	produced  int64
	flushed   bool // and every promise was nil
	pieces    int  // that the offsets go in
	accepted  int  // pieces of which every code was 0
	commits   []element.CheckpointID
	sealedFor element.CheckpointID
}

// check verifies that an action is allowed now and notes it.
func (l *ledger) check(a Action) {
	live := func() {
		require.True(l.t, l.client[a.Slot] && !l.dead[a.Slot], "%s on a client that is gone", a)
	}
	open := func() { live(); require.True(l.t, l.begun[a.Slot], "%s without a transaction", a) }
	switch a.Kind {
	case ActInit:
		require.False(l.t, l.client[a.Slot], "the old client is still there")
	case ActClose:
		require.True(l.t, l.client[a.Slot], "closing no client")
		l.client[a.Slot] = false
	case ActBegin:
		live()
		for s, b := range l.begun {
			require.False(l.t, b, "I4: slot %d may have a transaction open", s)
		}
		l.marker, l.flushed, l.accepted, l.produced = false, false, 0, 0
	case ActMarker:
		open()
		l.marker = true
	case ActFlush:
		open()
		require.True(l.t, l.marker || l.produced > 0, "I1: neither record nor marker")
	case ActOffsets, ActRetryOffsets:
		open()
		require.True(l.t, l.flushed, "I2: offsets before a clean flush")
		require.Equal(l.t, l.accepted, a.Piece, "one piece after the other")
	case ActCut:
		open()
		require.Equal(l.t, l.accepted, a.Piece, "what is accepted stays as it is")
	case ActCommit:
		open()
		require.True(l.t, l.flushed && l.accepted == l.pieces, "I2: commit of something that was refused")
	case ActAbort:
		open()
	}
}

// answer draws what could come of an action and notes it.
func (l *ledger) answer(a Action) (Event, bool) {
	t := l.t
	good := rapid.Bool().Draw(t, "good")
	switch a.Kind {
	case ActInit:
		l.client[a.Slot] = true
		if good {
			l.begun[a.Slot], l.dead[a.Slot] = false, false // InitProducerID aborts what is open
		}
		return Event{Kind: EvInitialised, Slot: a.Slot, Answer: l.draw(good)}, true
	case ActBegin:
		l.begun[a.Slot] = good
		return Event{Kind: EvBegun, Answer: l.draw(good)}, true
	case ActFlush:
		l.flushed = good
		if good {
			return Event{Kind: EvFlushed, Acked: max(1, l.produced)}, true
		}
		return Event{Kind: EvFlushed, Acked: rapid.Int64Range(0, 3).Draw(t, "acked"), Failed: 1, Answer: l.draw(false)}, true
	case ActOffsets, ActRetryOffsets:
		ev := l.offsets(a.Kind)
		return ev, true
	case ActCut:
		l.pieces = l.accepted + rapid.IntRange(1, 4).Draw(t, "pieces left")
		return Event{Kind: EvCut, Pieces: l.pieces}, true
	case ActDrop:
		return Event{Kind: EvDropped, Answer: Answer{Lost: !good}}, true
	case ActCommit:
		l.begun[a.Slot] = !good
		if good {
			l.commits = append(l.commits, l.sealedFor)
		} else {
			l.dead[a.Slot] = true // I3, I7
		}
		return Event{Kind: EvEnded, Answer: l.draw(good)}, true
	case ActAbort:
		l.begun[a.Slot] = !good
		l.dead[a.Slot] = !good
		return Event{Kind: EvEnded, Answer: l.draw(good)}, true
	}
	return Event{}, false
}

func (l *ledger) offsets(k ActionKind) Event {
	switch n := rapid.IntRange(0, 9).Draw(l.t, "offsets"); {
	case n == 0:
		return Event{Kind: EvNoFence, Answer: Answer{Lost: true}}
	case n == 1:
		return Event{Kind: EvOffsets, Answer: Answer{Lost: true}}
	case n == 2 && k == ActRetryOffsets:
		return Event{Kind: EvGaveUp}
	}
	codes := rapid.SliceOfN(rapid.SampledFrom([]int16{0, 0, 0, kerr.ConcurrentTransactions.Code, kerr.IllegalGeneration.Code, kerr.UnknownServerError.Code}), 1, 4).Draw(l.t, "codes")
	if !slices.ContainsFunc(codes, func(c int16) bool { return c != 0 }) {
		l.accepted++
	}
	return Event{Kind: EvOffsets, Codes: codes}
}

func (l *ledger) draw(good bool) Answer {
	if good {
		return Answer{}
	}
	return rapid.SampledFrom([]Answer{{Lost: true}, {Code: kerr.ProducerFenced.Code}, {Code: kerr.InvalidProducerEpoch.Code},
		{Code: kerr.InvalidTxnState.Code}, {Code: kerr.MessageTooLarge.Code}, {Code: kerr.TransactionAbortable.Code}}).Draw(l.t, "answer")
}

// TestInvariantsUnderRandomAnswers drives the Machine with random requests and answers and checks I1–I4 and I7 at every
// action, and that each request is answered by exactly one report.
func TestInvariantsUnderRandomAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, l := NewMachine(3), &ledger{t: t}
		next := element.CheckpointID(1)
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			ev := Event{Kind: rapid.SampledFrom([]EventKind{EvInit, EvInit, EvProduce, EvProduce, EvSeal, EvSeal, EvCommit, EvCommit, EvCommit, EvAbort, EvReopen}).Draw(t, "request")}
			if ev.Kind == EvProduce && m.State(m.Current()) == Open {
				l.produced++
			}
			ev.Checkpoint, ev.Produced, ev.Partitions, ev.HandleBytes = next, l.produced, 2, rapid.SampledFrom([]int{100, 4096, 4097}).Draw(t, "handle")
			if ev.Kind == EvCommit && m.State(m.Current()) == Sealed {
				ev.Pieces = rapid.IntRange(0, 3).Draw(t, "pieces")
				l.pieces, l.accepted = max(1, ev.Pieces), 0
			}
			if ev.Kind == EvSeal {
				l.sealedFor = next
			}
			before := len(l.commits)
			rep := l.request(m, ev)
			require.Equal(t, len(l.commits) > before, ev.Kind == EvCommit && !rep.Failed, "a report of success is a commit")
			if ev.Kind == EvCommit {
				next++
			}
			for _, s := range []int{0, 1, 2} {
				require.Contains(t, []State{Closed, Ready, Open, Sealed, Committed, Aborted, Unconfirmed, Fenced}, m.State(s), "a request ended half way")
			}
		}
	})
}

// request runs one request to its end and gives its report.
func (l *ledger) request(m *Machine, ev Event) Report {
	var reports []Report
	acts := m.Step(ev)
	for steps := 0; len(acts) > 0 && steps < 1000; steps++ {
		a := acts[0]
		acts = acts[1:]
		if a.Kind == ActReport {
			reports = append(reports, a.Report)
			continue
		}
		l.check(a)
		if e, ok := l.answer(a); ok {
			acts = append(acts, m.Step(e)...)
		}
	}
	require.Len(l.t, reports, 1, "one request, one report")
	return reports[0]
}

func TestNothingAfterAnErrorOfCommit(t *testing.T) {
	for _, a := range []Answer{{Lost: true}, {Code: kerr.InvalidTxnState.Code}, {Code: kerr.OperationNotAttempted.Code},
		{Code: kerr.ConcurrentTransactions.Code}, {Code: kerr.TransactionAbortable.Code}, {Code: kerr.TransactionalIDAuthorizationFailed.Code}} {
		m := &Machine{slots: []State{Ending, Ready, Ready}, want: wantCommit}
		acts := m.Step(Event{Kind: EvEnded, Answer: a})
		require.Len(t, acts, 2)
		require.Equal(t, ActClose, acts[0].Kind)
		require.Equal(t, Unconfirmed, acts[1].Report.State)
		require.Equal(t, fault.Unconfirmed, acts[1].Report.Recovery)
		require.Equal(t, Unconfirmed, m.State(0))
	}
}

// An id that is forgotten at the end of its transaction says nothing of the outcome: the slot is as after any unknown one,
// and only the class tells that nothing has failed.
func TestACommitWhoseIDIsForgottenIsUnconfirmed(t *testing.T) {
	m := &Machine{slots: []State{Ending, Ready, Ready}, want: wantCommit}
	acts := m.Step(Event{Kind: EvEnded, Answer: Answer{Code: kerr.InvalidProducerIDMapping.Code}})
	require.Len(t, acts, 2)
	require.Equal(t, ActClose, acts[0].Kind)
	require.Equal(t, Unconfirmed, acts[1].Report.State)
	require.Equal(t, fault.Rejoin, acts[1].Report.Recovery)
	require.Equal(t, Unconfirmed, m.State(0))
}
