package config

import (
	"time"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/rules"
	"github.com/millweir/millweir/processor"
)

// envPrefix starts the environment variables that are settings.
const envPrefix = "MILLWEIR_"

// Settings gives the table, in the order of the reference page.
func Settings() []Setting { return append([]Setting(nil), table...) }

var table = concat(general, checkpointing, state, restarting, limits, administration)

func concat(parts ...[]Setting) []Setting {
	var out []Setting
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

var general = []Setting{
	{Path: "application", Type: "name", Required: true, Doc: "Name of the service: the consumer group, and the prefix of its internal topics and transactional ids. With a source that has an `end` the group `<application>.ends` is its own as well: a run is refused (3) while that is another application's or anybody else's, and so is an application that is called like it while it has ends. So are the topic `<application>-control`, for commands to all instances, and, after a `reset`, the group `<application>:life`.",
		Refused: "`millweir-store-id`.",
		read:    text(rules.Application, func(s *Service) *string { return &s.Application })},
	{Path: "data-dir", Type: "directory", Default: "./data", Doc: "What the instance keeps for itself; relative to the working directory.",
		read: text(rules.Path, func(s *Service) *string { return &s.DataDir })},

	{Path: "kafka.brokers", Type: "list of host:port", Required: true, Doc: "Brokers to start from; a list, or one text with commas.",
		read: texts(rules.Broker, func(s *Service) *[]string { return &s.Kafka.Brokers })},
	{Path: "kafka.tls", Type: "mapping", Only: true, Doc: "Encryption of the connections.", read: unavailable},
	{Path: "kafka.sasl", Type: "mapping", Only: true, Doc: "Authentication.", read: unavailable},
	{Path: "kafka.schema-registry", Type: "mapping", Only: true, Doc: "Schema registry; schemas come from local files so far.", read: unavailable},
}

var checkpointing = []Setting{
	{Path: "checkpointing.interval", Type: "duration or `disabled`", Default: "1s", Flink: "execution.checkpointing.interval", FlinkDefault: "off",
		Doc:  "Time between triggers. `disabled`: no checkpoints; state is not recovered, and offsets are committed as records are processed. Over committed checkpoints that hold state the start is refused (23), unless `--allow-dropped-state` lets it go.",
		read: interval},
	{Path: "checkpointing.mode", Type: "exactly-once or at-least-once", Default: "exactly-once", Flink: "execution.checkpointing.mode", FlinkDefault: "EXACTLY_ONCE",
		Doc:  "Guarantee. at-least-once: no transactions and no alignment; outputs since the last checkpoint repeat after a failure.",
		read: enum(func(s *Service) *Mode { return &s.Checkpointing.Mode }, processor.ExactlyOnce, processor.AtLeastOnce)},
	{Path: "checkpointing.timeout", Type: "duration", Default: "50s", Flink: "execution.checkpointing.timeout", FlinkDefault: "10 min",
		Doc:  "A checkpoint that is not complete by then is aborted.",
		read: duration(func(s *Service) *time.Duration { return &s.Checkpointing.Timeout })},
	{Path: "checkpointing.min-pause", Type: "duration", Default: "0s", Flink: "execution.checkpointing.min-pause", FlinkDefault: "0 ms",
		Doc:     "Least time between the end of one checkpoint and the start of the next.",
		Refused: "More than 0s with max-concurrent above 1.",
		read:    duration(func(s *Service) *time.Duration { return &s.Checkpointing.MinPause })},
	{Path: "checkpointing.max-concurrent", Type: "integer", Default: "1", Flink: "execution.checkpointing.max-concurrent-checkpoints", FlinkDefault: "1",
		Doc:     "Checkpoints in flight at once; they are committed in order.",
		Refused: "Above 1 with min-pause above 0s, or with unaligned true.",
		read:    integer(func(s *Service) *int { return &s.Checkpointing.MaxConcurrent })},
	{Path: "checkpointing.tolerable-failures", Type: "integer or `unlimited`", Default: "0", Flink: "execution.checkpointing.tolerable-failed-checkpoints", FlinkDefault: "0",
		Doc:  "Failed checkpoints in a row that do not end the attempt: the next one covers them. Only while the time left in the transaction is at least checkpointing.timeout, so to tolerate one that times out transaction.timeout must be at least the larger of interval and min-pause, plus min-pause, plus two times checkpointing.timeout, plus 1s.",
		read: integerOrUnlimited(func(s *Service) *int { return &s.Checkpointing.TolerableFailures })},
	{Path: "checkpointing.unaligned", Type: "boolean", Default: "false", Flink: "execution.checkpointing.unaligned.enabled", FlinkDefault: "false",
		Doc:     "Barriers overtake the records in the channels, which become part of the snapshot.",
		Refused: "true with mode at-least-once, or with max-concurrent above 1.",
		read:    yesNo(func(s *Service) *bool { return &s.Checkpointing.Unaligned })},
	{Path: "checkpointing.aligned-timeout", Type: "duration", Default: "0s", Flink: "execution.checkpointing.aligned-checkpoint-timeout", FlinkDefault: "0 ms",
		Doc:     "With unaligned: a checkpoint starts aligned, and becomes unaligned when its alignment takes longer. 0s: it starts unaligned.",
		Refused: "More than 0s without unaligned true.",
		read:    duration(func(s *Service) *time.Duration { return &s.Checkpointing.AlignedTimeout })},
	{Path: "checkpointing.retention", Type: "retain-on-cancellation or delete-on-cancellation", Default: "retain-on-cancellation",
		Flink: "execution.checkpointing.externalized-checkpoint-retention", FlinkDefault: "NO_EXTERNALIZED_CHECKPOINTS",
		Doc:  "What becomes of the checkpoints when the service is cancelled. What the running instances have counts, not the file that cancel is given; give all the same. A stop or a failure never deletes them.",
		read: enum(func(s *Service) *Retention { return &s.Checkpointing.Retention }, processor.RetainOnCancellation, processor.DeleteOnCancellation)},
	{Path: "checkpointing.prefer-checkpoint-for-recovery", Type: "boolean", Default: "false",
		Doc:  "Recovery reads the checkpoint, not the savepoint that was cut at the same barrier.",
		read: yesNo(func(s *Service) *bool { return &s.Checkpointing.PreferCheckpoint })},
	{Path: "checkpointing.force", Type: "boolean", Default: "false",
		Doc:  "Checkpoints although the topology has iterations in the process: a failure loses the records on their edges.",
		read: yesNo(func(s *Service) *bool { return &s.Checkpointing.Force })},
}

var state = []Setting{
	{Path: "state.backend", Type: "badger or memory", Default: "badger", Flink: "state.backend.type", FlinkDefault: "hashmap",
		Doc:  "Where keyed state is worked on: memory with a local copy on disk, or memory alone. Written `state: {backend: memory}`, or `state: {backend: {type: memory}}` beside further keys of the backend.",
		read: enum(func(s *Service) *Backend { return &s.State.Backend }, processor.Badger, processor.Memory)},
	{Path: "state.backend.async", Type: "boolean", Default: "true",
		Doc:  "Frozen state is persisted in the background. false: processing waits for it.",
		read: yesNo(func(s *Service) *bool { return &s.State.Async })},
	{Path: "state.backend.incremental", Type: "boolean", Default: "true", Flink: "execution.checkpointing.incremental", FlinkDefault: "false",
		Doc:  "A checkpoint writes only what changed since the last one. false: each writes the whole state. What of it is on disk because of state.backend.memory-limit is sorted there first, which takes as much room again while it is read; where there is none, it is read more slowly.",
		read: yesNo(func(s *Service) *bool { return &s.State.Incremental })},
	{Path: "state.backend.fs.memory-threshold", Type: "size", Default: "20kb", Flink: "execution.checkpointing.data-inline-threshold", FlinkDefault: "20 kb",
		Doc:  "Runs smaller than this lie in the root metadata of the checkpoint instead of a file of their own.",
		read: size(func(s *Service) *int64 { return &s.State.MemoryThreshold })},
	{Path: "state.backend.fs.write-buffer-size", Type: "size", Default: "4kb", Flink: "execution.checkpointing.write-buffer-size", FlinkDefault: "4096",
		Doc:  "Write buffer of the files of checkpoints and savepoints; the larger of it and memory-threshold counts.",
		read: size(func(s *Service) *int64 { return &s.State.WriteBufferSize })},
	{Path: "state.backend.local-recovery", Type: "boolean", Default: "true", Flink: "execution.state-recovery.from-local", FlinkDefault: "false",
		Doc:  "Recovery takes the state from the local copy where that fits, and reads only what is newer from the checkpoints. false: the badger backend keeps no local copy. The memory backend has none and ignores it.",
		read: yesNo(func(s *Service) *bool { return &s.State.LocalRecovery })},
	{Path: "state.backend.memory-limit", Type: "size", Default: "256mb", Flink: "state.backend.rocksdb.memory.fixed-per-slot", FlinkDefault: "none",
		Doc:  "Memory that the state of all tasks of the process may take, together. With the badger backend what exceeds it goes to disk, below state.local.root-dirs, what was not used lately first, and comes back when it is used; it does not outlive the process. Changes that are not committed stay in memory: state.uncommitted-limit is for them. A whole state (a savepoint, each checkpoint with state.backend.incremental false, the first one after a start from a savepoint or with another parallelism) takes as much room on disk again while it is read. On a file system with less than 256 MiB free nothing is written: state stays in memory then, above the limit, and a whole state that is on disk in part is read in passes, one for each quarter of the limit (64mb at most), each of which reads all that is on disk. Keys and values of one task take 32 GiB of memory at most, with either backend; more stop the service (1): more partitions or subtasks share them. The memory backend keeps all state in memory and ignores it.",
		read: size(func(s *Service) *int64 { return &s.State.MemoryLimit })},
	{Path: "state.local.root-dirs", Type: "list of directories", Flink: "execution.checkpointing.local-backup.dirs", FlinkDefault: "none",
		Doc:     "Where local copies of the state live. Of several directories, say one per disk, each has the copies of some of the tasks, and what memory does not hold of their state: those of a source or exchange take turns. One that cannot be used or is full is left out with a warning, and its tasks go on to the next one. A change of the list has copies built anew. Derived: `local` below the data directory.",
		Refused: "A directory that is named twice.",
		read:    texts(rules.Path, func(s *Service) *[]string { return &s.State.LocalRootDirs })},
	{Path: "state.checkpoints.dir", Type: "directory", Flink: "execution.checkpointing.dir", FlinkDefault: "none",
		Doc:  "Where completed checkpoints are kept: a directory or file:///directory that all instances share. Derived: `checkpoints` below the data directory.",
		read: text(rules.Dir, func(s *Service) *string { return &s.State.Checkpoints.Dir })},
	{Path: "state.checkpoints.num-retained", Type: "integer", Default: "3", Flink: "execution.checkpointing.num-retained", FlinkDefault: "1",
		Doc:  "Completed checkpoints that are kept of every task. At least 2 are with checkpointing.mode at-least-once, also when this says 1.",
		read: integer(func(s *Service) *int { return &s.State.Checkpoints.NumRetained })},
	{Path: "state.savepoints.dir", Type: "directory", Flink: "execution.checkpointing.savepoint-dir", FlinkDefault: "none",
		Doc:  "Where savepoints go that are asked for without a place: a directory or file:///directory.",
		read: text(rules.Dir, func(s *Service) *string { return &s.State.SavepointsDir })},
	{Path: "state.uncommitted-limit", Type: "size", Default: "64mb", Doc: "Uncommitted state above this takes a checkpoint early; where none may start the sources pause.",
		read: size(func(s *Service) *int64 { return &s.State.UncommittedLimit })},
}

const otherType = "Given with another type."

var restarting = []Setting{
	{Path: "restart-strategy.type", Type: "exponential-delay, fixed-delay, failure-rate or none", Default: "exponential-delay", Flink: "restart-strategy.type", FlinkDefault: "exponential-delay with checkpoints, else none",
		Doc:  "What follows a failed attempt. `off` and `disable` mean none, as in Flink. No strategy tries again what fails each time in the same way, and the service stops at once (exit code 30): under on-error fail a record that cannot be decoded or encoded, an error of an expression in a service file, and an error that Go code marks with topology.Permanent.",
		read: strategy},
	{Path: "restart-strategy.same-record-failures", Type: "integer or `unlimited`", Default: "10",
		Doc:  "So many attempts that fail at one and the same record stop the service with a verdict that names it, whatever the strategy.",
		read: integerOrUnlimited(func(s *Service) *int { return &s.Restart.SameRecord })},
	{Path: "restart-strategy.exponential-delay.initial-backoff", Type: "duration", Default: "1s", Flink: "restart-strategy.exponential-delay.initial-backoff", FlinkDefault: "1 s",
		Doc: "Wait after the first failure.", Refused: otherType, applies: of(restart.ExponentialDelay),
		read: duration(func(s *Service) *time.Duration { return &s.Restart.Exponential.InitialBackoff })},
	{Path: "restart-strategy.exponential-delay.max-backoff", Type: "duration", Default: "1m", Flink: "restart-strategy.exponential-delay.max-backoff", FlinkDefault: "1 min",
		Doc: "Longest wait.", Refused: "Less than initial-backoff. " + otherType, applies: of(restart.ExponentialDelay),
		read: duration(func(s *Service) *time.Duration { return &s.Restart.Exponential.MaxBackoff })},
	{Path: "restart-strategy.exponential-delay.backoff-multiplier", Type: "number", Default: "1.5", Flink: "restart-strategy.exponential-delay.backoff-multiplier", FlinkDefault: "1.5",
		Doc: "Factor from one wait to the next.", Refused: otherType, applies: of(restart.ExponentialDelay),
		read: fraction(func(s *Service) *float64 { return &s.Restart.Exponential.Multiplier })},
	{Path: "restart-strategy.exponential-delay.reset-backoff-threshold", Type: "duration", Default: "1h", Flink: "restart-strategy.exponential-delay.reset-backoff-threshold", FlinkDefault: "1 h",
		Doc: "An attempt that runs for so long, waits and restores not counted, makes the wait the initial one again and the count of attempts zero.", Refused: otherType, applies: of(restart.ExponentialDelay),
		read: duration(func(s *Service) *time.Duration { return &s.Restart.Exponential.ResetThreshold })},
	{Path: "restart-strategy.exponential-delay.jitter-factor", Type: "number", Default: "0.1", Flink: "restart-strategy.exponential-delay.jitter-factor", FlinkDefault: "0.1",
		Doc: "Share of the wait that is random, in either direction, between initial-backoff and max-backoff.", Refused: otherType, applies: of(restart.ExponentialDelay),
		read: jitter},
	{Path: "restart-strategy.exponential-delay.attempts-before-reset-backoff", Type: "integer or `unlimited`", Default: "unlimited", Flink: "restart-strategy.exponential-delay.attempts-before-reset-backoff", FlinkDefault: "unlimited",
		Doc: "So many restarts without a reset in between; the next failure stops the service.", Refused: otherType, applies: of(restart.ExponentialDelay),
		read: integerOrUnlimited(func(s *Service) *int { return &s.Restart.Exponential.Attempts })},
	{Path: "restart-strategy.fixed-delay.attempts", Type: "integer", Default: "1", Flink: "restart-strategy.fixed-delay.attempts", FlinkDefault: "1",
		Doc: "Restarts in the life of the process; the next failure stops it. The count is never reset.", Refused: otherType, applies: of(restart.FixedDelay),
		read: integer(func(s *Service) *int { return &s.Restart.Fixed.Attempts })},
	{Path: "restart-strategy.fixed-delay.delay", Type: "duration", Default: "1s", Flink: "restart-strategy.fixed-delay.delay", FlinkDefault: "1 s",
		Doc: "Wait after each failure.", Refused: otherType, applies: of(restart.FixedDelay),
		read: duration(func(s *Service) *time.Duration { return &s.Restart.Fixed.Delay })},
	{Path: "restart-strategy.failure-rate.max-failures-per-interval", Type: "integer", Default: "1", Flink: "restart-strategy.failure-rate.max-failures-per-interval", FlinkDefault: "1",
		Doc: "More failures than this within the interval stop the service.", Refused: otherType, applies: of(restart.FailureRate),
		read: integer(func(s *Service) *int { return &s.Restart.Rate.MaxFailures })},
	{Path: "restart-strategy.failure-rate.failure-rate-interval", Type: "duration", Default: "1m", Flink: "restart-strategy.failure-rate.failure-rate-interval", FlinkDefault: "1 min",
		Doc: "Time over which failures are counted.", Refused: otherType, applies: of(restart.FailureRate),
		read: duration(func(s *Service) *time.Duration { return &s.Restart.Rate.Interval })},
	{Path: "restart-strategy.failure-rate.delay", Type: "duration", Default: "1s", Flink: "restart-strategy.failure-rate.delay", FlinkDefault: "1 s",
		Doc: "Wait after each failure.", Refused: otherType, applies: of(restart.FailureRate),
		read: duration(func(s *Service) *time.Duration { return &s.Restart.Rate.Delay })},
}

var administration = []Setting{
	{Path: "admin.listen", Type: "host:port or `off`", Doc: "Address of the admin listener: /livez, /readyz, /metrics and /api/v1. Derived: 127.0.0.1:8080, or a free port where that one is taken; the log and the first line of `admin.address` in the data directory name it. Port 0 takes a free one.",
		Refused: "An address that other machines can reach, without admin.token.",
		read:    text(rules.Listen, func(s *Service) *string { return &s.Admin.Listen })},
	{Path: "admin.token", Type: "text", Secret: true, Doc: "Must come with every request but /livez and /readyz, as `Authorization: Bearer`. Never shown; give it as ${VARIABLE} or in the environment.",
		Refused: "Shorter than 16 characters, longer than 256, or with blanks.",
		read:    secret(rules.Token, func(s *Service) *string { return &s.Admin.Token })},
}

var limits = []Setting{
	{Path: "transaction.timeout", Type: "duration", Flink: "transaction.timeout.ms", FlinkDefault: "1 h, of the producer",
		Doc:     "Timeout of the Kafka transactions. Derived: the larger of interval and min-pause, plus checkpointing.timeout, plus 5s, at least 1m.",
		Refused: "Less than the larger of interval and min-pause, plus checkpointing.timeout, plus 5s; above the broker's transaction.max.timeout.ms.",
		read:    duration(func(s *Service) *time.Duration { return &s.Transaction.Timeout })},
	{Path: "instance.id", Type: "name", Doc: "Identity for static membership and transactional ids. Without it one is made at the first start and kept in the data directory. The transactional ids are `<application>-<instance.id>-0` and so on: two applications for which they read the same, as `orders` with `eu-0` and `orders-eu` with `0`, abort each other again and again.",
		read: text(rules.Name, func(s *Service) *string { return &s.Instance.ID })},
	{Path: "group.session-timeout", Type: "duration", Default: "10s", Flink: "session.timeout.ms", FlinkDefault: "45 s, of the consumer",
		Doc:     "A member that is not heard of for so long loses its partitions.",
		Refused: "Outside of the broker's group.min.session.timeout.ms and group.max.session.timeout.ms.",
		read:    duration(func(s *Service) *time.Duration { return &s.Group.SessionTimeout })},
	{Path: "sink.hold-back-limit", Type: "size", Default: "64mb", Doc: "Output held back while a checkpoint commits; above it back-pressure.",
		read: size(func(s *Service) *int64 { return &s.Sink.HoldBackLimit })},
	{Path: "shutdown.timeout", Type: "duration", Default: "30s", Doc: "Bound of the graceful stop.",
		read: duration(func(s *Service) *time.Duration { return &s.Shutdown.Timeout })},
}
