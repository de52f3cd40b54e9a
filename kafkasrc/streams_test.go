package kafkasrc

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// numbered fills partitions with n records whose values are their offsets.
func (b *bed) numbered(t *testing.T, cl *kgo.Client, n int, partitions ...int32) {
	t.Helper()
	var recs []*kgo.Record
	for i := range n {
		for _, p := range partitions {
			recs = append(recs, b.rec(p, "k", fmt.Sprint(i)))
		}
	}
	require.NoError(t, cl.ProduceSync(within(t, 20*time.Second), recs...).FirstErr())
}

func numbers(from, to int) []string {
	var vs []string
	for i := from; i < to; i++ {
		vs = append(vs, fmt.Sprint(i))
	}
	return vs
}

func TestFetcherBeginsWithoutPartitionsAndIsGivenSome(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 3)
	other := b.Topic("other", 1, nil)
	cl := client(t, b.cfg)
	b.numbered(t, cl, 10, 0, 1, 2)
	produce(t, cl, &kgo.Record{Topic: other, Value: []byte("there")})
	r := b.read(t)
	time.Sleep(50 * time.Millisecond)
	p := b.at(0, 3)
	p.TopicID = b.TopicID(b.in)
	require.NoError(t, r.Add(p))
	r.reaches(t, b.tp(0), 10)
	require.Equal(t, numbers(3, 10), r.values(b.tp(0)))
	// Further ones of a topic that is known, of another topic, and with a leader epoch.
	q := b.at(2, 5)
	q.LeaderEpoch = 0
	require.NoError(t, r.Add(b.at(1, 0), q, at(other, 0, 0)))
	r.reaches(t, b.tp(1), 10)
	r.reaches(t, b.tp(2), 10)
	r.reaches(t, tp(other, 0), 1)
	require.Equal(t, numbers(0, 10), r.values(b.tp(1)))
	require.Equal(t, numbers(5, 10), r.values(b.tp(2)))
	produce(t, cl, b.rec(0, "k", "10"))
	r.reaches(t, b.tp(0), 11)
}

func TestAddBeforeRunWakesNothingAndIsDone(t *testing.T) {
	b := newBed(t, 2)
	b.numbered(t, client(t, b.cfg), 4, 0, 1)
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0)}, Logger: testLog()})
	require.NoError(t, err)
	require.NoError(t, f.Add(b.at(1, 1)))
	f.Remove(b.tp(0))
	require.NoError(t, f.Add(b.at(0, 2)))
	r := &reading{Fetcher: f, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { r.done <- f.Run(ctx, r.take) }()
	t.Cleanup(func() { cancel(); f.Close() })
	r.reaches(t, b.tp(0), 4)
	r.reaches(t, b.tp(1), 4)
	require.Equal(t, numbers(2, 4), r.values(b.tp(0)))
	require.Equal(t, numbers(1, 4), r.values(b.tp(1)))
}

func TestAddInterruptsAPollThatWaits(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 2)
	b.numbered(t, client(t, b.cfg), 1, 1)
	r := readWith(t, FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0)}, Logger: testLog()})
	time.Sleep(300 * time.Millisecond) // nothing comes: the poll waits, for ever
	start := time.Now()
	require.NoError(t, r.Add(b.at(1, 0)))
	r.reaches(t, b.tp(1), 1)
	require.Less(t, time.Since(start), 5*DefaultFetchMaxWait, "the answer that the broker holds back, not more")
}

