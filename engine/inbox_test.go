package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine/gate"
)

func tp(p int32) element.TopicPartition { return element.TopicPartition{Topic: "in", Partition: p} }

func delivery(p int32, next int64, n int) element.Delivery {
	return element.Delivery{From: tp(p), Records: make([]element.Record, n), Next: next, LeaderEpoch: -1}
}

func popNow(t *testing.T, q *inbox) item {
	t.Helper()
	it, ok := takeAny(q)
	require.True(t, ok)
	return it
}

func TestBarriersKeepTheirPlaceAmongDeliveries(t *testing.T) {
	q := newInbox(100)
	q.put(delivery(0, 10, 10))
	q.barrier(gate.Barrier{ID: 1})
	q.put(delivery(0, 20, 10))
	q.barrier(gate.Barrier{ID: 2})
	require.EqualValues(t, 10, popNow(t, q).delivery.Next)
	require.EqualValues(t, 1, popNow(t, q).barrier.ID)
	require.EqualValues(t, 20, popNow(t, q).delivery.Next)
	require.EqualValues(t, 2, popNow(t, q).barrier.ID)
	_, ok := takeAny(q)
	require.False(t, ok)
}

func TestAFullInboxTakesBarriers(t *testing.T) {
	q := newInbox(5)
	require.True(t, q.put(delivery(0, 10, 10)))
	require.True(t, q.full())
	q.barrier(gate.Barrier{ID: 1})
	popNow(t, q)
	require.False(t, q.full())
	require.EqualValues(t, 1, popNow(t, q).barrier.ID)
}

func TestCommitNoticesOvertakeAndCoalesce(t *testing.T) {
	q := newInbox(5)
	q.put(delivery(0, 10, 1))
	q.commit(3)
	q.commit(4)
	require.EqualValues(t, 4, popNow(t, q).committed)
	require.EqualValues(t, 10, popNow(t, q).delivery.Next)
}

func TestAPositionWithoutRecordsIsDelivered(t *testing.T) {
	q := newInbox(5)
	q.put(element.Delivery{From: tp(0), Next: 7})
	require.True(t, q.empty(), "no record waits")
	require.EqualValues(t, 7, popNow(t, q).delivery.Next)
}

func TestPopWaitsAndEndsWithTheContext(t *testing.T) {
	q := newInbox(5)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		it, ok := awaitAny(ctx, q)
		require.True(t, ok)
		require.EqualValues(t, 9, it.barrier.ID)
		_, ok = awaitAny(ctx, q)
		require.False(t, ok)
	}()
	q.barrier(gate.Barrier{ID: 9})
	time.Sleep(10 * time.Millisecond)
	cancel()
	wg.Wait()
}

func TestFeederWaitsWhenEveryInboxIsFull(t *testing.T) {
	t.Parallel()
	paused := 0
	f := newFeeder(func(...element.TopicPartition) { paused++ })
	a, b := newInbox(10), newInbox(10)
	f.inboxes[tp(0)], f.inboxes[tp(1)] = a, b
	require.NoError(t, f.deliver(t.Context(), delivery(0, 10, 10)))
	require.NoError(t, f.deliver(t.Context(), delivery(1, 10, 10)))
	done := make(chan error, 1)
	go func() { done <- f.deliver(t.Context(), delivery(0, 20, 10)) }()
	select {
	case <-done:
		t.Fatal("a third delivery went into a full inbox while the other had work")
	case <-time.After(3 * stallLimit):
	}
	popNow(t, a)
	f.tookOne()
	require.NoError(t, <-done)
	require.Zero(t, paused)
}

