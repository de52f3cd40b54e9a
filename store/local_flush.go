package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/failpoint"
)

const (
	sliceEntries = 1000      // entries written between two pauses
	sliceBytes   = 512 << 10 // or bytes
)

var errLocalClosed = errors.New("local copy of the state is closed or disabled")

// flushTask is one task's share of a flush, captured under the lock.
type flushTask struct {
	id      element.TaskID
	task    *localTask
	record  taskRecord
	pending *pendingChanges
	partial bool // more of a Reset follows: the intent stays
	tally   tally
}

// run is the writer goroutine. It flushes when there is something to flush and the interval and the duty cycle allow it,
// or at once when the pending limit is reached, somebody waits for it, or the copy is being closed.
func (l *Local) run(ctx context.Context) {
	defer close(l.done)
	defer l.closeDB()
	debug.SetPanicOnFault(true) // a disk that fails under a mapped table must not end the process
	timer := time.NewTimer(l.cfg.MinInterval)
	defer timer.Stop()
	last, busy := time.Now(), time.Duration(0) // of the newest flush
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
		if l.unsafe.Load() { // a reader has met a file that is cut off
			return
		}
		work, hurry, closing := l.look()
		if wait := time.Until(last.Add(l.rest(busy))); work && !hurry && wait > 0 {
			timer.Reset(wait)
			continue
		}
		if work || hurry {
			last = time.Now()
			var err error
			if busy, err = l.flush(ctx); err != nil {
				return
			}
		}
		if closing {
			return
		}
		timer.Reset(max(l.cfg.MinInterval, time.Until(last.Add(l.rest(busy)))))
	}
}

// rest is the time from the start of a flush that worked so long to the start of the next.
func (l *Local) rest(busy time.Duration) time.Duration {
	rest := time.Duration(l.cfg.DutyCycle) * busy
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.soon {
		return rest
	}
	return max(l.cfg.MinInterval, rest)
}

// look says whether there is something to flush and whether it is urgent.
func (l *Local) look() (work, hurry, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	work = len(l.dead) > 0 || len(l.gone) > 0
	for _, t := range l.tasks {
		work = work || t.dirty()
	}
	l.soon = l.soon && work
	return work, l.closing || len(l.waiters) > 0 || l.pendingBytes() >= l.cfg.MaxPendingBytes, l.closing
}

// dirty reports that the database does not hold what was collected; Local.mu is held.
func (t *localTask) dirty() bool {
	if t.stale {
		return false
	}
	return t.pending.len() > 0 || (!t.loading && (!t.clean || t.durable != t.at))
}

// flush writes what is pending. It gives the time it worked, pauses left out. An error disables the copy, unless it is
// that the time for closing is over.
func (l *Local) flush(ctx context.Context) (busy time.Duration, err error) {
	w := l.take()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			l.unsafe.Store(true)
		}
		if err != nil && (ctx.Err() == nil || noSpace(err)) {
			l.disable(err)
		}
		if err != nil && !errors.Is(err, context.Cause(ctx)) {
			l.unsafe.Store(true)
		}
		for _, c := range w.waiters {
			c <- err
		}
		if w.woken {
			l.kick()
		}
	}()
	if err := l.checkWritable(); err != nil {
		return 0, err
	}
	w.version = l.db.MaxVersion() + 1
	if err := w.write(ctx); err != nil {
		return 0, err
	}
	l.db.SetDiscardTs(w.version)
	busy = time.Since(w.start) - w.paused
	l.finish(w.batch, w.written, busy)
	return busy, nil
}

// flusher is the state of one flush.
type flusher struct {
	l       *Local
	batch   []flushTask
	dead    []uint32
	gone    []element.TaskID
	waiters []chan error

	version uint64 // Badger's version: a local counter
	written int64
	start   time.Time
	paused  time.Duration
	woken   bool // somebody wanted the writer meanwhile
}

