// Package engine runs a plan: tasks, checkpoints and recovery of one instance. It knows neither Kafka nor Badger nor
// files; what it needs of them are the interfaces of ports.go.
//
// A Runner runs attempts. An attempt goes from the stable read of the committed offsets to its first failure: it
// initialises the transactional ids, resolves what to restore, commits checkpoint 0 where nothing is committed yet,
// restores, and then processes. After a failure everything that is not committed is dropped and the next attempt starts
// from the last commit, in the same process.
//
// Partitions come and go while an attempt runs:
//
//	gained   -> intake: dead owners' transactions ended, stable read, resolve, restore    (beside the running tasks)
//	         -> in the coordinator; holds back until the checkpoint in flight is over; fed (a fresh one: after its first commit)
//	revoked  -> halted: takes no record, passes barriers -> left with the checkpoint that covers it; what is behind is dropped
//	lost     -> the attempt ends
//	none left -> the attempt ends quietly, the runner stands by
//
// Invariants:
//
//	I1  A record of an attempt is processed only after the state of its task was restored to exactly the committed
//	    position that the record follows.
//	I2  The position a checkpoint commits is the position of the task when its state was frozen: state, output and
//	    position of a checkpoint are cut at the same record.
//	I3  Output that follows a barrier is not written before the checkpoint of that barrier is committed.
//	I4  Only the loop decides; workers do what it asks for and report back. A report that comes late has no effect.
//	I5  When an attempt returns, nothing that it started runs any more.
//	I6  Checkpoint ids grow over all attempts of a process, and above every id found in a handle.
//	I7  A task is in a checkpoint only when it is completely restored, and is committed only under the ownership epoch that
//	    it joined with.
//	I8  Nothing that a task emitted behind its last barrier leaves the instance.
//	I9  A task that starts from a savepoint commits nothing before its first checkpoint; until then its start may begin again.
//
// Goroutines, all owned by the attempt and awaited by its tearDown: one per task, one for the source, one per worker
// action (persist, seal, root, commit, housekeeping), one per intake. The loop runs in the goroutine that called Runner.Run.
//
// Files: ports.go (what is needed from outside), runner.go (attempts and restarts), attempt.go (an attempt's life),
// intake.go, restore.go, moved.go, recover.go (from committed offsets to tasks), from.go and claim.go (starts from a savepoint), join.go, leave.go (tasks that come and go), loop.go
// (the coordinator's driver), workers.go (its actions), merge.go (long chains), task.go (one task), pace.go (how much it does in one turn), inbox.go and feeder.go (the
// way to a task), backoff.go, events.go, listener.go, config.go.
package engine
