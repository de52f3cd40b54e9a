// Package gate is the barrier handling of one task with several inputs: when an input is set aside, when the snapshot is
// taken, what of the records in flight belongs to it, and what becomes of checkpoints that fail half way. It is pure:
// events in, actions out; no I/O, no clock, no goroutine, no knowledge of the graph.
package gate
