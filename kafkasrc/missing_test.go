package kafkasrc

import (
	"fmt"
	"sync/atomic"
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
	"github.com/millweir/millweir/internal/testbed"
)

// numbered puts records with values from, from+1 … into a partition.
func (b *bed) counted(t *testing.T, cl *kgo.Client, p int32, from, n int) {
	t.Helper()
	for i := range n {
		produce(t, cl, b.rec(p, "k", fmt.Sprint(from+i)))
	}
}

func (b *bed) deleteBelow(t *testing.T, cl *kgo.Client, p int32, offset int64) {
	t.Helper()
	del := kadm.Offsets{}
	del.AddOffset(b.in, p, offset, -1)
	_, err := kadm.NewClient(cl).DeleteRecords(t.Context(), del)
	require.NoError(t, err)
}

type lostRange struct {
	tp       element.TopicPartition
	from, to int64
}

// onMissing reads with a policy, and sends what is lost into a channel.
func (b *bed) onMissing(t *testing.T, m Missing, positions ...element.Position) (*reading, chan lostRange) {
	t.Helper()
	lost := make(chan lostRange, 8)
	return readWith(t, FetcherConfig{
		Kafka: b.cfg, Positions: positions, Logger: testLog(), MaxWait: 50 * time.Millisecond, OnMissing: map[string]Missing{b.in: m},
		OnLost: func(tp element.TopicPartition, from, to int64) { lost <- lostRange{tp, from, to} },
	}), lost
}

func TestC15_AGapAtTheStart(t *testing.T) {
	b := newBed(t, 4)
	cl := client(t, b.cfg)
	for p := range int32(3) {
		b.counted(t, cl, p, 0, 20)
	}
	b.deleteBelow(t, cl, 0, 10)
	b.deleteBelow(t, cl, 1, 20)
	withEpoch := b.at(0, 5)
	withEpoch.LeaderEpoch = 0
	for _, first := range []element.Position{b.at(0, 5), withEpoch} {
		r, lost := b.onMissing(t, EarliestOnMissing, first, b.at(1, 5), b.at(2, 5), b.at(3, 0))
		for p := range int32(3) {
			r.reaches(t, b.tp(p), 20)
		}
		require.Equal(t, numbers(10, 20), r.values(b.tp(0)))
		require.Empty(t, r.values(b.tp(1)), "an empty log: the position moves all the same")
		require.Equal(t, numbers(5, 20), r.values(b.tp(2)), "nothing is missing here")
		require.ElementsMatch(t, []lostRange{{b.tp(0), 5, 10}, {b.tp(1), 5, 20}}, []lostRange{<-lost, <-lost})
		for p, want := range []int64{5, 15, 0, 0} {
			require.Equal(t, want, r.Lost(b.tp(int32(p))))
		}
		b.counted(t, cl, 3, 0, 1)
		r.reaches(t, b.tp(3), r.next(b.tp(3)))
	}
	r, lost := b.onMissing(t, LatestOnMissing, b.at(0, 5))
	r.reaches(t, b.tp(0), 20)
	require.Empty(t, r.values(b.tp(0)))
	require.Equal(t, lostRange{b.tp(0), 5, 20}, <-lost)
	b.counted(t, cl, 0, 20, 1)
	r.reaches(t, b.tp(0), 21)
	require.Equal(t, numbers(20, 21), r.values(b.tp(0)))
}

// All that begins together is looked at before the first record of any.
func TestC15_AGapInOnePartitionStopsAllBeforeTheFirstRecord(t *testing.T) {
	b := newBed(t, 2)
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 20)
	b.counted(t, cl, 1, 0, 20)
	b.deleteBelow(t, cl, 1, 10)
	r := b.read(t, b.at(0, 0), b.at(1, 5))
	requireStop(t, r.fails(t), fault.OffsetGone, "topic "+b.in+" partition 1", "offset 5", "10 to 20", "5 records were deleted", "on-missing")
	require.Empty(t, r.records(b.tp(0)))
}

func TestC15_AGapWhileItRuns(t *testing.T) {
	testbed.Alongside(t)
	for name, m := range map[string]Missing{"fail": FailOnMissing, "earliest": EarliestOnMissing, "latest": LatestOnMissing} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 2)
			cl := client(t, b.cfg)
			b.counted(t, cl, 0, 0, 5)
			r, lost := b.onMissing(t, m, b.at(0, 0), b.at(1, 0))
			r.reaches(t, b.tp(0), 5)
			r.Pause(b.tp(0))
			time.Sleep(100 * time.Millisecond) // a fetch that is under way ends
			b.counted(t, cl, 0, 5, 15)
			b.deleteBelow(t, cl, 0, 10)
			r.Resume(b.tp(0))
			if m == FailOnMissing {
				requireStop(t, r.fails(t), fault.OffsetGone, "topic "+b.in+" partition 0", "offset 5", "10 to 20", "5 records were deleted")
				require.Equal(t, numbers(0, 5), r.values(b.tp(0)))
				return
			}
			r.reaches(t, b.tp(0), 20)
			b.counted(t, cl, 0, 20, 1)
			b.counted(t, cl, 1, 0, 1)
			r.reaches(t, b.tp(0), 21)
			r.reaches(t, b.tp(1), 1)
			if m == EarliestOnMissing {
				require.Equal(t, append(numbers(0, 5), numbers(10, 21)...), r.values(b.tp(0)))
				require.Equal(t, lostRange{b.tp(0), 5, 10}, <-lost)
			} else {
				require.Equal(t, append(numbers(0, 5), numbers(20, 21)...), r.values(b.tp(0)))
				require.Equal(t, lostRange{b.tp(0), 5, 20}, <-lost)
			}
			r.Remove(b.tp(0)) // it is a stream like any other
			require.NoError(t, r.Add(b.at(0, 21)))
			b.counted(t, cl, 0, 21, 1)
			r.reaches(t, b.tp(0), 22)
		})
	}
}

