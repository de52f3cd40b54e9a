// Package checkpoint coordinates the checkpoints of one instance: when one is taken, which tasks have to answer, when
// it may be committed and when it has failed. It is pure: inputs in, actions out; no I/O, no clock, no goroutine. A
// driver (package engine) turns the actions into work and the results of the work into inputs.
//
// One Coordinator serves one attempt. It ends with FailAttempt or Drained, and a new attempt makes a new one from
// LastID. The states of a checkpoint:
//
//	   Trigger
//	      |
//	      v
//	[ collecting ]--- all barriers passed: Flush + Persist --->[ storing ]
//	      |                                                        |
//	      | timeout, decline,                                      | flushed, and all tasks
//	      | failed flush,                                          | acknowledged: WriteRoot
//	      | protocol violated                                      v
//	      +<--- the same ------------------------------------------+
//	      |                                                        v
//	      +<--- the same, root not written --------------------[ rooting ]
//	      |                                                        |
//	      v                                                        | root written: CommitAction with the Permit
//	  [ failed ]<--- CommitFailed, nothing else --------------[ committing ]
//	  Cancel (before the Permit),                                  |
//	  FailAttempt                                                  | committed: Complete
//	                                                               v
//	                                                          [ completed ]
//
// and of a task:
//
//	           AddTask             Leave: covered by the one in flight, or moved
//	[ not here ]------>[ here ]---------------------------------------------------->[ leaving ]
//	     ^                |                                                              |
//	     |                | Leave: joined during it, or not moved: Left                  | Complete, then Left
//	     +<---------------+<-------------------------------------------------------------+
//
// The arrows are data: successors in phase.go says which steps exist, and a step that is not there panics; verdicts
// says for every phase what each report means there.
//
// Invariants:
//
//	I1  At most one checkpoint is in flight. So commits happen in the order of the ids.
//	I2  Ids grow by one from the highest id known (New, Raise) and are never used twice, also not after a failure. No id
//	    is consumed without a Trigger.
//	I3  Every Trigger ends in exactly one of Complete and FailAttempt.
//	I4  A Permit exists only for a checkpoint whose barriers have all passed, whose transaction is flushed, of which
//	    every task's state is durable and whose root is written, and which had all that before its deadline.
//	I5  From the Permit on, only Committed and CommitFailed end a checkpoint. It may be committed at the broker already;
//	    whoever aborted now would make its outputs again.
//	I6  Nothing moved, nothing triggered. A move is forgotten only by a Trigger that came after its report, and such a
//	    Trigger's barrier lies behind the move. (A report that crosses the Trigger stays and may cost one needless
//	    checkpoint; cleared at the barrier it could cost the last record before a silence.)
//	I7  A task's outputs are committed with its positions or not at all: a task with work in the open transaction leaves
//	    with a checkpoint that covers it, and its last committed position is the S of that; positions never go back or go
//	    missing. No later checkpoint names a task that has left.
//	I8  min-pause holds between any two checkpoints, except before the final one and before that of a Revoke. The
//	    interval counts from trigger to trigger; missed triggers do not pile up.
//	I9  The deadline takes effect before any input that comes after it, not only at a Tick.
//	I10 A report counts once. What is doubled, late or unknown changes nothing (Ignored, and the counters of answers);
//	    what cannot be true yet ends the attempt, for good.
//	I11 After FailAttempt and after Drained no input gives an action.
//	I12 Somebody is leaving only while a checkpoint is in flight that covers him. A task that leaves is answered with
//	    one Left, directly behind the Complete of that checkpoint or in the same call, unless the attempt fails.
//
// What the driver has to do:
//
//	D1  Feed all inputs from one goroutine, execute the actions in order, and feed what comes of them. Every Trigger,
//	    Flush, Persist, WriteRoot and CommitAction is answered, unless a Cancel came; answers after it do no harm.
//	D2  Call Tick when NextWake says so. NextWake gives a delay, and may change with every input.
//	D3  Report Moved in the turn of the task that makes the change, so that no barrier comes between the two: at least
//	    the first time after every barrier, and before Leave. Before Final, stop the intake and report what has
//	    moved; work that is not reported is not lost, but it is done again by the next attempt.
//	D4  Hold back what a task writes behind its barrier until Complete; the same for a task that is added while a
//	    checkpoint is in flight, which has no barrier. What is held back for the tasks of a Left is dropped before that of
//	    the others is released.
//	D5  Commit only with the Permit, and always report the outcome, also when the attempt is to end. While the Permit
//	    is out the transaction is not the driver's to abort.
//	D6  Halt a task before Leave: it takes no record any more and still passes barriers. A task whose partition was lost
//	    without that cannot leave; the attempt has to end.
//	D7  Before AddTask of a task that was restored from a handle, Raise to the id in it: the next checkpoint of the task
//	    must have a higher one.
//	D8  After FailAttempt with class fault.Unconfirmed do not abort: ask the broker what became of the commit.
//
// Concurrency of checkpoints is 1 and no failure is tolerated: the first one ends the attempt.
//
// Files: coordinator.go tasks, time and triggers; leave.go how tasks go; ids.go the ids of others; report.go reports and their consequences; pending.go the checkpoint
// in flight; phase.go the tables; action.go what the driver is asked to do; permit.go the Permit and the commit types;
// reason.go the enums; config.go; stats.go. The scenarios in testdata are the best way in: each tells one rule. Package
// checkpointtest gives Permits to the tests of other packages.
package checkpoint
