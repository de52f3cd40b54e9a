package kafkasrc

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

func TestFetcherStartsExactlyAtItsPositions(t *testing.T) {
	b := newBed(t, 3)
	cl := client(t, b.cfg)
	for p := range int32(3) {
		for i := range 10 {
			produce(t, cl, b.rec(p, "k", fmt.Sprintf("%d-%d", p, i)))
		}
	}
	first := b.at(1, 4)
	first.TopicID = b.TopicID(b.in)
	first.LeaderEpoch = 0
	r := b.read(t, first, b.at(2, 0))
	r.reaches(t, b.tp(1), 10)
	r.reaches(t, b.tp(2), 10)
	require.Equal(t, []string{"1-4", "1-5", "1-6", "1-7", "1-8", "1-9"}, r.values(b.tp(1)))
	require.Empty(t, r.records(b.tp(0)), "a partition that was not asked for")
	end, ok := r.End(b.tp(2))
	require.True(t, ok)
	require.EqualValues(t, 10, end)
	_, ok = r.End(b.tp(0))
	require.False(t, ok)
	require.EqualValues(t, 4, r.records(b.tp(1))[0].Offset)
}

func TestFetcherKeepsWhatARecordIs(t *testing.T) {
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	ts := time.UnixMilli(1_700_000_000_123)
	headers := []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "", Value: []byte{}}, {Key: "a", Value: []byte("1")}}
	require.NoError(t, cl.ProduceSync(within(t, 10*time.Second),
		&kgo.Record{Topic: b.in, Key: []byte("k"), Value: []byte("v"), Headers: headers, Timestamp: ts},
		&kgo.Record{Topic: b.in, Key: nil, Value: []byte{}},
		&kgo.Record{Topic: b.in, Key: []byte{}, Value: nil, Headers: headers[:1]},
	).FirstErr())
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 3)
	recs := r.records(b.tp(0))
	require.Len(t, recs, 3)
	require.Equal(t, element.Record{
		Key: []byte("k"), Value: []byte("v"), Timestamp: ts.UnixMilli(), Offset: 0,
		Headers: []element.Header{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: "", Value: []byte{}}, {Key: "a", Value: []byte("1")}},
	}, recs[0])
	require.Nil(t, recs[0].Headers[1].Value)
	require.NotNil(t, recs[0].Headers[2].Value)
	require.Nil(t, recs[1].Key)
	require.NotNil(t, recs[1].Value)
	require.Empty(t, recs[1].Value)
	require.Nil(t, recs[1].Headers)
	require.NotNil(t, recs[2].Key)
	require.Nil(t, recs[2].Value, "a tombstone")
	require.Len(t, recs[2].Headers, 1)
	_ = append(recs[0].Headers, element.Header{Key: "more"})
	require.Equal(t, "a", recs[2].Headers[0].Key, "appending to one record's headers must not reach the next one's")
}

func transaction(t *testing.T, cl *kgo.Client, commit kgo.TransactionEndTry, recs ...*kgo.Record) {
	t.Helper()
	require.NoError(t, cl.BeginTransaction())
	produce(t, cl, recs...)
	require.NoError(t, cl.EndTransaction(within(t, 10*time.Second), commit))
}

func TestC13_PositionPassesMarkersAtTheEnd(t *testing.T) {
	b := newBed(t, 1)
	plain, tx := client(t, b.cfg), client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	for i := range 5 {
		produce(t, plain, b.rec(0, "p", fmt.Sprint("p", i)))
		transaction(t, tx, kgo.TryCommit, b.rec(0, "c", fmt.Sprint("c", i)))
	}
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 15)
	require.Equal(t, strings.Fields("p0 c0 p1 c1 p2 c2 p3 c3 p4 c4"), r.values(b.tp(0)), "no output for markers")
	// A start on a marker's own offset is as good as any other.
	again := b.read(t, b.at(0, 14))
	again.reaches(t, b.tp(0), 15)
	require.Empty(t, again.records(b.tp(0)))
}

