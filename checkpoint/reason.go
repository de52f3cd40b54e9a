package checkpoint

import "fmt"

// Reason says why a checkpoint is taken. When several wait, they are served by one checkpoint that carries the
// highest of them.
type Reason uint8

// The reasons, from the weakest to the strongest.
const (
	// Periodic: the interval is over. It is never requested from outside.
	Periodic Reason = iota
	// Early: uncommitted state or held-back output reached its limit before the interval was over.
	Early
	// Manual: a person or another program asked.
	Manual
	// Revoke: tasks leave that have uncommitted work. It comes of Leave, is never requested, and does not wait for min-pause.
	Revoke
	// Final: the attempt ends in order. Nothing is triggered after it.
	Final
)

var reasonTexts = [...]string{Periodic: "periodic", Early: "early", Manual: "manual", Revoke: "revoke", Final: "final"}

// String gives the reason as logs and traces print it.
func (r Reason) String() string { return text(reasonTexts[:], int(r), "reason") }

// FailureReason says why a checkpoint failed: it was abandoned, or the attempt ended with it. Counters and messages hang on it.
type FailureReason uint8

// The failure reasons.
const (
	// NoFailure is that of a checkpoint that completed or is still in flight.
	NoFailure FailureReason = iota
	// FailureTimeout: the Permit was not reached within Config.Timeout.
	FailureTimeout
	// FailureDeclined: a task could not take its part.
	FailureDeclined
	// FailureFlush: the sinks could not seal the transaction.
	FailureFlush
	// FailureRoot: the root metadata file could not be written.
	FailureRoot
	// FailureCommit: the commit was refused, or its outcome is unknown.
	FailureCommit
	// FailureProtocol: a report contradicts the order of the protocol, a bug of the driver or of a task.
	FailureProtocol
	// FailureAlong: nothing was wrong with it. It was given up along with an older one, on which it builds, or because
	// another one ended the attempt.
	FailureAlong

	// NumFailureReasons is the length of arrays indexed by a FailureReason.
	NumFailureReasons
)

var failureTexts = [...]string{
	NoFailure:       "none",
	FailureTimeout:  "timeout",
	FailureDeclined: "declined by a task",
	FailureFlush:    "flush failed",
	FailureRoot:     "root file not written",
	FailureCommit:   "commit failed",
	FailureProtocol: "protocol violated",
	FailureAlong:    "given up along with another",
}

var failureLabels = [...]string{
	NoFailure:       "none",
	FailureTimeout:  "timeout",
	FailureDeclined: "declined",
	FailureFlush:    "flush",
	FailureRoot:     "root",
	FailureCommit:   "commit",
	FailureProtocol: "protocol",
	FailureAlong:    "along",
}

// String gives a short text for people.
func (f FailureReason) String() string { return text(failureTexts[:], int(f), "failure") }

// Label gives a stable word for metric labels.
func (f FailureReason) Label() string { return text(failureLabels[:], int(f), "failure") }

// Answer says what became of a report.
type Answer uint8

// The answers.
const (
	// Success: the report counted.
	Success Answer = iota
	// Duplicate: the same had been reported before; nothing changed.
	Duplicate
	// Unknown: the checkpoint was never triggered by this coordinator, or does not cover the task.
	Unknown
	// Discarded: the report came too late to matter: the checkpoint was abandoned or has failed, or it has its Permit or is complete and
	// something is said to have failed.
	Discarded

	// NumAnswers is the length of arrays indexed by an Answer.
	NumAnswers
)

var answerTexts = [...]string{Success: "SUCCESS", Duplicate: "DUPLICATE", Unknown: "UNKNOWN", Discarded: "DISCARDED"}

// String gives the answer in capitals, as traces print it.
func (a Answer) String() string { return text(answerTexts[:], int(a), "answer") }

// text gives the i-th text, and a readable stand-in for a value outside the enum.
func text(texts []string, i int, kind string) string {
	if i < len(texts) {
		return texts[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}
