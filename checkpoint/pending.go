package checkpoint

import (
	"time"

	"github.com/millweir/millweir/element"
)

// TaskAck is what a task reports when the barrier has passed its chain and its state is frozen.
type TaskAck struct {
	// Positions is S_n for each of the task's inputs.
	Positions []element.Position
	// Moved reports that something changed between the previous barrier and this one.
	Moved bool
	// StateBytes is the size of the task's whole state.
	StateBytes int64
	// Alignment is the time from the first of the task's inputs that delivered the barrier until the last: for so long an
	// input was set aside, or, unaligned, its records were recorded. 0 for a task with one input.
	Alignment time.Duration
	// Buffered and BufferedBytes are the records that lay behind the barrier at the task's snapshot, in the channels of inputs
	// that were set aside, and those that an unaligned barrier overtook, which are part of the snapshot.
	Buffered, BufferedBytes int64
	// Unaligned: the barrier overtook records, from the start or when aligned-timeout was over.
	Unaligned bool
	// SyncDuration is how long the task stood still to freeze its state.
	SyncDuration time.Duration
	// StartDelay is the time from the trigger until the task took the barrier out of its inbox; 0 = not measured, then
	// the time until this report is taken for it.
	StartDelay time.Duration
}

// PersistStats tells what was written to make frozen changes durable.
type PersistStats struct {
	// Bytes is the length of what was written, Entries the number of keys in it, deletions included.
	Bytes, Entries int64
	// Files is the number of new files.
	Files int64
	// FullBytes is the length of everything that the root will name, older runs included; 0 = not known.
	FullBytes int64
}

// progress is how far one task has come with a checkpoint.
type progress struct {
	passed, acked bool
	moved         bool // something changed before the trigger, or up to the barrier
	positions     []element.Position
}

// pending is a checkpoint in flight. It is owned by the Coordinator.
type pending struct {
	id    element.CheckpointID
	phase phase
	tasks []element.TaskID // sorted
	by    map[element.TaskID]*progress
	// barriers and acks count the tasks that are still owed.
	barriers, acks      int
	flushAsked, flushed bool
	savepoints          []string // requests that it serves

	deadline   time.Duration
	triggered  time.Duration
	passed     time.Duration // when the last barrier had passed
	flushBegun time.Duration // when the predecessor was complete, too
	rootBegun  time.Duration
	permitted  time.Duration
	stats      CheckpointStats
}

// step moves to the next phase; a step that the table does not have panics.
func (p *pending) step(to phase) {
	assertTransition(p.id, p.phase, to)
	p.phase = to
}

// barrier notes that one task has passed the barrier and reports whether all have.
func (p *pending) barrier(now time.Duration, t element.TaskID, ack TaskAck) bool {
	g := p.by[t]
	g.passed = true
	g.moved = g.moved || ack.Moved
	g.positions = ack.Positions
	p.barriers--

	s := &p.stats
	if ack.Moved {
		s.MovedTasks++
	}
	s.StateBytes += ack.StateBytes
	s.Sync = max(s.Sync, ack.SyncDuration)
	s.Alignment = max(s.Alignment, ack.Alignment)
	s.Buffered += ack.Buffered
	s.BufferedBytes += ack.BufferedBytes
	s.Unaligned = s.Unaligned || ack.Unaligned
	delay := ack.StartDelay
	if delay <= 0 {
		delay = now - p.triggered
	}
	if delay > s.StartDelay || s.Slowest == (element.TaskID{}) {
		s.StartDelay, s.Slowest = delay, t
	}
	if p.barriers > 0 {
		return false
	}
	p.passed = now
	s.Barriers = now - p.triggered
	return true
}

// acknowledge notes that the frozen changes of one task are durable.
func (p *pending) acknowledge(now time.Duration, t element.TaskID) {
	p.by[t].acked = true
	p.acks--
	if p.acks == 0 && p.phase == storing {
		p.stats.Persist = now - p.passed
	}
}

// stored reports that all which the root names is durable and all outputs are acknowledged.
func (p *pending) stored() bool { return p.phase == storing && p.flushed && p.acks == 0 }

// positions gives what the root file and the commit need, sorted by task.
func (p *pending) positions() []TaskPositions {
	out := make([]TaskPositions, 0, len(p.tasks))
	for _, t := range p.tasks {
		out = append(out, TaskPositions{Task: t, Positions: p.by[t].positions})
	}
	return out
}

// snapshot is the statistics up to now.
func (p *pending) snapshot(now time.Duration) CheckpointStats {
	s := p.stats
	s.Phase = p.phase.String()
	s.EndToEnd = now - p.triggered
	if s.FullBytes == 0 {
		s.FullBytes = s.StateBytes
	}
	return s
}
