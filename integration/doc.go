// Package integration holds the tests that run whole parts of Millweir against a Kafka: a fake one always, a real one
// on demand (see kafkatest). It has no code of its own.
//
// Files: conformance_test.go (the table of facts about Kafka that the design rests on, and where the fake differs),
// facts_txn_test.go, facts_offsets_test.go, facts_group_test.go (how each is observed),
// gaps_test.go (a log that Kafka's cleaner went through), env_test.go (their tools).
package integration
