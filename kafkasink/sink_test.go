package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// recorder is a Transactions that notes which record went into which transaction.
type recorder struct {
	mu     sync.Mutex
	txns   [][]string // values, by transaction
	sealed bool
	seals  []element.CheckpointID
	err    error

	reopened int
	gate     chan struct{} // if not nil, each ProduceBatch takes a value first
	missing  atomic.Int64  // bytes without an answer
}

func newRecorder() *recorder { return &recorder{txns: [][]string{nil}} }

func (r *recorder) Unanswered() int64 { return r.missing.Load() }

func (r *recorder) ProduceBatch(ctx context.Context, recs []kgo.Record) error {
	if r.gate != nil {
		select {
		case <-r.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if r.sealed {
		return errors.New("sealed")
	}
	last := &r.txns[len(r.txns)-1]
	for i := range recs {
		*last = append(*last, string(recs[i].Value))
	}
	return nil
}

func (r *recorder) Seal(_ context.Context, id element.CheckpointID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
	r.seals = append(r.seals, id)
	return r.err
}

func (r *recorder) Reopen(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sealed {
		return errors.New("not sealed")
	}
	r.sealed = false
	r.reopened++
	return r.err
}

// commit ends the sealed transaction.
func (r *recorder) commit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = false
	r.txns = append(r.txns, nil)
}

func (r *recorder) all() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([][]string, len(r.txns))
	for i := range r.txns {
		out[i] = append([]string(nil), r.txns[i]...)
	}
	return out
}

func newSink(t require.TestingT, tx Transactions, limit int64, full ...func(element.TaskID, int64)) *Sink {
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Transactions: tx, Targets: []Target{{Name: "out", Topic: "out", Partitions: 4}}, HoldBackLimit: limit}
	if len(full) > 0 {
		cfg.OnHoldBackFull = full[0]
	}
	s, err := New(cfg)
	require.NoError(t, err)
	return s
}

func task(p int32) element.TaskID { return element.TaskID{Source: "in", Partition: p} }

func recs(values ...string) []element.Record {
	out := make([]element.Record, len(values))
	for i, v := range values {
		out[i] = element.Record{Key: []byte("k"), Value: []byte(v)}
	}
	return out
}

func TestWhatFollowsABarrierGoesIntoTheNextTransaction(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	a, b := s.Writer(task(0)), s.Writer(task(1))
	require.Same(t, a, s.Writer(task(0)))
	ctx := t.Context()
	require.NoError(t, a.Write(ctx, 0, recs("a1")))
	a.Barrier(1)
	require.NoError(t, a.Write(ctx, 0, recs("a2")))
	require.ErrorContains(t, s.Seal(ctx, 1), "task in-1 has not passed its barrier")
	require.NoError(t, b.Write(ctx, 0, recs("b1")))
	b.Barrier(1)
	require.NoError(t, s.Seal(ctx, 1))
	require.NoError(t, a.Write(ctx, 0, recs("a3", "a4")))
	require.Positive(t, s.HeldBack())
	r.commit()
	require.NoError(t, s.Release(1))
	require.Zero(t, s.HeldBack())
	require.NoError(t, a.Write(ctx, 0, recs("a5")))
	require.NoError(t, b.Write(ctx, 0, nil))
	require.NoError(t, b.Write(ctx, 0, recs("b2")))
	require.Equal(t, [][]string{{"a1", "b1"}, {"a2", "a3", "a4", "a5", "b2"}}, r.all())
	require.NoError(t, s.Release(1), "twice is harmless")
}

func TestSecondBarrierBeforeTheFirstIsReleased(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	ctx := t.Context()
	require.NoError(t, w.Write(ctx, 0, recs("1")))
	w.Barrier(1)
	require.NoError(t, w.Write(ctx, 0, recs("2")))
	w.Barrier(2)
	require.NoError(t, w.Write(ctx, 0, recs("3")))
	// 2 must not be sealed while the records that belong to it are still held.
	require.ErrorContains(t, s.Seal(ctx, 2), "still holds back output since checkpoint 1")
	require.NoError(t, s.Seal(ctx, 1))
	r.commit()
	require.NoError(t, s.Release(1))
	require.NoError(t, w.Write(ctx, 0, recs("4")))
	require.NoError(t, s.Seal(ctx, 2))
	r.commit()
	require.NoError(t, s.Release(2))
	require.Equal(t, [][]string{{"1"}, {"2"}, {"3", "4"}}, r.all())
}

