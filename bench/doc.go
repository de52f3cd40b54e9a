// Command bench measures Millweir beside the raw loop, and COUNT through a local exchange beside COUNT in one chain, in one
// run on one real Kafka: COUNT over pre-loaded records, one output per input, in transactions.
//
//	go run ./bench                                   a short run: 3 rounds of raw, millweir and exchange, 10 million records
//	go run ./bench -n 40000000 -rounds 5             a long one
//	go run ./bench -contenders millweir,exchange     the exchange alone, beside the chain
//
// The raw loop is consume, count in a Go map, produce, one transaction per interval: the limit that the broker and the
// client set, without durable state. The exchange has two subtasks, and the records go to them by their key. Every
// contender runs in a process of its own, in the order A B C C B A …; an outside reader that looks at batch headers only
// notes when outputs become visible to read_committed; every run's whole output is verified, and a wrong one is void.
// Rates are between 10 % and 90 % of the outputs. Ratios are of the medians.
// What is too short for a rate fails.
//
// Files: main.go (flags, rounds), contender.go (processes and what is measured of them), load.go (topics and input),
// watch.go (what is visible), raw.go (the raw loop), job.go (COUNT in the Go DSL), sync.go (the synchronous phase against
// the number of keys).
package main
