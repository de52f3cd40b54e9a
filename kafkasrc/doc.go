// Package kafkasrc is the source side on Kafka: who owns which partitions (Group) and what is in them (Fetcher).
//
// The two are separate clients on purpose. Membership lives as long as the process, so that a roll back inside it
// does not move partitions; what is fetched lives as long as an attempt, starts at positions that come from
// checkpoints, never from the group's own reading of offsets, and is dropped whole when the attempt ends.
//
// Invariants:
//
//	I1  Each partition has the epoch at which it was gained, which is another one each time it comes back, and a new one
//	    whenever the member id changes. The epoch of what is taken away has grown before any callback that takes it
//	    returns. A Fence is given only for claims whose partitions are owned since exactly those epochs, and only while
//	    the member id is the one that they were given to: a member that was expelled and joined anew never vouches for
//	    what it owned before, and neither does one after a round that the group had without it: the generations of
//	    its rounds are without a gap. Other partitions and a new generation do not matter; the generation is read under
//	    the lock that proves the claims.
//	I2  A Fence never has an empty member id or a negative generation.
//	I3  The Group's client fetches no records.
//	I4  A unit of the group (balancer.go: the partitions of one number of topics that go together) has one owner at a
//	    time, who has all of it. It is given to another only when no member claims a part of it any more; a claim
//	    counts by the generation in which it was given, not by that of the last join. In a whole group (whole.go) there
//	    is one unit, which has everything.
//	I5  Deliveries of one partition are in offset order without overlap: every Delivery starts at or above the Next
//	    of the one before, and Next only grows.
//	I6  Next passes everything that a reader of committed records can never see: transaction markers, aborted
//	    records, what compaction removed. Markers are fetched and counted for that. No timer or listing of end
//	    offsets is needed: compaction spares the active segment, so the last offset below the last stable one always
//	    belongs to a record or a marker. (Between those and an open transaction a removed tail can be passed only
//	    when the transaction ends.)
//	I7  A position that the log never had ends the process (OffsetGone). One that it has no more does so too, unless the
//	    topic's OnMissing says how to go on; then the gap is counted and the receiver is told the new position. What
//	    begins together is looked at before the first record of any. kgo resets nothing: a partition
//	    is handed to it only when its topic's metadata are there: before, kgo lists offsets and takes the nearest
//	    that exists, without an error.
//	I8  From one Add to the next Remove the deliveries of a partition go on without a gap from the position of that
//	    Add, and nothing of an earlier stay, neither records nor errors nor a pause, comes into a later one: changes are
//	    made between two polls, in the order of the calls, after the client was emptied of what it had.
//
// Goroutines: Group owns one that polls its client for errors and one that looks at the other members, ended and awaited by Close; Alone one that sends heartbeats,
// ended and awaited by Leave; kgo's own are ended by
// Close too. Fetcher has none besides kgo's: Run is the caller's goroutine.
//
// Files: group.go (joining, leaving, the poll loop), balancer.go (the protocol of the balancer), balance.go (its plan), known.go (what members know of topics),
// even.go (the numbers of the plan), whole.go (the plan of a group in which one member has everything), ownership.go
// (epochs and fences), fetcher.go (the fetch loop),
// streams.go (partitions that come and go), convert.go (kgo records to deliveries), fetcherr.go (error classes of a fetch),
// missing.go (positions that the log does not have), ends.go (partitions with an end),
// foreign.go (members with whom a group cannot be shared), alone.go (the membership of one that wants the group for itself).
package kafkasrc