func TestC13_PositionPassesAbortedTransactions(t *testing.T) {
	b := newBed(t, 1)
	plain, tx := client(t, b.cfg), client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	produce(t, plain, b.rec(0, "p", "a"))
	transaction(t, tx, kgo.TryAbort, b.rec(0, "x", "no"), b.rec(0, "x", "no"))
	produce(t, plain, b.rec(0, "p", "b"))
	transaction(t, tx, kgo.TryAbort, b.rec(0, "x", "no"))
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 7)
	require.Equal(t, []string{"a", "b"}, r.values(b.tp(0)))
}

func TestFetcherStaysBelowAnOpenTransaction(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	plain, tx := client(t, b.cfg), client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	produce(t, plain, b.rec(0, "p", "a"))
	require.NoError(t, tx.BeginTransaction())
	produce(t, tx, b.rec(0, "c", "b"))
	produce(t, plain, b.rec(0, "p", "c"))
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 1)
	time.Sleep(200 * time.Millisecond)
	r.reaches(t, b.tp(0), 1)
	require.NoError(t, tx.EndTransaction(within(t, 10*time.Second), kgo.TryCommit))
	r.reaches(t, b.tp(0), 4)
	require.Equal(t, []string{"a", "b", "c"}, r.values(b.tp(0)))
}

func TestC13_PositionPassesCompactionGaps(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 0)
	set := kmsg.StringPtr
	b.CreateTopic(b.in, 1, map[string]*string{"cleanup.policy": set("compact"), "segment.ms": set("300"), "min.cleanable.dirty.ratio": set("0.0001")})
	cl := client(t, b.cfg)
	// kfake raises the log start to the first record that compaction leaves, which Kafka does not: so one stays at 0.
	produce(t, cl, b.rec(0, "first", "0"))
	for i := 1; i < 300; i++ {
		produce(t, cl, b.rec(0, string("ab"[i%2]), fmt.Sprint(i)))
	}
	tx := client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	transaction(t, tx, kgo.TryCommit, b.rec(0, "c", "300"))
	end := b.compacted(t, cl)
	want := []string{"0", "298", "299", "300"}
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), end)
	require.Equal(t, want, r.withoutRolls(b.tp(0)))
	// From inside of a gap, as after a restart from a checkpoint taken before the compaction.
	again := b.read(t, b.at(0, 150))
	again.reaches(t, b.tp(0), end)
	require.Equal(t, want[1:], again.withoutRolls(b.tp(0)))
}

const roll = "roll"

// compacted returns when the superseded records are gone, with the end of the log. Kafka's cleaner takes only closed
// segments, and each further record may close one.
func (b *bed) compacted(t *testing.T, cl *kgo.Client) (end int64) {
	t.Helper()
	for range 60 {
		produce(t, cl, b.rec(0, roll, roll))
		end = b.end(t, cl)
		if !testbed.Real() {
			b.Fake("").Compact()
		}
		r := b.read(t, b.at(0, 0))
		r.reaches(t, b.tp(0), end)
		r.Close()
		if len(r.withoutRolls(b.tp(0))) == 4 {
			return end
		}
		time.Sleep(400 * time.Millisecond)
	}
	t.Fatal("the log was not compacted")
	return 0
}

// end gives the end of the log once every transaction's marker is in it: Kafka answers EndTxn before that.
func (b *bed) end(t *testing.T, cl *kgo.Client) (end int64) {
	t.Helper()
	tps, ctx := []element.TopicPartition{b.tp(0)}, within(t, 10*time.Second)
	require.Eventually(t, func() bool {
		stable, err := kafka.StableEndOffsets(ctx, cl, tps)
		require.NoError(t, err)
		ends, err := kafka.EndOffsets(ctx, cl, tps)
		require.NoError(t, err)
		end = ends[tps[0]].Offset
		return stable[tps[0]].Offset == end
	}, 10*time.Second, 5*time.Millisecond)
	return end
}

