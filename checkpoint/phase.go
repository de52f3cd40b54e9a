package checkpoint

import (
	"fmt"

	"github.com/millweir/millweir/element"
)

// phase is where a checkpoint stands. The diagram is in doc.go.
type phase uint8

const (
	collecting phase = iota // barriers are under way
	storing                 // all barriers passed: the flush and the persisting run
	rooting                 // outputs flushed, state durable: the root file is written
	committing              // the Permit is out
	completed
	failed
	numPhases
)

var phaseTexts = [...]string{
	collecting: "collecting barriers", storing: "storing", rooting: "writing root",
	committing: "committing", completed: "completed", failed: "failed",
}

// String gives the phase as messages print it.
func (p phase) String() string { return text(phaseTexts[:], int(p), "phase") }

// permitted reports that the Permit was handed out.
func (p phase) permitted() bool { return p == committing || p == completed }

// successors is the transition table: every step that a checkpoint may take.
var successors = [numPhases][]phase{
	collecting: {storing, failed},
	storing:    {rooting, failed},
	rooting:    {committing, failed},
	committing: {completed, failed}, // failed: by the outcome of the commit alone
	completed:  {},
	failed:     {},
}

// IllegalTransition is what the coordinator panics with when it is about to take a step that is not in its own
// transition table. No input leads there; it guards against a mistake in this package, and it must never be
// recovered from, since a checkpoint that skips a step may commit what is not durable.
type IllegalTransition struct {
	ID       element.CheckpointID
	From, To string
}

// Error names the step.
func (e *IllegalTransition) Error() string {
	return fmt.Sprintf("checkpoint %d: illegal transition from %q to %q", e.ID, e.From, e.To)
}

// assertTransition checks a step against the table.
func assertTransition(id element.CheckpointID, from, to phase) {
	for _, next := range successors[from] {
		if next == to {
			return
		}
	}
	panic(&IllegalTransition{ID: id, From: from.String(), To: to.String()})
}

// event is a report about a checkpoint that was triggered.
type event uint8

const (
	evBarrier event = iota
	evAcked
	evDeclined
	evFlushed
	evFlushFailed
	evRootWritten
	evRootFailed
	evCommitted
	evCommitFailed
	numEvents
)

var eventTexts = [...]string{
	evBarrier: "barrier", evAcked: "ack", evDeclined: "decline", evFlushed: "flushed", evFlushFailed: "flush failure",
	evRootWritten: "root written", evRootFailed: "root failure", evCommitted: "committed", evCommitFailed: "commit failure",
}

// String gives the event as traces print it.
func (e event) String() string { return text(eventTexts[:], int(e), "report") }

// verdict says what a report means in a phase.
type verdict uint8

const (
	unset  verdict = iota // no cell of the table has it
	accept                // it counts (reports per task are then looked at per task)
	again                 // it was counted before
	late                  // it came too late to matter
	breach                // it cannot have happened yet: whoever reports it does not follow the protocol
)

// verdicts tells for every phase what each report means there.
//
// A failure is accepted up to the Permit even from somebody who reported success before: to abort is always safe
// there. After the Permit it is late, because the transaction may be committed already, and only the broker knows.
var verdicts = [numPhases][numEvents]verdict{
	collecting: {
		evBarrier: accept, evAcked: accept, evDeclined: accept, evFlushed: breach, evFlushFailed: accept,
		evRootWritten: breach, evRootFailed: accept, evCommitted: breach, evCommitFailed: breach,
	},
	storing: {
		evBarrier: again, evAcked: accept, evDeclined: accept, evFlushed: accept, evFlushFailed: accept,
		evRootWritten: breach, evRootFailed: accept, evCommitted: breach, evCommitFailed: breach,
	},
	rooting: {
		evBarrier: again, evAcked: again, evDeclined: accept, evFlushed: again, evFlushFailed: accept,
		evRootWritten: accept, evRootFailed: accept, evCommitted: breach, evCommitFailed: breach,
	},
	committing: {
		evBarrier: again, evAcked: again, evDeclined: late, evFlushed: again, evFlushFailed: late,
		evRootWritten: again, evRootFailed: late, evCommitted: accept, evCommitFailed: accept,
	},
	completed: {
		evBarrier: again, evAcked: again, evDeclined: late, evFlushed: again, evFlushFailed: late,
		evRootWritten: again, evRootFailed: late, evCommitted: again, evCommitFailed: late,
	},
	failed: {
		evBarrier: late, evAcked: late, evDeclined: late, evFlushed: late, evFlushFailed: late,
		evRootWritten: late, evRootFailed: late, evCommitted: late, evCommitFailed: late,
	},
}
