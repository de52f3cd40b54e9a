package sim

// Bug is a mistake that a run plants into the models or into the driver, never into the code under test. The checkers
// are believed because each of these is found.
type Bug int

// The bugs. The numbers of the list of the test plan stand behind them.
const (
	NoBug               Bug = iota
	CommitBeforeFsync       // 1: files count as durable when they are written
	NoDirSync               // 2: the directory is not synced after the rename
	LeakPastBarrier         // 3: what a task changes behind the barrier is in the snapshot
	CommitOutOfOrder        // 4: n+1 is committed before n
	UnstableFetch           // 5: the offsets are read without waiting for open transactions
	IDReused                // 6: two instances use one transactional id, and initialising it does not fence
	NoGeneration            // 7: member and generation are not sent with the offsets
	AbortAfterUnknown       // 8: a commit without an answer is aborted and taken for not done
	NoRewind                // 9: after an abort the source goes on where it was
	NoMarker                // 10: a transaction of offsets alone gets no marker record, so it is never ended
	ChainHole               // 12: a delta run is missing in the chain and nobody minds
	CleanNeeded             // 13: the cleaner goes by age
	LateProduce             // 17: a record without an answer is sent again in the next transaction
	EpochUnchecked          // the fence is given without a look at the claims
	StaleClaim              // a claim holds when the partition is owned, since whenever: lost and regained looks the same
	ResendUnproven          // after ILLEGAL_GENERATION the claims are not proven again
	LeaveReleases           // a task that leaves goes on behind its last barrier, and what it held back is released
	JoinUnrestored          // a task takes part in checkpoints before its restore is complete
	ReadBeforeStart         // a late partition is read before its start position is committed
	CleanBlind              // the cleaner goes by the own roots only, whatever those of others name
	AbandonLoses            // what changed for a checkpoint that was given up is in no later one
	AbandonKeepsLater       // a checkpoint that was given up along with an older one keeps its frozen changes
	AbandonIgnoresFlush     // the flush of a checkpoint that was given up fails, and its successor goes on
	InFlightTwice           // after a change of the parallelism every subtask restores all records in flight
	RescaleKeepsAll         // and all keys
	FrozenUnaware           // a subtask is frozen before it has heard that an earlier checkpoint was given up
	RecordingNotClosed      // the barrier does not end the recording of its channel
	ReplayLate              // restored records in flight are processed behind newer ones
	ReplayUncaptured        // restored records that still wait are not part of the next unaligned checkpoint
	EndForestalled          // an input counts as ended before the records ahead of its end mark are taken
	EndUnheard              // nobody brings a subtask the checkpoints when all of its inputs have ended
	CleanUnread             // what failed goes by what the process remembers, before the offsets are read
	DiscardPermitted        // the files of a checkpoint whose commit has begun go at the end of the attempt
	AbortForgotten          // an attempt that ends leaves its transaction open, and so does who stands by
	GoneUncleaned           // nobody removes what instances that are gone have left
	IdleUncleaned           // who commits nothing, because it stands by or no record comes, does not clean up
	OlderUnasked            // a start whose checkpoint is damaged takes the newest that is whole, and nobody was asked
	RecoveryKeepsOffset     // a start that goes back to the store takes the state from there, and goes on at the committed offset
	ImportKeepsOffset       // a start from a savepoint takes the state from there, and goes on at the committed offset
	ImportDelta             // the first checkpoint of an import has what has changed since, and not the savepoint's state
	OriginForgotten         // checkpoints do not say which savepoint they come from
	SealUnawaited           // at least once: a checkpoint does not wait for the acknowledgement of its outputs
	FailureForgotten        // at least once: an output that has failed lets one flush fail, or none, and is forgotten
	CountFirst              // at least once: the first barrier of a checkpoint counts for all inputs
	RetainOne               // at least once: only the newest checkpoint is kept
	NumBugs
)

var bugNames = [...]string{
	NoBug: "none", CommitBeforeFsync: "commit-before-fsync", NoDirSync: "no-directory-fsync", LeakPastBarrier: "leak-past-barrier",
	CommitOutOfOrder: "commit-out-of-order", UnstableFetch: "unstable-offset-fetch", IDReused: "transactional-id-reused",
	NoGeneration: "no-generation", AbortAfterUnknown: "abort-after-unknown-commit", NoRewind: "no-rewind", NoMarker: "no-marker",
	ChainHole: "chain-hole", CleanNeeded: "clean-needed-file", LateProduce: "late-produce", EpochUnchecked: "ownership-epoch-unchecked",
	StaleClaim: "stale-claim", ResendUnproven: "resend-unproven", LeaveReleases: "leave-releases", JoinUnrestored: "join-unrestored",
	ReadBeforeStart: "read-before-start", CleanBlind: "clean-blind",
	AbandonLoses: "abandon-loses", AbandonKeepsLater: "abandon-keeps-later",
	AbandonIgnoresFlush: "abandon-ignores-flush", InFlightTwice: "in-flight-twice", RescaleKeepsAll: "rescale-keeps-all",
	FrozenUnaware: "frozen-unaware", RecordingNotClosed: "recording-not-closed", ReplayLate: "replay-late",
	ReplayUncaptured: "replay-uncaptured", EndForestalled: "end-forestalled", EndUnheard: "end-unheard",
	CleanUnread: "clean-unread", DiscardPermitted: "discard-permitted", AbortForgotten: "abort-forgotten",
	GoneUncleaned: "gone-uncleaned", IdleUncleaned: "idle-uncleaned",
	OlderUnasked: "older-unasked", RecoveryKeepsOffset: "recovery-keeps-offset",
	ImportKeepsOffset: "import-keeps-offset", ImportDelta: "import-delta", OriginForgotten: "origin-forgotten",
	SealUnawaited: "seal-unawaited", FailureForgotten: "failure-forgotten", CountFirst: "count-first", RetainOne: "retain-one",
}

// ofPlain reports whether a bug is one of at-least-once.
func (b Bug) ofPlain() bool { return b >= SealUnawaited && b < NumBugs }

// String names the bug as SIM_BUG takes it.
func (b Bug) String() string {
	if b < 0 || b >= NumBugs {
		return "unknown"
	}
	return bugNames[b]
}

// ParseBug is the inverse of String.
func ParseBug(name string) (Bug, bool) {
	for i, n := range bugNames {
		if n == name {
			return Bug(i), true
		}
	}
	return NoBug, false
}
