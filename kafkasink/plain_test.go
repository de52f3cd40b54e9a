package kafkasink

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/txn"
)

func TestWithoutHoldBackNothingWaits(t *testing.T) {
	r := newRecorder()
	s, err := New(Config{Transactions: r, NoHoldBack: true, HoldBackLimit: 1, Targets: []Target{{Name: "out", Topic: "out", Partitions: 4}}})
	require.NoError(t, err)
	a, b := s.Writer(task(0)), s.Writer(task(1))
	ctx := t.Context()
	require.NoError(t, a.Write(ctx, 0, recs("a1")))
	a.Barrier(1)
	require.NoError(t, a.Write(ctx, 0, recs("a2")))
	require.ErrorContains(t, s.Seal(ctx, 1), "task in-1 has not passed its barrier")
	b.Barrier(1)
	joined := s.WriterBehind(task(2), 1)
	require.NoError(t, joined.Write(ctx, 0, recs("j1")))
	require.NoError(t, s.Seal(ctx, 1))
	require.Equal(t, [][]string{{"a1", "a2", "j1"}}, r.all())
	r.commit()
	require.NoError(t, s.Release(1))
	a.Barrier(2)
	b.Barrier(2)
	joined.Barrier(2)
	require.NoError(t, s.Seal(ctx, 2))
	require.NoError(t, s.Resume(ctx, 2, 3))
	require.Equal(t, 1, r.reopened, "the seal is taken back")
	require.ErrorIs(t, s.Seal(ctx, 3), ErrTakenBack)
	require.ErrorContains(t, s.Seal(ctx, 4), "has not passed")
	require.NoError(t, a.Write(ctx, 0, recs("a3")))
	require.Zero(t, s.HeldBack())
	s.Drop(task(1))
	a.Barrier(4)
	joined.Barrier(4)
	require.NoError(t, s.Seal(ctx, 4))
	s.Discard()
	require.ErrorIs(t, a.Write(ctx, 0, recs("a4")), ErrDiscarded)
	require.Equal(t, [][]string{{"a1", "a2", "j1"}, {"a3"}}, r.all())
}

// TestAtLeastOnceOnABroker runs tasks that never stop, with a plain producer: what a task has written before a barrier is
// in the output when the checkpoint is sealed, and each key is in order.
func TestAtLeastOnceOnABroker(t *testing.T) {
	b := newBroker(t)
	app := b.bed.Name("plain")
	member, err := kafka.NewClient(b.cfg, kgo.ConsumerGroup(app), kgo.ConsumeTopics(b.in), kgo.DisableAutoCommit())
	require.NoError(t, err)
	t.Cleanup(member.Close)
	p, err := txn.NewPlain(txn.Config{Kafka: b.cfg, Application: app, Instance: "i", Group: app, Logger: slog.New(slog.DiscardHandler),
		Fence: func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			m, g := member.GroupMetadata()
			return m, g, "", nil
		}})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	require.NoError(t, p.Init(b.ctx))
	require.Eventually(t, func() bool { m, g := member.GroupMetadata(); return m != "" && g >= 0 }, 10*time.Second, 5*time.Millisecond)
	s, err := New(Config{Transactions: p, NoHoldBack: true, Logger: slog.New(slog.DiscardHandler), Targets: []Target{{Name: "totals", Topic: b.out, Partitions: 4}}})
	require.NoError(t, err)
	t.Cleanup(s.Discard)

	const tasks, checkpoints = 3, 6
	barriers := make([]chan element.CheckpointID, tasks)
	passed := make(chan int, tasks)
	written := make([]int, tasks)
	var wg sync.WaitGroup
	for i := range barriers {
		barriers[i] = make(chan element.CheckpointID, 1)
		w := s.Writer(task(int32(i)))
		wg.Go(func() {
			n := 0
			defer func() { written[i] = n }()
			for {
				select {
				case id, ok := <-barriers[i]:
					if !ok {
						return
					}
					w.Barrier(id)
					passed <- n
				default:
				}
				time.Sleep(200 * time.Microsecond)
				n++
				if err := w.Write(b.ctx, 0, []element.Record{{Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Append(nil, n)}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for id := element.CheckpointID(1); id <= checkpoints; id++ {
		least := 0
		for _, c := range barriers {
			c <- id
		}
		for range tasks {
			least += <-passed
		}
		require.NoError(t, s.Seal(b.ctx, id))
		total := 0
		for _, values := range b.read(t, b.out, least) {
			total += len(values)
		}
		require.GreaterOrEqual(t, total, least)
		require.NoError(t, p.Commit(b.ctx, b.commitOf(id)))
		require.NoError(t, s.Release(id))
	}
	for _, c := range barriers {
		close(c)
	}
	wg.Wait()
	require.NoError(t, p.Seal(b.ctx, checkpoints+1))
	got := b.read(t, b.out, written[0]+written[1]+written[2])
	for i, n := range written {
		want := make([]string, n)
		for k := range want {
			want[k] = fmt.Sprint(k + 1)
		}
		require.True(t, slices.Equal(want, got[fmt.Sprintf("key-%d", i)]), "key %d: %d records", i, n)
	}
}
