package config

import "time"

// envPrefix starts the environment variables that are settings.
const envPrefix = "MILLWEIR_"

// transactionReserve is what a transaction needs beyond the wait for a checkpoint and the checkpoint itself.
const transactionReserve = 5 * time.Second

// minTransactionTimeout is the least derived transaction timeout, Kafka's own default.
const minTransactionTimeout = time.Minute

const (
	kb = int64(1) << 10
	mb = int64(1) << 20
	gb = int64(1) << 30
)

// Settings gives the table, in the order of the reference page.
func Settings() []Setting { return append([]Setting(nil), table...) }

var table = []Setting{
	{Path: "application", Type: "name", Required: true, Doc: "Name of the service: the consumer group, and the prefix of its internal topics and transactional ids.",
		read: text(checkName, func(s *Service) *string { return &s.Application })},
	{Path: "data-dir", Type: "directory", Default: "./data", Doc: "What the instance keeps for itself; relative to the working directory.",
		read: text(checkPath, func(s *Service) *string { return &s.DataDir })},

	{Path: "kafka.brokers", Type: "list of host:port", Required: true, Doc: "Brokers to start from; a list, or one text with commas.",
		read: texts(checkBroker, func(s *Service) *[]string { return &s.Kafka.Brokers })},
	{Path: "kafka.tls", Type: "mapping", Only: true, Doc: "Encryption of the connections.", read: unavailable},
	{Path: "kafka.sasl", Type: "mapping", Only: true, Doc: "Authentication.", read: unavailable},
	{Path: "kafka.schema-registry", Type: "mapping", Only: true, Doc: "Schema registry; schemas come from local files so far.", read: unavailable},

	{Path: "checkpointing.interval", Type: "duration", Default: "1s", Flink: "execution.checkpointing.interval", Doc: "Time between triggers, 10ms to 1h.",
		read: interval},
	{Path: "checkpointing.mode", Type: "exactly-once", Default: "exactly-once", Only: true, Flink: "execution.checkpointing.mode", Doc: "Guarantee of the checkpoints.",
		read: both(only("exactly-once", oneOf("exactly-once", "at-least-once")), enum(func(s *Service) *Mode { return &s.Checkpointing.Mode }, "exactly-once"))},
	{Path: "checkpointing.timeout", Type: "duration", Default: "50s", Flink: "execution.checkpointing.timeout", Doc: "A checkpoint that is not complete by then is aborted; 100ms to 24h.",
		read: duration(100*time.Millisecond, 24*time.Hour, func(s *Service) *time.Duration { return &s.Checkpointing.Timeout })},
	{Path: "checkpointing.min-pause", Type: "duration", Default: "0s", Flink: "execution.checkpointing.min-pause", Doc: "Least time between the end of one checkpoint and the start of the next, at most 24h.",
		read: duration(0, 24*time.Hour, func(s *Service) *time.Duration { return &s.Checkpointing.MinPause })},
	{Path: "checkpointing.max-concurrent", Type: "integer", Default: "1", Only: true, Flink: "execution.checkpointing.max-concurrent-checkpoints", Doc: "Checkpoints in flight at once.",
		read: only("1", count(1, 1000))},
	{Path: "checkpointing.tolerable-failures", Type: "integer or unlimited", Default: "0", Only: true, Flink: "execution.checkpointing.tolerable-failed-checkpoints", Doc: "Failed checkpoints in a row that do not end the attempt.",
		read: only("0", countOrUnlimited)},
	{Path: "checkpointing.unaligned", Type: "boolean", Default: "false", Only: true, Flink: "execution.checkpointing.unaligned.enabled", Doc: "Barriers overtake buffered records.",
		read: only("false", boolean)},
	{Path: "checkpointing.aligned-timeout", Type: "duration", Default: "0s", Only: true, Flink: "execution.checkpointing.aligned-checkpoint-timeout", Doc: "When a checkpoint that started aligned becomes unaligned.",
		read: only("0s", anyDuration)},
	{Path: "checkpointing.retention", Type: "retain-on-cancellation", Default: "retain-on-cancellation", Only: true, Flink: "execution.checkpointing.externalized-checkpoint-retention", Doc: "What becomes of the checkpoints on cancel.",
		read: only("retain-on-cancellation", oneOf("retain-on-cancellation", "delete-on-cancellation"))},
	{Path: "checkpointing.prefer-checkpoint-for-recovery", Type: "boolean", Default: "false", Only: true, Doc: "Which of a savepoint and its twin checkpoint recovery reads.",
		read: only("false", boolean)},
	{Path: "checkpointing.force", Type: "boolean", Default: "false", Only: true, Doc: "Checkpoints although the topology has iterations in the process.",
		read: only("false", boolean)},

	{Path: "state.backend", Type: "badger or memory", Default: "badger", Flink: "state.backend.type", Doc: "Where keyed state is worked on: memory with a local copy on disk, or memory alone. Written `state: {backend: memory}`, or `state: {backend: {type: memory}}` beside further keys of the backend.",
		read: enum(func(s *Service) *Backend { return &s.State.Backend }, string(Badger), string(Memory))},
	{Path: "state.backend.async", Type: "boolean", Default: "true", Only: true, Doc: "Frozen state is persisted in the background.",
		read: only("true", boolean)},
	{Path: "state.backend.incremental", Type: "boolean", Default: "true", Only: true, Flink: "execution.checkpointing.incremental", Doc: "A checkpoint writes only what changed.",
		read: only("true", boolean)},
	{Path: "state.backend.fs.memory-threshold", Type: "size", Only: true, Flink: "execution.checkpointing.data-inline-threshold", Doc: "Runs smaller than this are inlined in the root metadata.", read: unavailable},
	{Path: "state.backend.fs.write-buffer-size", Type: "size", Only: true, Flink: "execution.checkpointing.write-buffer-size", Doc: "Write buffer of snapshot files.", read: unavailable},
	{Path: "state.backend.local-recovery", Type: "boolean", Default: "true", Flink: "execution.state-recovery.from-local", Doc: "Recovery takes the state from the local copy where that fits, and reads only what is newer from the checkpoints. false: the badger backend keeps no local copy.",
		read: yesNo(func(s *Service) *bool { return &s.State.LocalRecovery })},
	{Path: "state.backend.memory-limit", Type: "size", Only: true, Flink: "state.backend.rocksdb.memory.fixed-per-slot", Doc: "Budget of state in memory.", read: unavailable},
	{Path: "state.local.root-dirs", Type: "list of directories", Flink: "execution.checkpointing.local-backup.dirs", Doc: "Where local copies of the state live. Derived: `local` below the data directory.",
		read: texts(checkPath, func(s *Service) *[]string { return &s.State.LocalRootDirs })},
	{Path: "state.checkpoints.dir", Type: "directory", Flink: "execution.checkpointing.dir", Doc: "Where completed checkpoints are kept: a directory or file:///directory that all instances share. Derived: `checkpoints` below the data directory.",
		read: checkpointsDir},
	{Path: "state.checkpoints.num-retained", Type: "integer", Default: "3", Flink: "execution.checkpointing.num-retained", Doc: "Completed checkpoints that are kept of every task, 1 to 1000.",
		read: integer(1, 1000, func(s *Service) *int { return &s.State.Checkpoints.NumRetained })},
	{Path: "state.savepoints.dir", Type: "directory", Only: true, Flink: "execution.checkpointing.savepoint-dir", Doc: "Where savepoints go.", read: unavailable},
	{Path: "state.uncommitted-limit", Type: "size", Default: "64mb", Doc: "Uncommitted state above this takes a checkpoint early; where none may start the sources pause. From 1mb to 16gb.",
		read: size(mb, 16*gb, func(s *Service) *int64 { return &s.State.UncommittedLimit })},

	{Path: "restart-strategy.type", Type: "exponential-delay", Default: "exponential-delay", Only: true, Flink: "restart-strategy.type", Doc: "How long to wait before a new attempt.",
		read: only("exponential-delay", oneOf("exponential-delay", "fixed-delay", "failure-rate", "none"))},
	{Path: "restart-strategy.exponential-delay", Type: "mapping", Only: true, Flink: "restart-strategy.exponential-delay.*", Doc: "Options of that strategy.", read: unavailable},
	{Path: "restart-strategy.fixed-delay", Type: "mapping", Only: true, Flink: "restart-strategy.fixed-delay.*", Doc: "Options of that strategy.", read: unavailable},
	{Path: "restart-strategy.failure-rate", Type: "mapping", Only: true, Flink: "restart-strategy.failure-rate.*", Doc: "Options of that strategy.", read: unavailable},

	{Path: "transaction.timeout", Type: "duration", Flink: "transaction.timeout.ms (of the producer)", Doc: "Timeout of the Kafka transactions, at most the broker's transaction.max.timeout.ms. Derived: the larger of interval and min-pause, plus checkpointing.timeout, plus 5s, at least 1m.",
		read: duration(time.Second, 24*time.Hour, func(s *Service) *time.Duration { return &s.Transaction.Timeout })},
	{Path: "instance.id", Type: "name", Doc: "Identity for static membership and transactional ids. Without it one is made at the first start and kept in the data directory.",
		read: text(checkName, func(s *Service) *string { return &s.Instance.ID })},
	{Path: "group.session-timeout", Type: "duration", Default: "10s", Doc: "A member that is not heard of for so long loses its partitions, 1s to 24h; the brokers have limits of their own.",
		read: duration(time.Second, 24*time.Hour, func(s *Service) *time.Duration { return &s.Group.SessionTimeout })},
	{Path: "sink.hold-back-limit", Type: "size", Default: "64mb", Doc: "Output held back while a checkpoint commits; above it back-pressure. From 1mb to 16gb.",
		read: size(mb, 16*gb, func(s *Service) *int64 { return &s.Sink.HoldBackLimit })},
	{Path: "shutdown.timeout", Type: "duration", Default: "30s", Doc: "Bound of the graceful stop, 1s to 1h.",
		read: duration(time.Second, time.Hour, func(s *Service) *time.Duration { return &s.Shutdown.Timeout })},
}
