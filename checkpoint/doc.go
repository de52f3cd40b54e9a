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
//	[ collecting ]--- all barriers passed: Persist; Flush, once ------>[ storing ]
//	      |           the predecessor is complete                          |
//	      | timeout, decline,                                              | flushed, and all tasks
//	      | failed flush,                                                  | acknowledged: WriteRoot
//	      | protocol violated                                              v
//	      +<--- the same --------------------------------------------------+
//	      |                                                                v
//	      +<--- the same, root not written ----------------------------[ rooting ]
//	      |                                                                |
//	      v                                                                | root written: CommitAction with the Permit
//	  [ failed ]<--- CommitFailed, nothing else ----------------------[ committing ]
//	  before the Permit: tolerated, Abandon, and the attempt goes on;      |
//	  else Cancel and FailAttempt; behind the Permit FailAttempt           | committed: Complete
//	                                                                       v
//	                                                                  [ completed ]
//
// and of a task:
//
//	           AddTask             Leave: covered by the newest in flight, or moved
//	[ not here ]------>[ here ]---------------------------------------------------->[ leaving with m ]<---+
//	     ^                |                                                              |         |      |
//	     |                | Leave: joined during it, or not moved: Left                  |         |      |
//	     +<---------------+<-------------------------------------------------------------+         |      |
//	     |                                  m complete, then Left                                  |      |
//	     +<----------------------------------------------------------------------------------------+      |
//	                        m abandoned: Left, with an older one, or with the next one triggered ---------+
//
// Several in flight: n is triggered before m. Barriers pass a task in order, and each checkpoint is persisted as soon as
// its own barriers have passed; the transaction is for one at a time.
//
//	n   trigger --- barriers ---+--- persist -------+--- root --- commit --- complete
//	                            +--- flush ---------+                           |
//	m        trigger --- barriers ---+--- persist ------------------------------|-------+--- root --- commit
//	                                 +--- waits --------------------------------+ flush +
//
// The arrows are data: successors in phase.go says which steps exist, and a step that is not there panics; verdicts
// says for every phase what each report means there.
//
// Invariants:
//
//	I1  At most MaxConcurrent checkpoints are in flight, and only the oldest of them has the transaction: no Flush, no
//	    root and no Permit before its predecessor has ended. So commits happen in the order of the ids.
//	I2  Ids grow by one from the highest id known (New, Raise) and are never used twice, also not after a failure. No id
//	    is consumed without a Trigger.
//	I3  Every Trigger ends in exactly one of Complete, Abandon and FailAttempt; FailAttempt ends all that are in flight.
//	I4  A Permit exists only for a checkpoint whose barriers have all passed, whose transaction is flushed, of which
//	    every task's state is durable and whose root is written, and which had all that before its deadline.
//	I5  From the Permit on, only Committed and CommitFailed end a checkpoint. It may be committed at the broker already;
//	    whoever aborted now would make its outputs again. When a newer one ends the attempt meanwhile, FailAttempt waits
//	    for that outcome.
//	I6  Nothing moved and no savepoint wanted, nothing triggered. A move is forgotten only by a Trigger that came after
//	    its report, and such a Trigger's barrier lies behind the move; an Abandon brings it back. (A report that crosses
//	    the Trigger stays and may cost one needless checkpoint; cleared at the barrier it could cost the last record
//	    before a silence.)
//	I7  A task's outputs are committed with its positions or not at all: a task with work in the open transaction leaves
//	    with the last checkpoint that covers it, and its last committed position is the S of that; positions never go back
//	    or go missing. No later checkpoint names a task that has left.
//	I8  min-pause holds between the end of a checkpoint, however it ended, and the next Trigger, except before the final
//	    one and before that of a Revoke. The interval counts from trigger to trigger; missed triggers do not pile up.
//	I9  The deadline takes effect before any input that comes after it, not only at a Tick.
//	I10 A report counts once. What is doubled, late or unknown changes nothing (Ignored, and the counters of answers);
//	    what cannot be true yet ends the attempt, for good. Of what was abandoned nothing is a breach.
//	I11 After FailAttempt and after Drained no input gives an action.
//	I12 Somebody is leaving only while a checkpoint is in flight that covers him, or after that was abandoned twice, for at
//	    most an interval. A task that leaves is answered with one Left, directly behind the Complete of the checkpoint that
//	    it leaves with, behind an Abandon or in the same call, unless the attempt fails.
//	I13 Abandon gives up a tail of those in flight, never one with a Permit, and only if the next one's deadline lies
//	    within the transaction's time (tolerance.go). What it gave up is covered by the next Trigger. More than
//	    TolerableFailures without a Complete in between end the attempt.
//	I14 A request for a savepoint is served by the first checkpoint that is triggered after it and completes, or it is in
//	    Unserved at the end.
//
// What the driver has to do:
//
//	D1  Feed all inputs from one goroutine, execute the actions in order, and feed what comes of them. Every Trigger,
//	    Flush, Persist, WriteRoot and CommitAction is answered, unless a Cancel or an Abandon came; answers after it do no
//	    harm.
//	D2  Call Tick when NextWake says so. NextWake gives a delay, and may change with every input.
//	D3  Report Moved in the turn of the task that makes the change, so that no barrier comes between the two: at least
//	    the first time after every barrier, also one of a checkpoint that was abandoned, and before Leave. Before Final,
//	    stop the intake and report what has moved; work that is not reported is not lost, but it is done again by the next
//	    attempt.
//	D4  Hold back what a task writes behind its barrier until Complete, in one queue per barrier; the same for a task that
//	    is added while checkpoints are in flight, as if it had passed the barrier of the newest; if that is abandoned, of
//	    the newest that is left. Complete releases the queue of its own barrier only. What is held back for the tasks of a
//	    Left is dropped before that of the others is released.
//	D5  Commit only with the Permit, and always report the outcome, also when the attempt is to end. While the Permit
//	    is out the transaction is not the driver's to abort.
//	D6  Halt a task before Leave: it takes no record any more and still passes barriers. A task whose partition was lost
//	    without that cannot leave; the attempt has to end.
//	D7  Before AddTask of a task that was restored from a handle, Raise to the id in it: the next checkpoint of the task
//	    must have a higher one.
//	D8  After FailAttempt with class fault.Unconfirmed do not abort: ask the broker what became of the commit.
//	D9  At Abandon, take everything back, and everywhere before what comes of the next action: a task hears of it before
//	    the next barrier, and ignores barriers of what was abandoned; the frozen changes are part of its next freeze; a
//	    flush that has begun has ended before the transaction is reopened, and that is open before anything flows into it,
//	    also of a task that joins meanwhile. The next delta of a task builds on the last completed checkpoint or on one still
//	    in flight, never on an abandoned one. If that flush fails, its report is discarded, but the transaction is lost with
//	    what was in it: end the attempt, or let the next flush fail. Whoever begins a new transaction instead commits
//	    positions without their output.
//	D10 Cut the savepoints that Trigger names at its barriers, and report them when it is complete. Report what is in
//	    Unserved at the end as failed.
//
// Files: coordinator.go tasks, time and triggers; flights.go the order of those in flight; tolerance.go failures; leave.go
// how tasks go; savepoint.go; ids.go the ids of others; report.go reports and their consequences; pending.go one checkpoint
// in flight; phase.go the tables; action.go what the driver is asked to do; permit.go the Permit and the commit types;
// reason.go the enums; config.go; stats.go. The scenarios in testdata are the best way in: each tells one rule. Package
// checkpointtest gives Permits to the tests of other packages.
package checkpoint
