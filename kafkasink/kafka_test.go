package kafkasink

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/checkpoint/checkpointtest"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/txn"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// broker is a broker with three topics of four partitions, a group member and a manager of transactions.
type broker struct {
	ctx     context.Context
	bed     *testbed.Bed
	cfg     kafka.Config
	manager *txn.Manager
	topic   element.TopicID

	in, out, other string
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	bed := testbed.New(t)
	quiet := slog.New(slog.DiscardHandler)
	b := &broker{ctx: ctx, bed: bed, cfg: kafka.Config{Brokers: bed.Brokers, Logger: quiet}}
	b.in, b.out, b.other = bed.Topic("in", 4, nil), bed.Topic("out", 4, nil), bed.Topic("other", 4, nil)
	app := bed.Name("app")
	member, err := kafka.NewClient(b.cfg, kgo.ConsumerGroup(app), kgo.ConsumeTopics(b.in), kgo.DisableAutoCommit())
	require.NoError(t, err)
	t.Cleanup(member.Close)
	require.Eventually(t, func() bool { m, g := member.GroupMetadata(); return m != "" && g >= 0 }, 10*time.Second, 5*time.Millisecond)
	b.topic = bed.TopicID(b.in)
	b.manager, err = txn.NewManager(txn.Config{Kafka: b.cfg, Application: app, Instance: "i", Group: app, Logger: quiet,
		Fence: func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			m, g := member.GroupMetadata()
			return m, g, "", nil
		}})
	require.NoError(t, err)
	t.Cleanup(b.manager.Close)
	require.NoError(t, b.manager.Init(ctx))
	return b
}

func (b *broker) sink(t *testing.T, limit int64) *Sink {
	t.Helper()
	s, err := New(Config{Transactions: b.manager, HoldBackLimit: limit, Logger: slog.New(slog.DiscardHandler),
		Targets: []Target{{Name: "totals", Topic: b.out, Partitions: 4}, {Name: "audit", Topic: b.other, Partitions: 4}}})
	require.NoError(t, err)
	t.Cleanup(s.Discard)
	return s
}

func (b *broker) commit(id element.CheckpointID) error {
	return b.manager.Commit(b.ctx, b.commitOf(id))
}

func (b *broker) commitOf(id element.CheckpointID) checkpoint.Commit {
	return checkpoint.Commit{Name: element.CheckpointName{ID: id}, Permit: checkpointtest.Permit(id),
		Offsets: []checkpoint.OffsetCommit{{Position: element.Position{TopicPartition: element.TopicPartition{Topic: b.in}, TopicID: b.topic,
			Offset: int64(id), LeaderEpoch: -1}, Metadata: "h"}}}
}