func (r *reading) withoutRolls(tp element.TopicPartition) []string {
	return slices.DeleteFunc(r.values(tp), func(v string) bool { return v == roll })
}

func TestFetcherDeliversInBoundedPiecesAndDeliverMayBlock(t *testing.T) {
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	var recs []*kgo.Record
	for i := range 5000 {
		recs = append(recs, b.rec(0, "k", fmt.Sprint(i)))
	}
	require.NoError(t, cl.ProduceSync(within(t, 20*time.Second), recs...).FirstErr())
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0)}, MaxPollRecords: 64, MaxBytes: 4096, MaxPartitionBytes: 4096, Logger: testLog()})
	require.NoError(t, err)
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := int64(0)
	err = f.Run(ctx, func(_ context.Context, d element.Delivery) error {
		if len(d.Records) > 64 || d.Records[0].Offset != next {
			return fmt.Errorf("%d records at %d, expected %d", len(d.Records), d.Records[0].Offset, next)
		}
		next = d.Next
		if next%7 == 0 {
			time.Sleep(time.Millisecond)
		}
		if next == 5000 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 5000, next)
}

func TestFetcherPauseLosesAndRepeatsNothing(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	var recs []*kgo.Record
	for i := range 4000 {
		recs = append(recs, b.rec(int32(i%2), "k", fmt.Sprint(i)))
	}
	require.NoError(t, cl.ProduceSync(within(t, 20*time.Second), recs...).FirstErr())
	r := readWith(t, FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0), b.at(1, 0)}, MaxPollRecords: 10, Logger: testLog(), MaxWait: 20 * time.Millisecond})
	for range 20 {
		r.Pause(b.tp(0))
		runtime.Gosched()
		time.Sleep(2 * time.Millisecond)
		r.Resume(b.tp(0))
		time.Sleep(time.Millisecond)
	}
	r.Pause()
	r.Resume()
	r.reaches(t, b.tp(0), 2000)
	r.reaches(t, b.tp(1), 2000)
	require.Len(t, r.records(b.tp(0)), 2000)
	r.Pause(b.tp(0))
	time.Sleep(100 * time.Millisecond)
	produce(t, cl, b.rec(0, "k", "late"), b.rec(1, "k", "late"))
	r.reaches(t, b.tp(1), 2001)
	r.reaches(t, b.tp(0), 2000)
	r.Resume(b.tp(0))
	r.reaches(t, b.tp(0), 2001)
}

func TestC15_PositionBelowTheLogStops(t *testing.T) {
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	for i := range 20 {
		produce(t, cl, b.rec(0, "k", fmt.Sprint(i)))
	}
	del := kadm.Offsets{}
	del.AddOffset(b.in, 0, 10, -1)
	_, err := kadm.NewClient(cl).DeleteRecords(t.Context(), del)
	require.NoError(t, err)
	r := b.read(t, b.at(0, 5))
	requireStop(t, r.fails(t), fault.OffsetGone, "topic "+b.in+" partition 0", "offset 5", "10 to 20", "5 records were deleted")
	require.Empty(t, r.records(b.tp(0)))
	// The same with an epoch to check first.
	p := b.at(0, 5)
	p.LeaderEpoch = 0
	requireStop(t, b.read(t, p).fails(t), fault.OffsetGone, "offset 5", "10 to 20")
}

func TestPositionAboveTheLogStops(t *testing.T) {
	b := newBed(t, 1)
	produce(t, client(t, b.cfg), b.rec(0, "k", "v"))
	requireStop(t, b.read(t, b.at(0, 9)).fails(t), fault.OffsetGone, "offset 9", "0 to 1", "cut back")
	p := b.at(0, 9)
	p.LeaderEpoch = 0
	requireStop(t, b.read(t, p).fails(t), fault.OffsetGone, b.in+"/0", "9", "1")
}