func TestHoldBackLimitStopsTheTaskUntilRelease(t *testing.T) {
	r := newRecorder()
	full := make(chan int64, 10)
	s := newSink(t, r, 200, func(task element.TaskID, held int64) { full <- held })
	w := s.Writer(task(0))
	w.Barrier(1)
	ctx := t.Context()
	one := int64(recs("x")[0].Size())
	n := 0
	for ; s.HeldBack() < 200; n++ {
		require.NoError(t, w.Write(ctx, 0, recs("x")))
	}
	require.Equal(t, int64(n)*one, s.HeldBack())
	require.LessOrEqual(t, s.HeldBack(), 200+one, "I3: one batch above the limit at most")
	done := make(chan error, 1)
	go func() { done <- w.Write(ctx, 0, recs("blocked")) }()
	require.Equal(t, s.HeldBack(), <-full)
	select {
	case err := <-done:
		t.Fatalf("went on above the limit: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	require.NoError(t, s.Seal(ctx, 1))
	r.commit()
	require.NoError(t, s.Release(1))
	require.NoError(t, <-done)
	require.Len(t, r.all()[1], n+1)
	require.Equal(t, "blocked", r.all()[1][n])
	require.Zero(t, s.HeldBack())
}

func TestBlockedWriteEndsWithItsContextAndWithDiscard(t *testing.T) {
	s := newSink(t, newRecorder(), 1)
	w := s.Writer(task(0))
	w.Barrier(1)
	require.NoError(t, w.Write(t.Context(), 0, recs("x")))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, w.Write(ctx, 0, recs("y")), context.DeadlineExceeded)
	done := make(chan error, 1)
	go func() { done <- w.Write(t.Context(), 0, recs("z")) }()
	require.Eventually(t, func() bool { return s.waiting.Load() == 1 }, 5*time.Second, time.Millisecond)
	s.Discard()
	require.ErrorIs(t, <-done, ErrDiscarded)
	require.Zero(t, s.HeldBack())
	require.ErrorIs(t, w.Write(t.Context(), 0, recs("z")), ErrDiscarded)
	require.ErrorIs(t, s.Seal(t.Context(), 1), ErrDiscarded)
	require.ErrorIs(t, s.Release(1), ErrDiscarded)
	s.Discard()
}

// TestReleasedWriterIsNotHeldByOthers: a writer that slept at the limit must go on once it is released, also when
// others, that passed the next barrier meanwhile, have filled the hold-back again. Else neither would ever pass.
func TestReleasedWriterIsNotHeldByOthers(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 1)
	w := s.Writer(task(0))
	w.Barrier(1)
	s.held.Add(1000) // what others hold
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Write(ctx, 0, recs("1")) }()
	require.Eventually(t, func() bool { return s.waiting.Load() == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, s.Seal(ctx, 1))
	r.commit()
	require.NoError(t, s.Release(1))
	require.NoError(t, <-done)
	require.Equal(t, []string{"1"}, r.all()[1])
}

func TestDiscardEndsARelease(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	w.Barrier(1)
	require.NoError(t, w.Write(t.Context(), 0, recs("1")))
	r.gate = make(chan struct{}) // the client's buffers are full
	done := make(chan error, 1)
	go func() { done <- s.Release(1) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.Eventually(t, func() bool { return len(s.draining) == 0 }, 5*time.Second, time.Millisecond)
	require.ErrorIs(t, s.Seal(ctx, 2), context.DeadlineExceeded, "a seal waits for the release before it")
	s.Discard()
	require.ErrorIs(t, <-done, ErrDiscarded)
	require.Zero(t, s.HeldBack())
}

// TestWriteDuringReleaseDoesNotOvertake is the interleaving of Writer.drain's comment, step by step.
func TestWriteDuringReleaseDoesNotOvertake(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	w.Barrier(1)
	ctx := t.Context()
	require.NoError(t, w.Write(ctx, 0, recs("1")))
	require.NoError(t, w.Write(ctx, 0, recs("2")))
	r.gate = make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- s.Release(1) }()
	// The drain has taken batch 1 and cannot hand it over yet.
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.queues[0].batches) == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, w.Write(ctx, 0, recs("3")), "held: it does not wait for the broker")
	r.gate <- struct{}{}
	r.gate <- struct{}{}
	// Batch 3 is taken, the list is empty, nothing of 3 is handed over: 4 must still wait its turn.
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.queues[0].batches) == 0 }, 5*time.Second, time.Millisecond)
	require.NoError(t, w.Write(ctx, 0, recs("4")))
	r.gate <- struct{}{}
	r.gate <- struct{}{}
	require.NoError(t, <-done)
	go func() { r.gate <- struct{}{} }()
	require.NoError(t, w.Write(ctx, 0, recs("5")))
	require.Equal(t, []string{"1", "2", "3", "4", "5"}, r.all()[0])
}

