// Package sim runs the protocol under a seeded scheduler: no goroutine, no clock, no I/O. One number decides how
// everything interleaves, what goes wrong and where a process dies, so a failure is replayed by its seed:
//
//	SIM_SEED=4711 go test ./internal/sim -run TestReplay -v                              one run with its trace
//	SIM_N=1000000 go test ./internal/sim -run TestSchedules -v -timeout 0                a million, SIM_FROM=… from there on
//	SIM_BUG=no-rewind SIM_SEED=3 go test ./internal/sim -run TestReplay -v               a planted bug
//	SIM_RATES=1 go test ./internal/sim -run TestPlantedBugRates -v                       how often each is found
//
// What is real: checkpoint.Coordinator, txn.Machine, snapshot.Resolve, the handles, and the whole snapshot.Repository
// (runs, roots, restore, merge, Clean) on a storage model. What is a model: the brokers (logs with transactions and last
// stable offset; transaction coordinator with prepare states, markers that take their time, epochs that grow with every
// transaction, time-outs; group with static members, generations, cooperative hand-over, stable offset fetch), the
// network (lost, late and doubled requests and answers), the kgo client with the habits that matter, and the disk
// (written, synced, named are three different things). The driver mirrors engine's loop and workers action by action, cut
// into steps where a goroutine could be interrupted; between any two steps a process can stop or die, alone or with the
// power of its machine. After the faults everything is healed, and the run has to come to rest.
//
// Invariants, checked from outside by the checker:
//
//	I1  A reader of committed records sees the counts of every key as 1, 2, 3 …, each once, and in the end all of them.
//	I5  The state that a committed handle leads to is the fold of exactly the inputs below its offset.
//	I6  Committed offsets and checkpoint ids never go back.
//	I7  Every committed handle opens and verifies at all times: after every deletion and every loss of power. Committed is
//	    what a stable read gives, from the decision of the transaction on.
//	I8  No two instances commit in one generation of the group.
//	I9  In the end no transaction is open and every reader is at the end of the log.
//	I10 After the faults the run comes to rest within a bound.
//	I12 Equal seeds give equal traces.
//	I14 What the driver takes for committed is committed (the one look inside; it is closed while a bug is planted).
//
// And by construction: a process that gives up for good without having been replaced, or an assertion of the code under test that fires, is a finding
// too. The numbers are those of the test plan.
//
// Planted bugs (bug.go) are mistakes of the models or of the driver, never of the code under test; each has to be found
// within 500 schedules.
//
// The exhaustive tests take chance out of it and kill the process before every step of two checkpoints, once and twice.
//
// Files: sim.go (Run), world.go (the queue of steps), kind.go, faults.go, script.go (exhaustive runs), bug.go; broker.go,
// txncoord.go, groupcoord.go, network.go, disk.go (models); client.go (kgo), manager.go (txn.Manager), process.go
// (engine.Runner and the group client), attempt.go, loop.go, workers.go, task.go (engine); check.go (checker).
package sim