// take captures what is pending; new changes are collected apart from now on.
func (l *Local) take() *flusher {
	w := &flusher{l: l, start: time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, t := range l.tasks {
		if !t.dirty() || t.reading > 0 {
			continue
		}
		w.batch = append(w.batch, flushTask{id: id, task: t, pending: t.pending, partial: t.loading, tally: t.tally,
			record: taskRecord{at: t.at, number: t.number, tables: t.tables}})
		t.pending, t.clean = newPending(), false
	}
	slices.SortFunc(w.batch, func(a, b flushTask) int { return cmp.Compare(a.record.number, b.record.number) })
	w.dead, w.gone, w.waiters = l.dead, l.gone, l.waiters
	l.dead, l.gone, l.waiters, l.soon = nil, nil, nil, false
	close(l.room)
	l.room = make(chan struct{})
	return w
}

// write does the steps of a flush. Their order is what a crash between any two relies on: no record says applied
// while its data changes, and no data goes while a record that says applied names it.
func (w *flusher) write(ctx context.Context) error {
	if err := w.l.moment(failpoint.Err(failpoint.LocalIntentBefore)); err != nil {
		return err
	}
	if err := w.records(stateIntent); err != nil {
		return err
	}
	if err := w.l.moment(failpoint.Err(failpoint.LocalIntentAfter)); err != nil {
		return err
	}
	if err := w.drop(); err != nil {
		return err
	}
	if err := w.l.moment(nil); err != nil {
		return err
	}
	if len(w.batch) == 0 {
		return nil
	}
	for i := range w.batch {
		if err := w.l.moment(failpoint.Err(failpoint.LocalDataBefore)); err != nil {
			return err
		}
		if err := w.data(ctx, &w.batch[i]); err != nil {
			return err
		}
		if err := w.l.moment(failpoint.Err(failpoint.LocalDataAfter)); err != nil {
			return err
		}
	}
	if err := w.l.db.Sync(); err != nil {
		return err
	}
	if err := w.l.moment(failpoint.Err(failpoint.LocalAppliedBefore)); err != nil {
		return err
	}
	w.version++ // the same keys again
	if err := w.records(stateApplied); err != nil {
		return err
	}
	return w.l.moment(failpoint.Err(failpoint.LocalAppliedAfter))
}

func (l *Local) finish(batch []flushTask, written int64, busy time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		b := &batch[i]
		b.task.tally = b.tally
		if !b.partial {
			b.task.durable, b.task.clean = b.record.at, true
		}
	}
	l.stats.Flushes++
	l.stats.Written += written
	l.stats.LastFlush = busy
}

// records writes the records of the batch with a state, and syncs. With the intents go the records whose data is to be
// dropped.
func (w *flusher) records(state byte) error {
	wb := w.l.db.NewWriteBatchAt(w.version)
	defer wb.Cancel()
	written := make(map[element.TaskID]bool)
	for i := range w.batch {
		b := &w.batch[i]
		if b.partial && state == stateApplied {
			continue
		}
		if b.record.state = state; state == stateApplied {
			b.record.tally = b.tally
		}
		written[b.id] = true
		if err := wb.Set(taskKey(b.id), b.record.encode()); err != nil {
			return err
		}
	}
	if state == stateIntent {
		for _, id := range w.gone {
			if written[id] {
				continue
			}
			written[id] = true
			if err := wb.Delete(taskKey(id)); err != nil {
				return err
			}
		}
	}
	if err := wb.Flush(); err != nil {
		return err
	}
	return w.l.db.Sync()
}

// drop deletes the data of numbers that no record names any more.
func (w *flusher) drop() error {
	if len(w.dead) == 0 {
		return nil
	}
	prefixes := make([][]byte, len(w.dead))
	for i, n := range w.dead {
		prefixes[i] = dataPrefix(n)
	}
	return w.l.db.DropPrefix(prefixes...)
}