func TestAddChecksItsPositions(t *testing.T) {
	b := newBed(t, 2)
	b.numbered(t, client(t, b.cfg), 2, 0, 1)
	r := b.read(t, b.at(0, 0))
	for says, ps := range map[string][]element.Position{
		"negative":     {b.at(1, 0), b.at(0, -1)},
		"twice":        {b.at(1, 0), b.at(1, 1)},
		"read already": {b.at(1, 0), b.at(0, 1)},
		"no partition": {b.at(1, 0), b.at(-1, 0)},
	} {
		require.ErrorContains(t, r.Add(ps...), says)
	}
	require.NoError(t, r.Add())
	r.Remove()
	r.Remove(b.tp(1), tp("nowhere", 3))
	r.reaches(t, b.tp(0), 2)
	require.Empty(t, r.records(b.tp(1)), "of a call that is refused nothing is taken")
	require.NoError(t, r.Add(b.at(1, 1)))
	r.reaches(t, b.tp(1), 2)
	r.Close()
	require.ErrorIs(t, r.Add(b.at(1, 0)), ErrFetcherClosed)
	r.Remove(b.tp(1))
}

func TestAddedPositionsAreHeldToTheTopicsID(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 2)
	b.numbered(t, client(t, b.cfg), 2, 0, 1)
	first, second := b.at(0, 0), b.at(1, 0)
	first.TopicID, second.TopicID = b.TopicID(b.in), element.TopicID{1}
	r := b.read(t, first)
	r.reaches(t, b.tp(0), 2)
	require.NoError(t, r.Add(second))
	requireStop(t, r.fails(t), fault.HandleMismatch, "topic "+b.in+" was deleted and created again")
	require.Empty(t, r.records(b.tp(1)))
	none := b.read(t)
	p := at("nowhere", 0, 0)
	p.TopicID = element.TopicID{1}
	require.NoError(t, none.Add(p))
	requireStop(t, none.fails(t), fault.UnknownTopic, "nowhere")
}

// A client that is told of a topic it does not know, while it reads the metadata of others, would list the offsets and
// take the nearest one that the log has. That would be a loss without a word.
func TestAddedPositionsOutsideTheLogStop(t *testing.T) {
	testbed.Alongside(t)
	for name, offset := range map[string]int64{"below": 5, "above": 30} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 1)
			cl := client(t, b.cfg)
			b.numbered(t, cl, 20, 0)
			del := kadm.Offsets{}
			del.AddOffset(b.in, 0, 10, -1)
			_, err := kadm.NewClient(cl).DeleteRecords(t.Context(), del)
			require.NoError(t, err)
			other := b.Topic("other", 1, nil)
			r := b.read(t)
			answer := make(chan struct{})
			asked := b.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Metadata}, Mute: answer})
			require.NoError(t, r.Add(at(other, 0, 0)))
			require.Eventually(t, func() bool { return asked.Hits() > 0 }, 10*time.Second, time.Millisecond)
			require.NoError(t, r.Add(b.at(0, offset)))
			time.Sleep(50 * time.Millisecond) // Run comes to it while the metadata of the other topic are on their way
			asked.Remove()
			close(answer)
			requireStop(t, r.fails(t), fault.OffsetGone, "topic "+b.in+" partition 0", fmt.Sprint("offset ", offset), "10 to 20")
			require.Empty(t, r.records(b.tp(0)))
		})
	}
}

func TestATopicMayComeLaterThanItsPosition(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	b.numbered(t, client(t, b.cfg), 3, 0)
	r := b.read(t, b.at(0, 0), at(b.Name("later"), 0, 0))
	r.reaches(t, b.tp(0), 3)
	later := b.Topic("later", 1, nil)
	produce(t, client(t, b.cfg), &kgo.Record{Topic: later, Value: []byte("v")})
	r.reaches(t, tp(later, 0), 1)
}

func TestRemovedPartitionsAreNotDelivered(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	b.numbered(t, cl, 5, 0, 1)
	r := b.read(t, b.at(0, 0), b.at(1, 0))
	r.reaches(t, b.tp(0), 5)
	r.reaches(t, b.tp(1), 5)
	_, ok := r.End(b.tp(0))
	require.True(t, ok)
	r.Remove(b.tp(0))
	_, ok = r.End(b.tp(0))
	require.False(t, ok)
	b.numbered(t, cl, 5, 0, 1)
	r.reaches(t, b.tp(1), 10)
	time.Sleep(100 * time.Millisecond)
	r.reaches(t, b.tp(0), 5)
	require.NoError(t, r.Add(b.at(0, 7)))
	r.reaches(t, b.tp(0), 10)
	require.Len(t, r.records(b.tp(0)), 5+3)
	r.Remove(b.tp(0), b.tp(1)) // with none left
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, r.Add(b.at(1, 9)))
	require.Eventually(t, func() bool { return len(r.records(b.tp(1))) == 11 }, 10*time.Second, 5*time.Millisecond)
}

