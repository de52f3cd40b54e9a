// Command processor runs Kafka topologies exactly-once, and brings what is needed to try that: a broker, a demo and
// an independent check.
//
// Invariants:
//
//	I1  What a user gets on an error is one line on standard error, `processor: …`, and a documented exit code
//	    (docs/exit-codes.md); a log or report may stand before it.
//	I2  The first SIGINT or SIGTERM cancels the context of the command, which then ends in order; the second one, if it
//	    comes more than a quarter of a second later, ends the process at once.
//	I3  Where a script reads the result, --output json (verify: --report json) gives one JSON document on standard output
//	    and nothing else.
//
// Goroutines: one waits for signals for the life of the process, one in run for a graceful stop that hangs.
//
// Files: main.go (signals, exit), root.go (the tree of commands and what they share), and one file for each command, several
// for checkpoints; recover.go (what a refusal says of the way back), ending.go (a stop that is
// not possible in order).
package main
