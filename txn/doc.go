// Package txn is the commit point: one Kafka transaction holds a checkpoint's output, the source offsets it covers and,
// in the metadata of those offsets, the handle of its snapshot. The broker's answer to EndTxn is the completion of the
// checkpoint.
//
// The package has a pure core and a driver. Machine decides: it holds the state of the slots and answers events with
// actions, without I/O, clock or goroutine. Manager does: it owns the clients, runs the actions and feeds back what
// came of them. A slot is one transactional id with one client; the slots are used strictly in order, because the
// broker lets the next transaction of an id wait until the markers of its last one are written.
//
//	               init                begin (first record, or seal of nothing)
//	+--> closed ----------> ready ---------------------------------------------+
//	|      ^                                                                   v
//	|      |                                                   +----------->  open  <-----------+
//	|      | replace                                           | begin         | seal:          | reopen: the
//	|      | (client                                           |               | marker if      | checkpoint was
//	|      |  closed)                                          |               | nothing        | declined
//	|      |                                                   |               v produced       |
//	|      |                                                   |            flushing            |
//	|      |                                                   |    all acked  |                |
//	|      |                                                   |               v                |
//	|      |      abort, a failed promise, a refused           |             sealed ------------+
//	|      |      offset, no fence, a handle too long          |               | commit, fence read
//	|      |      (from open … offsets-sent)                   |               v
//	|      |              |                                    |          offsets-sent <--+ CONCURRENT_TRANSACTIONS,
//	|      |              v                                    |               |     |    | coordinator moves:
//	|      +-- lost -- aborting -- nil --> aborted ------------+               |     +----+ again after a pause;
//	|      |                                                   |               |            too much at once: cut
//	|      |                                                   |               v every code 0
//	|      |                                                   |             ending
//	|      |                                   committed <-----+--- nil -------+
//	|      |                                                                   |
//	|      +------ unconfirmed <-------------------------- any other error ----+
//	+------------- fenced      <---------------------------- a fencing code ---+
//
// Invariants:
//
//	I1  Every commit is a transaction: one that produced nothing gets a marker record first. A kgo client that
//	    produced nothing sends no EndTxn, and its next transaction would take over the offsets of this one.
//	I2  Nothing that failed is committed: offsets are sent only after a flush in which every promise was nil. kgo
//	    itself would commit the rest.
//	I3  After EndTransaction(commit) was called and gave an error, nothing is sent for that transaction again, neither
//	    abort nor commit. The outcome is unknown; the client is closed, and a stable read of the offsets, after a new
//	    client has initialised the id, says what happened.
//	I4  Checkpoints commit strictly one after the other: no transaction begins before the one before it has ended.
//	    Kafka keeps the offset that was written later, so an overlap could leave the older position standing.
//	I5  An empty member id and a negative generation are never sent: the broker would accept them from anybody. The
//	    fence is read anew for every request.
//	I6  A partition's handle is at most 4096 bytes; a longer one is refused before anything is sent.
//	I7  A client that was fenced, or whose commit or abort failed, is closed and never used again. Init makes a new one
//	    with the same id, which aborts what was left open.
//	I8  A record is produced only into the transaction that is open: between Seal and the end of the commit Produce
//	    gives ErrSealed and buffers nothing.
//	I9  EndTransaction is called only after the client has noted the partitions it produced to (client.settle): kgo
//	    would else turn the first commit on a new topic into an abort and report success.
//	I10 The offsets of a checkpoint are in one transaction, in as many requests as the group's coordinator needs them cut
//	    into (pieces), one after the other. The fence vouches for all partitions of the checkpoint before each. EndTransaction
//	    is called when all pieces are accepted; one that fails has failed the commit, whatever was accepted before it. One that may
//	    be too much at once is cut and sent again: what was accepted of it is accepted again, for it is the same offsets in the
//	    same transaction.
//
// Plain is the same without transactions, for at-least-once: an idempotent producer and OffsetCommit, behind the methods
// of Manager. Its own invariants:
//
//	P1  Offsets are committed only after every record that was produced before the Seal is acknowledged. One that failed
//	    makes every Seal fail until Init, so nothing is ever left out.
//	P2  The fence is read before every send of offsets; an empty member id and a negative generation are never sent.
//	P3  A commit whose answer is lost is sent again: it says where the group stands, so twice is as good as once. If
//	    time runs out the class is Unconfirmed, and either outcome is right.
//	P4  A delayed copy of a commit can set the group back to a complete checkpoint of the same generation, until the next
//	    commit; so the checkpoint that the last one follows has to be kept, and a start goes on from it.
//	P5  Nothing is held up: Produce works between Seal and Commit, and no lock is held while records are handed over.
//	P6  What the instance left open when it made transactions before is ended by the first Init, what instances that are gone
//	    left, by FenceGone.
//	P7  The offsets of very many partitions go in several requests, which nothing ties together: after one that fails some
//	    partitions stand at the checkpoint and the others at the one before, both of them complete. The class is Unconfirmed
//	    then, or harder, so that nobody takes either for certain.
//
// Goroutines: Init runs one goroutine per slot and waits for all; Seal runs one that tells of a stall and waits for it. The clients own theirs; Close ends them. Produce may
// be called from many goroutines. Init, Seal, Commit, CommitInitial, Reopen, Abort and Close exclude each other; a
// caller waits for its turn as long as its context lives.
//
// Files: machine.go (states, events, actions), steps.go (the transitions), verdict.go (which code means what);
// config.go, manager.go (the driver: life of the clients), produce.go (the hot path), client.go (one client and the
// count of its promises), control.go (Seal, Commit, Abort), exec.go (actions), offsets.go (TxnOffsetCommit),
// pieces.go (how many offsets go at once), failure.go (the record that is to blame), limits.go, refusals.go, cuts.go (how large
// batches and requests may be), stall.go (what the log says when brokers do not acknowledge), gone.go (what instances that are gone left open); plain.go, plain_commit.go (Plain).
package txn
