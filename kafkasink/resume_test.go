package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

func TestResumeOfASealedCheckpointReopensItsTransaction(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	a, b := s.Writer(task(0)), s.Writer(task(1))
	ctx := t.Context()
	require.NoError(t, a.Write(ctx, 0, recs("a1")))
	a.Barrier(1)
	b.Barrier(1)
	require.NoError(t, s.Seal(ctx, 1))
	require.NoError(t, a.Write(ctx, 0, recs("a2")))
	a.Barrier(2)
	require.NoError(t, a.Write(ctx, 0, recs("a3")))
	require.NoError(t, b.Write(ctx, 0, recs("b1")))
	require.NoError(t, s.Resume(ctx, 1, 2))
	require.Zero(t, s.HeldBack())
	require.NoError(t, a.Write(ctx, 0, recs("a4")))
	b.Barrier(2) // was under way
	require.NoError(t, b.Write(ctx, 0, recs("b2")))
	require.Zero(t, s.HeldBack())
	require.ErrorIs(t, s.Seal(ctx, 2), ErrTakenBack)
	a.Barrier(3)
	b.Barrier(3)
	require.NoError(t, s.Seal(ctx, 3))
	r.commit()
	require.NoError(t, s.Release(3))
	require.Equal(t, [][]string{{"a1", "a2", "a3", "b1", "a4", "b2"}, nil}, r.all())
	require.Equal(t, 1, r.reopened)
}

func TestResumeBeforeTheSealReopensNothing(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	ctx := t.Context()
	require.NoError(t, s.Resume(ctx, 1, 1), "nobody has passed it")
	w.Barrier(1)
	require.NoError(t, w.Write(ctx, 0, recs("1")))
	w.Barrier(2)
	require.NoError(t, w.Write(ctx, 0, recs("2")))
	require.NoError(t, s.Resume(ctx, 2, 2))
	require.Zero(t, r.reopened)
	require.Equal(t, [][]string{{"1", "2"}}, r.all())
}

// An older checkpoint stays in flight: what was held behind the one that is given up waits for it.
func TestResumeBehindAnOlderCheckpoint(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		t.Run(fmt.Sprint("sealed ", sealed), func(t *testing.T) {
			r := newRecorder()
			s := newSink(t, r, 0)
			w := s.Writer(task(0))
			ctx := t.Context()
			require.NoError(t, w.Write(ctx, 0, recs("1")))
			w.Barrier(1)
			if sealed {
				require.NoError(t, s.Seal(ctx, 1))
			}
			require.NoError(t, w.Write(ctx, 0, recs("2")))
			w.Barrier(2)
			require.NoError(t, w.Write(ctx, 0, recs("3")))
			w.Barrier(3)
			require.NoError(t, w.Write(ctx, 0, recs("4")))
			require.NoError(t, s.Resume(ctx, 2, 3))
			require.NoError(t, w.Write(ctx, 0, recs("5")))
			if !sealed {
				require.NoError(t, s.Seal(ctx, 1))
			}
			require.Equal(t, [][]string{{"1"}}, r.all())
			r.commit()
			require.NoError(t, s.Release(1))
			require.NoError(t, w.Write(ctx, 0, recs("6")))
			require.Equal(t, [][]string{{"1"}, {"2", "3", "4", "5", "6"}}, r.all())
			require.Zero(t, r.reopened)
			require.Zero(t, s.HeldBack())
		})
	}
}

// A newer checkpoint may have been triggered before the hand-back comes to its turn: its barrier stays.
func TestResumeLeavesNewerBarriersAlone(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	late := s.Writer(task(1))
	ctx := t.Context()
	w.Barrier(1)
	require.NoError(t, w.Write(ctx, 0, recs("1")))
	w.Barrier(2)
	require.NoError(t, w.Write(ctx, 0, recs("2")))
	w.Barrier(4)
	require.NoError(t, w.Write(ctx, 0, recs("3")))
	require.NoError(t, s.Resume(ctx, 1, 2))
	late.Barrier(1)
	late.Barrier(2)
	require.NoError(t, late.Write(ctx, 0, recs("l1")))
	late.Barrier(4)
	require.NoError(t, late.Write(ctx, 0, recs("l2")))
	joined := s.WriterBehind(task(2), 2)
	require.NoError(t, joined.Write(ctx, 0, recs("j1")))
	joined.Barrier(4)
	require.NoError(t, s.Seal(ctx, 4))
	r.commit()
	require.NoError(t, s.Release(4))
	require.Empty(t, *s.back.Load(), "nothing older can come")
	require.Equal(t, [][]string{{"1", "2", "l1", "j1"}, {"3", "l2"}}, r.all())
}

