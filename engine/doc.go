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
// Where a plan has exchanges, its stages are tasks of their own, with channels between:
//
//	source's task --- channel ---> input, gate --- chain ---> channel ...
//	                                            \-> sink writer
//
//	I10 A task waits for room in its channels only before a batch, never within one; barriers, cancels and ends need none.
//	I11 Between the look at its notices and the freeze of a checkpoint a task takes nothing: it is never frozen for one that
//	    it has been told is given up, nor without what an abandoned one left to it (hear).
//	I12 The records in flight of an unaligned checkpoint are those ahead of its barrier that its state does not have, each
//	    once. After a restore they come before anything that is read from a channel.
//	I13 A flush that runs is not cut short when its checkpoint is given up; the next one waits for it (resume).
//	I14 Where there is an exchange one instance has all partitions, and all tasks restore from one root.
//	I15 Nothing comes out of a task behind its end. One whose input has ended and which holds timers has none yet: it goes on
//	    as a sender, and what is behind it waits for its barriers.
//	I16 A bounded run is over when its sources have ended and nothing is on its way (flow). Timers that are not due stay in the
//	    state.
//	    A stop with feedback edges waits for the same, for a part of its time.
//	I17 A barrier that is known to a task waits for at most one slice of timers, and between two barriers timers have one slice.
//
// Goroutines, all owned by the attempt and awaited by its tearDown: one per task, one for the source, one per worker
// action (persist, seal, root, commit, housekeeping), one per intake, and one that looks after a claimed savepoint; and the
// runner's, that cleans up while it stands by. The loop
// runs in the goroutine that called Runner.Run.
//
// Files:
//
//	ports.go, config.go, listener.go    what is needed from outside, what is set, who is told
//	runner.go, attempt.go, finish.go    attempts and restarts, an attempt's life, when a bounded run is over
//	intake.go, grown.go, restore.go, recover.go   from committed offsets to tasks
//	house.go, idle.go                   housekeeping behind commits and without them, and while standing by
//	together.go                         recoveries that need all partitions
//	from.go, claim.go, moved.go         starts from a savepoint, its end, state that changes its place
//	join.go, leave.go                   tasks that come and go
//	loop.go, events.go, workers.go      the coordinator's driver, what it hears, its actions
//	held.go                             what is held back behind barriers: let go, or taken back
//	states.go                           which states are open
//	merge.go, renew.go                  long chains, those that cannot be merged
//	failed.go                           the files of checkpoints that failed
//	control.go                          what is asked from outside: status, checkpoints, savepoints
//	task.go, inbox.go, feeder.go        one task and the way to it
//	timing.go, flow.go                  timers and the end of a task; what is on its way in an attempt
//	barrier.go                          the synchronous part of a checkpoint, in every task
//	stages.go, channel.go, outputs.go   exchanges: wiring, what lies between two tasks, what leads out of one
//	input.go, pace.go                   a subtask's inputs, driven by its gate; how much it does in one turn
//
// Package gate decides what barriers mean for a task with several inputs, package restart what follows a failure.
package engine
