package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// A task processes at most so many records of a delivery, or bytes if that is less, before it looks for barriers, and for
// room in the channels behind it if there are any, again. See pace. The bytes are for the way out: where the brokers are slow
// the output of a turn waits for them with no barrier taken meanwhile, and that has to be short beside a checkpoint's
// timeout also when records are large and the turn is the first, of which pace knows nothing.
const (
	chainRecords = 1024
	sliceRecords = 256
	sliceBytes   = 128 << 10
)

// givenUpKept is how many spans of checkpoints a task remembers that were given up. Between two of them lies one that was not,
// and of those whose barriers may still come there are fewer.
const givenUpKept = 64

// task is one stage on one partition of a source, or one subtask of an exchange. Everything in it belongs to the goroutine
// of run, but for inbox, bell and what is atomic.
type task struct {
	id    element.TaskID
	bell  *doorbell
	inbox *inbox
	chain *topology.Task
	state State
	out   SinkWriter
	feed  *feeder

	resume func(tps ...element.TopicPartition)
	report func(event) // to the coordinator loop; drops the event when the attempt is over

	position element.Position // of a source task: the next offset to process
	rest     element.Delivery // what is left of the delivery at work
	working  bool             // there is such a rest
	moved    bool             // something was processed since the last barrier
	halted   bool             // takes no record any more, and no timer fires
	dry      bool             // no record comes any more: its input has ended
	ended    bool             // it has sent its end: it is dry and holds no timer
	asked    bool             // an early checkpoint was asked for since the last barrier
	givenUp  []span           // checkpoints of which the barrier may come yet; see hear
	limit    atomic.Int64     // bytes of uncommitted state before an early checkpoint; set by the loop

	exchange     bool // the task is a subtask of an exchange: its input are channels
	stage        int  // its place in the plan
	parallelism  int  // of the exchange
	feedbackOnly bool // nothing but a feedback edge leads to it
	outs         outputs
	pace         pace
	timerPace    pace // the same of timers
	turns        turns
	flow         *flow  // shared by all tasks of an attempt
	claimed      bool   // the timers that are due count in it
	in           *input // of an exchange's subtask
	brake        *brake // shared by all tasks of an attempt with exchanges, nil without
	heavy        bool   // this task holds it
	hasTimers    bool
	wholes       *wholes              // shared by all tasks of an attempt
	unwritten    element.CheckpointID // not 0: the task stands still until the state of this checkpoint is written

	stateInfo []snapshot.StateInfo
	stats     *taskStats
}

