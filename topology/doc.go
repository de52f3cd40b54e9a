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
// State is keyed by the key of the records. As long as that is the key of the source's records, a task, one partition of a
// source, needs nothing from another. Each step has a name, which its state is stored under: it is part of the contract
// with earlier checkpoints.
//
// # Stages
//
// An exchange moves records between tasks within the process. GroupBy gives them another key and brings those of one key
// together, Rebalance spreads them, Broadcast copies them, and a Feedback leads them back up the graph:
//
//	byCountry := topology.GroupBy(orders, "country", serde.String(), json.Of[Order](), func(_ string, o Order) string { return o.Country })
//	topology.ToTopic(topology.Count(byCountry, "orders-per-country"), "countries", "orders-per-country", serde.String(), serde.Int64())
//
// A stage is what one task runs: the operators from a source or an exchange to the next exchanges and sinks. Plan.Stages
// lists them. A source's stage has a task per partition, an exchange's one per subtask. Records travel in parcels of up to
// 256, with their Go types: nothing is encoded but for a snapshot that contains records in flight. Env.Send takes a parcel
// over, and Task.Receive of the other task recycles it. The key of a record decides its key group, and the group the
// subtask: state of an exchange's stage is restored by group, at any parallelism.
//
// Merge joins streams. What stands behind a merge of several stages is part of each of them, so it cannot have keyed state.
//
// # Timers
//
// A Processor that is a TimerProcessor sets processing-time timers for the key of the record at work. They are state, in
// the table <step>/timers, and fire through Task.FireTimers.
//
// # Records
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
// GroupBy leaves tombstones out, told as ErrTombstone, and hands null keys to its function; GroupByRec hands it both, and
// a new key that is null is ErrNullKey. Through the other exchanges everything passes. What a timer emits has its key and
// time, no headers, no source partition and the offset -1.
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
//	    at the same sink, unless a merge has joined their ways. From one task to one subtask parcels and the records in
//	    them keep their order.
//	I5  After Process, Receive and FireTimers return nil nothing is owed: outputs are emitted, parcels are sent, state is
//	    in the tables.
//	I6  What goes wrong with a record, panics of user code included, is a *RecordError that names topic, partition,
//	    offset and step, for a record of a timer key, time and step, also behind an exchange. It never ends the process by itself. Under Skip, the record leaves no
//	    trace in the failing step: no output, no state. The policy is that of the record's own source.
//	I7  An int64 aggregate never wraps around.
//	I8  A batch that an operator receives is read-only; branches share it.
//	I9  The hot path allocates per batch, not per record, except for what user functions and serdes allocate. That holds
//	    for sending and receiving, too.
//	I10 Plan reports all mistakes of a topology at once, and does not change afterwards.
//	I11 From Env.Send on nothing writes to a parcel, or to what its records refer to, until Task.Receive recycles it. One
//	    that is kept is never written again.
//	I12 A timer fires at most once, and only after what set it has succeeded. Those of one task fire in the order of time.
//
// The package starts no goroutine, keeps no clock and does no I/O. A Task belongs to the goroutine that drives it, a
// Parcel to whoever holds it; a Plan may be shared. It imports element, serde and internal/fault only.
//
// Files:
//
//	builder.go       Builder, Stream, options; the nodes of the graph; FromTopic, ToTopic
//	start.go, end.go Start, End, Missing: where sources begin and end, and what they do when their position is gone
//	topics.go        sources of several topics, by list and by pattern
//	steps.go         Filter, Map, FilterRec, MapRec and their operators
//	aggregate.go     Aggregate, AggregateRec
//	encoded.go       AggregateEncoded: accumulators in encoded form, and its operator
//	numeric.go       Count, Sum, Min, Max, Last
//	process.go       Process, Processor, ValueState
//	exchange.go      GroupBy, Rebalance, Broadcast, Feedback
//	merge.go         Merge
//	plan.go          Plan and the checks
//	stage.go         the stages of a plan
//	describe.go      the graph as text, Mermaid and Dot
//	task.go          building the operators of one task
//	drive.go         driving them
//	state.go         Env and StateTable, what a task needs from the engine
//	rec.go           Rec, Batch, headers, the reused output batch
//	port.go          how operators are connected
//	guard.go         errors and panics of one record, policies
//	source.go, sink.go, aggregate_op.go, process_op.go   the other operators
//	send.go, receive.go, parcel.go   both sides of an exchange, and what goes between them
//	inflight.go      the encoded form of records in flight
//	timers.go, timers_op.go   timers: state and firing
//	arena.go         memory for encodings
//	errors.go        RecordError, PlanError, reasons
//	memenv_test.go   an Env in memory
package topology