func TestFetcherRefusesATopicOfAnotherID(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	p := b.at(0, 0)
	p.TopicID = element.TopicID{1}
	requireStop(t, b.read(t, p).fails(t), fault.HandleMismatch, "topic "+b.in+" was deleted and created again")
	p = at("nowhere", 0, 0)
	p.TopicID = element.TopicID{1}
	requireStop(t, b.read(t, p).fails(t), fault.UnknownTopic, "nowhere")
}

func TestFetcherEndsWhenItsTopicGoes(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	produce(t, cl, b.rec(0, "k", "v"))
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 1)
	_, err := kadm.NewClient(cl).DeleteTopic(t.Context(), b.in)
	require.NoError(t, err)
	b.CreateTopic(b.in, 1, nil)
	got := r.fails(t)
	require.Equal(t, fault.UnknownTopic, fault.CodeOf(got), "%v", got)
	require.Equal(t, fault.Restart, fault.RecoveryOf(got))
}

func TestFetcherDeniedStops(t *testing.T) {
	b, c := fakeBed(t, 1, "the broker refuses a fetch")
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: b.in, Err: kerr.TopicAuthorizationFailed})
	requireStop(t, b.read(t, b.at(0, 0)).fails(t), fault.Denied, b.in+"/0")
}

func TestFetcherSurvivesTransientErrors(t *testing.T) {
	testbed.Alongside(t)
	b, c := fakeBed(t, 1, "errors of the broker that pass")
	produce(t, client(t, b.cfg), b.rec(0, "k", "v"))
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: b.in, Err: kerr.NotLeaderForPartition, Count: 3})
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 1)
}

func TestFetcherFollowsAPartitionToAnotherBroker(t *testing.T) {
	testbed.Alongside(t)
	b, c := fakeBed(t, 1, "three brokers, and a partition that moves between them", kfake.NumBrokers(3))
	cl := client(t, b.cfg)
	r := b.read(t, b.at(0, 0))
	for i := range 6 {
		require.NoError(t, c.MoveTopicPartition(b.in, 0, int32(i%3)))
		produce(t, cl, b.rec(0, "k", fmt.Sprint(i)))
		r.reaches(t, b.tp(0), int64(i+1))
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, r.values(b.tp(0)))
}

func TestFetcherReturnsTheErrorOfDeliver(t *testing.T) {
	b := newBed(t, 1)
	produce(t, client(t, b.cfg), b.rec(0, "k", "v"))
	f, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 0)}, Logger: testLog()})
	require.NoError(t, err)
	defer f.Close()
	require.Same(t, errFull, f.Run(t.Context(), func(context.Context, element.Delivery) error { return errFull }))
}

func TestFetcherCloseEndsRun(t *testing.T) {
	b := newBed(t, 1)
	r := b.read(t, b.at(0, 0))
	time.Sleep(50 * time.Millisecond)
	r.Close()
	require.ErrorIs(t, r.fails(t), ErrFetcherClosed)
	r.Close()
	require.ErrorIs(t, r.Run(t.Context(), r.take), ErrFetcherClosed)
}

func TestFetcherWithNoPartitionsWaits(t *testing.T) {
	b := newBed(t, 0)
	r := b.read(t)
	time.Sleep(50 * time.Millisecond)
	r.cancel()
	require.ErrorIs(t, r.fails(t), context.Canceled)
}

func TestNewFetcherChecksItsPositions(t *testing.T) {
	b := newBed(t, 0)
	_, err := NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, -1)}})
	require.ErrorContains(t, err, "negative")
	_, err = NewFetcher(FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, 1), b.at(0, 1)}})
	require.ErrorContains(t, err, "twice")
}

