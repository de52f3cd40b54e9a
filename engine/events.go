package engine

import (
	"time"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// eventKind says what happened.
type eventKind int

const (
	evMoved     eventKind = iota // a task processed something for the first time since its last barrier
	evEarly                      // a task's uncommitted state is above its share of the limit
	evBarrier                    // a task has passed a barrier
	evPersisted                  // all changes of a checkpoint are durable, or failed to be
	evSealed                     // the transaction is flushed, or failed
	evRoot                       // the root metadata is durable, or failed
	evCommitted                  // the transaction is committed, or not
	evMerged                     // a round of housekeeping is over
	evJoined                     // partitions that came later are ready, or are not
	evRevoke                     // the group wants partitions back
	evHalted                     // a task takes no records any more
	evDeclined                   // a task cannot take its part in a checkpoint
	evEnded                      // no record comes to a task any more
	evEmpty                      // nothing is on its way any more
	evAsk                        // somebody outside wants to know, or to have, something
	evFailed                     // a task or the source failed
	evDrained                    // the source has stopped after the wish to stop
)

// event is a message to the coordinator loop, the only place where an attempt's decisions are made.
type event struct {
	kind eventKind
	id   element.CheckpointID
	task element.TaskID
	ack  taskAck
	err  error

	runs       map[element.TaskID]snapshot.Persisted // evPersisted
	persist    checkpoint.PersistStats               // evPersisted
	root       snapshot.RootRef                      // evRoot
	merged     *mergeRound                           // evMerged
	revoke     *revocation                           // evRevoke
	savepoints map[string]savepointResult            // evPersisted
	ask        func() error                          // evAsk
}

// savepointResult is what came of a request for a savepoint.
type savepointResult struct {
	ref snapshot.SavepointRef
	err error
}

// taskAck is what a task says when it has passed a barrier.
type taskAck struct {
	position   element.Position
	frozen     Frozen
	moved      bool
	states     []snapshot.StateInfo
	sync       time.Duration
	stateBytes int64
	at         time.Time

	// Of a subtask of an exchange: how long its inputs took to come together, what was in flight before the barrier, and how much that
	// is together with what waited behind it.
	alignment               time.Duration
	unaligned               bool
	inflight                []topology.Parcel
	buffered, bufferedBytes int64
	around                  around
}