// A Deliver that waits, as for a task that is halted, is let go by Remove, and the others go on.
func TestRemoveEndsADeliverThatWaits(t *testing.T) {
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	b.numbered(t, cl, 5, 0)
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0), b.at(1, 0)}, MaxWait: 50 * time.Millisecond, Logger: testLog()})
	require.NoError(t, err)
	r := &reading{Fetcher: f, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); f.Close() })
	waits := make(chan struct{})
	go func() {
		first := true
		r.done <- f.Run(ctx, func(ctx context.Context, d element.Delivery) error {
			if d.From == b.tp(0) && first {
				first = false
				close(waits)
				<-ctx.Done()
				return fmt.Errorf("waiting for the task: %w", ctx.Err())
			}
			return r.take(ctx, d)
		})
	}()
	<-waits
	f.Remove(b.tp(0))
	require.NoError(t, f.Add(b.at(0, 2)))
	b.numbered(t, cl, 5, 1)
	r.reaches(t, b.tp(1), 5)
	r.reaches(t, b.tp(0), 5)
	require.Equal(t, numbers(2, 5), r.values(b.tp(0)))
	cancel()
	require.ErrorIs(t, r.fails(t), context.Canceled)
}

func TestAnErrorOfDeliverCountsAlsoAfterRemove(t *testing.T) {
	b := newBed(t, 1)
	b.numbered(t, client(t, b.cfg), 1, 0)
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0)}, Logger: testLog()})
	require.NoError(t, err)
	defer f.Close()
	require.Same(t, errFull, f.Run(t.Context(), func(context.Context, element.Delivery) error {
		f.Remove(b.tp(0))
		return errFull
	}))
}

func TestRemoveForgetsThatAPartitionWasPaused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	b.numbered(t, cl, 3, 0, 1)
	r := b.read(t, b.at(0, 0), b.at(1, 0))
	r.reaches(t, b.tp(0), 3)
	r.Pause(b.tp(0))
	r.Remove(b.tp(0))
	r.Pause(b.tp(0)) // by a task that has not heard of it yet
	require.NoError(t, r.Add(b.at(0, 1)))
	require.Eventually(t, func() bool { return len(r.records(b.tp(0))) == 3+2 }, 10*time.Second, 5*time.Millisecond)
	// Paused before Run came to it: it stays so until Resume.
	r.Remove(b.tp(0))
	require.NoError(t, r.Add(b.at(0, 0)))
	r.Pause(b.tp(0))
	time.Sleep(200 * time.Millisecond)
	had := len(r.records(b.tp(0)))
	b.numbered(t, cl, 1, 0, 1)
	require.Eventually(t, func() bool { return r.next(b.tp(1)) == 4 }, 10*time.Second, 5*time.Millisecond)
	time.Sleep(100 * time.Millisecond)
	require.Len(t, r.records(b.tp(0)), had, "paused")
	r.Resume(b.tp(0))
	require.Eventually(t, func() bool { return len(r.records(b.tp(0))) == had+4 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, numbers(0, 3), r.values(b.tp(0))[had:had+3])
}

