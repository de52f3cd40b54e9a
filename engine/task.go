package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// task is one sub-topology on one partition. Everything in it belongs to the goroutine of run, but for inbox.
type task struct {
	id    element.TaskID
	inbox *inbox
	chain *topology.Task
	state State
	out   SinkWriter
	feed  *feeder

	resume func(tps ...element.TopicPartition)
	report func(event) // to the coordinator loop; drops the event when the attempt is over

	position element.Position // the next offset to process
	moved    bool             // something was processed since the last barrier
	asked    bool             // an early checkpoint was asked for since the last barrier
	limit    atomic.Int64     // bytes of uncommitted state before an early checkpoint; set by the loop

	stateInfo []snapshot.StateInfo
	stats     *taskStats
}

// run processes the inbox until ctx ends or something fails. The notice of a halt comes when nothing that the task took
// before is being processed any more.
func (t *task) run(ctx context.Context) error {
	for {
		it, ok := t.next(ctx)
		if !ok {
			return nil
		}
		switch {
		case it.halted:
			t.report(event{kind: evHalted, task: t.id})
		case it.resume:
			t.resume(t.position.TopicPartition)
		case it.committed != 0:
			t.state.Commit(it.committed)
		case it.barrier != 0:
			if err := t.onBarrier(it.barrier); err != nil {
				return err
			}
		default:
			t.feed.tookOne()
			if err := t.process(ctx, it.delivery); err != nil {
				return err
			}
		}
	}
}

// next takes the next item. While the uncommitted state is far above the limit and no barrier waits in the inbox, only
// notices are taken: memory must not grow until a checkpoint may start, which the one in flight or min-pause holds up.
// An early one was asked for at the limit, so its barrier comes; nothing else waits for this task.
func (t *task) next(ctx context.Context) (item, bool) {
	for t.state.UncommittedBytes() > 2*t.limit.Load() && !t.inbox.hasBarrier() {
		it, ok := t.inbox.tryPopNotice()
		if ok {
			return it, true
		}
		select {
		case <-t.inbox.wake:
		case <-ctx.Done():
			return item{}, false
		}
	}
	return t.inbox.pop(ctx)
}

func (t *task) process(ctx context.Context, d element.Delivery) error {
	if d.Next < t.position.Offset {
		return fmt.Errorf("task %s: delivery up to offset %d, but offset %d is already processed", t.id, d.Next, t.position.Offset)
	}
	if !t.moved {
		t.moved = true
		t.report(event{kind: evMoved, task: t.id})
	}
	if err := t.chain.Process(d.From, d.Records); err != nil {
		if ctx.Err() != nil {
			return nil // the sink or the context ended under us; the attempt is over
		}
		return err
	}
	if err := t.state.Err(); err != nil {
		return fmt.Errorf("task %s at offset %d: %w", t.id, d.Next, err)
	}
	t.position.Offset = d.Next
	if d.LeaderEpoch >= 0 {
		t.position.LeaderEpoch = d.LeaderEpoch
	}
	t.stats.records.Add(int64(len(d.Records)))
	if !t.asked && t.state.UncommittedBytes() > t.limit.Load() {
		t.asked = true
		t.report(event{kind: evEarly, task: t.id})
	}
	return nil
}

// onBarrier is the synchronous part of a checkpoint: emit what is owed, freeze the state, let the sink hold back.
// Nothing in it grows with the number of keys.
func (t *task) onBarrier(id element.CheckpointID) error {
	start := time.Now()
	failpoint.Hit(failpoint.BarrierBefore)
	if err := t.chain.Flush(); err != nil {
		return err
	}
	failpoint.Hit(failpoint.FreezeBefore)
	frozen := t.state.Freeze(id)
	failpoint.Hit(failpoint.FreezeAfter)
	t.out.Barrier(id)
	failpoint.Hit(failpoint.BarrierAfter)
	ack := taskAck{position: t.position, frozen: frozen, moved: t.moved, states: t.stateInfo, sync: time.Since(start), at: start}
	t.moved, t.asked = false, false
	t.report(event{kind: evBarrier, id: id, task: t.id, ack: ack})
	return nil
}

// taskEnv is what the chain of one task sees of the engine.
type taskEnv struct {
	ctx context.Context
	t   *task
	lis *Listener
}

// State finds a state table: all of a task's were registered when it was restored.
func (e *taskEnv) State(step, name, codec string) (topology.StateTable, error) {
	return e.t.state.Table(topology.StatePlan{Step: step, Name: name}.ID(), codec)
}

// Emit passes output to the sink.
func (e *taskEnv) Emit(sink int, recs []element.Record) error {
	e.t.stats.emitted.Add(int64(len(recs)))
	return e.t.out.Write(e.ctx, sink, recs)
}

// Send refuses: nothing runs the stages of exchanges yet.
func (e *taskEnv) Send(stage, subtask int, _ topology.Parcel) error {
	return fmt.Errorf("task %s: no exchange to stage %d subtask %d", e.t.id, stage, subtask)
}

// Parallelism is that of stages without an exchange.
func (e *taskEnv) Parallelism(int) int { return 1 }

// MaxParallelism is the number of key groups.
func (e *taskEnv) MaxParallelism() int { return element.DefaultMaxParallelism }

// Now is the processing time.
func (e *taskEnv) Now() int64 { return time.Now().UnixMilli() }

// Skipped counts a record that the policy lets go.
func (e *taskEnv) Skipped(step string, reason error) {
	e.t.stats.skipped.Add(1)
	e.lis.skipped(e.t.id, step, reason)
}
