// Package topology is the Go DSL: typed streams from Kafka topics through steps to Kafka topics, their logical graph,
// the checked Plan, and the operators that a task runs.
//
//	b := topology.New("order-totals")
//	orders := topology.FromTopic(b, "orders", "orders", serde.String(), json.Of[Order]())
//	paid := topology.Filter(orders, "paid", func(_ string, o Order) bool { return o.Status == "paid" })
//	totals := topology.Aggregate(paid, "totals", json.Of[Total](), func(t Total, o Order) Total { return t.Add(o) })
//	topology.ToTopic(totals, "totals", "order-totals", serde.String(), json.Of[Total]())
//	plan, err := b.Plan()
//
// State is keyed by the key of the source's records, so a task, one partition of a source, needs nothing from another.
// Each step has a name, which its state is stored under: it is part of the contract with earlier checkpoints.
//
// What happens to records that are not plain key-value pairs:
//
//	                 Filter, Map       FilterRec, MapRec    aggregates                     Process          sink
//	tombstone        passes untouched  handed to function   ignored, told as ErrTombstone  handed to it     null value
//	                                                        (AggregateRec, and
//	                                                        AggregateEncoded that
//	                                                        asks: handed to fn)
//	null key         handed over       handed to function   ErrNullKey                     ErrNullKey when  null key
//	                                                                                       it has state
//	headers          pass              pass, may be set     pass                           pass, may be set pass
//	timestamp        passes            passes, may be set   passes                         passes, may be set passes
//
// SetHeader replaces all headers of a key by one at the end, AddHeader appends. That rule holds wherever headers are set.
//
// Invariants:
//
//	I1  Null is never made empty, nor empty null: not for keys, not for values, not for header values. A null is never
//	    handed to a serde.
//	I2  Headers keep order and repeats. The slice of an input record is never changed; setting one copies.
//	I3  Key and value bytes given to Env.Emit are never written again: they are the input's own or fresh memory.
//	I4  The outputs of an input record are emitted in order, and before the outputs of later records of its partition
//	    at the same sink.
//	I5  After Process returns nil nothing is owed: outputs are emitted, state is in the tables.
//	I6  What goes wrong with a record, panics of user code included, is a *RecordError that names topic, partition,
//	    offset and step. It never ends the process by itself. Under Skip, the record leaves no trace in the failing
//	    step: no output, no state.
//	I7  An int64 aggregate never wraps around.
//	I8  A batch that an operator receives is read-only; branches share it.
//	I9  The hot path allocates per batch, not per record, except for what user functions and serdes allocate.
//	I10 Plan reports all mistakes of a topology at once, and does not change afterwards.
//
// The package starts no goroutine, keeps no clock and does no I/O. A Task belongs to the goroutine that drives it; a Plan
// may be shared. It imports element, serde and internal/fault only.
//
// Files:
//
//	builder.go       Builder, Stream, options; the nodes of the graph; FromTopic, ToTopic
//	steps.go         Filter, Map, FilterRec, MapRec and their operators
//	aggregate.go     Aggregate, AggregateRec
//	encoded.go       AggregateEncoded: accumulators in encoded form, and its operator
//	numeric.go       Count, Sum, Min, Max, Last
//	process.go       Process, Processor, ValueState
//	plan.go          Plan and the checks
//	describe.go      the graph as text, Mermaid and Dot
//	task.go          Task: building and driving the operators of one partition
//	state.go         Env and StateTable, what a task needs from the engine
//	rec.go           Rec, Batch, headers, the reused output batch
//	port.go          how operators are connected
//	guard.go         errors and panics of one record, policies
//	source.go, sink.go, aggregate_op.go, process_op.go   the other operators
//	arena.go         memory for encodings
//	errors.go        RecordError, PlanError, reasons
//	memenv_test.go   an Env in memory
package topology
