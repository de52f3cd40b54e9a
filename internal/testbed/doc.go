// Package testbed gives the tests of the packages that talk to Kafka a broker: kfake inside the process by default, a
// real Apache Kafka when REAL_KAFKA=1 is set, or the cluster that KAFKA_BROKERS names. A test is written once and runs on
// either.
//
// Invariants:
//
//	I1  A real Kafka is started at most once per test binary, at its first use, and ends with Main, also after a
//	    failure; the death of the process ends it too.
//	I2  Where a real Kafka is asked for and does not come up, the test fails: it is never skipped and never runs on
//	    kfake instead.
//	I3  Whatever a test makes on the broker has the bed's own suffix in its name: tests share a real broker without
//	    seeing each other, and so do runs. The topics and groups of the suffix are deleted at the end of the test.
//	I4  A test that kfake alone can run skips on a real broker with a reason (Fake). Main prints how many did.
//
// The Tap sits in a client's connections and works with every broker: it counts and delays requests, holds answers back,
// breaks connections before a request or after it, and answers with errors: in the broker's place, which then sees nothing
// of the request (Rule.Answer), or in place of the broker's success (Rule.Rewrite).
//
// Goroutines: those of kfake, and the one of kafkatest that waits for the JVM; they end with the test and with Main.
//
// Files: bed.go (Bed), main.go (Main, the real broker), real_unix.go and real_other.go (how it is started), tap.go (Tap),
// conn.go (the connection under it), refusal.go (answers with errors).
package testbed