// One slow task must not starve the others: its partition steps aside and comes back when half is worked off.
func TestFeederPausesAFullPartitionWhenAnotherRunsDry(t *testing.T) {
	var paused []element.TopicPartition
	f := newFeeder(func(tps ...element.TopicPartition) { paused = append(paused, tps...) })
	a, b := newInbox(10), newInbox(10)
	f.inboxes[tp(0)], f.inboxes[tp(1)] = a, b
	require.NoError(t, f.deliver(t.Context(), delivery(0, 10, 10)))
	require.NoError(t, f.deliver(t.Context(), delivery(0, 20, 10))) // b is dry
	require.Equal(t, []element.TopicPartition{tp(0)}, paused)
	require.EqualValues(t, 10, popNow(t, a).delivery.Next)
	require.EqualValues(t, 20, popNow(t, a).delivery.Next, "still above half: no resume yet")
	require.True(t, popNow(t, a).resume)
	_, ok := takeAny(a)
	require.False(t, ok, "resumed once")
}

func TestFeederDropsWhatIsNotOwnedAnyMore(t *testing.T) {
	f := newFeeder(func(...element.TopicPartition) {})
	require.NoError(t, f.deliver(t.Context(), delivery(3, 1, 1)), "nobody waits for it")
	q := newInbox(1)
	f.add(tp(3), q)
	require.NoError(t, f.deliver(t.Context(), delivery(3, 1, 1)))
	delivered := make(chan error, 1)
	go func() { delivered <- f.deliver(t.Context(), delivery(3, 2, 1)) }() // waits for room
	q.halt()
	f.tookOne()
	require.NoError(t, <-delivered, "a halted inbox holds nobody up")
	require.True(t, popNow(t, q).halted)
	_, ok := takeAny(q)
	require.False(t, ok, "deliveries before and after the halt are dropped")
	q.barrier(gate.Barrier{ID: 7})
	require.EqualValues(t, 7, popNow(t, q).barrier.ID, "barriers still come")
}

func TestFeederEndsWithTheContext(t *testing.T) {
	f := newFeeder(func(...element.TopicPartition) {})
	f.inboxes[tp(0)] = newInbox(1)
	require.NoError(t, f.deliver(t.Context(), delivery(0, 1, 1)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.deliver(ctx, delivery(0, 2, 1)), context.Canceled)
}

// The source decides on a delivery, the partition leaves and comes back, and only then the delivery is handed over.
func TestFeederKeepsALateDeliveryFromTheNextStay(t *testing.T) {
	f := newFeeder(func(...element.TopicPartition) {})
	q := newInbox(4)
	removed, cancel := context.WithCancel(t.Context())
	cancel()
	f.add(tp(3), q)
	require.ErrorIs(t, f.deliver(removed, delivery(3, 7, 1)), context.Canceled)
	_, ok := takeAny(q)
	require.False(t, ok)
	require.NoError(t, f.deliver(t.Context(), delivery(3, 3, 1)))
	require.EqualValues(t, 3, popNow(t, q).delivery.Next)
}

// takeAny takes what a task would take next: a notice before everything that stands in order.
func takeAny(q *inbox) (item, bool) {
	if it, ok := q.tryPopNotice(); ok {
		return it, true
	}
	return q.tryPop()
}

// awaitAny waits for that until ctx ends.
func awaitAny(ctx context.Context, q *inbox) (item, bool) {
	for {
		if it, ok := takeAny(q); ok {
			return it, true
		}
		select {
		case <-q.bell.c:
		case <-ctx.Done():
			return item{}, false
		}
	}
}

// A checkpoint between two that were given up goes on: its barrier is to pass a task that hears of both at once.
func TestWhatIsGivenUpIsExact(t *testing.T) {
	for _, c := range []struct{ given, heard []span }{
		{[]span{{7, 7}, {9, 9}}, []span{{7, 7}, {9, 9}}},
		{[]span{{7, 7}, {8, 9}}, []span{{7, 9}}},
		{[]span{{9, 9}, {8, 9}}, []span{{8, 9}}},
		{[]span{{9, 9}, {7, 7}, {8, 8}}, []span{{9, 9}, {7, 8}}},
	} {
		q := newInbox(10)
		for _, s := range c.given {
			q.abandon(s)
		}
		var heard []span
		for it, ok := q.tryPopNotice(); ok; it, ok = q.tryPopNotice() {
			heard = append(heard, it.abandoned)
		}
		require.Equal(t, c.heard, heard)
	}
}
