// Package embedded runs a small Kafka broker inside the process: for a first try without any installation, for the
// demo, and for tests that want a broker over real sockets.
//
// The broker is kfake of the franz-go project, one node on 127.0.0.1. It speaks Kafka's protocol with transactions
// (transaction.version 2), consumer groups and compaction, so any Kafka client can use it. It is no production
// broker: one node, no replication.
//
// Invariants:
//
//	I1  It listens on the loopback interface only, and the address it advertises is the one it listens on.
//	I2  With a data directory the cluster id, topics (ids included), records, transactions and group offsets survive
//	    a restart. Before a killed broker serves anybody again, its open transactions are aborted, markers included, and
//	    the clients that had them open are fenced. No record goes for its age. A partition that is emptied all the same, by
//	    DeleteRecords or a topic's own retention, begins at offset 0 again after a restart: kfake reads the next offset
//	    from the records.
//	I3  One process at a time uses a data directory: a second Start fails, and the lock of a killed process is free.
//	I4  Without SyncWrites what a client saw acknowledged survives the end of the process, kill -9 included, but not
//	    a loss of power. With it every write is fsynced before it is acknowledged.
//	I5  Close waits until everything is on disk and reports what could not be written.
//	I6  What is no regular file, or may not be read and written, under the name of one of its files is refused at the start,
//	    and stays as it is.
//
// kfake has no transaction log: it writes the markers and offsets of a commit one after the other. A note that is made
// before lets the next start complete a commit that had begun, as a real broker does; see journal.go.
//
// Goroutines: those of kfake, and one of keeper.go for each member that waits in a JoinGroup. All end with Close.
//
// Files: broker.go (start, topics, close), repair.go (what a killed broker left open), files.go (what must be
// files), segments.go (kfake's files),
// journal.go (the note of a commit), groups.go (the rounds of groups are counted right), keeper.go (sessions of members that wait for a round), topic.go (the name:partitions form), logger.go (kfake's log to slog), lock_unix.go
// and lock_other.go (the lock on the data directory).
package embedded