// read gives the committed records of a topic by key, each in the order of its partition.
func (b *broker) read(t *testing.T, topic string, n int) map[string][]string {
	t.Helper()
	cl, err := kafka.NewClient(b.cfg, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer cl.Close()
	out, where := map[string][]string{}, map[string]int32{}
	for got := 0; got < n; {
		fs := cl.PollFetches(b.ctx)
		require.NoError(t, fs.Err())
		fs.EachRecord(func(r *kgo.Record) {
			got++
			key := string(r.Key)
			if p, seen := where[key]; seen {
				require.Equal(t, p, r.Partition, "one key, one partition")
			}
			where[key] = r.Partition
			out[key] = append(out[key], string(r.Value))
		})
	}
	return out
}

// TestOrderPerKeyAcrossHoldBack runs four tasks against a broker, with a small hold-back: each key is counted
// 1…n in order, without a gap, over all transactions.
func TestOrderPerKeyAcrossHoldBack(t *testing.T) {
	b := newBroker(t)
	s := b.sink(t, 4000)
	const tasks, checkpoints, perEpoch = 4, 8, 50
	barriers := make([]chan element.CheckpointID, tasks)
	passed := make(chan struct{}, tasks)
	var wg sync.WaitGroup
	for i := range barriers {
		barriers[i] = make(chan element.CheckpointID, 1)
		w := s.Writer(task(int32(i)))
		wg.Go(func() {
			n := 0
			for id := range barriers[i] {
				for range perEpoch {
					n++
					if err := w.Write(b.ctx, 0, []element.Record{{Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Append(nil, n)}}); err != nil {
						t.Error(err)
						return
					}
				}
				w.Barrier(id)
				passed <- struct{}{}
				// What is written now is held back, until the release lets it out.
				for range perEpoch {
					n++
					if err := w.Write(b.ctx, 0, []element.Record{{Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Append(nil, n)}}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for id := element.CheckpointID(1); id <= checkpoints; id++ {
		for _, c := range barriers {
			c <- id
		}
		for range tasks {
			<-passed
		}
		require.NoError(t, s.Seal(b.ctx, id))
		require.NoError(t, b.commit(id))
		require.NoError(t, s.Release(id))
	}
	for _, c := range barriers {
		close(c)
	}
	wg.Wait()
	for i := range tasks { // the rest
		s.Writer(task(int32(i))).Barrier(checkpoints + 1)
	}
	require.NoError(t, s.Seal(b.ctx, checkpoints+1))
	require.NoError(t, b.commit(checkpoints+1))
	got := b.read(t, b.out, tasks*checkpoints*2*perEpoch)
	require.Len(t, got, tasks)
	for key, values := range got {
		require.Len(t, values, checkpoints*2*perEpoch, key)
		for i, v := range values {
			require.Equal(t, fmt.Sprint(i+1), v, key)
		}
	}
}

func TestDiscardedAttemptLeavesNothing(t *testing.T) {
	b := newBroker(t)
	s := b.sink(t, 0)
	w := s.Writer(task(0))
	require.NoError(t, w.Write(b.ctx, 0, recs("lost")))
	w.Barrier(1)
	require.NoError(t, w.Write(b.ctx, 0, recs("held and lost")))
	require.NoError(t, s.Seal(b.ctx, 1))
	s.Discard()
	require.NoError(t, b.manager.Abort(b.ctx))
	require.NoError(t, b.manager.Init(b.ctx))
	again := b.sink(t, 0)
	w = again.Writer(task(0))
	require.NoError(t, w.Write(b.ctx, 0, recs("1")))
	require.NoError(t, w.Write(b.ctx, 1, recs("audit")))
	w.Barrier(2)
	require.NoError(t, again.Seal(b.ctx, 2))
	require.NoError(t, b.commit(2))
	require.Equal(t, map[string][]string{"k": {"1"}}, b.read(t, b.out, 1))
	require.Equal(t, map[string][]string{"k": {"audit"}}, b.read(t, b.other, 1))
}

func TestRefusedRecordsSurfaceInSeal(t *testing.T) {
	for _, c := range []struct {
		name  string
		value string
		cause func(t *testing.T, b *broker)
		err   *kerr.Error
		rec   fault.Recovery
		code  fault.Code
	}{
		// Nothing is known of what the topic takes, so that other batches may be what it needs.
		{"larger than the topic allows", strings.Repeat("x", 2000), limitRecords, kerr.MessageTooLarge, fault.Restart, fault.BadRecord},
		{"larger than a batch", strings.Repeat("x", 2<<20), nil, kerr.MessageTooLarge, fault.Restart, fault.BadRecord},
		{"larger than any batch", strings.Repeat("x", 65<<20), nil, kerr.MessageTooLarge, fault.Stop, fault.BadRecord},
		{"no access", "x", denyOutput, kerr.TopicAuthorizationFailed, fault.Stop, fault.Denied},
		{"topic gone", "x", deleteOutput, kerr.UnknownTopicOrPartition, fault.Restart, fault.UnknownTopic},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBroker(t)
			s := b.sink(t, 0)
			if c.cause != nil {
				c.cause(t, b)
			}
			w := s.Writer(task(0))
			require.NoError(t, w.Write(b.ctx, 0, recs(c.value)))
			w.Barrier(1)
			err := s.Seal(b.ctx, 1)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, "produce to "+b.out+"/")
			require.Equal(t, c.rec, fault.RecoveryOf(err), "%v", err)
			require.Equal(t, c.code, fault.CodeOf(err), "%v", err)
			b.goesOn(t)
		})
	}
}

// goesOn is the next attempt of the same process: it commits to the other topic, and nothing of the failed one is there.
func (b *broker) goesOn(t *testing.T) {
	t.Helper()
	require.NoError(t, b.manager.Init(b.ctx))
	s := b.sink(t, 0)
	w := s.Writer(task(0))
	require.NoError(t, w.Write(b.ctx, 1, recs("next")))
	w.Barrier(2)
	require.NoError(t, s.Seal(b.ctx, 2))
	require.NoError(t, b.commit(2))
	require.Equal(t, map[string][]string{"k": {"next"}}, b.read(t, b.other, 1))
}

func limitRecords(t *testing.T, b *broker) {
	most := "1000"
	got, err := b.bed.Admin().AlterTopicConfigs(b.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &most}}, b.out)
	require.NoError(t, err)
	require.NoError(t, got[0].Err)
}

func denyOutput(_ *testing.T, b *broker) {
	b.bed.Fake("the broker refuses access to a topic").Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: b.out, Err: kerr.TopicAuthorizationFailed, Count: -1})
}

func deleteOutput(_ *testing.T, b *broker) { b.bed.DeleteTopic(b.out) }

// A topic that goes away in the middle of a transaction: what was written to it is lost with it, the transaction fails,
// and the transactional id is usable again.
func TestOutputTopicDeletedInsideATransaction(t *testing.T) {
	b := newBroker(t)
	s := b.sink(t, 0)
	w := s.Writer(task(0))
	require.NoError(t, w.Write(b.ctx, 0, recs("1")))
	w.Barrier(1)
	require.NoError(t, s.Seal(b.ctx, 1))
	require.NoError(t, b.commit(1))
	require.NoError(t, s.Release(1))
	require.NoError(t, w.Write(b.ctx, 1, recs("aborted")))
	require.NoError(t, w.Write(b.ctx, 0, recs("2")))
	deleteOutput(t, b)
	// Kafka answers before the partition is closed: what is acknowledged until then goes with the topic.
	id, err := element.CheckpointID(2), error(nil)
	for ; id < 200; id++ {
		require.NoError(t, w.Write(b.ctx, 0, recs("3")))
		w.Barrier(id)
		if err = s.Seal(b.ctx, id); err != nil {
			break
		}
		s.Discard()
		require.NoError(t, b.manager.Abort(b.ctx))
		s = b.sink(t, 0)
		w = s.Writer(task(0))
	}
	require.Error(t, err)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
	b.goesOn(t)
}
