// Package examples holds service files that are complete and valid; the tests of package config load each of them.
//
//	orders.yaml    running totals per key: the demo and the quick start run it
//	branches.yaml  several sources, branches, computed fields and sinks in one file
//	group-by.yaml  totals by other keys, over a local exchange
//	merge.yaml     several topics as one stream
//	topics.yaml    sources of a list of topics, and of all topics that match a pattern
//	avro.yaml      Avro with local schema files
//	orderproducer  a program that writes the orders which orders.yaml reads
package examples

import "embed"

// FS holds the files of this folder by their names.
//
//go:embed *.yaml schemas
var FS embed.FS
