package gate

// phase is where a gate that promises exactly-once stands. The diagram is in doc.go.
type phase uint8

const (
	idle      phase = iota
	aligning        // the first barrier, announcement or trigger has come
	recording       // the unaligned snapshot is taken, barriers of some inputs are still to come
	numPhases
)

var phaseTexts = [...]string{idle: "idle", aligning: "aligning", recording: "recording"}

// String gives the phase as scenarios print it.
func (p phase) String() string { return phaseTexts[p] }

// event is what comes with the id of a checkpoint.
type event uint8

const (
	evAnnounced event = iota
	evBarrier
	evCancelled
	evTimedOut
	numEvents
)

// step is what an event does in a phase.
type step func(x *exact, in int, b Barrier)

// cell says what an event does when it is about the running checkpoint, and when it is about a newer one. About an older
// one it never does anything: ids only grow on every channel, so what is older is late. nil does nothing.
type cell struct {
	same, newer step
}

// table is all that may happen.
type table [numPhases][numEvents]cell

// transitions is the table of the product. A newer barrier first aborts what is running and begins its own checkpoint,
// then it is dealt with as one of that.
var transitions = table{
	idle: {
		evAnnounced: {newer: begin(evAnnounced)},
		evBarrier:   {newer: begin(evBarrier)},
		evCancelled: {newer: (*exact).refuse},
	},
	aligning: {
		evAnnounced: {same: (*exact).expect, newer: begin(evAnnounced)},
		evBarrier:   {same: (*exact).deliver, newer: begin(evBarrier)},
		evCancelled: {same: (*exact).cancel, newer: (*exact).refuse},
		evTimedOut:  {same: (*exact).relax},
	},
	recording: {
		evAnnounced: {same: (*exact).closeQueued, newer: begin(evAnnounced)},
		evBarrier:   {same: (*exact).closePopped, newer: begin(evBarrier)},
		evCancelled: {same: (*exact).cancel, newer: (*exact).refuse},
	},
}

// begin aborts what is running, begins b, and goes on with the event as one of b.
func begin(ev event) step {
	return func(x *exact, in int, b Barrier) {
		x.start(b)
		if next := x.rules[aligning][ev].same; next != nil {
			next(x, in, b)
		}
	}
}
