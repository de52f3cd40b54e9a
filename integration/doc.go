// Package integration holds the tests that run whole parts of Millweir against a Kafka: a fake one always, a real one
// on demand (REAL_KAFKA=1 starts one, KAFKA_BROKERS names one; see kafkatest). It has no code of its own.
//
// The names of tests that need a real Kafka contain Real or Conformance. Most of them have a twin of the same body on the
// embedded broker. Where a real Kafka is asked for and does not come up, they fail.
//
// Invariants:
//
//	I1  What is tested as a process is the binary as it is shipped, or (jobs_test.go) the test binary as a program that
//	    uses the library.
//	I2  A test has names of its own in the cluster and directories of its own, so that a foreign cluster can be used.
//	I3  Results are read from outside: topics by readers of committed records, offsets and transactions by Kafka's own
//	    requests, checkpoints by a repository that only looks.
//	I4  A random test prints its seed and the command that does it again.
//
// Files, facts about Kafka: conformance_test.go (the table of facts that the design rests on, and where the fake differs),
// facts_txn_test.go, facts_offsets_test.go, facts_group_test.go (how each is observed), gaps_test.go (a log that Kafka's
// cleaner went through), env_test.go (their tools).
//
// Files, the service as a process: kill_test.go (SIGKILL in all phases),
// failpoint_test.go (SIGKILL, errors and pauses between two steps), restart_test.go, takeover_test.go and survivor_test.go (time to
// the first output), several_test.go, pair_test.go and turmoil_test.go (instances that share the partitions), grow_test.go (partitions are added),
// idle_test.go, answers_test.go and moves_test.go (what brokers answer to a commit, also when they do it, and coordinators
// that move), exchange_kill_test.go, exchange_loose_test.go, exchange_failpoint_test.go, exchange_takeover_test.go and exchange_pressure_test.go (jobs
// with exchanges between tasks, in all checkpoint modes and at changing parallelism), cases_test.go and caseNN_test.go (cases from the field), refusal_test.go, handle_test.go, damage_test.go,
// recover_test.go, record_test.go, alone_test.go (what is refused, with message and exit code, and that nothing is lost by
// it). Their tools: main_test.go (the binary, the real Kafka), process_test.go, inside_test.go (a service in the test's own
// process), site_test.go (topics, files, readers), store_test.go (checkpoints), jobs_test.go and
// exchange_job_test.go (topologies of the Go DSL), exchange_site_test.go (what is checked of those with exchanges).
package integration