// What the client has to say about a partition that was removed does not fall on it when it is back elsewhere.
func TestErrorsOfAnEarlierStayAreForgotten(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	b.numbered(t, cl, 10, 0, 1)
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(1, 0)}, MaxWait: 20 * time.Millisecond, Logger: testLog()})
	require.NoError(t, err)
	r := &reading{Fetcher: f, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); f.Close() })
	var hold atomic.Bool
	held, free := make(chan struct{}), make(chan struct{})
	go func() {
		r.done <- f.Run(ctx, func(ctx context.Context, d element.Delivery) error {
			if hold.CompareAndSwap(true, false) {
				close(held)
				<-free
			}
			return r.take(ctx, d)
		})
	}()
	r.reaches(t, b.tp(1), 10)
	// The client is to find the position wrong while Run is busy with another partition.
	answer := make(chan struct{})
	epochs := b.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetForLeaderEpoch}, Mute: answer})
	wrong := b.at(0, 99)
	wrong.LeaderEpoch = 0
	require.NoError(t, f.Add(wrong))
	require.Eventually(t, func() bool { return epochs.Hits() > 0 }, 10*time.Second, time.Millisecond)
	hold.Store(true)
	b.numbered(t, cl, 1, 1)
	<-held
	close(answer)
	time.Sleep(200 * time.Millisecond)
	f.Remove(wrong.TopicPartition)
	require.NoError(t, f.Add(b.at(0, 4)))
	close(free)
	r.reaches(t, b.tp(0), 10)
	require.Equal(t, numbers(4, 10), r.values(b.tp(0)))
	require.Empty(t, r.done)
}

func TestMorePartitionsThanExpectedShareAnAnswerAnew(t *testing.T) {
	const most = 40
	b := newBed(t, most)
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, MostPartitions: 2, MaxBytes: 8 << 20, Logger: testLog(), MaxWait: 20 * time.Millisecond})
	require.NoError(t, err)
	defer f.Close()
	var all []element.Position
	for p := range int32(most) {
		all = append(all, b.at(p, 0))
	}
	largest := make(chan int32, 1)
	b.tap.Watch(func(req kmsg.Request) bool {
		r, ok := req.(*kmsg.FetchRequest)
		if ok && len(r.Topics) > 0 && len(r.Topics[0].Partitions) > 0 {
			select {
			case <-largest:
			default:
			}
			largest <- r.Topics[0].Partitions[0].PartitionMaxBytes
		}
		return ok
	}, kmsg.Fetch)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, func(context.Context, element.Delivery) error { return nil }) }()
	require.NoError(t, f.Add(all[0]))
	require.EqualValues(t, DefaultFetchMaxPartitionBytes, <-largest)
	require.NoError(t, f.Add(all[1:]...))
	require.Eventually(t, func() bool { return <-largest <= 8<<20/most }, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestRemovedPartitionsMayBeGoneFromTheCluster(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	other := b.Topic("other", 1, nil)
	cl := client(t, b.cfg)
	b.numbered(t, cl, 3, 0)
	produce(t, cl, &kgo.Record{Topic: other, Value: []byte("v")})
	r := b.read(t, b.at(0, 0), at(other, 0, 0))
	r.reaches(t, tp(other, 0), 1)
	r.Remove(tp(other, 0))
	time.Sleep(50 * time.Millisecond)
	b.DeleteTopic(other)
	r.cl.ForceMetadataRefresh()
	time.Sleep(500 * time.Millisecond)
	b.numbered(t, cl, 3, 0)
	r.reaches(t, b.tp(0), 6)
}

func TestAddFollowsAPartitionToAnotherBroker(t *testing.T) {
	b, c := fakeBed(t, 2, "three brokers, and a partition that moves between them", kfake.NumBrokers(3))
	cl := client(t, b.cfg)
	b.numbered(t, cl, 10, 0, 1)
	r := b.read(t, b.at(1, 0))
	r.reaches(t, b.tp(1), 10)
	for i := range 6 {
		require.NoError(t, c.MoveTopicPartition(b.in, 0, int32(i%3)))
		require.NoError(t, r.Add(b.at(0, int64(i))))
		want := 10 - i
		require.Eventually(t, func() bool {
			vs := r.values(b.tp(0))
			return len(vs) >= want && slices.Equal(vs[len(vs)-want:], numbers(i, 10))
		}, 10*time.Second, 5*time.Millisecond)
		r.Remove(b.tp(0))
	}
}
