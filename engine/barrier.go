package engine

import (
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
	"github.com/millweir/millweir/internal/failpoint"
)

// onBarrier is where a source's task, or one whose inputs have all ended, takes its part in a checkpoint.
func (t *task) onBarrier(b gate.Barrier) error {
	if t.in != nil {
		return t.in.perform(t, t.in.gate.Trigger(b))
	}
	ack, err := t.cut(b.ID, b)
	if err != nil {
		return err
	}
	t.report(event{kind: evBarrier, id: b.ID, task: t.id, ack: ack})
	return nil
}

// cut is the synchronous part of a checkpoint: emit what is owed, freeze the state, let the sink hold back, pass the barrier
// on. Nothing in it grows with the number of keys.
func (t *task) cut(id element.CheckpointID, forward gate.Barrier) (taskAck, error) {
	start := time.Now()
	failpoint.Hit(failpoint.BarrierBefore)
	if err := t.chain.Flush(); err != nil {
		return taskAck{}, err
	}
	failpoint.Hit(failpoint.FreezeBefore)
	frozen := t.state.Freeze(id)
	failpoint.Hit(failpoint.FreezeAfter)
	t.out.Barrier(id)
	if !t.ended {
		t.outs.barrier(forward)
	}
	failpoint.Hit(failpoint.BarrierAfter)
	ack := taskAck{position: t.position, frozen: frozen, moved: t.moved, states: t.stateInfo, sync: time.Since(start), at: start}
	t.moved, t.asked = false, false
	return ack, nil
}

// onEnd: the partition has reached the end that it was given. The task goes on to take part in checkpoints.
func (t *task) onEnd() error {
	if err := t.chain.Flush(); err != nil {
		return err
	}
	t.ended = true
	t.outs.end()
	t.report(event{kind: evEnded, task: t.id})
	return nil
}
