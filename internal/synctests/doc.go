// Package synctests plays random schedules against the real service: processor.Run with its source, sink, transactions,
// engine, snapshots and stores, on the embedded broker, in a bubble of testing/synctest. The network is in memory, time is
// virtual, the checkpoint directory lies on a file system that can lose power. Everything but this file needs the
// build tag synctests.
//
//	go test -tags synctests ./internal/synctests                                  # 500 schedules and the planted faults
//	go test -tags synctests ./internal/synctests -run 'TestSchedules$' -schedules 10000 -seed 1 -processes 3
//
// A schedule is drawn from its seed: the world (brokers, partitions, keys, timeouts, latency, 1 to -processes instances of
// one group), the load (bursts of records in transactions, some of them aborted) and the events:
//
//   - answers with an error, of those that a broker may give, to Produce, TxnOffsetCommit, EndTxn, OffsetFetch,
//     InitProducerID, Fetch, Heartbeat, JoinGroup, SyncGroup, FindCoordinator and ListOffsets;
//   - requests that are slow, are lost before the broker gets them, or whose answer is lost, the request perhaps arriving
//     long after its sender knows that the connection is broken;
//   - leaders and coordinators that move; a process without network; files that cannot be written or synced;
//   - kill: a process is cut off from network and disk for good, so that nothing it still does has an effect, at any
//     moment or at a chosen request or file operation; it starts again with the same instance id and what the disk has;
//   - power: all processes at once, and the disk keeps of what was not synced as much as chance wants;
//   - pause: all messages and file operations of a process stand still, perhaps beyond its session, and then go on;
//   - takeover: another instance takes the place of one that is frozen or dead;
//   - join: one more instance comes, and leaves or dies later (with several processes only).
//
// Then the faults end, more input comes, all of it has to be committed within a bound, the processes stop gracefully, and
// an independent reader of committed records looks.
//
// Invariants that are checked:
//
//	I1  COUNT: for every key the output is 1 to n in order, each number once, n the committed records of the input.
//	I2  After the faults all of the input is committed within 4 minutes of the bubble's time, and nothing beyond it.
//	I3  No transaction that holds records is open: none of a live instance after its graceful end, none of another one
//	    beyond its timeout; last stable offsets are the ends; the group's offsets are stable.
//	I4  A process ends only when it is told to, or with an exit code that the faults explain; after the faults it ends
//	    with nil. Damage of files and handles that do not match are never explained by a fault.
//	I5  Nothing is left in the bubble: a goroutine that the service forgets is a deadlock of the bubble.
//
// What a seed fixes: the world, the load, and which fault comes when. What it does not: the order in which goroutines that
// are ready run, select among ready cases, the order of maps, the random numbers of the clients and of the service
// (jitter, member ids), which is why the same seed can take different ways. Children run with one processor and without
// preemption, so most seeds do the same again; a replay plays the seed many times. Each chunk of schedules is played by a
// child process, so that a deadlock or an endless loop tells its seed.
//
// The embedded broker differs from a real one where it matters here: it ends transactions at once (no prepare states),
// it opens an empty transaction for a late request of an older epoch that it then refuses, and it needs help with groups
// (nudge.go). Its clients may ask without a pause when leaders moved, so no message takes no time at all. The database of
// the local copy is off: its goroutines wait for files, not for the bubble.
//
// TestPlanted is why the schedules can be believed: mistakes that are built into the service (those of package sabotage, and
// plants.go) are each found within 200 of them.
//
// Goroutines: one for the load, one for each life of a process, timers for what happens later; Run waits for all.
//
// Files: schedule.go (what is drawn), answers.go (errors of brokers and disks), network.go and wire.go (hosts and
// connections), disk.go (the disk as a process sees it), world.go (what is there), process.go (lives and supervisors),
// play.go (events and load), run.go (a whole run), check.go (the oracle), nudge.go (help for the broker), plants.go
// (mistakes on purpose); driver_test.go (children, flags, reports).
package synctests