func TestResumeAfterAFailedSealFails(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	w.Barrier(1)
	require.NoError(t, w.Write(t.Context(), 0, recs("1")))
	r.err = fault.Stopf(fault.BadRecord, "too large")
	require.Error(t, s.Seal(t.Context(), 1))
	r.err = nil
	err := s.Resume(t.Context(), 1, 1)
	require.ErrorContains(t, err, "its transaction is lost: too large")
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Equal(t, [][]string{nil}, r.all())
}

func TestResumeEndsWithItsContextAndWithDiscard(t *testing.T) {
	for name, want := range map[string]error{"context": context.Canceled, "discard": ErrDiscarded} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder()
			s := newSink(t, r, 0)
			w := s.Writer(task(0))
			w.Barrier(1)
			require.NoError(t, w.Write(t.Context(), 0, recs("1")))
			r.gate = make(chan struct{}) // the client's buffers are full
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.Resume(ctx, 1, 1) }()
			require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.queues[0].batches) == 0 }, 5*time.Second, time.Millisecond)
			if name == "discard" {
				s.Discard()
			} else {
				cancel()
			}
			require.ErrorIs(t, <-done, want)
			require.Zero(t, s.HeldBack())
		})
	}
}

// TestWriteDuringResumeDoesNotOvertake is the interleaving of Writer.drain's comment with queues that are taken back.
func TestWriteDuringResumeDoesNotOvertake(t *testing.T) {
	r := newRecorder()
	s := newSink(t, r, 0)
	w := s.Writer(task(0))
	ctx := t.Context()
	w.Barrier(1)
	require.NoError(t, w.Write(ctx, 0, recs("1")))
	w.Barrier(2)
	require.NoError(t, w.Write(ctx, 0, recs("2")))
	r.gate = make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- s.Resume(ctx, 1, 2) }()
	taken := func(left int) {
		require.Eventually(t, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.queues[0].batches) == left
		}, 5*time.Second, time.Millisecond)
	}
	taken(1)
	require.NoError(t, w.Write(ctx, 0, recs("3")), "held: it does not wait for the broker")
	r.gate <- struct{}{}
	r.gate <- struct{}{}
	taken(0)
	w.Barrier(3)
	require.NoError(t, w.Write(ctx, 0, recs("4")))
	r.gate <- struct{}{}
	require.NoError(t, <-done)
	require.Equal(t, [][]string{{"1", "2", "3"}}, r.all())
	require.True(t, w.holding())
}

