// Package snapshot keeps the durable truth of a service: sorted runs of keyed state, one root metadata file per
// checkpoint, the handle that travels in Kafka's offset metadata, and the rules by which a handle leads back to
// state. It knows nothing of Kafka or of the store: it takes iterators and facts.
//
// Invariants:
//
//	I1  A file is written once, under a name that carries the checkpoint id and the incarnation. It appears under
//	    that name only complete and fsynced, and what appears there is never changed or replaced.
//	I2  WriteRoot returns nil only after everything that the root names is durable; the root itself included.
//	I3  Runs of a task form a chain: the first is a full run or starts at 0, and each starts where the one before
//	    ended. A hole, an overlap or a missing file is an error, never an empty or an older state.
//	I4  No byte of a file reaches the caller before the CRC32C of its block was checked. Lengths, digests, identity
//	    (task, interval, states) and order of keys are checked too; a Restore that returned nil checked everything.
//	I5  Decoders return errors for any input, and allocate in proportion to the bytes that are there, whatever the
//	    bytes claim.
//	I6  Clean deletes only files of its own instance that nothing reaches: no root that is among the NumRetained newest
//	    committed ones of one of its tasks, no root that a committed handle of the group names, no root of another instance,
//	    no root that holds a task of which no newer root is known to be committed, nothing newer than what this process
//	    committed last, and nothing of an incarnation that appeared after the Repository was opened (a successor's).
//	    CleanFailed, at the start of an attempt, also deletes roots all of whose tasks are known to be committed at older
//	    ones, and what no root names of files that this process wrote or found when it was opened. Discard deletes one
//	    checkpoint of this process whose commit was never begun.
//	    CleanGone deletes in directories of instances that are not in the group, by the same reachability and all
//	    committed handles of the group. If one root cannot be read, or is lost, neither deletes anything. What is not
//	    needed when they decide is not needed ever after, so a process may be stopped anywhere in them while others go on.
//	    Listings prove nothing about a task of which they show no root: data whose root was not read goes only after the group
//	    was asked, behind the listings, and not while it cannot be (decide), or while one of its handles cannot be read.
//	I7  Resolve starts a task empty only when a handle says so, or when neither the group nor the store knows what
//	    it reads, whatever its source was called; or where a topic without state of its own was absent (mixture.go), and on
//	    request where such a topic has lost its offset, a topic was created anew or all sources were replaced (replaced.go). Everything else that does not match is
//	    refused with a reason. Recover, asked explicitly, starts refused
//	    tasks from the newest checkpoint that is whole and known to be committed, never from an unconfirmed one.
//	I8  Checkpoint ids are compared only within the history of what one task reads, where they grow whichever instance it lives on,
//	    and within what one process writes. Those of two instances mean nothing to each other, and
//	    nor do those of tasks of one name in two clusters or of two topics. Nothing of another cluster is ever deleted.
//	I9  A marker goes for good before its root, a root before what it names. A marker without its root is a lost root; who
//	    writes one late looks whether the root is still there.
//	I10 A root is the truth about all subtasks of the stages behind exchanges that it holds, and about what was on the way to
//	    them: they start from the one root that the handles of all source tasks name, or the newest of several where a topic was
//	    absent (mixture.go), never from several. A key belongs to one
//	    subtask and so does a record in flight, whatever the parallelism becomes.
//	I11 A run that lies in a root is carried along by the roots that follow until it is merged; what they carry is bounded.
//	I12 A savepoint needs nothing outside of its directory, and nothing but Dispose removes it. It is finished when it has
//	    metadata, and each of its bytes is under a checksum.
//
// Layout below the checkpoint directory (docs/format describes the files):
//
//	millweir-store-id                                   identity of the directory
//	<application>/<instance>/chk-<name>.data            delta runs of all tasks of a checkpoint
//	<application>/<instance>/chk-<name>.root            root metadata
//	<application>/<instance>/chk-<name>.committed       marker: the transaction is known to be committed
//	<application>/<instance>/full-<name>-<task>.data    a chain merged into one full run
//	<application>/<instance>/instance                   announcement: the instance has been here
//
// Savepoints lie elsewhere, each in a directory savepoint-<application>-<name> with _metadata and state.data.
//
// The package starts no goroutine. A Repository may be used from several; one Persist at a time per checkpoint name.
// Resolve, ParseHandle and the codecs are pure.
//
// Files: names.go names and paths, errors.go with broken_linux.go, storage.go, local.go and localdir.go (Storage), storeid.go, codec.go (binary
// helpers), handle.go, root.go and rootcodec.go, marker.go, run.go with runwriter.go and runreader.go, repository.go,
// list.go, instances.go, announce.go, cluster.go (whose directory it is), lineage.go (whose checkpoints follow each other),
// persist.go with inline.go and inflight.go, restore.go, chain.go, verify.go, merge.go, clean.go with cleanread.go, cleanfailed.go and cleangone.go, resolve.go with stages.go, mixture.go, replaced.go, grown.go, setback.go, renamed.go, unsaved.go, unread.go and refusal.go, recover.go with recovernew.go, savepoint.go with
// savepointcodec.go, savepointread.go, savepointparts.go and savepointresolve.go, start.go with origin.go (starts from a savepoint),
// remove.go (all of an application).
package snapshot
