package txn

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
)

// from is a Context that knows where its records come from.
type from struct {
	context.Context
	text string
}

func (f from) Origin(*kgo.Record) string { return f.text }

// A broker refuses batches, and the client says so of each record. The one that is named is the likeliest reason.
func TestTheRecordThatIsToBlameIsNamed(t *testing.T) {
	now := time.Now()
	at := func(text string, ahead time.Duration, size int) *kgo.Record {
		return &kgo.Record{Topic: "out", Partition: 1, Timestamp: now.Add(ahead), Value: make([]byte, size), Context: from{context.Background(), text}}
	}
	keyed := func(r *kgo.Record) *kgo.Record { r.Key = []byte{}; return r }
	batch := []*kgo.Record{keyed(at("task a/0, offset 1", time.Second, 7)), at("task a/0, offset 2", -3*time.Hour, 5), at("task a/0, offset 3", 0, 90)}
	for err, want := range map[error][]string{
		kerr.InvalidTimestamp:    {"task a/0, offset 2: produce to out/1: timestamp ", batch[1].Timestamp.UTC().Format("2006-01-02T15:04"), "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"},
		kerr.MessageTooLarge:     {"task a/0, offset 3: produce to out/1: 90 bytes before compression, the largest batch is 1000", "max.message.bytes"},
		kerr.InvalidRecord:       {"task a/0, offset 2: produce to out/1: null key: the broker refuses", "a compacted topic takes no null key"},
		errors.New("connection"): {"task a/0, offset 1: produce to out/1: connection"},
	} {
		c := newClient(0, "x", nil, limited(map[string]int32{"out": 1000}).newLimits())
		c.reset()
		c.pending.Add(int64(len(batch)))
		for _, r := range batch {
			c.answered(r, err)
		}
		for _, w := range want {
			require.ErrorContains(t, c.failure(), w)
		}
	}
	var first firstFailure
	first.reset()
	first.note(keyed(&kgo.Record{Topic: "out"}), kerr.InvalidRecord)
	require.Contains(t, first.get().where(nil), "produce to out/0: this record, or another one of its batch")
	first.reset()
	first.note(&kgo.Record{Topic: "out"}, kerr.InvalidTimestamp)
	first.note(at("elsewhere", 9*time.Hour, 1), kerr.InvalidTimestamp)
	require.EqualValues(t, 0, first.get().partition, "another batch: the first one stays")
}

// The clock of the machine may be wrong by more than the topic of the markers takes.
func TestMarkersHaveNoTime(t *testing.T) {
	e := newEnv(t)
	require.NoError(t, e.checkpoint(e.manager(), 1))
	cl := e.newClient(kgo.ConsumeTopics(e.markers), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer cl.Close()
	fs := cl.PollFetches(e.ctx)
	require.NoError(t, fs.Err())
	require.EqualValues(t, -1, fs.Records()[0].Timestamp.UnixMilli())
}

// Two applications whose names differ in '.' and '_' only cannot both have a topic for their markers. The second one says so
// and ends, instead of trying for ever.
func TestAMarkerTopicWhoseNameIsRefused(t *testing.T) {
	e := newEnv(t)
	_, err := kafka.EnsureTopic(e.ctx, e.admin, e.bed.Name("a.x")+"-checkpoints", 1, nil)
	require.NoError(t, err)
	cfg := e.config()
	cfg.Application = e.bed.Name("a_x")
	m, err := NewManager(cfg)
	require.NoError(t, err)
	defer m.Close()
	err = m.Init(e.ctx)
	require.ErrorContains(t, err, cfg.Application+"-checkpoints")
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
}
