//go:build unix

// Package kafkatest starts a real Apache Kafka for tests, benchmarks and developers: KRaft brokers in combined mode on
// loopback, run by the Java (17 or newer) that is installed, from the jars that Maven resolves.
//
// The jars are kept in ${XDG_CACHE_HOME:-~/.cache}/kafka-broker/<version> (KAFKA_JARS names another folder) and
// fetched once; KAFKA_VERSION picks another version. With KAFKA_BROKERS set nothing is started and the tests use that
// cluster, which they cannot stop or kill.
//
// Invariants:
//
//	I1  No broker outlives the process that started it: it is killed at the end of the test, and by the kernel (Linux)
//	    if the process dies before.
//	I2  Everything of a cluster lies in its Dir: properties, data, logs, pid files. A Dir made by the package is removed
//	    by Close, unless the test failed and KAFKATEST_KEEP is set.
//	I3  A Broker that was handed out has answered: every node by itself, and all nodes are in the metadata.
//
// Goroutines: one per node that waits for its process, ended by the end of that process.
//
// Files: broker.go (Start, Stop, Kill), node.go (one JVM), config.go (server.properties), jars.go (Maven, the class
// archive), ready.go (when a node counts as up), cmd (start one from the shell).
package kafkatest
