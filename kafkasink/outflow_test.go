package kafkasink

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// outflowed is a sink with an outflow and a client that answers when it is told to.
func outflowed(t *testing.T, o *Outflow) (*Sink, *recorder) {
	r := newRecorder()
	s, err := New(Config{Transactions: r, Targets: []Target{{Name: "out", Topic: "out", Partitions: 1}}, Outflow: o, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return s, r
}

// TestWritersWaitForTheBrokers: above the bound a task waits until what is missing is answered, and the wait is counted,
// told of once, and told to be over.
func TestWritersWaitForTheBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o, err := NewOutflow(OutflowConfig{Timeout: 8 * time.Second, Most: 64 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		limit := o.Stats().Limit
		require.EqualValues(t, throttleRate, limit, "an eighth of the timeout at the rate that is assumed")
		s, r := outflowed(t, o)
		w := s.Writer(element.TaskID{Source: "in"})
		rec := []element.Record{{Value: bytes.Repeat([]byte("v"), int(limit))}}
		require.NoError(t, w.Write(t.Context(), 0, rec))
		r.missing.Store(limit)
		done := make(chan error)
		go func() { done <- w.Write(t.Context(), 0, rec) }()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, r.txns[0], 1)
		require.True(t, o.Stats().Throttled)
		require.Less(t, o.Stats().Limit, limit, "nothing was answered for two seconds")
		require.Equal(t, 1, strings.Count(log.String(), "output is held up by the brokers"))
		r.missing.Store(0)
		require.NoError(t, <-done)
		require.Len(t, r.txns[0], 2)
		require.InDelta(t, 2, o.Stats().Waited.Seconds(), 0.1)
		time.Sleep(time.Minute)
		require.False(t, o.Stats().Throttled)
		require.Equal(t, 1, strings.Count(log.String(), "no longer held up"))

		// A wait ends with its context and with the attempt.
		r.missing.Store(limit)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, w.Write(ctx, 0, rec), context.DeadlineExceeded)
		go func() { done <- w.Write(t.Context(), 0, rec) }()
		time.Sleep(time.Second)
		s.Discard()
		require.ErrorIs(t, <-done, ErrDiscarded)
	})
}

// TestHeldBackOutputIsBoundedByTheWayOut: once it is seen to be slow, as much as may be in the client may be held back.
func TestHeldBackOutputIsBoundedByTheWayOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := NewOutflow(OutflowConfig{Timeout: 8 * time.Second, Most: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		s, r := outflowed(t, o)
		w := s.Writer(element.TaskID{Source: "in"})
		require.EqualValues(t, 64<<20, s.holdBackLimit(), "nothing is known of it")
		rec := []element.Record{{Value: bytes.Repeat([]byte("v"), 300<<10)}}
		r.missing.Store(2 << 20)
		time.AfterFunc(time.Second, func() { r.missing.Store(0) })
		for range 2 {
			require.NoError(t, w.Write(t.Context(), 0, rec)) // the second one waits
		}
		w.Barrier(1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 10 {
				if w.Write(t.Context(), 0, rec) != nil {
					return
				}
			}
		}()
		synctest.Wait()
		require.Less(t, s.HeldBack(), o.Stats().Limit+300<<10+100)
		require.Greater(t, s.HeldBack(), o.Stats().Limit)
		require.NoError(t, s.Seal(t.Context(), 1))
		r.commit()
		require.NoError(t, s.Release(1))
		<-done
		require.Zero(t, s.HeldBack())
	})
}

// slow is a client whose flush takes until its context ends.
type slow struct{ *recorder }

func (s slow) Seal(ctx context.Context, _ element.CheckpointID) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestAFlushThatIsTooLateLeavesLessToTheNextAttempt: the outflow outlives the sink of an attempt.
func TestAFlushThatIsTooLateLeavesLessToTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := NewOutflow(OutflowConfig{Timeout: 50 * time.Second, Most: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		r := newRecorder()
		s, err := New(Config{Transactions: slow{r}, Targets: []Target{{Name: "out", Topic: "out", Partitions: 1}}, Outflow: o, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		w := s.Writer(element.TaskID{Source: "in"})
		require.NoError(t, w.Write(t.Context(), 0, []element.Record{{Value: make([]byte, 5<<20)}}))
		r.missing.Store(5 << 20)
		w.Barrier(1)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		time.AfterFunc(40*time.Second, func() { r.missing.Store(3 << 20) })
		require.Error(t, s.Seal(ctx, 1))
		s.Discard()
		st := o.Stats()
		require.InDelta(t, 2<<20/50., st.Rate, 100)
		require.LessOrEqual(t, st.Limit, int64(2<<20/8), "what it took in an eighth of the timeout, at most")
		_, _ = outflowed(t, o)
		require.Equal(t, st.Limit, o.Stats().Limit)
	})
}

// TestOneWriteGoesOutInPieces: however much a task writes at once, the client gets no more than its room and a piece.
func TestOneWriteGoesOutInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := NewOutflow(OutflowConfig{Timeout: 8 * time.Second, Most: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		limit := o.Stats().Limit
		s, r := outflowed(t, o)
		recs := make([]element.Record, 64)
		for i := range recs {
			recs[i] = element.Record{Value: bytes.Repeat([]byte{byte(i)}, int(limit/16)), Headers: []element.Header{{Key: "h", Value: []byte("v")}}}
		}
		r.missing.Store(2 * limit)
		done := make(chan error)
		go func() { done <- s.Writer(element.TaskID{Source: "in"}).Write(t.Context(), 0, recs) }()
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		n := len(r.txns[0])
		require.Less(t, n, 16, "a piece is a quarter of the room")
		r.missing.Store(0)
		require.NoError(t, <-done)
		require.Len(t, r.txns[0], len(recs))
		for i, rec := range r.txns[0] {
			require.EqualValues(t, i, rec[0], "in order")
		}
		require.EqualValues(t, int64(len(recs))*(limit/16+2), o.sent.Load(), "counted once each")
	})
}
