package gate

import (
	"fmt"

	"github.com/millweir/millweir/element"
)

// Mode is how a gate treats barriers. It is the application's, the same for all its tasks.
type Mode uint8

const (
	// Aligned: an input that delivered the barrier is set aside until all have. Exactly once. What a barrier says of
	// itself (Unaligned, Timeout) is ignored.
	Aligned Mode = iota
	// Counting: no input ever waits; the snapshot is taken when the barrier has come from all. At least once. What a
	// barrier says of itself is ignored.
	Counting
	// Unaligned: each barrier says what it is: unaligned, aligned with a timeout, or aligned (a savepoint). Exactly once.
	Unaligned
	numModes
)

var modeTexts = [...]string{Aligned: "aligned", Counting: "counting", Unaligned: "unaligned"}

// String gives the mode as messages print it.
func (m Mode) String() string {
	if m >= numModes {
		return fmt.Sprintf("Mode(%d)", uint8(m))
	}
	return modeTexts[m]
}

// Coordinator takes the place of an input where an event came from the coordinator itself and not through a channel.
const Coordinator = -1

// maxPending bounds how many checkpoints a gate remembers: those it counts, those triggered by the coordinator that wait
// for the end of the inputs, those cancelled before they came.
const maxPending = 64

// Barrier separates what belongs to a checkpoint from what comes after it. The zero ID is no barrier.
type Barrier struct {
	ID element.CheckpointID
	// Unaligned: it overtakes what is queued.
	Unaligned bool
	// Timeout: it starts aligned and may switch to unaligned. It means nothing with Unaligned.
	Timeout bool
}

// String gives the barrier as traces print it.
func (b Barrier) String() string {
	switch {
	case b.Unaligned:
		return fmt.Sprintf("%d unaligned", b.ID)
	case b.Timeout:
		return fmt.Sprintf("%d aligned with timeout", b.ID)
	}
	return fmt.Sprintf("%d aligned", b.ID)
}

// Option changes a new gate.
type Option func(*Gate)

// Feedback names inputs that never take part: no barrier comes from them, they are never set aside, never recorded, and
// nobody waits for their end. Numbers out of range are ignored.
func Feedback(inputs ...int) Option {
	return func(g *Gate) {
		for _, i := range inputs {
			if i >= 0 && i < len(g.in) {
				g.in[i].feedback = true
			}
		}
	}
}

// After gives the last checkpoint before this attempt: its id and lower ones are ignored.
func After(id element.CheckpointID) Option { return func(g *Gate) { g.passed = id } }

// Gate decides for one task what barriers do. It is not safe for concurrent use: it belongs to the task's goroutine.
// Every event gives the actions to take, in order; no actions mean that there is nothing to do. The slice and what is
// in it belong to the caller. An input that does not exist, or does not take part, is ignored.
type Gate struct {
	mode Mode
	in   []input
	// passed is the highest id that is decided: snapshotted, aborted, or overruled.
	passed element.CheckpointID
	h      handler
	out    []Action
}

// input is what is known of one input, whatever the mode.
type input struct {
	feedback bool
	ended    bool
}

// handler is one way to treat barriers. The inputs it gets exist, take part and have not ended (but for Coordinator).
type handler interface {
	announced(in int, b Barrier)
	barrier(in int, b Barrier)
	cancelled(in int, id element.CheckpointID)
	timedOut(id element.CheckpointID)
	ended(in int)
	trigger(b Barrier)
	blocked(in int) bool
	recording(in int) bool
	pending() []element.CheckpointID
}

// New makes the gate of a task with inputs 0 to inputs-1, which are all open. A negative number counts as 0.
func New(inputs int, mode Mode, opts ...Option) *Gate {
	g := &Gate{mode: mode, in: make([]input, max(inputs, 0))}
	for _, o := range opts {
		o(g)
	}
	if mode == Counting {
		g.h = newCounting(g)
	} else {
		g.h = newExact(g)
	}
	return g
}

// Announced: barrier b has been put into the channel of the input, behind data. It is only of use for barriers that may
// overtake; for others it does nothing. An announcement that comes after its barrier was popped does nothing.
func (g *Gate) Announced(input int, b Barrier) []Action {
	if b = g.flags(b); g.open(input) && b.ID > 0 {
		g.h.announced(input, b)
	}
	return g.take()
}

// Barrier: barrier b has reached the head of the input's channel and was popped.
func (g *Gate) Barrier(input int, b Barrier) []Action {
	if b = g.flags(b); g.open(input) && b.ID > 0 {
		g.h.barrier(input, b)
	}
	return g.take()
}

// Cancelled: a cancel barrier was popped from the input, or came from the Coordinator.
func (g *Gate) Cancelled(input int, id element.CheckpointID) []Action {
	if (input == Coordinator || g.open(input)) && id > 0 {
		g.h.cancelled(input, id)
	}
	return g.take()
}

// TimedOut: the time of StartTimer is over. It does nothing when the checkpoint needs no switch any more.
func (g *Gate) TimedOut(id element.CheckpointID) []Action {
	g.h.timedOut(id)
	return g.take()
}

// Ended: the end mark was popped from the input: nothing comes from it any more. It counts as delivered in every
// checkpoint that is pending or comes later.
func (g *Gate) Ended(input int) []Action {
	if g.open(input) {
		g.in[input].ended = true
		g.h.ended(input)
	}
	return g.take()
}

// Trigger: the coordinator asks this task itself for checkpoint b, since no barrier of it may come through the inputs.
// With all inputs ended the snapshot is taken at once, else when they have ended or delivered b. It does no harm for a
// task that gets the barrier through its inputs too.
func (g *Gate) Trigger(b Barrier) []Action {
	if b = g.flags(b); b.ID > g.passed {
		g.h.trigger(b)
	}
	return g.take()
}

// Blocked reports that the input must not be read now.
func (g *Gate) Blocked(input int) bool { return g.open(input) && g.h.blocked(input) }

// Recording reports that data popped from the input is in flight of the running checkpoint and has to be captured.
func (g *Gate) Recording(input int) bool { return g.open(input) && g.h.recording(input) }

// Pending gives the checkpoints that have begun here and are not finished, in order: aligning, recording, or counted.
func (g *Gate) Pending() []element.CheckpointID { return g.h.pending() }

// AllEnded reports that all inputs which take part have ended (a task with feedback inputs only, or none: always).
func (g *Gate) AllEnded() bool {
	for i := range g.in {
		if g.open(i) {
			return false
		}
	}
	return true
}

// open reports that barriers may come from the input.
func (g *Gate) open(input int) bool {
	return input >= 0 && input < len(g.in) && !g.in[input].feedback && !g.in[input].ended
}

// flags clears what the mode does not know.
func (g *Gate) flags(b Barrier) Barrier {
	if g.mode != Unaligned {
		return Barrier{ID: b.ID}
	}
	return b
}

func (g *Gate) emit(a Action) { g.out = append(g.out, a) }

func (g *Gate) take() []Action {
	out := g.out
	g.out = nil
	return out
}
