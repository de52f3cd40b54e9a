package engine

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/internal/fault"
)

// onBarrier is where a source's task, or one whose inputs have all ended, takes its part in a checkpoint.
func (t *task) onBarrier(b gate.Barrier) error {
	if t.in != nil {
		return t.in.perform(t, t.in.gate.Trigger(b))
	}
	over, err := t.hear(b.ID)
	switch {
	case err != nil:
		return err
	case over:
		t.giveUp(b.ID)
		return nil
	}
	ack, err := t.cut(b.ID, b)
	if err != nil {
		return err
	}
	t.report(event{kind: evBarrier, id: b.ID, task: t.id, ack: ack})
	return nil
}

// hear looks at the notices before a cut. The coordinator says that it has given up an earlier checkpoint before it triggers
// the next one, but a task does not take notices and barriers at the same moment, and behind an exchange they come on
// different ways:
//
//	the task                     the loop                            a source
//	looks at the notices: none
//	                             abandon 7 -> every inbox
//	                             trigger 8 -> the sources' inboxes
//	                                                                 passes barrier 8
//	takes barrier 8
//
// Frozen without knowing of it, checkpoint 8 would lack what the task changed between 6 and 7. The checkpoint itself may be
// one of those that were given up, when several are in flight, or when its barrier was taken before that. Then over is
// true, and the state must not be frozen for it: nobody would give that up any more, and 9 would lack what is in it.
//
// Nor is it enough to look at what is heard just now. The end of an input may complete several checkpoints at once, and the gate
// asks for all their snapshots before the first of them is taken:
//
//	the loop                     the task
//	abandon 7 to 8
//	                             end of an input: snapshot 7, snapshot 8
//	                             snapshot 7: hears that 7 to 8 are given up; none
//	                             snapshot 8: hears nothing, and is given up all the same
//
// So what was given up is remembered.
func (t *task) hear(id element.CheckpointID) (over bool, err error) {
	for {
		it, ok := t.inbox.tryPopNotice()
		if !ok {
			break
		}
		if err := t.notice(it); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(t.givenUp, func(s span) bool { return s.has(id) }), nil
}

// giveUp passes on that a checkpoint comes to nothing here.
func (t *task) giveUp(id element.CheckpointID) {
	t.turns.decided(id)
	if !t.ended {
		t.outs.cancel(id)
	}
	t.report(event{kind: evDeclined, id: id, task: t.id, err: fault.Restartf(fault.Failed, "task %s: checkpoint %d did not come about", t.id, id)})
}

// cut is the synchronous part of a checkpoint: emit what is owed, freeze the state, let the sink hold back, pass the barrier
// on. Nothing in it grows with the number of keys.
func (t *task) cut(id element.CheckpointID, forward gate.Barrier) (taskAck, error) {
	start := time.Now()
	t.turns.decided(id)
	failpoint.Hit(failpoint.BarrierBefore)
	if err := t.chain.Flush(); err != nil {
		return taskAck{}, err
	}
	failpoint.Hit(failpoint.FreezeBefore)
	frozen := t.freeze(id)
	failpoint.Hit(failpoint.FreezeAfter)
	t.out.Barrier(id)
	t.outs.barrier(forward) // also behind the end: a barrier may overtake what lies before both
	failpoint.Hit(failpoint.BarrierAfter)
	ack := taskAck{
		position: t.position, frozen: frozen, moved: t.moved, states: t.stateInfo, stateBytes: t.state.Bytes(), sync: time.Since(start), at: start,
		around: t.around(),
	}
	t.moved, t.asked = false, false
	if t.wholes.sync {
		t.unwritten = id
	}
	return ack, nil
}

// freeze takes the changes of a checkpoint, or of one that has the whole state, that.
func (t *task) freeze(id element.CheckpointID) Frozen {
	if t.wholes.has(id, t.id) {
		return t.state.FreezeFull(id)
	}
	return t.state.Freeze(id)
}

// around is what a task knows at its cut of the feedback edges before and behind it.
type around struct {
	sent  map[*channel]int64 // records that it has sent
	taken map[*channel]int64 // records that it has taken
	left  int64              // of those taken, the ones it has not processed and its snapshot does not have
}

// around counts what a task has sent on feedback edges, and what it has taken from them.
func (t *task) around() around {
	var r around
	for _, c := range t.outs.all {
		if c.feedback {
			if r.sent == nil {
				r.sent = map[*channel]int64{}
			}
			r.sent[c] = c.sent
		}
	}
	if t.feedbackOnly {
		r.taken = map[*channel]int64{}
		for _, c := range t.in.channels {
			r.taken[c] = c.taken
		}
	}
	return r
}

// looping counts the records on feedback edges that a checkpoint does not have: what was sent before the cut of the sender
// and not taken before that of the receiver. The two are cut at different moments, so it is known when both are.
func (p *pending) looping() int64 {
	var n int64
	taken := map[*channel]int64{}
	for _, ack := range p.acks {
		maps.Copy(taken, ack.around.taken)
		n += ack.around.left
	}
	for _, ack := range p.acks {
		for c, sent := range ack.around.sent {
			n += max(0, sent-taken[c])
		}
	}
	return n
}

// wholes says how the states of an attempt's checkpoints are taken. It is set up before the tasks run, but for the ids, which
// the loop adds before it triggers.
type wholes struct {
	always bool // each checkpoint has the whole state
	sync   bool // a task stands still until its state is written

	mu  sync.Mutex
	ids map[element.CheckpointID]map[element.TaskID]bool // guarded by mu: of these tasks; nil: of all
}

// add says that a checkpoint has the whole states of tasks; nil: of all.
func (w *wholes) add(id element.CheckpointID, tasks map[element.TaskID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ids == nil {
		w.ids = map[element.CheckpointID]map[element.TaskID]bool{}
	}
	w.ids[id] = tasks
}

func (w *wholes) has(id element.CheckpointID, task element.TaskID) bool {
	if w.always {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tasks, ok := w.ids[id]
	return ok && (tasks == nil || tasks[task])
}

// forget drops what was said of a checkpoint that all tasks have passed, and of older ones.
func (w *wholes) forget(id element.CheckpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.ids, func(o element.CheckpointID, _ map[element.TaskID]bool) bool { return o <= id })
}
