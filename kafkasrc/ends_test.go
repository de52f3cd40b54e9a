package kafkasrc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
)

func (b *bed) until(t *testing.T, ends map[element.TopicPartition]int64, positions ...element.Position) *reading {
	t.Helper()
	return readWith(t, FetcherConfig{Kafka: b.cfg, Positions: positions, Ends: ends, MaxPollRecords: 7, Logger: testLog(), MaxWait: 50 * time.Millisecond})
}

// ended gives the deliveries that say that a partition has ended.
func (r *reading) ended(tp element.TopicPartition) (all []element.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.got {
		if d.From == tp && d.Ended {
			all = append(all, d)
		}
	}
	return all
}

// ends waits until a partition has ended, and checks that it does so once, last, and at next.
func (r *reading) ends(t *testing.T, tp element.TopicPartition, next int64) {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.ended(tp)) > 0 }, 10*time.Second, time.Millisecond)
	ended := r.ended(tp)
	require.Len(t, ended, 1)
	require.Equal(t, next, ended[0].Next)
	require.Equal(t, next, r.next(tp), "nothing comes after it")
}

func TestAPartitionEnds(t *testing.T) {
	b := newBed(t, 5)
	cl := client(t, b.cfg)
	for p := range int32(4) {
		b.counted(t, cl, p, 0, 20)
	}
	r := b.until(t, map[element.TopicPartition]int64{b.tp(0): 13, b.tp(1): 20, b.tp(2): 25, b.tp(4): 0},
		b.at(0, 2), b.at(1, 0), b.at(2, 0), b.at(3, 0), b.at(4, 0))
	r.ends(t, b.tp(0), 13)
	r.ends(t, b.tp(1), 20)
	r.ends(t, b.tp(4), 0)
	r.reaches(t, b.tp(3), 20)
	require.Equal(t, numbers(2, 13), r.values(b.tp(0)))
	require.Equal(t, numbers(0, 20), r.values(b.tp(1)))
	require.Empty(t, r.values(b.tp(4)))
	require.Empty(t, r.ended(b.tp(2)), "it waits for what is to come")

	r.Pause(b.tp(0))
	r.Resume(b.tp(0), b.tp(1), b.tp(2)) // as its receiver may, that does not know yet
	for p := range int32(5) {
		b.counted(t, cl, p, 20, 10)
	}
	r.ends(t, b.tp(2), 25)
	r.reaches(t, b.tp(3), 30)
	require.Equal(t, numbers(0, 25), r.values(b.tp(2)))
	for p, next := range map[int32]int64{0: 13, 1: 20, 4: 0} {
		r.ends(t, b.tp(p), next)
	}

	// Back again, from behind its end, and with another end.
	r.Remove(b.tp(0), b.tp(1))
	require.NoError(t, r.Add(b.at(1, 22)))
	r.SetEnds(map[element.TopicPartition]int64{b.tp(0): 15})
	require.NoError(t, r.Add(b.at(0, 13)))
	require.Eventually(t, func() bool { return len(r.ended(b.tp(0))) == 2 && len(r.ended(b.tp(1))) == 2 }, 10*time.Second, time.Millisecond)
	require.Equal(t, numbers(2, 15), r.values(b.tp(0)))
	require.EqualValues(t, 22, r.next(b.tp(1)))
}

func TestAnEndIsReachedThroughMarkersAndAbortedRecords(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	plain, tx := client(t, b.cfg), client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	produce(t, plain, b.rec(0, "p", "a"))
	transaction(t, tx, kgo.TryAbort, b.rec(0, "x", "no"), b.rec(0, "x", "no")) // 1 and 2, the marker is 3
	b.end(t, plain)
	produce(t, plain, b.rec(0, "p", "b"))                 // 4
	transaction(t, tx, kgo.TryCommit, b.rec(0, "c", "c")) // 5, the marker is 6
	require.EqualValues(t, 7, b.end(t, plain))
	want := []string{"a", "a", "a", "a", "a b", "a b c", "a b c"}
	for i, w := range want {
		end := int64(i + 1)
		r := b.until(t, map[element.TopicPartition]int64{b.tp(0): end}, b.at(0, 0))
		r.ends(t, b.tp(0), end)
		require.Equal(t, w, strings.Join(r.values(b.tp(0)), " "), "end %d", end)
		r.Close()
	}
}

func TestAnEndWithinATransactionWaitsForItsOutcome(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	plain, tx := client(t, b.cfg), client(t, b.cfg, kgo.TransactionalID(b.Name("t")))
	produce(t, plain, b.rec(0, "p", "a"))
	require.NoError(t, tx.BeginTransaction())
	produce(t, tx, b.rec(0, "c", "b"), b.rec(0, "c", "not this"))
	r := b.until(t, map[element.TopicPartition]int64{b.tp(0): 2}, b.at(0, 0))
	r.reaches(t, b.tp(0), 1)
	time.Sleep(200 * time.Millisecond)
	require.Empty(t, r.ended(b.tp(0)))
	require.NoError(t, tx.EndTransaction(within(t, 10*time.Second), kgo.TryCommit))
	r.ends(t, b.tp(0), 2)
	require.Equal(t, []string{"a", "b"}, r.values(b.tp(0)))
}

