// Package sim runs the protocol under a seeded scheduler: no goroutine, no clock, no I/O. One number decides how
// everything interleaves, what goes wrong and where a process dies, so a failure is replayed by its seed:
//
//	SIM_SEED=4711 go test ./internal/sim -run TestReplay -v                              one run with its trace
//	SIM_N=1000000 go test ./internal/sim -run TestSchedules -v -timeout 0                a million, SIM_FROM=… from there on
//	SIM_BUG=no-rewind SIM_SEED=3 go test ./internal/sim -run TestReplay -v               a planted bug
//	SIM_PLAIN=1 SIM_SEED=62 go test ./internal/sim -run TestReplay -v                    one checkpoint at a time, no tolerance
//	SIM_PRODUCER=plain SIM_SEED=62 go test ./internal/sim -run TestReplay -v               at-least-once
//	SIM_STRAIGHT=1 SIM_SEED=62 go test ./internal/sim -run TestReplay -v                 no exchange
//	SIM_RATES=1 go test ./internal/sim -run TestPlantedBugRates -v                       how often each is found
//
// One to three instances share up to four partitions of one group, and up to two processes may bear the name of one
// instance at a time. Of three runs one lets three checkpoints be in flight, and two tolerate failures: the persisting of
// a checkpoint fails now and then, it is abandoned, and the next one covers its work in the same transaction.
//
// Of five applications two have an exchange: the task of each partition sends what it reads to up to four subtasks, by the
// key group, over bounded channels, and the subtasks count. Such an application moves as a whole: one process has all
// partitions, and when they change its attempt ends with a last checkpoint. Checkpoints are aligned there, unaligned, or
// aligned until a timeout; each process is told another parallelism. Of five of them in one some inputs end, and in one all: what
// is in them is there from the beginning, barriers go on behind their ends, and subtasks with nothing left to hear get theirs from
// the coordinator. How small a run has to be to lie in the root itself
// is another thing that changes from process to process.
//
// What is real: checkpoint.Coordinator, txn.Machine, gate.Gate, snapshot.Resolve, the handles, and the whole
// snapshot.Repository (runs, roots, records in flight, restore, merge, Clean, CleanFailed, Discard, CleanGone, CleanIdle of instances that have tasks and of those that stand by) on a storage model. What is a model: the brokers (logs with
// transactions and last stable offset; transaction coordinator with prepare states, markers that take their time, epochs
// that grow with every transaction, time-outs; group with static members, generations, a sticky assignment that gives a
// partition only when its owner has given it up or is gone, partitions that become known late, stable offset fetch), the
// network (lost, late and doubled requests and answers), the kgo client and the group client with the habits that
// matter, and the disk (written, synced, named are three different things). The driver mirrors engine's loop, intake,
// leaving, workers and inputs action by action, cut into steps where a goroutine could be interrupted: also between a task's
// look at its notices and what it takes then, and between the parts of an unaligned snapshot; in some runs reading and
// cleaning the directory are cut into single accesses, one directory or file each. In one of six runs cleaners stand still
// between two of these, alone or with their process, while others die, come back under new names, take over and clean;
// some inputs are quiet there. Now and then a checkpoint has the whole state of tasks in place of their chains, min-pause
// holds, chains are merged at the start of an attempt, and who stands by ends what is open under its ids. Between any two steps a process can stop or die, alone or with
// the power of its machine. After the faults everything is healed, and the run has to come to rest.
//
// Invariants, checked from outside by the checker:
//
//	I1  A reader of committed records sees the counts of every key as 1, 2, 3 …, each once, and in the end all of them.
//	    Behind an exchange each comes from the record that is next of its key in its input.
//	I5  The state that a committed handle leads to is the fold of exactly the inputs below its offset, from where the
//	    partition began: at its first committed offset, or below, if something was read before that was committed. Behind an
//	    exchange all handles lead to one root, each key is in the subtask that it belongs to, what is in flight are the last
//	    records of each input and key, in order, and the states are the fold of those before.
//	I6  Committed offsets and checkpoint ids never go back.
//	I7  Every committed handle opens and verifies at all times: after every deletion and every loss of power. Committed is
//	    what a stable read gives, from the decision of the transaction on.
//	I8  In one generation of the group a partition is committed by one instance only.
//	I9  In the end no transaction is open and every reader is at the end of the log. None that began under a process which
//	    lives is left to time out, where nothing goes wrong any more.
//	I10 After the faults the run comes to rest within a bound.
//	I12 Equal seeds give equal traces.
//	I14 What the driver takes for committed is committed (the one look inside; it is closed while a bug is planted).
//	I15 One run of five is followed by a rest, in which time passes and cleaners go round: then no file is left that nobody needs and
//	    whose grace is over. In most of these a few more checkpoints come first, so that every task commits and every chain is merged.
//	I16 Every root that is left then opens and has all that it names.
//	I17 Of runs without an exchange one of four ends with damage: everybody dies, a file that a start needs is lost, cut or changed, or the offsets or a
//	    handle are. Nothing of it goes on, every refusal names the file, and a recovery from the store, by what the messages say and
//	    through crashes, begins at the newest checkpoints that are committed and whole; what was committed since appears once more.
//	I18 Of the others without an exchange one of eight cuts a savepoint in the end, goes on for a while, and starts from it: what the instances have
//	    cut is the fold of the inputs below their positions; through crashes before the first checkpoint nothing is read from below
//	    these, what is committed first comes from there, and what was put out behind it appears once more, exactly.
//
// At-least-once has schedules of its own (Config.AtLeastOnce): a plain producer, plain commits of the offsets, in one of three runs one by
// one, of which copies come late, and gates that count. There it holds that
//
//	I1  in the end every input has an output, and without an exchange its count is that of the input each time that it is there;
//	I5  without an exchange the state is exact; behind one it has all inputs below the positions, some perhaps twice;
//	I6  only a copy that comes late sets the group back, by one, and every handle that it stands at opens (I7).
//
// The network holds no copy back for longer than it takes to begin again and make a checkpoint, see txn.Plain.
//
// And by construction: a process that gives up for good without having been replaced, or an assertion of the code under test that fires, is a finding
// too. The numbers are those of the test plan.
//
// Planted bugs (bug.go) are mistakes of the models or of the driver, never of the code under test; each has to be found
// within 500 schedules.
//
// The exhaustive tests take chance out of it and kill the process before every step of two checkpoints, once and twice, and
// of several in flight of which some are abandoned;
// the same for an application with an exchange, which comes up with another parallelism;
// the same for a start from a savepoint;
// and with two owners, they kill or freeze either of them before every step of a hand-over, and then again. The scenarios
// are schedules that once went wrong, and some that might: faults at given steps, the way there random.
//
// Files: sim.go (Run), world.go (the queue of steps), kind.go, faults.go, script.go (exhaustive runs, scenarios), bug.go;
// broker.go, txncoord.go, groupcoord.go, offsets.go, network.go, disk.go, fiber.go (models); client.go (kgo), manager.go
// (txn.Manager), member.go (group client and ownership), process.go (engine.Runner), attempt.go, intake.go, leave.go,
// loop.go, workers.go, sinkside.go (held-back output and the transaction; what was abandoned), house.go, failed.go, groupclean.go, idle.go, stall.go, rest.go (files that are left over), recover.go and damage.go (the way back to the store),
// savepoints.go and from.go (the start from a savepoint), plain.go and checkplain.go (at-least-once),
// task.go (engine); later.go (what old seeds go without); exchange.go, channel.go, input.go, step.go (engine, with an exchange); check.go, checkwhole.go (checker).
package sim
