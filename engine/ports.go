package engine

import (
	"context"
	"iter"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// Assignment is what the consumer group gives this instance at one moment.
type Assignment struct {
	// Epoch is the ownership epoch: it grows at every change, also when the same partitions come back.
	// 0 means that there was no assignment yet.
	Epoch      uint64
	Partitions []element.TopicPartition
	// Since is the epoch at which each of them was gained, this time.
	Since map[element.TopicPartition]uint64
	// Member: the group knows this instance and has given it Partitions, which may be none.
	Member bool
}

// Group is the instance's membership in the consumer group.
type Group interface {
	// Changes has a value whenever Current or Err may have changed; several changes may show as one.
	Changes() <-chan struct{}
	Current() Assignment
	// Err is the error that ended the membership for good, nil while it lives.
	Err() error
}

// Committed is what the group has stored for one partition.
type Committed struct {
	Found       bool
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// Offsets reads positions from the cluster.
type Offsets interface {
	// Stable reads the group's committed offsets, waiting for transactions that are still open on them.
	Stable(ctx context.Context, tps []element.TopicPartition) (map[element.TopicPartition]Committed, error)
	// Start resolves the start position of partitions that have no committed offset.
	Start(ctx context.Context, start topology.Start, tps []element.TopicPartition) (map[element.TopicPartition]int64, error)
	// Ends gives the offsets before which partitions of a source end; it is empty for a source without an end. It is asked
	// before the first position of a partition is committed, and answers the same for as long as the run lasts.
	Ends(ctx context.Context, end topology.End, tps []element.TopicPartition) (map[element.TopicPartition]int64, error)
	// RunOver is asked when all inputs of this instance have ended and that is committed. over says that this holds for the
	// whole application. Only a process that starts later begins a new run.
	RunOver(ctx context.Context, sources []topology.SourcePlan) (over bool, err error)
	// Outlived is asked when the instance has become a member of the group, or is one again, and has no work: who slept may have
	// missed the end of the application. An error of class Stop says that nothing is to be done any more.
	Outlived(ctx context.Context) error
	// Topics gives what the cluster knows of topics now.
	Topics(ctx context.Context, names []string) (map[string]Topic, error)
}

// Topic is what the cluster knows of a topic.
type Topic struct {
	ID         element.TopicID
	Partitions int32
}

// Source delivers the records of an attempt's partitions, from explicit positions on. All but Run may be called from any
// goroutine and do not wait for deliveries.
type Source interface {
	// Run delivers until ctx ends or an error that the client cannot cure. deliver may block.
	Run(ctx context.Context, deliver func(context.Context, element.Delivery) error) error
	// SetEnds says before which offsets partitions end; it comes before their Add.
	SetEnds(ends map[element.TopicPartition]int64)
	// Add begins to deliver further partitions, each from its position on. A delivery of the same partition from before
	// an earlier Remove never comes after it.
	Add(positions ...element.Position) error
	// Remove ends the delivery of partitions, soon.
	Remove(tps ...element.TopicPartition)
	// Pause and Resume stop and restart the fetching of partitions.
	Pause(tps ...element.TopicPartition)
	Resume(tps ...element.TopicPartition)
	// Close ends the client and waits for what it started.
	Close()
}

// Sink is the output side of one attempt.
type Sink interface {
	// Writer gives the writer of one task; only that task's goroutine uses it. The writer has passed the barriers behind
	// from the beginning: those checkpoints are in flight, may be sealed at this moment, and do not cover the task.
	Writer(task element.TaskID, behind ...element.CheckpointID) SinkWriter
	// Seal ends the transaction's content once every writer has passed barrier id: it is flushed and every promise
	// has been answered without an error.
	Seal(ctx context.Context, id element.CheckpointID) error
	// Release ends the hold-back of barrier id after its commit: what was held goes first into the next transaction.
	Release(id element.CheckpointID) error
	// Resume takes back the barriers first to last, the newest ones, whose checkpoints were given up, also where a task is
	// about to pass them: what is held behind them goes behind the barrier before them, or into the transaction that is still
	// open, also when it was sealed already.
	Resume(ctx context.Context, first, last element.CheckpointID) error
	// Drop forgets the writer of a task that has left: what it holds back is dropped, later writes return an error.
	Drop(task element.TaskID)
	// Discard ends the attempt: held-back records are dropped, blocked writers return an error.
	Discard()
}

// SinkWriter takes the output of one task.
type SinkWriter interface {
	// Write takes records for a sink of the plan. The slice is the caller's again afterwards; key and value bytes must
	// never change. It blocks while the hold-back limit is reached.
	Write(ctx context.Context, sink int, recs []element.Record) error
	// Barrier says that what follows belongs to the checkpoint after id.
	Barrier(id element.CheckpointID)
}

// Committer ends transactions.
type Committer interface {
	// Init makes the transactional ids this instance's own: transactions that a predecessor of the same name left
	// open are aborted. It must come before the first stable read.
	Init(ctx context.Context) error
	// CommitInitial commits start positions in a transaction of its own.
	CommitInitial(ctx context.Context, c checkpoint.Commit) error
	// Commit commits the sealed transaction together with the positions. An error's class says what is known.
	Commit(ctx context.Context, c checkpoint.Commit) error
	// FenceGone ends the transactions of instances that have left the group without a word, so that a stable read does
	// not wait for their timeout. It leaves this instance's own ids alone. Nothing but time depends on it.
	FenceGone(ctx context.Context)
	// Abort drops the open transaction, if any.
	Abort(ctx context.Context) error
}

// Checkpoints keeps snapshots. *snapshot.Repository is one.
type Checkpoints interface {
	Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error)
	WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error)
	LoadRoots(ctx context.Context, refs []snapshot.RootRef) (map[snapshot.RootRef]snapshot.LoadedRoot, error)
	// CommittedAfter gives the roots newer than a checkpoint that are known to be committed.
	CommittedAfter(ctx context.Context, after element.CheckpointID) ([]snapshot.RootInfo, error)
	// UnmarkedAfter gives those of which only the group's offsets tell.
	UnmarkedAfter(ctx context.Context, after element.CheckpointID) ([]snapshot.RootInfo, error)
	// List, LoadVerified and Survey are for a recovery from the store: all roots, and the last two read runs too.
	List(ctx context.Context) ([]snapshot.RootInfo, error)
	LoadVerified(ctx context.Context, refs []snapshot.RootRef) (map[snapshot.RootRef]snapshot.LoadedRoot, error)
	Survey(ctx context.Context) ([]snapshot.RootInfo, error)
	MarkCommitted(ctx context.Context, ref snapshot.RootRef) error
	Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error)
	// RestoreInFlight gives the records that were on the way to a task.
	RestoreInFlight(ctx context.Context, entry snapshot.TaskEntry, keep func(group int) bool, apply func(group int, data []byte) error) (int64, error)
	Merge(ctx context.Context, name element.CheckpointName, entry snapshot.TaskEntry) (snapshot.RunRef, error)
	// Forget says that a merged run will not be used: Clean may remove it.
	Forget(ref snapshot.RunRef)
	Clean(ctx context.Context, committed []snapshot.RootRef, group snapshot.GroupRoots) (snapshot.CleanReport, error)
	// CleanFailed removes what failed checkpoints have left, at the start of an attempt; facts are of all its tasks,
	// those without a committed offset start from origin.
	CleanFailed(ctx context.Context, facts []snapshot.TaskFacts, group snapshot.GroupRoots, origin ...snapshot.SavepointRef) (snapshot.CleanReport, error)
	// CleanUnrooted does so without transactions, where a commit of what failed may still arrive.
	CleanUnrooted(ctx context.Context, facts []snapshot.TaskFacts, group snapshot.GroupRoots) (snapshot.CleanReport, error)
	// Discard removes what was written for a checkpoint whose commit was never begun.
	Discard(ctx context.Context, name element.CheckpointName) (snapshot.CleanReport, error)
	StoreID() string
	// Location is where that is, for messages.
	Location() string
}

