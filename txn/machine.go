package txn

import (
	"fmt"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// MaxHandle is the most bytes of metadata that a broker takes with an offset (offset.metadata.max.bytes).
const MaxHandle = 4096

// State is the state of one slot.
type State uint8

// The states of a slot; doc.go draws them.
const (
	Closed      State = iota // no client
	Ready                    // initialised, nothing open
	Open                     // takes records
	Flushing                 // sealed; promises outstanding
	Sealed                   // everything in it is acknowledged
	OffsetsSent              // the offsets are sent, their answer is outstanding
	Ending                   // EndTransaction(commit) is called, its answer is outstanding
	Aborting                 // EndTransaction(abort) is called, its answer is outstanding
	Committed                // ended well; the client can begin again
	Aborted                  // ended without effect; the client can begin again
	Unconfirmed              // the outcome is unknown; the client is finished
	Fenced                   // the id has a newer epoch; the client is finished
)

var stateNames = [...]string{"closed", "ready", "open", "flushing", "sealed", "offsets-sent", "ending", "aborting",
	"committed", "aborted", "unconfirmed", "fenced"}

// String names the state as logs and traces print it.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// usable says that a transaction can begin.
func (s State) usable() bool { return s == Ready || s == Committed || s == Aborted }

// EventKind says what happened.
type EventKind uint8

// The events. The first seven are asked for by the caller, the others are what came of an action.
const (
	EvInit    EventKind = iota // make all slots usable: Outdated
	EvProduce                  // there is a record to produce
	EvSeal                     // no more records: Checkpoint, Produced
	EvReopen                   // the checkpoint was declined, the transaction goes on
	EvCommit                   // commit: Checkpoint, Partitions, Pieces, HandleBytes
	EvAbort                    // drop what is open
	EvClose                    // end everything

	EvInitialised // Slot, Answer
	EvBegun       // Answer
	EvFlushed     // Acked, Failed, Answer (of the first failed promise, or of the flush)
	EvNoFence     // member and generation could not be read under the ownership epoch: Answer
	EvOffsets     // Codes, one per partition, or Answer.Lost; Answer.Final
	EvCut         // the piece and those after it are smaller now: Pieces
	EvGaveUp      // the caller's context ended between two sends of the offsets
	EvDropped     // buffered records are dropped: Answer
	EvEnded       // EndTransaction answered: Answer
)

// Answer is what an action was answered with.
type Answer struct {
	// Code is Kafka's error code, 0 for none.
	Code int16
	// Lost says that there was no answer from a broker: the connection broke, time ran out, the client refused.
	Lost bool
	// Fits says of a refusal for the size that each record may be taken on its own: the batches were made for another limit.
	Fits bool
	// Final says of a refusal of the offsets of one partition, whose code may mean anything, that it is for a limit of the
	// brokers.
	Final bool
}

// OK says that the answer was a success.
func (a Answer) OK() bool { return a.Code == 0 && !a.Lost }

// Event is one input of the Machine. Only the fields that its kind names are read.
type Event struct {
	Kind       EventKind
	Slot       int // EvInitialised only; everything else concerns the current slot
	Checkpoint element.CheckpointID
	Produced   int64 // records handed to the client in this transaction
	Acked      int64
	Failed     int64
	Answer     Answer
	Codes      []int16
	Partitions int // number of partitions whose offsets are committed
	Pieces     int // number of requests that they are sent in; 0 is 1
	// Outdated are slots whose clients go by limits that hold no more: EvInit replaces them.
	Outdated []int
	// HandleBytes is the length of the longest metadata string.
	HandleBytes int
}

// ActionKind says what the driver has to do.
type ActionKind uint8

// The actions. ActReport ends what a caller asked for.
const (
	ActInit         ActionKind = iota // new client for Slot, InitProducerID; answered by EvInitialised
	ActClose                          // close Slot's client; no answer
	ActBegin                          // BeginTransaction; EvBegun
	ActMarker                         // produce the marker record; no answer, its promise counts
	ActFlush                          // flush, wait for every promise; EvFlushed
	ActOffsets                        // read the fence, send TxnOffsetCommit for Piece; EvOffsets or EvNoFence
	ActRetryOffsets                   // the same after a pause; EvOffsets, EvNoFence or EvGaveUp
	ActCut                            // cut Piece and those after it smaller, it has more than one partition; EvCut
	ActDrop                           // drop what is buffered; EvDropped
	ActCommit                         // EndTransaction(commit); EvEnded
	ActAbort                          // EndTransaction(abort); EvEnded
	ActReport                         // tell the caller
)

var actionNames = [...]string{"init", "close-client", "begin", "produce-marker", "flush", "send-offsets", "retry-offsets",
	"cut-offsets", "drop-buffered", "end commit", "end abort", "report"}

// String names the action as traces print it.
func (k ActionKind) String() string {
	if int(k) < len(actionNames) {
		return actionNames[k]
	}
	return fmt.Sprintf("action(%d)", uint8(k))
}

// Step says where a transaction failed.
type Step string

// The steps.
const (
	StepInit    Step = "initialise the transactional id"
	StepBegin   Step = "begin"
	StepProduce Step = "produce"
	StepFence   Step = "read the group's generation"
	StepHandle  Step = "check the handle"
	StepOffsets Step = "commit the offsets"
	StepCommit  Step = "end with commit"
	StepAbort   Step = "abort"
	StepOrder   Step = "order of calls"
)

// Report is the answer to a caller: what became of what it asked for.
type Report struct {
	// State is that of the slot the request was about, after it.
	State State
	// Failed says that the request did not succeed; the fields below are set then.
	Failed   bool
	Step     Step
	Recovery fault.Recovery
	Code     fault.Code
	// Reason is a text of the Machine's own, where no broker's answer is the cause.
	Reason string

	ended   bool // the current transaction is over, the rotation has moved on
	replace bool // the client that got this answer is finished, whatever the abort says
}

// Action is one output of the Machine.
type Action struct {
	Kind   ActionKind
	Slot   int
	Piece  int    // ActOffsets, ActRetryOffsets and ActCut only: which part of the offsets, from 0
	Report Report // ActReport only
}

// String gives one line, as the golden scenarios have it.
func (a Action) String() string {
	if a.Kind != ActReport && a.Piece > 0 {
		return fmt.Sprintf("%s slot=%d piece=%d", a.Kind, a.Slot, a.Piece)
	}
	if a.Kind != ActReport {
		return fmt.Sprintf("%s slot=%d", a.Kind, a.Slot)
	}
	r := a.Report
	if !r.Failed {
		return fmt.Sprintf("report slot=%d %s", a.Slot, r.State)
	}
	s := fmt.Sprintf("report slot=%d %s FAILED at %q recovery=%s", a.Slot, r.State, r.Step, r.Recovery)
	if r.Code != fault.OK && r.Code != fault.Failed {
		s += fmt.Sprintf(" exit=%d", r.Code)
	}
	if r.Reason != "" {
		s += ": " + r.Reason
	}
	return s
}

// Machine is the pure core: the states of all slots and the rotation. It is not safe for concurrent use.
type Machine struct {
	slots  []State
	cur    int  // the slot whose transaction is open, or the one that begins next
	closed bool // after EvClose nothing is accepted

	// Of the transaction of slot cur:
	checkpoint element.CheckpointID // that it was sealed for
	marked     bool                 // a marker record is in it
	pieces     int                  // requests that its offsets are sent in, at least 1
	piece      int                  // the one that is sent, from 0; those before are accepted
	stale      int                  // how often this piece was refused for its generation
	want       intent               // the request that is being worked on
	failure    Report               // why it is being aborted; Failed is false for an abort the caller asked for

	// Of an EvInit that is being worked on:
	initLeft int
	initBad  Report
}

// intent is the request whose ActReport is still owed.
type intent uint8

const (
	wantNothing intent = iota
	wantInit
	wantProduce
	wantSeal
	wantCommit
	wantAbort
)

// NewMachine makes a Machine with all slots closed. slots is at least 1.
func NewMachine(slots int) *Machine { return &Machine{slots: make([]State, max(1, slots))} }

// Current gives the slot whose transaction is open, or that begins next.
func (m *Machine) Current() int { return m.cur }

// State gives the state of a slot.
func (m *Machine) State(slot int) State { return m.slots[slot] }

// String gives the states of all slots, the current one in brackets.
func (m *Machine) String() string {
	var b strings.Builder
	for i, s := range m.slots {
		if i > 0 {
			b.WriteByte(' ')
		}
		if i == m.cur {
			fmt.Fprintf(&b, "[%d:%s]", i, s)
		} else {
			fmt.Fprintf(&b, "%d:%s", i, s)
		}
	}
	return b.String()
}
