// Package kafka is the one place where Kafka clients are built and where the cluster is asked about itself: versions,
// topics, offsets. Everything else of the project that talks to Kafka builds its client here, so that limits, logging
// and error classes are the same everywhere.
//
// Invariants:
//
//	I1  An error that leaves this package says in one line what was asked and of whom, and is classed by
//	    internal/fault where the cause is known here. What is not classed is worth a new attempt.
//	I2  A read of committed offsets that decides anything is stable and names its partitions: a fetch of "all
//	    partitions of the group" does not show a partition whose first commit is still in an open transaction.
//	I3  A TopicID that leaves this package is never zero.
//
// Goroutines: none of its own; the clients it builds own theirs and end them in Close.
//
// Files: client.go (Config, NewClient), log.go (kgo's log on slog), classify.go (error classes), probe.go (the check
// of the cluster at start), seeds.go (its first answer), cluster.go (another cluster in its place), topics.go (ids, creation, limits), ready.go (what was just made is known to all brokers), ailing.go (partitions that cannot be written to), again.go (what is asked again, and how long), offsets.go (stable reads), positions.go (start, end, time).
package kafka
