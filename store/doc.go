// Package store keeps the keyed state of one task, and a copy of the committed state of all tasks on local disk.
//
// A Store is a set of tables, each a map from key bytes to value bytes, in versions: committed, frozen (one per
// checkpoint in flight) and active. A barrier freezes the active version; the checkpoint's end commits the frozen one;
// a failure rolls everything back to the committed one.
//
//	write ──> active ──Freeze(n)──> frozen n ──Commit(n)──> committed
//	             ^ └──────────────────┴──────Rollback───────────┘
//	             └──────Abandon(n)────┘
//
// One index entry per key, in one lookup, serves all versions: it knows the newest value and the epoch that wrote it.
// The first write of an epoch puts the value into a new slot and appends a change {key, value, value before}; further
// writes of the epoch go to the same slot. The list of changes is dirty list and undo log in one, so a freeze hands it
// over, a rollback walks it backwards, and a commit leaves it as garbage to later writes, which free what it superseded.
// A checkpoint that is given up without an end of the work gives its changes back: they are merged with the active ones,
// one per key, and the next freeze holds them all.
//
// A checkpoint may want the whole state, not what changed. FreezeFull costs the owner what Freeze costs: it takes the
// directory of each index, whose segments are copied before they change from then on. Frozen.Full reads the entries on its
// own goroutine, a value that is overwritten before it has come there being saved by the owner. Measured with a million
// keys of 8 bytes and values of 8: 0.3 µs for the freeze (0.2 µs for Freeze); 0.25 s on the reading goroutine until all is
// yielded in order, with 56 MB beside the store at most; and, between the freeze and the end of the scan, some 50 ns
// more for a first write to a key in an epoch. An Abandon of 100,000 changes with as many active ones: 3 ms.
//
// Keys and values live in chunks without Go pointers, in slots of size classes; the collector sees a few large objects,
// whatever the number of keys. Slots that come back serve their own size class again and are not given back to
// the system, values above 16 KiB excepted, unless there is a Spill and memory is short.
//
// With a Spill, the stores of a process hold together no more in memory than its limit, and what was not used lately goes to
// disk. The memory is always right: an entry that is in the index hides what is on disk of its key. What no change refers to
// that can still be rolled back, read or recycled may be evicted, by the owner at the end of a batch: a segment of the index at
// a time, with a second chance for what was used since. Its entries are merged into blocks of some 4 KiB, one for each range of
// hashes (a bucket), which are written at the end of a log. A bucket, in memory, knows where its block is, its checksum and,
// by a filter of 8 bits per key, which keys are not in it. A key that is not in the index comes back as a committed entry as
// soon as it is wanted, and from then on is one like any other. Blocks never change, so the directory of buckets at a freeze is
// the spilled state at the freeze: the reader of a whole state sorts it into runs, as what is in memory, and merges them.
// Nothing of it outlives the process. docs/adr/0008 has the reasons and the measurements.
//
// Invariants:
//
//	I1  Between the freeze and the commit or rollback of a checkpoint, no byte that its Frozen shows changes.
//	I2  Freeze costs the same for any number of keys and changes. Commit walks no change: each later change works off
//	    two old ones, so garbage never exceeds what was uncommitted at most. Rollback is one step per change it drops,
//	    Abandon one per change that it gives up or that is active.
//	I3  A slot has exactly one owner: a free list, an entry, the newest value of a key, or the value before a change that
//	    is not recycled yet.
//	I4  A change that is recycled looks at its entry only if the change may have left the key without a value, and then
//	    the entry still exists. At most one change frees an entry.
//	I5  Nothing is recycled while a closed Frozen that may show it is being read: one that was given up, or whose reader
//	    broke the rule to finish before the commit. A value that such a reader may see is never changed in place either:
//	    the first write after an Abandon takes a new slot. A read that starts after the Frozen was closed yields nothing
//	    and makes Frozen.Err report ErrReleased.
//	    The same holds while the scan of a Full may look at heads of entries: nothing at all is recycled then.
//	I6  There is at most one change per key and epoch. One that inserts a key and takes it back is not part of Frozen.
//	I7  Full yields what had a value at the freeze, once: from a head whose epoch was not newer than the freeze before and
//	    after it was read, or from what the owner saved before it made the head newer.
//	I8  A write that the store cannot take (limits) makes Err, and the next Frozen's Err, report it until Rollback. It
//	    never panics.
//	I9  In a Local, a task's record says applied only if its data is the state at the checkpoint that it names: intent,
//	    sync, data, sync, applied, sync, in this order, and data is dropped only when no record names it.
//	I10 An error of a Local never reaches the service: it disables the copy (once, in the log) or gives up one task's.
//	    So it is with faults of mapped files in goroutines that call Badger; those in Badger's own end the process, and
//	    the looks before each write keep them rare.
//	I11 What Load gives without an error is, to the entry, what was written up to the version that it names. The record
//	    holds the number of entries and a sum over their checksums, which each flush brings forward by what it
//	    replaces; Badger alone does not notice that something is missing.
//	I12 While a Load reads a task's copy, the writer leaves it alone.
//	I13 An entry is evicted only if its epoch is below the floor of all changes that are active, frozen or garbage, and
//	    while no reader of a whole state may look at it. Its value is in a block before it leaves the index.
//	I14 A key without a value whose block may hold one keeps its entry until the block was written without it.
//	I15 An entry of epoch 0 that has a value is in its block with that value.
//	I16 What cannot be read back is never a miss: Err reports ErrSpill until the store is closed. What cannot be written
//	    stays in memory.
//	I17 Bytes that a table gave out stay valid until its next write or EndBatch: a look-up evicts nothing.
//
// Goroutines: a Store starts none and belongs to its task's goroutine; a Frozen may be read by one or more others. A
// Local has one writer, started by OpenLocal and ended by Close, beside those that Badger owns; its methods may be
// called from anywhere. Close leaves a writer that waits for a disk that does not answer, with what writes the marker of that:
// they end with the process.
//
// Files:
//
//	store.go    Store: tables, freeze, commit, rollback, load
//	abandon.go  Store: changes that become active again
//	table.go    Table: get, put, upsert, delete, all
//	frozen.go   Frozen and its iterators          sort.go     the order of Sorted
//	full.go     the whole state at a freeze
//	changes.go  lists of changes                  garbage.go  recycling after commit and rollback
//	arena.go    chunks and slots                  entry.go    heads of keys      index.go  hash index
//	spill.go    Spill: the budget                 evict.go    what leaves memory, and when
//	spill_root.go   the directories               evict_merge.go  the blocks that are written
//	spill_table.go  what comes back               spill_dir.go   buckets         spill_block.go  blocks and filters
//	spill_log.go    files of blocks               spill_compact.go  moves blocks together
//	arena_drain.go  chunks given back to the system
//	spill_whole.go  whole states that are in part on disk     spill_run.go  sorted runs of them
//	spill_passes.go  where there is no room for these
//	local.go    Local: what the engine calls      local_entries.go collects changes for it
//	local_load.go   reads and verifies a task's copy          local_verify.go verifies Badger's tables before it opens
//	local_flush.go  the writer                                local_previous.go what a flush replaces
//	local_files.go  what is looked at so that Badger does not end the process; faults of mapped files
//	local_open.go, local_pending.go, local_format.go, local_log.go    local_space.go what is not done on a full disk, with
//	local_unix.go, local_other.go how full it is
//	locals.go   Locals: a Local in each of several directories
//
// The layout of the local copy is in docs/format/local-store.md.
package store
