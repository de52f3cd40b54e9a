// Package processor is the composition root: it turns a plan and a Config into a running service. It is what a Go
// program uses that defines its topology in code, and what the command line uses for topologies in YAML.
//
//	plan, err := builder.Plan()
//	…
//	err = processor.Run(ctx, plan, processor.Config{Brokers: []string{"localhost:9092"}, DataDir: "./data"})
//
// Run returns nil after a graceful stop, and otherwise an error that internal/fault's exit codes class (ExitCode).
//
// Invariants:
//
//	I1  The data directory belongs to one process at a time (a lock on it), so that two processes never use the same
//	    instance id by accident.
//	I2  Everything that can be refused before the first record is: the cluster, the topics, the transaction timeout
//	    and the checkpoint directory are checked in this order, each with a message that says what to do.
//	I3  What Run opens, Run closes, in reverse order, whatever happens in between.
//	I4  The local copy of the state follows the commits and is never ahead of them: it takes only runs of committed
//	    roots, whole and verified. A version on disk names the checkpoint and the run that the copy ends with; it is
//	    brought forward only along the chain on which that run lies, and built anew from a whole root otherwise.
//	I5  Nothing that happens to the local copy fails or delays the service: a root is handed over without waiting,
//	    reading and writing are paced, and the end of both is bounded by the shutdown timeout.
//	I6  A restore takes the copy only if the digest of the copy's last run is in the chain of the committed root, and
//	    every entry of it is verified. The runs behind that one are deltas with their deletions; they are read from the
//	    checkpoint, nothing else is. The ids of checkpoints prove nothing. A copy that does not fit is set aside, with one
//	    line in the log; so is that of a task that leaves.
//	I7  Who looks from outside, or commands, never delays the work: a question is given up, a command is a request like any
//	    other. What is shown of a partition goes with it.
//	I8  A command of the control topic is read by every instance that was a member of the group when it was sent, unless
//	    the topic is being made again. None is begun twice, of the newest maxControlKnown.
//	I9  A cancel deletes the state of an application by a commit of all its positions, which the broker takes only if nobody
//	    else has been in the group since they were read; files go after it. A process of an earlier life commits nothing, deletes nothing and ends.
//
// Goroutines: beside those of the clients and of the engine, one keeper of the local copy (badger backend only),
// started by openLocal, and one search for transactions of instances that are gone, when that did not succeed at once; both
// are awaited in close, after the engine has ended. What tells of long waits ends with the engine. A stable read that waits has one for its time.
// The admin listener, the reader of the control topic, and what serves its commands end last, when the engine has ended.
//
// Files: config.go (settings) with config_check.go, config_ignored.go and config_gaps.go, spill.go (the limit of memory), retained.go (how many checkpoints are kept),
// run.go (composition), takenback.go (a start that the brokers take back), ports.go (adapters between packages), identity.go (data directory,
// instance id), log.go and log_merges.go (what is logged), offsets.go (reads of positions), starts.go, ends.go, endsgroup.go and endskept.go (start and end positions, whose group the ends are in, and how they stay), runs.go
// (which bounded run a process takes part in), outputs.go (the output topics of an attempt), members.go (who is in the group), gone.go
// and cleangone.go (transactions and files of instances that are gone), patterns.go (topics that match), local.go (keeper of the local copy: life and
// schedule), local_read.go (its reading), local_restore.go (recovery from it), lane.go (the way of one task's copy to the
// newest root), admin.go (what is seen and done from outside), attempts.go (what attempts ended of), waits.go (what a start waits for), metrics.go, metrics_lag.go and metrics_spill.go, control.go (commands to all
// instances, where they are read), control_age.go (how old they are at most) and control_send.go (where they are sent), cancel.go, forget.go, forget_fate.go (what became of the state)
// and forget_plan.go (a cancel that deletes the state), life.go and life_reset.go (which life of the application a process belongs to), reset.go, from.go (starts from a savepoint).
package processor