func TestErrorsOfTheTransactionReachTheTask(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	require.ErrorContains(t, w.Write(t.Context(), 1, recs("x")), "sink 1 of 1")
	r.err = fault.Stopf(fault.BadRecord, "too large")
	err := w.Write(t.Context(), 0, recs("x"))
	require.ErrorContains(t, err, "too large")
	require.NotContains(t, err.Error(), "sink", "what failed may be another sink's")
	require.Equal(t, fault.BadRecord, fault.CodeOf(err))
	w.Barrier(1)
	require.Equal(t, fault.Stop, fault.RecoveryOf(s.Seal(t.Context(), 1)))
	require.NoError(t, w.Write(t.Context(), 0, recs("y")))
	require.ErrorContains(t, s.Release(1), "task in-0, output held back since checkpoint 1: too large")
}

func TestConfigIsChecked(t *testing.T) {
	_, err := New(Config{})
	require.Error(t, err)
	_, err = New(Config{Transactions: sinkhole{}, Targets: []Target{{Name: "x", Topic: "t"}}})
	require.ErrorContains(t, err, "0 partitions")
	_, err = New(Config{Transactions: sinkhole{}, HoldBackLimit: -1})
	require.Error(t, err)
}

// TestOrderAndTransactionUnderLoad runs tasks and a coordinator at full speed: whatever the interleaving, each task's
// records arrive in order, and those before its barrier n are in transaction n or earlier, those after it are not.
func TestOrderAndTransactionUnderLoad(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tasks := rapid.IntRange(1, 4).Draw(rt, "tasks")
		checkpoints := rapid.IntRange(1, 8).Draw(rt, "checkpoints")
		perEpoch := rapid.IntRange(0, 30).Draw(rt, "batches")
		limit := rapid.SampledFrom([]int64{1, 300, 1 << 20}).Draw(rt, "limit")
		r := newRecorder()
		s := newSink(rt, r, limit)
		barriers := make([]chan element.CheckpointID, tasks)
		passed := make(chan error, tasks)
		var wg sync.WaitGroup
		for i := range tasks {
			barriers[i] = make(chan element.CheckpointID, 1)
			w := s.Writer(task(int32(i)))
			wg.Go(func() { passed <- nil; runTask(w, i, perEpoch, barriers[i], passed) })
		}
		for range tasks {
			<-passed
		}
		for id := element.CheckpointID(1); id <= element.CheckpointID(checkpoints); id++ {
			for _, b := range barriers {
				b <- id
			}
			for range barriers {
				require.NoError(rt, <-passed)
			}
			require.NoError(rt, s.Seal(context.Background(), id))
			r.commit()
			require.NoError(rt, s.Release(id))
		}
		for _, b := range barriers {
			close(b)
		}
		wg.Wait()
		checkOrder(rt, r.all(), tasks)
		require.Zero(rt, s.HeldBack())
	})
}

// runTask writes numbered records, <task>:<epoch>:<number>, and passes barriers as they come.
// It gives the number of records.
func runTask(w *Writer, id, batches int, barriers <-chan element.CheckpointID, passed chan<- error) (n int) {
	epoch := element.CheckpointID(0)
	for {
		for range batches {
			v := []string{fmt.Sprintf("%d:%d:%d", id, epoch, n), fmt.Sprintf("%d:%d:%d", id, epoch, n+1)}
			n += 2
			if err := w.Write(context.Background(), 0, recs(v...)); err != nil {
				passed <- err
				return n
			}
		}
		b, ok := <-barriers
		if !ok {
			return n
		}
		w.Barrier(b)
		epoch = b
		passed <- nil
	}
}

func checkOrder(t require.TestingT, txns [][]string, tasks int) {
	next := make([]int, tasks)
	for txn, values := range txns {
		for _, v := range values {
			var id, epoch, n int
			_, err := fmt.Sscanf(v, "%d:%d:%d", &id, &epoch, &n)
			require.NoError(t, err)
			require.Equal(t, next[id], n, "task %d: order", id)
			require.Equal(t, txn, epoch, "record %s of epoch %d is in transaction %d", v, epoch, txn)
			next[id]++
		}
	}
}

// A writer that comes while a checkpoint is in flight holds back from the beginning, and is no reason not to seal it.
func TestAWriterThatComesBehindABarrier(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	ctx := t.Context()
	a := s.Writer(task(0))
	require.NoError(t, a.Write(ctx, 0, recs("a1")))
	a.Barrier(7)
	b := s.WriterBehind(task(1), 7)
	require.Same(t, b, s.WriterBehind(task(1), 7))
	require.NoError(t, b.Write(ctx, 0, recs("b1")))
	require.NoError(t, s.Seal(ctx, 7))
	require.NoError(t, b.Write(ctx, 0, recs("b2")))
	r.commit()
	require.NoError(t, s.Release(7))
	require.NoError(t, b.Write(ctx, 0, recs("b3")))
	require.Equal(t, [][]string{{"a1"}, {"b1", "b2", "b3"}}, r.all())
}