func BenchmarkConvert(b *testing.B) {
	in := make([]*kgo.Record, 1000)
	for i := range in {
		in[i] = &kgo.Record{Key: []byte("key"), Value: []byte("value"), Offset: int64(i), Timestamp: time.UnixMilli(int64(i))}
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := convert(tp("in", 0), 0, noEnd, in); d.Next != 1000 {
			b.Fatal(d.Next)
		}
	}
}

func TestConvertAllocatesOncePerDelivery(t *testing.T) {
	in := make([]*kgo.Record, 100)
	for i := range in {
		in[i] = &kgo.Record{Offset: int64(i)}
	}
	require.LessOrEqual(t, testing.AllocsPerRun(50, func() { convert(tp("in", 0), 0, noEnd, in) }), 1.0)
	for i := range in {
		in[i].Headers = []kgo.RecordHeader{{Key: "h"}}
	}
	require.LessOrEqual(t, testing.AllocsPerRun(50, func() { convert(tp("in", 0), 0, noEnd, in) }), 2.0)
	d := convert(tp("in", 0), 40, noEnd, in)
	require.Len(t, d.Records, 60)
	require.EqualValues(t, 40, d.Records[0].Offset)
	d = convert(tp("in", 0), 200, noEnd, in)
	require.Empty(t, d.Records)
	require.EqualValues(t, 200, d.Next)
}

func TestAnAnswerIsSharedAmongThePartitions(t *testing.T) {
	for n, want := range map[int]int32{
		0: 2 << 20, 1: 2 << 20, 4: 2 << 20, 64: 15 << 20 / 64, 1000: 64 << 10,
		3000: 63 << 20 / 3000, 40_000: 63 << 20 / 40_000, 1 << 30: 1,
	} {
		cfg := FetcherConfig{}
		maxBytes, each := cfg.share(n)
		require.Equal(t, want, each, "%d partitions", n)
		require.LessOrEqual(t, maxBytes, int32(mostBytes), "%d partitions", n)
		if n < 1<<30 {
			require.LessOrEqual(t, int64(n)*int64(each), int64(maxBytes), "%d partitions fit into an answer", n)
		}
	}
	maxBytes, _ := (&FetcherConfig{MaxBytes: 1 << 30}).share(1)
	require.EqualValues(t, kafka.MaxReadBytes, maxBytes)
}

// The client takes no share that is above what it reads: not at its start, and later it would refuse each answer.
func TestAFetcherOfThousandsOfPartitions(t *testing.T) {
	at := func(p int32) element.Position {
		return element.Position{TopicPartition: tp("in", p), TopicID: element.TopicID{1}}
	}
	f, err := NewFetcher(FetcherConfig{Kafka: kafka.Config{Brokers: []string{"127.0.0.1:1"}, Logger: testLog()}, MostPartitions: 3000, Logger: testLog()})
	require.NoError(t, err)
	defer f.Close()
	var more []element.Position
	for p := range int32(40_000) {
		more = append(more, at(p))
	}
	require.NoError(t, f.Add(more...))
	require.LessOrEqual(t, f.cl.OptValue(kgo.FetchMaxBytes).(int32), f.cl.OptValue(kgo.BrokerMaxReadBytes).(int32))
	require.EqualValues(t, 63<<20/80_000, f.cl.OptValue(kgo.FetchMaxPartitionBytes)) // as many again are expected
}

// The client looks for new partitions of the topics that it knows by itself, but seldom.
func TestAPartitionThatWasAddedToATopicIsReadAtOnce(t *testing.T) {
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 3)
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 3)
	_, err := kadm.NewClient(cl).CreatePartitions(t.Context(), 1, b.in)
	require.NoError(t, err)
	b.waitFor(t, 2)
	require.NoError(t, r.Add(b.at(1, 0)))
	other := client(t, b.cfg) // which knows of it
	b.counted(t, other, 1, 0, 3)
	r.reaches(t, b.tp(1), 3)
}
