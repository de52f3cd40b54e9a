package processor

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/topology"
)

// fetched is what a fetch brings: records up to an offset, of so many that there are.
func fetched(to, end int64) kgo.FetchPartition {
	return kgo.FetchPartition{Records: []*kgo.Record{{Offset: to}}, HighWatermark: end}
}

// The age of what is read is bounded by the time of the last fetch that surely came before it was written.
func TestTheAgeOfACommandIsBoundedByFetchesBeforeIt(t *testing.T) {
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	f := freshness{fetches: &fetchTimes{}}
	f.fetches.begin(start)
	f.fetches.answered(at(1))
	f.next(fetched(0, 1))
	require.Equal(t, start, f.since, "what the first fetch brings came after the end of the topic was looked for")
	for s := 2; s <= 100; s++ {
		f.fetches.answered(at(s))
	}
	f.next(fetched(1, 2))
	require.Equal(t, at(97), f.since)
	f.next(kgo.FetchPartition{HighWatermark: 2})
	require.Equal(t, at(97), f.since)

	f.fetches.answered(at(1000)) // out of reach, or frozen, since 100
	f.next(fetched(5, 50))
	require.Equal(t, at(98), f.since)
	for s := 1001; s < 1010; s++ { // what was there already comes piece by piece
		f.fetches.answered(at(s))
		f.next(fetched(int64(s), 5000))
		require.Equal(t, at(98), f.since, "it lay there when the first piece was read")
	}
	f.fetches.answered(at(1010))
	f.next(fetched(4999, 5000))
	require.Equal(t, at(98), f.since)
	f.fetches.answered(at(1011))
	f.next(fetched(5000, 5001))
	require.Equal(t, at(1008), f.since)

	require.Equal(t, time.Minute, longest(at(0), at(60)))
	require.Equal(t, time.Hour, longest(at(0).Round(0), at(3600)), "while a machine sleeps only the other clock goes on")
}

// Clocks of senders that are wrong by hours make no difference. A command that may be older than who gave it waits is not
// obeyed, and the log says why.
func TestCommandsDoNotDependOnTheClockOfTheSender(t *testing.T) {
	for name, skew := range map[string]time.Duration{"behind": -20 * time.Hour, "ahead": 20 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			app := "clocks-" + name
			b.groups[app] = true
			if skew < 0 { // a topic that somebody has made keeps the senders' times; one that is ahead it may refuse
				_, err := kadm.NewClient(b.cl).CreateTopic(t.Context(), 1, -1, nil, ControlTopic(app))
				require.NoError(t, err)
			}
			cfg, o := b.instance("a")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Run(ctx, countPlan(t, app), cfg) }()
			o.says("/readyz", 200, "processing")
			v, err := json.Marshal(controlRecord{Version: controlVersion, Request: name, Command: CheckpointCommand, Patience: 10_000})
			require.NoError(t, err)
			require.NoError(t, b.cl.ProduceSync(t.Context(), &kgo.Record{Topic: ControlTopic(app), Value: v, Timestamp: time.Now().Add(skew)}).FirstErr())
			require.Empty(t, b.replyTo(app, name).Error)
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// replyTo waits for the reply to a request.
func (b *bed) replyTo(app, request string) (reply Reply) {
	b.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumeTopics(ControlTopic(app)))
	require.NoError(b.t, err)
	defer cl.Close()
	ctx, stop := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer stop()
	for found := false; !found; {
		fetches := cl.PollFetches(ctx)
		require.NoError(b.t, ctx.Err(), "no reply to %s", request)
		fetches.EachRecord(func(r *kgo.Record) {
			var rec controlRecord
			if json.Unmarshal(r.Value, &rec) == nil && rec.Reply != nil && rec.Request == request {
				reply, found = *rec.Reply, true
			}
		})
	}
	return reply
}

func TestACommandThatMayBeTooOldIsPassedOver(t *testing.T) {
	var log bytes.Buffer
	c := &control{s: &service{log: slog.New(slog.NewTextHandler(&log, nil)), plan: &topology.Plan{}}}
	v, err := json.Marshal(controlRecord{Version: controlVersion, Request: "r1", Command: CancelCommand, Patience: 10_000})
	require.NoError(t, err)
	c.take(&kgo.Record{Value: v, Timestamp: time.Now()}, 10*time.Second+controlLate+time.Millisecond) // it would panic if it did anything
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "command=cancel request=r1 for=1m10s patience=10s")
}

// Who may write to the control topic cannot fill a disk with what is said of that.
func TestWhatIsPassedOverIsNotToldOfForEver(t *testing.T) {
	var log bytes.Buffer
	c := &control{s: &service{log: slog.New(slog.NewTextHandler(&log, nil))}}
	for i := range int64(1000) {
		c.take(&kgo.Record{Topic: "shop-control", Offset: i, Value: []byte("garbage")}, 0)
	}
	require.Equal(t, mostPassed, strings.Count(log.String(), "no command of this version"))
	require.Equal(t, 1, strings.Count(log.String(), "more records of the control topic are passed over"))
	c.passedAt = c.passedAt.Add(-passedPause - time.Second)
	c.take(&kgo.Record{Topic: "shop-control", Offset: 1000}, 0)
	require.Contains(t, log.String(), "offset=1000")
}