// Frozen is the state change set of one task at one barrier. It may be read while the task goes on.
type Frozen interface {
	Len() int
	// Sorted gives the changes in the order of a run: by state, then by key.
	Sorted() iter.Seq[snapshot.Entry]
	// Full gives the whole state at the barrier, in that order, and FullLen the number of its entries. Only what FreezeFull
	// gave has it.
	Full() iter.Seq[snapshot.Entry]
	FullLen() int
	// Err reports, after reading, that what was read is not complete.
	Err() error
}

// State is the keyed state of one task. Only the task's goroutine calls it.
type State interface {
	Table(name, codec string) (topology.StateTable, error)
	Freeze(id element.CheckpointID) Frozen
	// FreezeFull is Freeze for a checkpoint of which the whole state is read.
	FreezeFull(id element.CheckpointID) Frozen
	Commit(id element.CheckpointID)
	// Abandon gives up what is frozen for checkpoint id and later ones: the next Freeze has it, too.
	Abandon(id element.CheckpointID)
	Rollback()
	// Load sets or deletes a committed value during a restore. Entry.State is the place of the table in the order of
	// registration.
	Load(e snapshot.Entry) error
	// Err reports a write that could not be kept since the last Rollback, or that the state cannot be read any more, which
	// stays.
	Err() error
	// EndBatch says that no bytes which the tables gave out are in use any more: the state may put some of itself elsewhere.
	// It gives Err.
	EndBatch() error
	// Close gives the state up. What it holds outside of memory goes.
	Close()
	UncommittedBytes() int64
	// Bytes is the memory that the state takes.
	Bytes() int64
	Len() int
}

