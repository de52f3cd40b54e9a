// Package gate is the barrier handling of one task with several inputs: when an input is set aside, when the snapshot is
// taken, what of the records in flight belongs to it, and what becomes of checkpoints that fail half way. It is pure:
// events in, actions out; no I/O, no clock, no goroutine, no knowledge of the graph. A driver (package engine) owns the
// channels and does what the actions say.
//
// A gate that promises exactly-once has one checkpoint running at a time; the barriers of later ones wait in the
// channels:
//
//	           barrier, announcement or trigger of n
//	[ idle ]------------------------------------------>[ aligning n ]<---+ barrier n, input set aside: Block
//	  ^  ^                                                |  |  |  |-----+ announced (may switch): StartTimer
//	  |  |                                                |  |  |
//	  |  +<-- barrier n from all open inputs -------------+  |  |
//	  |       Snapshot, Unblock                              |  |
//	  |                                                      |  |
//	  +<----- cancel n, or something newer: Abort, Unblock --+  |
//	  |                                                         | n is unaligned, or its time is over, or a sender
//	  |                                                         | has switched: Snapshot{Unaligned}, Unblock
//	  |                                                         v
//	  +<----- all barriers have come: Captured -----------[ recording n ]<--+ barrier n read, announced, or the end:
//	  +<----- cancel n, or something newer: Abort --------------|-----------+ CloseRecording
//
// A newer barrier n+1 leads from aligning n and recording n to aligning n+1, with Abort n in between. The arrows are
// data: transitions in table.go says for each phase what an event means when it is about the running checkpoint, and
// when it is about a newer one. About an older one it never means anything.
//
// A gate that counts (at-least-once) never sets an input aside and has up to 64 checkpoints pending at once. A
// checkpoint is taken when its barrier has come from all open inputs. It is aborted when it can not be complete any
// more, that is when an input delivers a higher one without it.
//
// What was decided where Flink leaves a choice, or where it matters:
//
//   - The mode is the application's. What a barrier says of itself counts in mode Unaligned only: a barrier with neither
//     flag (a savepoint) is aligned there, too. Modes Aligned and Counting align or count whatever comes.
//   - An aligned snapshot has nothing in flight and no Captured follows. An unaligned one always gets Captured or Abort,
//     among the same actions when nothing has to be recorded. After the switch the barrier that is sent on is
//     unaligned: whoever is downstream need not wait for a timer of its own. One barrier that comes as unaligned is
//     enough to switch, also when it is the last one.
//   - An input whose barrier was read has nothing in flight: what lies in its channel is behind the barrier. This holds
//     for inputs that are set aside when the gate switches.
//   - A cancel that comes through a channel is passed on once (Abort), also for a checkpoint that was never seen here;
//     barriers of it are late from then on. In exactly-once modes it ends lower checkpoints too, since on that channel
//     nothing lower can follow. After an aligned snapshot, and after Captured, it does nothing and is not passed on: the
//     barrier is out, and whoever waits for it further on waits for another task, which passes the cancel on itself.
//     While recording it aborts, and the Abort follows the barrier that was sent.
//   - A cancel by the Coordinator overtakes the channels. It aborts what runs; of a checkpoint that has not begun it is
//     kept until that has its turn, so that what is sent on stays in the order of the ids.
//   - A checkpoint of which a higher one has begun or was decided does not begin any more, and nothing is said about it.
//   - Trigger takes the snapshot when all inputs have ended or delivered; an unaligned one begins at once, with what
//     comes until the end or the barrier recorded. Aligned ones queue (several may be in flight, and the ends may still
//     lie in the channels when the coordinator knows of them), at most 64, then the oldest is aborted. It may be sent to
//     every task: where the barrier comes through the inputs too, there is one snapshot.
//   - An aligned timeout runs from the first barrier or announcement, so a task with one input can switch as well, when
//     the barrier lies behind much data.
//
// Invariants:
//
//	I1  Of each checkpoint a gate says Snapshot at most once, Abort at most once, never Snapshot after Abort, and never
//	    both Captured and Abort. Abort after Snapshot there is only while recording.
//	I2  The ids of snapshots grow. In exactly-once modes snapshots and aborts together are in the order of the ids, so
//	    barriers and cancels that are sent on are, too.
//	I3  Aligned: the snapshot holds every record ahead of the barrier of each input, and none behind.
//	I4  Unaligned: every record ahead of the barrier is in the state or captured, once; none behind is.
//	I5  Counting: every record ahead of the barrier is in the state. With one input none behind is.
//	I6  An input is set aside only while a checkpoint is aligned, and then one that is open is not: what frees it can
//	    come. Every Block is followed by an Unblock with the Snapshot or the Abort.
//	I7  What a gate keeps is bounded: one mark per input, 64 checkpoints.
//	I8  An id that is decided is late for ever: a barrier that was left in a channel, a second cancel, a slow
//	    announcement, a timer, a repeated trigger do nothing.
//	I9  Inputs that have ended count as delivered. Feedback inputs never take part: what is in flight on them is in no
//	    snapshot.
//	I10 Events that make no sense do nothing.
//
// What the driver has to do:
//
//	D1  One goroutine per gate. Execute the actions of an event in order, all of them before anything else is read.
//	D2  Records that were in flight in the restored checkpoint come first: all of them are processed before any event is
//	    fed and any channel is read. They were re-routed by key group, in the order of each input they came from.
//	D3  Do not read an input that is set aside, and give no credit for it: its channel is the buffer, and bounds it. After
//	    Unblock it is read from where it stands, so what was buffered comes before what arrives.
//	D4  Snapshot: send the output that is gathered, freeze the state, give the sinks their barrier, send Forward to all
//	    outputs. No record in between. Barriers, cancels and ends take no credit: a sender never waits with one.
//	D5  Overtake: capture what lies ahead of barrier ID, in order, leave it in the channel and take the barrier out. (A
//	    barrier that is left in is late when it is read: that costs nothing but its place.) Barriers of other ids that
//	    lie there stay.
//	D6  Record: capture what is read from the input from then on, before it is processed (which may recycle it), until
//	    CloseRecording. With Overtake on that, do as in D5, behind what was captured already.
//	D7  Captured: report what was captured as the in-flight part of the checkpoint. Until then the task has not
//	    acknowledged it.
//	D8  Abort: drop what was captured for it, send its cancel behind what was sent, decline it at the coordinator.
//	D9  Tell Announced when a barrier that is unaligned or may switch is put into a channel. An announcement that comes late
//	    does no harm, one that is lost costs the advantage.
//	D10 StartTimer: call TimedOut when the aligned-timeout is over, counted from the trigger of the checkpoint.
//	D11 Feed Ended when the end mark is read. When all have ended (AllEnded) keep the task for Trigger. Send the own end mark
//	    when nothing more can come of the task, that is when it holds no timer, and send nothing behind it: what came behind an
//	    end would be ahead of no barrier (I9). Until then it sends on, its barriers too. The coordinator triggers every task
//	    whose senders may all have ended; to trigger others as well is safe, but an unaligned checkpoint then records more
//	    than it needs.
//	D12 Ids grow along every channel. Sources put barriers and cancels into all outputs in the order in which the
//	    coordinator gave them, whether they have records or not. Unaligned checkpoints and those that may switch do not
//	    overlap: a newer one overrules.
//	D13 Feed a barrier that is read from a feedback input to Trigger, where the task has no other inputs: what lies behind it is
//	    behind its sender's snapshot, and must not be processed ahead of the own one. It is not an event of the gate.
//	D14 A new attempt makes new gates, with After(highest id used).
//
// Files: gate.go the events; action.go what the driver is asked to do; table.go and exact.go aligned and unaligned;
// counting.go at-least-once. The scenarios in testdata are the best way in: each tells one rule. driver_test.go is a
// whole driver in small, and network_test.go a network of tasks that loses nothing while it crashes, scales and aborts.
package gate
