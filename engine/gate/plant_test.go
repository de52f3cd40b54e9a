package gate

// plant is a mistake that a run of the model network builds into the gate, its driver or the restore. The property test
// is believed because each of them is found.
type plant uint8

const (
	noPlant            plant = iota
	ReadBlocked              // an input is read on although it is set aside
	SnapshotEarly            // the first barrier is taken for all
	NewerJoins               // a newer barrier counts for the checkpoint that is being aligned
	LateCounts               // a barrier of an id that is decided begins it again
	EndedNotCounted          // the end of an input is not taken for its barriers
	BlockedContributes       // what lies behind the barrier of a blocked input gets into the snapshot at the switch
	SwitchForgets            // at the switch, inputs without a barrier are not recorded
	RecordingNotClosed       // an input is recorded on behind its barrier
	RecordMissing            // one of the inputs to record is left out
	OvertakeUncaptured       // the barrier overtakes and nothing of what it overtakes is captured
	OvertakeBehind           // what lies behind the overtaking barrier is captured too
	CloseWithoutQueued       // when a recording closes, what still lies ahead of the barrier is not captured
	AbortKeepsRecords        // what was recorded for an aborted checkpoint gets into the next one
	ForwardFirst             // the barrier goes out before the pending output
	FreezeLate               // one more record gets into the state
	AbortStaysBlocked        // inputs that were set aside for an aborted checkpoint are not read again
	RestoredTwice            // what was in flight is restored twice
	RestoredLate             // what was in flight is processed behind the stream
	RestoredByTask           // what was in flight goes to the subtask of that number, whoever owns the key now
	EndBeforeTimers          // a task whose inputs have ended says so behind it although it holds timers
	numPlants

	// OvertakenLeft is no mistake that shows: a barrier that was not taken out of the channel is late when it is popped.
	OvertakenLeft = numPlants
)

var plantNames = [...]string{
	noPlant: "none", ReadBlocked: "read-blocked", SnapshotEarly: "snapshot-early", NewerJoins: "newer-joins", LateCounts: "late-counts",
	EndedNotCounted: "ended-not-counted", BlockedContributes: "blocked-contributes", SwitchForgets: "switch-forgets",
	RecordingNotClosed: "recording-not-closed", RecordMissing: "record-missing", OvertakeUncaptured: "overtake-uncaptured",
	OvertakeBehind: "overtake-behind", CloseWithoutQueued: "close-without-queued", AbortKeepsRecords: "abort-keeps-records",
	ForwardFirst: "forward-first", FreezeLate: "freeze-late", AbortStaysBlocked: "abort-stays-blocked", RestoredTwice: "restored-twice", RestoredLate: "restored-late",
	RestoredByTask: "restored-by-task", EndBeforeTimers: "end-before-timers", OvertakenLeft: "overtaken-left",
}

func (p plant) String() string { return plantNames[p] }

// mutate builds those mistakes in that are the gate's own: cells of its table.
func (p plant) mutate(g *Gate) {
	x, ok := g.h.(*exact)
	if !ok {
		return
	}
	t := *x.rules
	switch p {
	case NewerJoins:
		t[aligning][evBarrier].newer = func(x *exact, in int, _ Barrier) { x.deliver(in, x.cur) }
	case LateCounts:
		t[idle][evBarrier].newer = func(x *exact, in int, b Barrier) {
			transitions[idle][evBarrier].newer(x, in, b)
			x.g.passed = min(x.g.passed, b.ID-1)
		}
	case AbortStaysBlocked:
		t[aligning][evCancelled].same = func(x *exact, in int, b Barrier) {
			x.aside = 0
			x.cancel(in, b)
		}
	case SwitchForgets:
		t[aligning][evTimedOut].same = func(x *exact, in int, b Barrier) {
			for i, m := range x.at {
				if m == awaited {
					x.at[i] = come
				}
			}
			x.relax(in, b)
		}
	default:
		return
	}
	x.rules = &t
}
