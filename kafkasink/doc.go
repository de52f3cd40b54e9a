// Package kafkasink turns the output of tasks into records of the open transaction. Between a barrier and the end of
// its checkpoint it holds back what follows: that belongs to the next transaction, which cannot begin yet.
//
// A Sink serves one attempt. Each task has one Writer, used by the task's goroutine alone:
//
//	           Barrier(n)                       Release(n): queue of n goes into the transaction
//	direct ----------------> holding [n]  ------------------------------------> direct
//	(into the open             |      ^  \                                        (if no later barrier was passed,
//	 transaction)   Barrier(m) |      |   \ Write: append to the last queue        else holding [m])
//	                           v      |
//	                     holding [n][m]       Discard: every queue is dropped, everything returns ErrDiscarded
//
// Resume takes barriers back whose checkpoints were given up: the queues behind them join what lies before them, which
// is the queue of an older barrier, or the open transaction, reopened if it was sealed. A barrier of theirs that comes
// late means nothing.
//
// With Config.NoHoldBack every writer is always direct, and Seal waits for all that was written before it.
//
// Drop does to one writer what Discard does to all: its task has left the instance, and what it wrote behind its last
// barrier is not this instance's to send.
//
// Invariants:
//
//	I1  A record written before Barrier(n) is in the transaction that Seal(n) seals, one written after it is not.
//	    If n is given up, the record is in the transaction of the first checkpoint behind it that commits.
//	I2  The records of one task reach the client in the order of its Write calls, across any number of barriers,
//	    releases and barriers taken back. One task owns one partition of its input and all of the keys in it, and the
//	    client keeps the order per output partition; so the order per key holds. (The argument is at Writer.drain.)
//	I3  Held-back bytes of the instance are at most the limit plus one batch per task. Above the limit Write blocks:
//	    the task stops, its inbox fills, the source pauses. So it does when the client has as much as the Outflow allows.
//	    With an Outflow what is unflushed is bounded by what the brokers acknowledge in a quarter of a checkpoint's timeout:
//	    half of that in the client, and half held back. A writer that is direct waits for the client alone, which empties
//	    by itself; so nobody waits for room that only his own barrier can make.
//	I4  A nil key or value stays nil (null), an empty one stays empty; headers keep their order and repeats.
//	I5  The partition of a keyed record is the one that Kafka's Java client chooses: toPositive(murmur2(key)) mod count.
//	    A record without a key goes to the partition numbered like the task's, mod count, so its order holds as well.
//	I6  A transaction whose Seal failed is never gone on with: Resume fails then.
//	I7  The bytes of keys, values and header values are not copied: nobody changes them after Write.
//
// Goroutines: none. Write and Barrier run on the task's goroutine; Seal, Release, Resume and Discard on whichever the
// engine uses. Seal, Release and Resume wait for each other.
//
// Files: sink.go (Sink: Seal, Release, Drop, Discard), resume.go (barriers that are taken back), writer.go (Writer:
// hold-back and its order), outflow.go (Outflow: waits, log, figures), throttle.go (how much may be unflushed: pure), convert.go (element.Record to kgo.Record), origin.go (which input made a record), partition.go (where a keyed record goes).
package kafkasink