// TestOrderAndTransactionWithCheckpointsTakenBack runs tasks and a coordinator at full speed, with up to two checkpoints
// in flight, some of which are given up at any point before their commit: before all have passed the barrier, after
// that, sealed, with an older one in flight. Each task's records arrive in order, none is lost or doubled, and each is in
// the transaction of the first checkpoint behind it that committed.
func TestOrderAndTransactionWithCheckpointsTakenBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tasks := rapid.IntRange(1, 4).Draw(rt, "tasks")
		r := newRecorder()
		s := newSink(rt, r, 1<<20)
		barriers := make([]chan element.CheckpointID, tasks)
		passed := make(chan error, 1000)
		written := make([]int, tasks)
		var wg sync.WaitGroup
		for i := range tasks {
			barriers[i] = make(chan element.CheckpointID, 100)
			w := s.Writer(task(int32(i)))
			batches := rapid.IntRange(0, 10).Draw(rt, "batches")
			wg.Go(func() { written[i] = runTask(w, i, batches, barriers[i], passed) })
		}
		ctx := context.Background()
		var committed []element.CheckpointID
		next := element.CheckpointID(1)
		pending := 0 // barriers that are under way
		trigger := func() element.CheckpointID {
			id := next
			next++
			for _, b := range barriers {
				b <- id
			}
			pending += tasks
			return id
		}
		await := func(left int) {
			for ; pending > left; pending-- {
				require.NoError(rt, <-passed)
			}
		}
		commit := func(id element.CheckpointID) {
			r.commit()
			committed = append(committed, id)
			require.NoError(rt, s.Release(id))
		}
		for range rapid.IntRange(1, 10).Draw(rt, "rounds") {
			first := trigger()
			second := element.CheckpointID(0)
			if rapid.Bool().Draw(rt, "two in flight") {
				second = trigger()
			}
			if rapid.Bool().Draw(rt, "all passed") {
				await(0)
			} else {
				await(rapid.IntRange(0, pending).Draw(rt, "left"))
			}
			switch how := rapid.SampledFrom([]string{"commit", "take back", "take back the second"}).Draw(rt, "how"); {
			case how == "take back":
				require.NoError(rt, s.Resume(ctx, first, max(first, second)))
				continue
			case how == "take back the second" && second != 0:
				if rapid.Bool().Draw(rt, "early") {
					require.NoError(rt, s.Resume(ctx, second, second))
					await(0)
					require.NoError(rt, s.Seal(ctx, first))
				} else {
					await(0)
					require.NoError(rt, s.Seal(ctx, first))
					require.NoError(rt, s.Resume(ctx, second, second))
				}
				commit(first)
				continue
			}
			await(0)
			require.NoError(rt, s.Seal(ctx, first))
			if rapid.Bool().Draw(rt, "take it back") {
				require.NoError(rt, s.Resume(ctx, first, max(first, second)))
				continue
			}
			commit(first)
			if second != 0 {
				require.NoError(rt, s.Seal(ctx, second))
				commit(second)
			}
		}
		for _, b := range barriers {
			close(b)
		}
		last := next
		wg.Wait()
		for i := range tasks {
			s.Writer(task(int32(i))).Barrier(last)
		}
		require.NoError(rt, s.Seal(ctx, last))
		commit(last)
		checkTaken(rt, r.all(), written, committed)
		require.Zero(rt, s.HeldBack())
	})
}

// checkTaken checks that every record is there once, in its task's order, in the transaction of the first checkpoint
// after its epoch that was committed.
func checkTaken(t require.TestingT, txns [][]string, written []int, committed []element.CheckpointID) {
	next := make([]int, len(written))
	for txn, values := range txns {
		for _, v := range values {
			var id, n int
			var epoch element.CheckpointID
			_, err := fmt.Sscanf(v, "%d:%d:%d", &id, &epoch, &n)
			require.NoError(t, err)
			require.Equal(t, next[id], n, "task %d: order", id)
			want := slices.IndexFunc(committed, func(c element.CheckpointID) bool { return c > epoch })
			require.Equal(t, want, txn, "record %s", v)
			next[id]++
		}
	}
	require.Equal(t, written, next)
}

// Discard comes at any moment of a Resume, with tasks that write. Nobody hangs, and nothing stays held.
func TestDiscardDuringResume(t *testing.T) {
	for range 100 {
		r := newRecorder()
		s := newSink(t, r, 500)
		var wg sync.WaitGroup
		for i := range int32(3) {
			w := s.Writer(task(i))
			w.Barrier(1)
			wg.Go(func() {
				for {
					if err := w.Write(context.Background(), 0, recs("x")); err != nil {
						if !errors.Is(err, ErrDiscarded) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		wg.Go(func() {
			if err := s.Resume(context.Background(), 1, 1); err != nil && !errors.Is(err, ErrDiscarded) {
				t.Error(err)
			}
		})
		time.Sleep(50 * time.Microsecond)
		s.Discard()
		wg.Wait()
	}
}