// data writes the entries of one task in slices, with pauses between them, so that the writer takes its share of a core
// evenly and not in one burst.
func (w *flusher) data(ctx context.Context, b *flushTask) error {
	old := newPrevious(w.l.db, w.version-1, dataPrefix(b.record.number), b.tally.entries < previousDense*uint64(b.pending.len()))
	defer old.close()
	wb := w.l.db.NewWriteBatchAt(w.version)
	defer func() { wb.Cancel() }()
	begin, n, size := time.Now(), 0, 0
	empty := b.tally.entries == 0
	var failed error
	for e := range b.pending.freeze() {
		key := appendDataKey(make([]byte, 0, dataKeyHead+len(e.Key)), b.record.number, e.Table, e.Key)
		there := false
		if !empty {
			if there, failed = b.replace(old, key, e); failed != nil {
				break
			}
		}
		if e.Deleted && !there {
			continue
		} else if e.Deleted {
			failed = wb.Delete(key)
		} else {
			b.tally.add(e.Table, e.Key, e.Value)
			failed = wb.Set(key, e.Value)
		}
		if failed != nil {
			break
		}
		w.written++
		if n, size = n+1, size+len(key)+len(e.Value); n < sliceEntries && size < sliceBytes {
			continue
		}
		if failed = wb.Flush(); failed == nil {
			failed = w.l.moment(nil)
		}
		if failed == nil {
			failed = w.l.checkWritable()
		}
		if failed == nil {
			failed = w.pause(ctx, time.Since(begin))
		}
		if failed != nil {
			break
		}
		wb = w.l.db.NewWriteBatchAt(w.version)
		begin, n, size = time.Now(), 0, 0
	}
	if failed != nil {
		return failed
	}
	return wb.Flush()
}

// replace takes what the database holds for a key out of the tally and says whether there was something.
func (b *flushTask) replace(old *previous, key []byte, e Entry) (bool, error) {
	return old.value(key, func(v []byte) error {
		b.tally.remove(e.Table, e.Key, v)
		return nil
	})
}

// moment lies between two writes to the database; err is what a failpoint there says.
func (l *Local) moment(err error) error {
	if err != nil || l.cfg.Step == nil {
		return err
	}
	return l.cfg.Step()
}

// pause lets the rest of the process run after the writer has worked for a while, unless the flush is in a hurry.
func (w *flusher) pause(ctx context.Context, worked time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	start := time.Now()
	defer func() { w.paused += time.Since(start) }()
	timer := time.NewTimer(time.Duration(w.l.cfg.DutyCycle-1) * worked)
	defer timer.Stop()
	for {
		if _, hurry, _ := w.l.look(); hurry || len(w.waiters) > 0 {
			return nil
		}
		select {
		case <-timer.C:
			return nil
		case <-w.l.wake:
			w.woken = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// disable ends the local copy for the life of the process.
func (l *Local) disable(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stats.Disabled {
		return
	}
	l.stats.Disabled, l.why = true, err
	l.stats.Failures++
	for _, t := range l.tasks {
		l.giveUp(t)
	}
	close(l.room)
	l.room = make(chan struct{})
	if l.cfg.left != nil && l.cfg.left.Add(-1) > 0 {
		l.log.Warn("A DIRECTORY FOR LOCAL COPIES OF THE STATE IS LEFT OUT until the process starts again; its tasks get new copies in the others, "+
			"checkpoints are not affected", "dir", l.dir, "error", err)
		return
	}
	l.log.Error("THE LOCAL COPY OF THE STATE IS DISABLED until the process starts again; the service goes on without it, "+
		"checkpoints are not affected", "dir", l.dir, "error", err)
}

// Soon has what was collected so far written as soon as the duty cycle allows it, without waiting for the interval.
func (l *Local) Soon() {
	l.mu.Lock()
	l.soon = true
	l.mu.Unlock()
	l.kick()
}

// Flush writes what was collected so far and waits for it, until ctx ends. The error of a copy that is disabled wraps
// what disabled it, also when that was before the call: the writer may have tried on its own.
func (l *Local) Flush(ctx context.Context) error {
	c := make(chan error, 1)
	l.mu.Lock()
	if l.stats.Disabled || l.closing {
		err := l.closedBy()
		l.mu.Unlock()
		return err
	}
	l.waiters = append(l.waiters, c)
	l.mu.Unlock()
	l.kick()
	select {
	case err := <-c:
		return err
	case <-l.done:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.closedBy()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// closedBy is the error of a call that comes too late. The caller holds mu.
func (l *Local) closedBy() error {
	if l.why == nil {
		return errLocalClosed
	}
	return fmt.Errorf("%w: %w", errLocalClosed, l.why)
}
