// Package demo shows exactly-once in under a minute, on nothing but the binary: a stream of orders, a job that keeps
// running totals, kill -9 of the job at random moments, and an independent check of the result.
//
// The broker runs inside the demo's process, or is a real Kafka; the job is a child process of the same binary, so a
// kill -9 is a real one. The check is package verify, which shares no code with the engine.
//
// Invariants:
//
//	I1  The moments of the kills and the orders are functions of the seed, which is printed.
//	I2  A recovery time is from the start of the new process to the first output that it committed: one at or above
//	    the end of the topic as it was after the old process was gone. What the old one committed last does not count.
//	I3  The child does not outlive the demo (on Linux not even when the demo gets kill -9) and is always reaped.
//	I4  The verdict is the verifier's over all orders that were acknowledged; nothing else makes it `verified`.
//	I5  What the demo leaves behind is in one directory, and on a real Kafka in topics of names of its own.
//
// Goroutines, all owned and awaited by Run: the producer of orders, the tail reader of the totals, the reader of the
// committed checkpoint, the painter of the view, and one for each child that starts it and waits for it.
//
// Files: config.go (what can be asked for), demo.go (the flow), orders.go (the stream of orders), child.go and
// attr_*.go (the job's process), command.go (its command line), topology.go (its topology file), kills.go (when to
// kill, and the recovery), tail.go (reading the totals), view.go (the live view), result.go (the outcome as text).
package demo
