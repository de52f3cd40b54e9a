// Package topology is the Go DSL: typed streams from Kafka topics through steps to Kafka topics, their logical graph,
// the checked Plan, and the operators that a task runs.
package topology
