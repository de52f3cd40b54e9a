//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/integration/kafkatest"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/kafkasrc"
)

// A log that Kafka's own cleaner has been through: superseded records, expired tombstones, an aborted transaction and
// its marker are gone, and a fetcher still reaches the end, from the start and from inside of the gap.
func TestC13_RealPositionReachesTheEndOfALogThatKafkaCompacted(t *testing.T) {
	needReal(t)
	b := kafkatest.Start(t, kafkatest.Options{Properties: map[string]string{"log.cleaner.backoff.ms": "200"}})
	if b.External {
		t.Skip("the cleaner of a foreign cluster is too slow")
	}
	e := newEnv(t, kafka.Config{Brokers: strings.Split(b.Addr, ","), Logger: slog.New(slog.DiscardHandler)}, 0)
	topic := e.name + "-compacted"
	set := func(s string) *string { return kmsg.StringPtr(s) }
	_, err := kafka.EnsureTopic(e.ctx, e.admin, topic, 1, map[string]*string{
		"cleanup.policy": set("compact"), "segment.ms": set("300"), "min.cleanable.dirty.ratio": set("0.0001"),
		"delete.retention.ms": set("1"), "min.compaction.lag.ms": set("0"),
	})
	require.NoError(t, err)
	plain, tx := e.client(), e.producer("a")
	put := func(cl *kgo.Client, key string, value []byte) {
		require.NoError(t, cl.ProduceSync(e.ctx, &kgo.Record{Topic: topic, Key: []byte(key), Value: value}).FirstErr())
	}
	for i := range 200 {
		put(plain, string("ab"[i%2]), fmt.Append(nil, i))
	}
	e.begin(tx)
	put(tx, "x", []byte("aborted"))
	require.Equal(t, "nil", e.end(tx, kgo.TryAbort))
	put(plain, "a", nil) // 202: a tombstone
	// Each further append may roll the segment; what stands before the active one is cleaned. Two rounds of cleaning are
	// needed until tombstones go.
	tp := element.TopicPartition{Topic: topic}
	var got []element.Record
	var next, end int64
	require.Eventually(t, func() bool {
		put(plain, "roll", []byte("r"))
		ends, err := kafka.StableEndOffsets(e.ctx, e.admin, []element.TopicPartition{tp})
		require.NoError(t, err)
		end = ends[tp].Offset
		got, next = readAll(e, tp, 0, end)
		return len(got) < 10 && !hasKey(got, "a")
	}, 50*time.Second, 400*time.Millisecond, "the cleaner did not come: %d records", len(got))
	require.Equal(t, end, next)
	require.Equal(t, "b", string(got[0].Key))
	require.EqualValues(t, 199, got[0].Offset)
	require.False(t, hasKey(got, "x"))
	start, err := kafka.StartOffsets(e.ctx, e.admin, []element.TopicPartition{tp})
	require.NoError(t, err)
	require.Zero(t, start[tp].Offset, "compaction does not move the log start: positions in the gap stay valid")
	for _, from := range []int64{100, 200, 201, 202, 203} {
		_, next = readAll(e, tp, from, end)
		require.Equal(t, end, next, "from %d", from)
	}
}

func hasKey(recs []element.Record, key string) bool {
	for _, r := range recs {
		if string(r.Key) == key {
			return true
		}
	}
	return false
}

// readAll reads from a position until end is reached.
func readAll(e *env, tp element.TopicPartition, from, end int64) (recs []element.Record, next int64) {
	e.t.Helper()
	f, err := kafkasrc.NewFetcher(kafkasrc.FetcherConfig{Kafka: e.cfg, Positions: []element.Position{{TopicPartition: tp, Offset: from, LeaderEpoch: -1}}, Logger: e.cfg.Logger})
	require.NoError(e.t, err)
	defer f.Close()
	done := errors.New("all read")
	err = f.Run(e.ctx, func(_ context.Context, d element.Delivery) error {
		recs = append(recs, d.Records...)
		if next = d.Next; next >= end {
			return done
		}
		return nil
	})
	require.Same(e.t, done, err, "stuck at %d of %d", next, end)
	return recs, next
}
