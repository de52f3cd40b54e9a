// Package pipeline turns the topology of a service file into a topology.Plan: sources, steps with expressions, sinks.
//
//	sources:
//	  orders: {topic: orders, key: string, value: json, on-error: fail, start: committed}
//	steps:
//	  paid:   {from: orders, filter: value.status == "paid"}
//	  lines:  {from: paid, map: {customer: key, cents: value.amount}}
//	  totals: {from: paid, aggregate: {orders: count(), spent: sum(value.amount)}}
//	  cities: {from: paid, group-by: value.city, exchange: local, aggregate: {orders: count()}}
//	sinks:
//	  totals: {from: totals, topic: order-totals, key: string, value: json}
//
// A source of several topics (topics: [a, b]) or of those that match a regular expression (pattern: "orders-.*") is a merge of
// one source per topic, as topology.FromTopics and FromPattern make it; for steps and sinks it is one stream.
//
// Expressions are those of expr-lang. They can name value, key, headers (by name, of repeated ones the last),
// timestamp (milliseconds) and tombstone. They are compiled once; a mistake is reported with its place in the file.
//
// A tombstone (null value) passes filter and map untouched and changes nothing in an aggregate, which gives no output
// for it. A step whose expression names tombstone sees them, with a value of nil. A map that gives nil makes a
// tombstone. An aggregate gives one output per input: an object of its fields.
//
// A group-by in front of an aggregate is a node of its own, named as the step with "-by" behind it. Records get the new key
// in its stage and keep everything else. Over an exchange values go as they are; as part of a snapshot they are the bytes
// that were read where these still are at hand, else in the encoding of flight.go.
//
// Invariants:
//
//	I1  The same record and state give the same output at every time on every host: the language has no clock, no
//	    time zone, no randomness, no order of a map and no side effect here.
//	I2  An evaluation is bounded: length and nodes of the source, a memory budget, a budget of iterations, constant
//	    patterns with RE2. Texts and lists are some times larger than what they are made of, or checked before they are
//	    made; what predicates make of them has a budget, and so has what they look at.
//	I3  Integers are exact. What leaves the range of int64 is an error of the record, in expressions and in aggregates.
//	    A sum is a float from the first float on, and finite numbers have a finite one.
//	I4  A missing or null field is an error of the record wherever a number is needed; ?? gives a default.
//	I5  Constants never change on the way: a number whose text and value differ is refused (see literals.go).
//	I6  The id of an aggregate's codec lists its fields and functions, so a changed aggregate is noticed at a restore;
//	    changed expressions and the order of the fields are not part of it.
//	I7  Short cuts change nothing but the time: decoding only the fields that expressions name, and evaluating without
//	    the evaluator, give the same outputs and the same errors as whole values and the evaluator do. What is not decoded
//	    is checked all the same. A model without any short cut is tested against (model_test.go).
//	I8  A row of a source never reaches what needs more than the named fields: its shape is whole then.
//	I9  A plan is used by many tasks at once: compiled expressions are immutable, their memory is taken per evaluation
//	    or belongs to the operator of one task.
//	I10 Sources whose rows come together in a merge have one shape. Where rows of a source meet other values, they are whole.
//	I11 Whatever value a stream has can be encoded and comes back the same, kinds of numbers and texts included, so that a
//	    record on its way over an exchange can always become part of a snapshot.
//
// Values flow as any: what the formats decode, or a *row, an object whose fields are listed in a shape. Only expressions
// and sinks look inside, by access.view and sinkValue, so nothing else meets a row.
//
// The package has no goroutine. It reads schema files while it builds.
//
// Files:
//
//	build.go         from sections to a plan
//	declare.go       reading the sections
//	graph.go         names, what reads what, cycles; which sources share a shape
//	topics.go        which topics sources read and sinks write
//	start.go         where sources begin and end
//	steps.go         building what was read
//	exchange.go      group-by, rebalance, broadcast, merge; making new keys
//	flight.go        values on their way over an exchange, in snapshots
//	formats.go       codecs of keys and values
//	schema.go        schema files
//	expr.go          compile and evaluate
//	guards.go        what is changed in the language
//	looks.go         counting what predicates look at
//	functions.go     functions that are exact, ordered and bounded, in place of the language's own
//	compare.go       equality of objects and lists, sorting
//	literals.go      constants
//	access.go        which fields of the value an expression touches
//	quick.go         what needs no evaluator
//	values.go        kinds and types of values
//	row.go           objects of known fields, and the codecs that make and take them
//	aggregate.go     the aggregate step
//	accumulate.go    folding
//	encoding.go      stored values
package pipeline