func TestAnEndIsReachedThroughACompactionGap(t *testing.T) {
	b := newBed(t, 0)
	set := kmsg.StringPtr
	b.CreateTopic(b.in, 1, map[string]*string{"cleanup.policy": set("compact"), "segment.ms": set("300"), "min.cleanable.dirty.ratio": set("0.0001")})
	cl := client(t, b.cfg)
	produce(t, cl, b.rec(0, "first", "0"))
	for i := 1; i < 60; i++ {
		produce(t, cl, b.rec(0, string("ab"[i%2]), fmt.Sprint(i)))
	}
	produce(t, cl, b.rec(0, "last", "60"))
	b.compacted(t, cl)
	for end, want := range map[int64][]string{30: {"0"}, 59: {"0", "58"}, 61: {"0", "58", "59", "60"}} {
		r := b.until(t, map[element.TopicPartition]int64{b.tp(0): end}, b.at(0, 0))
		r.ends(t, b.tp(0), end)
		require.Equal(t, want, r.values(b.tp(0)), "end %d", end)
		r.Close()
	}
}

// Retention has passed the position, the end, or both.
func TestAGapBeforeAnEnd(t *testing.T) {
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 20)
	b.deleteBelow(t, cl, 0, 10)
	for name, c := range map[string]struct {
		position, end, next int64
		values              []string
		lost                int64
	}{
		"behind":      {5, 15, 15, numbers(10, 15), 5},
		"at":          {5, 10, 10, nil, 5},
		"before":      {5, 8, 8, nil, 3},
		"ended there": {5, 5, 5, nil, 0},
	} {
		r := readWith(t, FetcherConfig{Kafka: b.cfg, Positions: []element.Position{b.at(0, c.position)}, Ends: map[element.TopicPartition]int64{b.tp(0): c.end},
			OnMissing: map[string]Missing{b.in: EarliestOnMissing}, Logger: testLog()})
		r.ends(t, b.tp(0), c.next)
		require.Equal(t, c.values, r.values(b.tp(0)), name)
		require.Equal(t, c.lost, r.Lost(b.tp(0)), name)
		r.Close()
	}
	r := b.until(t, map[element.TopicPartition]int64{b.tp(0): 5}, b.at(0, 5))
	r.ends(t, b.tp(0), 5) // with the policy to fail: nothing is missing
}

// What happens to a topic that has ended is of no interest.
func TestAnEndedTopicMayGo(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	other := b.Topic("other", 1, nil)
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 5)
	r := b.until(t, map[element.TopicPartition]int64{b.tp(0): 5}, b.at(0, 0), at(other, 0, 0))
	r.ends(t, b.tp(0), 5)
	_, err := kadm.NewClient(cl).DeleteTopic(t.Context(), b.in)
	require.NoError(t, err)
	time.Sleep(500 * time.Millisecond)
	produce(t, cl, &kgo.Record{Topic: other, Value: []byte("v")})
	r.reaches(t, tp(other, 0), 1)
}

// Deliveries made of any fetch, with any end, are those of a log that has nothing from the end on.
func TestConvertUpToAnEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		offset, from := rapid.Int64Range(0, 5).Draw(rt, "first"), rapid.Int64Range(0, 10).Draw(rt, "from")
		end := rapid.Int64Range(from+1, 30).Draw(rt, "end")
		var in, cut []*kgo.Record
		var epoch int32
		for range rapid.IntRange(1, 12).Draw(rt, "records") {
			offset += rapid.Int64Range(1, 4).Draw(rt, "gap")
			epoch += rapid.Int32Range(0, 1).Draw(rt, "another leader")
			r := &kgo.Record{Offset: offset, LeaderEpoch: epoch, Key: []byte{1}}
			if rapid.IntRange(0, 3).Draw(rt, "marker") == 0 {
				r.Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{Transactional: true, Control: true})
			}
			in = append(in, r)
			if offset < end {
				cut = append(cut, r)
			}
		}
		got, want := convert(tp("in", 0), from, end, in), convert(tp("in", 0), from, noEnd, cut)
		require.Equal(rt, offset+1 >= end, got.Ended)
		if want.Ended = got.Ended; got.Ended && want.Next < end {
			want.Next, want.LeaderEpoch = end, -1 // nobody knows what epoch the gap is of
		}
		require.Equal(rt, want, got)
	})
}