// run works until ctx ends or something fails.
func (t *task) run(ctx context.Context) error {
	var timer *time.Timer
	for ctx.Err() == nil {
		did, err := t.turn()
		if err != nil {
			if ctx.Err() != nil {
				return nil // the sink or the context ended under us; the attempt is over
			}
			return t.causeOf(err)
		}
		if did {
			continue
		}
		wake, ok := t.wakeAt()
		if !ok {
			select {
			case <-t.bell.c:
			case <-ctx.Done():
			}
			continue
		}
		if timer == nil {
			timer = time.NewTimer(time.Until(wake))
			defer timer.Stop()
		} else {
			timer.Reset(time.Until(wake))
		}
		select {
		case <-t.bell.c:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// causeOf gives the error of a turn. A state that cannot be read gives no values, and user code that fails at what is not
// there is not to blame, whatever it says of it: neither its class counts nor the record.
func (t *task) causeOf(err error) error {
	cause := t.state.Err()
	switch {
	case cause == nil:
		return err
	case errors.Is(err, cause):
		return fmt.Errorf("task %s: %w", t.id, cause)
	}
	return fmt.Errorf("task %s: %w (then failed: %v)", t.id, cause, err)
}

// turn does one thing, the most urgent, and says whether there was any: notices, barriers that may overtake, then timers and
// what waits in order by turns.
func (t *task) turn() (bool, error) {
	if it, ok := t.inbox.tryPopNotice(); ok {
		return true, t.notice(it)
	}
	if t.unwritten == 0 {
		if did, err := t.repay(); did || err != nil {
			return did, err
		}
	}
	if t.in != nil {
		if did, err := t.in.urgent(t); did || err != nil {
			return did, err
		}
	}
	if t.unwritten != 0 {
		return false, nil
	}
	return t.work()
}

// notice serves what is not in order with records. The notice of a halt comes when nothing that the task took before is
// being processed any more.
func (t *task) notice(it item) error {
	switch {
	case it.halted:
		t.halted, t.working, t.rest = true, false, element.Delivery{}
		t.unclaim()
		t.report(event{kind: evHalted, task: t.id})
	case it.written != 0:
		if it.written >= t.unwritten {
			t.unwritten = 0
		}
	case it.resume:
		t.resume(t.position.TopicPartition)
	case it.committed != 0:
		t.state.Commit(it.committed)
		t.relieve()
		if it.committed >= t.unwritten {
			t.unwritten = 0
		}
		return t.endBatch()
	case !it.abandoned.empty():
		t.state.Abandon(it.abandoned.first)
		t.givenUp = remember(t.givenUp, it.abandoned)
		t.givenUp = t.givenUp[max(0, len(t.givenUp)-givenUpKept):]
		t.unwritten, t.asked = 0, false // its barrier may not have come
		if t.in != nil {
			return t.in.abandoned(t, it.abandoned)
		}
	}
	return nil
}

// takeDelivery is the turn of a source's task.
//
// While the uncommitted state is far above the limit and no barrier waits in the inbox, nothing is taken: memory must not
// grow until a checkpoint may start, which the one in flight or min-pause holds up. An early one was asked for at the
// limit, so its barrier comes; nothing else waits for this task. The same holds while a task behind an exchange is in that
// position, which must not stop by itself: its barrier lies behind records.
func (t *task) takeDelivery() (bool, error) {
	// A barrier does not wait for what is only fetched: S is where the task is. Behind thousands of records and a slow step it
	// would take longer than the checkpoint may.
	if it, ok := t.inbox.popBarrier(); ok {
		return true, t.onBarrier(it.barrier)
	}
	if t.state.UncommittedBytes() > 2*t.limit.Load() || t.brake.held() || !t.outs.credit() {
		return false, nil
	}
	if !t.working {
		it, ok := t.inbox.tryPop()
		if !ok {
			return false, nil
		}
		if it.end || it.barrier.ID != 0 { // a barrier may have come since popBarrier
			return true, t.takeMark(it)
		}
		t.feed.tookOne()
		t.rest, t.working = it.delivery, true
	}
	if !t.begin() {
		return false, nil
	}
	part := t.rest
	if n := bounded(part.Records, min(t.slice(), t.pace.most())); len(part.Records) > n {
		part.Records = part.Records[:n]
		part.Next = part.Records[n-1].Offset + 1
		t.rest.Records = t.rest.Records[n:]
	} else {
		t.rest, t.working = element.Delivery{}, false
	}
	return true, t.process(part)
}

// slice is how many records make one turn.
func (t *task) slice() int {
	if t.outs.none() {
		return chainRecords
	}
	return sliceRecords
}

// bounded is how many of the records, at most so many and at least one, have sliceBytes together.
func bounded(recs []element.Record, most int) int {
	most = min(most, len(recs))
	size := 0
	for i := range recs[:most] {
		if size += len(recs[i].Key) + len(recs[i].Value); size > sliceBytes && i > 0 {
			return i
		}
	}
	return most
}

// takeMark serves what stands between deliveries.
func (t *task) takeMark(it item) error {
	if it.end {
		return t.onEnd()
	}
	return t.onBarrier(it.barrier)
}

// process runs records of the task's partition through the chain.
func (t *task) process(d element.Delivery) error {
	if d.Next < t.position.Offset {
		return fmt.Errorf("task %s: delivery up to offset %d, but offset %d is already processed", t.id, d.Next, t.position.Offset)
	}
	t.movedNow()
	began := time.Now()
	if err := t.chain.Process(d.From, d.Records); err != nil {
		return err
	}
	t.pace.note(len(d.Records), time.Since(began))
	if err := t.state.EndBatch(); err != nil {
		return fmt.Errorf("task %s at offset %d: %w", t.id, d.Next, err)
	}
	if d.Next > t.position.Offset { // an epoch that is not known replaces one that is: it was that of what is before a gap
		t.position.Offset, t.position.LeaderEpoch = d.Next, d.LeaderEpoch
	}
	t.stats.records.Add(int64(len(d.Records)))
	t.checkLimit()
	t.done()
	return nil
}

// movedNow reports the first change since the last barrier, before it is made.
func (t *task) movedNow() {
	if !t.moved {
		t.moved = true
		t.report(event{kind: evMoved, task: t.id})
	}
}

// checkLimit asks for a checkpoint when much is uncommitted, and holds the sources when it is too much.
func (t *task) checkLimit() {
	n := t.state.UncommittedBytes()
	t.stats.uncommitted.Store(n)
	if !t.asked && n > t.limit.Load() {
		t.asked = true
		t.report(event{kind: evEarly, task: t.id})
	}
	if t.exchange && !t.heavy && n > 2*t.limit.Load() {
		t.heavy = true
		t.brake.hold()
	}
}

// relieve lets the sources go on when a commit has made room.
func (t *task) relieve() {
	n := t.state.UncommittedBytes()
	t.stats.uncommitted.Store(n)
	if t.heavy && n <= 2*t.limit.Load() {
		t.heavy = false
		t.brake.release()
	}
}

// endBatch is for what the chain has done without a record.
func (t *task) endBatch() error {
	if err := t.state.EndBatch(); err != nil {
		return fmt.Errorf("task %s: %w", t.id, err)
	}
	return nil
}

// taskEnv is what the chain of one task sees of the engine.
type taskEnv struct {
	ctx context.Context
	t   *task
	lis *Listener
	par parallelism
}

// State finds a state table: all of a task's were registered when it was restored.
func (e *taskEnv) State(step, name, codec string) (topology.StateTable, error) {
	return e.t.state.Table(topology.StatePlan{Step: step, Name: name}.ID(), codec)
}

// Emit passes output to the sink. What was computed from a state that could not be read or written goes nowhere: where there
// are no transactions nobody could take it back.
func (e *taskEnv) Emit(sink int, recs []element.Record) error {
	if err := e.t.state.Err(); err != nil {
		return fmt.Errorf("task %s: %w", e.t.id, err)
	}
	e.t.stats.emitted.Add(int64(len(recs)))
	return e.t.out.Write(e.ctx, sink, recs)
}

// Send puts a parcel on its way to a subtask of an exchange.
func (e *taskEnv) Send(stage, subtask int, p topology.Parcel) error {
	if err := e.t.state.Err(); err != nil {
		return fmt.Errorf("task %s: %w", e.t.id, err)
	}
	e.t.flow.add(1)
	return e.t.outs.send(stage, subtask, p)
}

// Parallelism is the number of subtasks of an exchange.
func (e *taskEnv) Parallelism(stage int) int { return e.par.of(stage) }

// MaxParallelism is the number of key groups.
func (e *taskEnv) MaxParallelism() int { return e.par.most }

// Now is the processing time in milliseconds since the Unix epoch.
func (e *taskEnv) Now() int64 { return time.Now().UnixMilli() }

// Skipped counts a record that the policy lets go.
func (e *taskEnv) Skipped(step string, reason error) {
	e.t.stats.skipped.Add(1)
	e.lis.skipped(e.t.id, step, reason)
}