// LocalCopy keeps a copy of the committed state on local disk, behind the commits and from the snapshot's own files. It
// never decides what is restored and never fails a checkpoint.
type LocalCopy interface {
	// Restore loads what a task has in a root from the copy and, behind it, from the newer runs. false means that the
	// copy is of no use and that whatever was loaded must be thrown away.
	Restore(ctx context.Context, root snapshot.RootRef, entry snapshot.TaskEntry, load func(snapshot.Entry) error) (snapshot.Stats, bool)
	// Left says that a task has gone to another instance. It must not block.
	Left(task element.TaskID)
	// Committed says what is committed now: after a restore and after every checkpoint. It must not block.
	Committed(root snapshot.RootRef, tasks []snapshot.TaskEntry)
}

// Savepoint is a savepoint to read from. *snapshot.Savepoint is one.
type Savepoint interface {
	Contents() *snapshot.Root
	RequestIDs() []string // that it serves; see snapshot.SavepointHead
	Restore(ctx context.Context, entry snapshot.TaskEntry, keep func(state int, key []byte) bool, apply func(snapshot.Entry) error) (snapshot.Stats, error)
	RestoreInFlight(ctx context.Context, entry snapshot.TaskEntry, keep func(group int) bool, apply func(group int, data []byte) error) (int64, error)
	Verify(ctx context.Context) (snapshot.Stats, error)
	Close() error
}

// Ports is everything the engine needs from outside. Tests and fault injection decorate its members.
type Ports struct {
	Group       Group
	Offsets     Offsets
	Committer   Committer
	Checkpoints Checkpoints
	Local       LocalCopy // may be nil
	// GroupRoots gives the roots that the group's committed handles name. Checkpoints asks it before it deletes.
	GroupRoots snapshot.GroupRoots
	// CleanGroup removes what instances that are gone have left and nothing needs. The engine calls it now and then
	// where the first partition of the first source is owned, so in one instance of the group. It may be nil.
	CleanGroup func(ctx context.Context) (snapshot.CleanReport, error)
	// CleanIdle removes what this instance has left and nothing needs. The engine calls it now and then while the instance
	// stands by, or has tasks, which is busy, and commits nothing. It may be nil.
	CleanIdle func(ctx context.Context, busy bool) (snapshot.CleanReport, error)
	// Others gives the other members of the group. It may be nil; it is asked where all partitions are needed.
	Others func(ctx context.Context) ([]Member, error)
	// OthersHave gives the partitions that the group has given to its other members, none while it is being shared out. It may
	// be nil, for a bounded run that ends whatever others have; it is asked when all inputs of this instance have ended.
	OthersHave func(ctx context.Context) ([]element.TopicPartition, error)
	// WriteSavepoint writes a savepoint into a directory; OpenSavepoint opens one that was written; DisposeSavepoint deletes
	// one, which fs.ErrNotExist says is not there.
	WriteSavepoint   func(ctx context.Context, dir string, head snapshot.SavepointHead, tasks []snapshot.SavepointTask) (snapshot.SavepointRef, error)
	OpenSavepoint    func(ctx context.Context, ref snapshot.SavepointRef) (Savepoint, error) // refuses one with another digest
	DisposeSavepoint func(ctx context.Context, path string) error
	// OpenFrom opens the directory of a savepoint to start from, which fs.ErrNotExist says is not there. It is not needed
	// without Config.From.
	OpenFrom  func(ctx context.Context, path string) (Savepoint, snapshot.SavepointRef, error)
	NewSource func(positions []element.Position) (Source, error)
	NewSink   func() (Sink, error)
	NewState  func(task element.TaskID) State
}
