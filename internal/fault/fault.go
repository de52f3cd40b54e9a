package fault

import (
	"errors"
	"fmt"
)

// Recovery says what the engine does when it meets an error.
type Recovery int

// The recovery classes, from the mildest to the hardest.
const (
	// Restart aborts the open transaction, drops what is not committed and starts a new attempt from the last
	// committed checkpoint. It is what an unclassed error gets.
	Restart Recovery = iota
	// Rejoin is Restart after a loss of ownership, or of an id that the broker forgot: nothing has failed, the restart strategy
	// does not count it. An attempt that ended with ErrAsked counts as one, too. The assignment is awaited anew, without back-off the first time.
	Rejoin
	// Unconfirmed is Restart after a commit whose outcome is unknown: only a stable read of the offsets can say it.
	Unconfirmed
	// Stop ends the process: no new attempt could do better.
	Stop
)

// String names the class as logs print it.
func (r Recovery) String() string {
	switch r {
	case Restart:
		return "restart"
	case Rejoin:
		return "rejoin"
	case Unconfirmed:
		return "unconfirmed"
	case Stop:
		return "stop"
	}
	return fmt.Sprintf("recovery(%d)", int(r))
}

// ErrAsked is in the chain of an error by which the broker asked for an abort and another try. Nothing has failed then, unless
// it goes on asking.
var ErrAsked = errors.New("the broker asks for an abort and another try")

// Code is a documented exit code of the process.
type Code int

// The exit codes. docs/exit-codes.md explains each.
const (
	OK                 Code = 0
	Failed             Code = 1  // a check found a violation, or an error without a code of its own
	Usage              Code = 2  // wrong flags or arguments
	BadFile            Code = 3  // the topology or service file has mistakes
	Unreachable        Code = 10 // no broker answers
	BrokerTooOld       Code = 11 // the cluster lacks transaction.version 2
	TransactionTimeout Code = 12 // transaction timeout above the broker's maximum
	UnknownTopic       Code = 13 // a topic does not exist or has no partitions
	Denied             Code = 14 // the cluster refuses access
	OffsetGone         Code = 15 // a committed position is no longer in the topic
	CheckpointDir      Code = 20 // the checkpoint directory cannot be read or written
	HandleMismatch     Code = 21 // the committed offsets do not match the checkpoints
	Corrupt            Code = 22 // a checkpoint file is damaged or missing
	StateMismatch      Code = 23 // the state in the checkpoint does not fit the topology
	BadRecord          Code = 30 // a record could not be processed and the policy is fail
	Fenced             Code = 40 // another process uses the same instance id
	Unfinished         Code = 42 // told to stop, and a last checkpoint was not possible
	NotRunning         Code = 43 // a command reached no instance, not all of them, or one that cannot do it at the moment
	AdminListen        Code = 44 // the address of the admin listener cannot be had
	GroupActive        Code = 45 // the group has members, and what was asked for needs one without
)

// Error carries a class and a code beside the message.
type Error struct {
	Recovery Recovery
	Code     Code
	Err      error
}

// Error gives the message of the cause; the class is not part of the text.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an error of a class and code. The format is fmt.Errorf's, %w included.
func New(r Recovery, c Code, format string, args ...any) *Error {
	return &Error{Recovery: r, Code: c, Err: fmt.Errorf(format, args...)}
}

// Stopf makes an error that ends the process with a code.
func Stopf(c Code, format string, args ...any) *Error { return New(Stop, c, format, args...) }

// Restartf makes an error that a new attempt may cure; c is the exit code should the process give up.
func Restartf(c Code, format string, args ...any) *Error { return New(Restart, c, format, args...) }

// RecoveryOf gives the class of the outermost classed error in the chain, Restart when there is none.
func RecoveryOf(err error) Recovery {
	var e *Error
	if errors.As(err, &e) {
		return e.Recovery
	}
	return Restart
}

// CodeOf gives the exit code: OK for nil, that of the outermost classed error, Failed when there is none.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Failed
}
