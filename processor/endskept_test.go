package processor

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// Brokers forget the offsets of a group without members some time after their commit, so they are committed again.
func TestTheEndsAreSaidAgainWhileARunGoesOn(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	b.writes(0, 0, 10, nil)
	var tap testbed.Tap
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), tap.Opt())
	require.NoError(t, err)
	defer cl.Close()
	app := "long" + inTopic()
	s := &service{plan: passPlan(t, app, topology.EndAt(topology.EndLatest())), application: app, log: slog.Default(), reads: reads{cl: cl, group: app}, cfg: Config{endsRenewal: 20 * time.Millisecond}}
	require.Equal(t, []int64{10, 0}, b.ends(s.reads, topology.EndLatest(), 0, 1))
	was, err := kafka.GroupOffsets(t.Context(), cl, endsGroup(app), false)
	require.NoError(t, err)
	require.Len(t, was, 2)

	again := tap.Watch(func(r kmsg.Request) bool {
		c := r.(*kmsg.OffsetCommitRequest)
		return c.Group == endsGroup(app) && len(c.Topics) == 1 && len(c.Topics[0].Partitions) == 2
	}, kmsg.OffsetCommit)
	enough := s.renewing()
	require.Eventually(t, func() bool { return again.Hits() >= 3 }, 10*time.Second, 10*time.Millisecond)
	enough()
	hits := again.Hits()
	now, err := kafka.GroupOffsets(t.Context(), cl, endsGroup(app), false)
	require.NoError(t, err)
	require.Equal(t, was, now)
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, hits, again.Hits(), "the run is over")

	s.plan = passPlan(t, app)
	s.renewing()() // nothing has an end
}

// What the coordinator refuses does not keep other ends from being renewed: neither those of later requests, nor those of the same one
// when it refuses that as a whole.
func TestAnEndThatIsRefusedKeepsNoOtherFromBeingSaidAgain(t *testing.T) {
	tb, _ := testbed.NewFake(t, "a thousand partitions are a lot for a broker that is shared")
	b := bedOn(t, tb)
	var tap testbed.Tap
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), tap.Opt())
	require.NoError(t, err)
	defer cl.Close()
	const many = 2*endsAtOnce + 20
	wide := "wide-" + inTopic()
	_, err = kadm.NewClient(cl).CreateTopic(t.Context(), many, 1, nil, wide)
	require.NoError(t, err)
	app := "refused" + inTopic()
	ends := kadm.Offsets{}
	for p := range int32(many) {
		ends.Add(kadm.Offset{Topic: wide, Partition: p, At: int64(p), LeaderEpoch: -1, Metadata: endNote + "x"})
	}
	require.NoError(t, kadm.NewClient(cl).CommitAllOffsets(t.Context(), endsGroup(app), ends))

	var mu sync.Mutex
	said := map[int32]bool{}
	some := tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, Answer: func(r kmsg.Request) *kerr.Error {
		mu.Lock()
		defer mu.Unlock()
		c := r.(*kmsg.OffsetCommitRequest)
		for _, p := range c.Topics[0].Partitions {
			if p.Partition == 7 || p.Partition == endsAtOnce+3 {
				return kerr.InvalidCommitOffsetSize
			}
		}
		for _, p := range c.Topics[0].Partitions {
			said[p.Partition] = true
		}
		return nil
	}})
	err = reads{cl: cl, group: app}.renewEnds(t.Context())
	require.ErrorIs(t, err, kerr.InvalidCommitOffsetSize)
	require.ErrorContains(t, err, "keep 2 of the ends of 1020 partitions")
	require.ErrorContains(t, err, wide+"/7")
	some.Remove()
	mu.Lock()
	require.Len(t, said, many-2)
	mu.Unlock()

	// Where somebody is in the group all are refused, and each of them alone would be.
	var asked atomic.Int32
	tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, Answer: func(kmsg.Request) *kerr.Error {
		asked.Add(1)
		return kerr.UnknownMemberID
	}})
	require.ErrorIs(t, reads{cl: cl, group: app}.renewEnds(t.Context()), kerr.UnknownMemberID)
	require.EqualValues(t, 3, asked.Load(), "requests")
}

// A run that goes on beside a source without an end does so, too.
func TestARunBesideASourceWithoutAnEndSaysItsEndsAgain(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	app, other := "beside"+inTopic(), "beside-"+inTopic()
	b.groups[app], b.groups[endsGroup(app)] = true, true
	_, err := kadm.NewClient(b.cl).CreateTopic(t.Context(), 1, 1, nil, other)
	require.NoError(t, err)
	tb := topology.New(app)
	topology.ToTopic(topology.FromTopic(tb, "ends", inTopic(), serde.Bytes(), serde.Bytes(), topology.EndAt(topology.EndLatest())), "out", outTopic(), serde.Bytes(), serde.Bytes())
	topology.ToTopic(topology.FromTopic(tb, "goes-on", other, serde.Bytes(), serde.Bytes()), "out-on", outTopic(), serde.Bytes(), serde.Bytes())
	plan, err := tb.Plan()
	require.NoError(t, err)
	var tap testbed.Tap
	said := tap.Watch(func(r kmsg.Request) bool { return r.(*kmsg.OffsetCommitRequest).Group == endsGroup(app) }, kmsg.OffsetCommit)
	cfg := b.config()
	cfg.endsRenewal, cfg.ClientOptions = 20*time.Millisecond, []kgo.Opt{tap.Opt()}
	stop := b.start(plan, cfg)
	require.Eventually(t, func() bool { return said.Hits() >= 5 }, 20*time.Second, 10*time.Millisecond, "the start says them once")
	require.NoError(t, stop())
}