// Where nothing else is read the fetcher looks at the position once more before it goes on, as at the start.
func TestC15_AGapInTheOnlyPartitionIsCountedOnce(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t, 1)
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 5)
	r, lost := b.onMissing(t, EarliestOnMissing, b.at(0, 0))
	r.reaches(t, b.tp(0), 5)
	r.Pause(b.tp(0))
	time.Sleep(100 * time.Millisecond) // a fetch that is under way ends
	b.counted(t, cl, 0, 5, 15)
	b.deleteBelow(t, cl, 0, 10)
	r.Resume(b.tp(0))
	r.reaches(t, b.tp(0), 20)
	require.Equal(t, append(numbers(0, 5), numbers(10, 20)...), r.values(b.tp(0)))
	require.Equal(t, lostRange{b.tp(0), 5, 10}, <-lost)
	require.Empty(t, lost)
	require.EqualValues(t, 5, r.Lost(b.tp(0)))
}

// The broker that says so may be a new leader that does not know better yet. Nothing ends for good before it is known what the log
// has: the next attempt asks again.
func TestC15_AGapOfWhichNothingIsKnownIsNoReasonToStop(t *testing.T) {
	b, c := fakeBed(t, 1, "a broker that tells no offsets, on demand")
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 5)
	r := b.read(t, b.at(0, 0))
	r.reaches(t, b.tp(0), 5)
	r.Pause(b.tp(0))
	time.Sleep(100 * time.Millisecond) // a fetch that is under way ends
	b.counted(t, cl, 0, 5, 15)
	b.deleteBelow(t, cl, 0, 10)
	var mute atomic.Bool
	mute.Store(true)
	c.ControlKey(int16(kmsg.ListOffsets), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !mute.Load() {
			return nil, nil, false
		}
		req := kreq.(*kmsg.ListOffsetsRequest)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, topic := range req.Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = topic.Topic
			for _, p := range topic.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.UnknownServerError.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	r.Resume(b.tp(0))
	err := r.fails(t)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
	require.ErrorContains(t, err, "offset 5")
	mute.Store(false)
	r = b.read(t, b.at(0, 5))
	requireStop(t, r.fails(t), fault.OffsetGone, "offset 5", "10 to 20")
}

// A broker that does not have a position for a moment, now and then, in what may be years of reading, is no reason to stop. One
// that goes on saying so of the same position is.
func TestAPositionThatIsMissingForAMomentNowAndThen(t *testing.T) {
	b, c := fakeBed(t, 1, "a broker that does not have a position, on demand")
	cl := client(t, b.cfg)
	id := b.TopicID(b.in)
	var denials atomic.Int32
	c.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if denials.Add(-1) < 0 {
			return nil, nil, false
		}
		resp := kreq.ResponseKind().(*kmsg.FetchResponse)
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.ErrorCode = kerr.OffsetOutOfRange.Code
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID, rt.Partitions = b.in, id, []kmsg.FetchResponseTopicPartition{rp}
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	r := b.read(t, b.at(0, 0))
	for n := range maxAgain + 2 {
		b.counted(t, cl, 0, n, 1)
		r.reaches(t, b.tp(0), int64(n+1))
		denials.Store(1)
		require.Eventually(t, func() bool { return denials.Load() < 0 }, 10*time.Second, time.Millisecond)
	}
	b.counted(t, cl, 0, maxAgain+2, 1)
	r.reaches(t, b.tp(0), maxAgain+3)
	require.Equal(t, numbers(0, maxAgain+3), r.values(b.tp(0)))
	denials.Store(1 << 20)
	requireStop(t, r.fails(t), fault.OffsetGone, fmt.Sprintf("offset %d", maxAgain+3), "also says")
}

// A position that the log never had is not a gap, whatever the policy.
func TestAPositionAboveTheLogStopsWithAnyPolicy(t *testing.T) {
	b := newBed(t, 1)
	b.counted(t, client(t, b.cfg), 0, 0, 1)
	r, _ := b.onMissing(t, EarliestOnMissing, b.at(0, 9))
	requireStop(t, r.fails(t), fault.OffsetGone, "offset 9", "0 to 1", "cut back")
}

// The broker says where the epoch of the last record ended: below the position, so what was read there is another log's.
func TestAPositionAboveTheEndOfItsEpochStops(t *testing.T) {
	testbed.Alongside(t)
	b, c := fakeBed(t, 1, "a partition that gets another leader, on demand", kfake.NumBrokers(2))
	cl := client(t, b.cfg)
	b.counted(t, cl, 0, 0, 5)
	for i := range int32(2) {
		require.NoError(t, c.MoveTopicPartition(b.in, 0, i))
		b.counted(t, cl, 0, 5+5*int(i), 5)
	}
	p := b.at(0, 8)
	p.LeaderEpoch = 0
	r, _ := b.onMissing(t, EarliestOnMissing, p)
	requireStop(t, r.fails(t), fault.OffsetGone, "position is 8", "cut back to 5", "savepoint with an earlier position", "reset")
	p.Offset = 5
	r = b.read(t, p)
	r.reaches(t, b.tp(0), 15)
}
