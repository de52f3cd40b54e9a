package kafkasink

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/txn"
)

// Writer takes the output of one task. Write and Barrier belong to the task's goroutine.
type Writer struct {
	sink *Sink
	task element.TaskID
	gone atomic.Bool // the task has left; set before what is held is dropped
	from origins     // of the task's goroutine

	mu     sync.Mutex
	queues []queue              // under mu: one per barrier that was passed and not released yet; empty = direct
	passed element.CheckpointID // under mu: the newest barrier, where nothing is held back
}

// queue holds what was written after one barrier and before the next.
type queue struct {
	after   element.CheckpointID
	batches []batch
}

type batch struct {
	recs    []kgo.Record
	size    int64 // in memory
	payload int64 // keys, values and headers
}

// Write takes records for a sink of the plan: into the open transaction, or held back when a barrier was passed that is
// not released yet. recs and its header slices are the caller's again afterwards; key and value bytes must never
// change. It blocks while the hold-back limit is reached or the client's buffers are full, as long as ctx lives.
func (w *Writer) Write(ctx context.Context, sink int, recs []element.Record) error {
	if len(recs) == 0 {
		return nil
	}
	if w.over() {
		return ErrDiscarded
	}
	if sink < 0 || sink >= len(w.sink.cfg.Targets) {
		return fault.Stopf(fault.Failed, "task %s writes to sink %d of %d", w.task, sink, len(w.sink.cfg.Targets))
	}
	b := convert(&w.sink.cfg.Targets[sink], w.task.Partition, recs)
	if err := w.fits(&w.sink.cfg.Targets[sink], recs, b.recs); err != nil {
		return err
	}
	w.from.mark(w.task, recs, b.recs)
	for w.holding() {
		if err := w.sink.waitForRoom(ctx, w); err != nil {
			return err
		}
		if done, err := w.hold(b); done {
			return err
		}
	}
	// Direct: only this goroutine can make it hold again, so no lock is needed while the records are handed over.
	return w.sink.send(ctx, b) // what failed may be a record of another sink: the error says of which topic it is
}

// fits refuses a record that its topic does not take. The client takes the last three bytes below the limit only where it has produced to
// the partition's broker before; the limit may have been lowered since it was read.
func (w *Writer) fits(t *Target, recs []element.Record, out []kgo.Record) error {
	if t.MaxBytes <= 0 {
		return nil
	}
	for i := range out {
		if size := txn.BatchSize(&out[i]); size > int64(t.MaxBytes) {
			return fault.Stopf(fault.BadRecord, "task %s, offset %d: sink %s: the output has %d bytes as a batch of its own, before compression; partition %d of topic %s takes at most %d (max.message.bytes, the brokers' socket.request.max.bytes, and %d here)",
				w.task, recs[i].Offset, t.Name, size, out[i].Partition, t.Topic, t.MaxBytes, txn.DefaultMaxBufferedBytes)
		}
	}
	return nil
}

// Barrier says that what follows belongs to the transaction after checkpoint id. The barrier of a checkpoint that was
// taken back meanwhile means nothing.
func (w *Writer) Barrier(id element.CheckpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sink.takenBack(id):
	case w.sink.cfg.NoHoldBack:
		w.passed = max(w.passed, id)
	default:
		w.queues = append(w.queues, queue{after: id})
	}
}

// over reports that nothing is taken any more.
func (w *Writer) over() bool { return w.gone.Load() || w.sink.over.Err() != nil }

func (w *Writer) holding() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queues) > 0
}

// hold appends a batch to the last queue; done is false when the writer is direct by now.
func (w *Writer) hold(b batch) (done bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queues) == 0 {
		return false, nil
	}
	if w.over() {
		return true, ErrDiscarded // Discard or Drop dropped what is held, or is about to
	}
	q := &w.queues[len(w.queues)-1]
	q.batches = append(q.batches, b)
	w.sink.held.Add(b.size)
	return true, nil
}

// sealable says why checkpoint id must not be sealed, or nil: its barrier must be the oldest one that is not released.
// If it was not passed yet, records that belong to id may be missing; if an older one is not released, they are held.
func (w *Writer) sealable(id element.CheckpointID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.sink.cfg.NoHoldBack && w.passed >= id:
		return nil
	case len(w.queues) == 0 || w.queues[0].after > id:
		return fault.Stopf(fault.Failed, "seal checkpoint %d: task %s has not passed its barrier", id, w.task)
	case w.queues[0].after < id:
		return fault.Stopf(fault.Failed, "seal checkpoint %d: task %s still holds back output since checkpoint %d", id, w.task, w.queues[0].after)
	}
	return nil
}

// drain produces the queue of barrier id, batch by batch, and removes it. The lock is not held while records are
// handed over, which may block.
//
// Why the order holds, with the interleaving that would break it:
//
//	drain                                   the task
//	take batch 1, unlock
//	                                        Write(3): sees a queue, so it appends: [2 3]
//	ProduceBatch(1)
//	take batch 2, unlock, ProduceBatch(2)
//	take batch 3, unlock
//	                                        Write(4): the list is empty, but the queue is there: appends
//	ProduceBatch(3)
//	take batch 4, unlock, ProduceBatch(4)
//	lock: the list is empty: remove the queue
//	                                        Write(5): no queue: produces directly, after 4 was handed over
//
// The queue is removed only under the lock, when nothing is left in it and everything that was in it has been handed
// over. Taking the queue out first, or all batches at once, would let Write(4) overtake. There is one drain at a time
// (Sink.draining). It catches up: while it runs, Write waits at the limit, and each of its batches takes the same way.
func (w *Writer) drain(ctx context.Context, id element.CheckpointID) error {
	for {
		b, ok := w.next(id)
		if !ok {
			w.sink.wake() // this writer is direct now, or holds for the next barrier
			return nil
		}
		if w.sink.over.Err() != nil {
			return ErrDiscarded
		}
		err := w.sink.send(ctx, b)
		w.sink.held.Add(-b.size)
		w.sink.wake()
		if err != nil {
			if w.sink.over.Err() != nil {
				return ErrDiscarded
			}
			return fmt.Errorf("task %s, output held back since checkpoint %d: %w", w.task, id, err)
		}
	}
}

// next takes the first batch of barrier id's queue. When there is none it removes the queue and says false.
func (w *Writer) next(id element.CheckpointID) (batch, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queues) == 0 || w.queues[0].after != id {
		return batch{}, false
	}
	q := &w.queues[0]
	if len(q.batches) == 0 {
		w.queues = append(w.queues[:0], w.queues[1:]...)
		return batch{}, false
	}
	b := q.batches[0]
	q.batches[0] = batch{}
	q.batches = q.batches[1:]
	return b, true
}

// drop forgets what is held. The queues stay, so that a Write that comes now holds, and finds the attempt over.
func (w *Writer) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.queues {
		for _, b := range w.queues[i].batches {
			w.sink.held.Add(-b.size)
		}
		w.queues[i].batches = nil
	}
}
