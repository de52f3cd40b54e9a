package txn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/checkpoint/checkpointtest"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
)

// TestPiecesHoldAllOffsetsOnceInOrder: whatever the lengths are, the pieces are the offsets, and each is as small as it
// has to be.
func TestPiecesHoldAllOffsetsOnceInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		group := strings.Repeat("g", rapid.IntRange(1, 300).Draw(t, "group"))
		lengths := rapid.SliceOfN(rapid.IntRange(0, MaxHandle), 0, 300).Draw(t, "handles")
		offsets := make([]checkpoint.OffsetCommit, len(lengths))
		for i, n := range lengths {
			offsets[i] = checkpoint.OffsetCommit{Metadata: strings.Repeat("m", n)}
			offsets[i].Position.Topic, offsets[i].Position.Partition = "in", int32(i)
		}
		var all []checkpoint.OffsetCommit
		for _, p := range new(sizes).pieces(group, offsets) {
			require.NotEmpty(t, p)
			size := 0
			for _, o := range p {
				size += len(group) + len(o.Position.Topic) + len(o.Metadata) + entryOverhead
			}
			require.LessOrEqual(t, size, pieceBytes)
			all = append(all, p...)
		}
		require.Equal(t, len(offsets), len(all))
		for i := range all {
			require.Equal(t, offsets[i], all[i])
		}
	})
}

// TestTheUsualOffsetsAreOnePiece: cutting is for very many partitions only.
func TestTheUsualOffsetsAreOnePiece(t *testing.T) {
	offsets := make([]checkpoint.OffsetCommit, 400)
	for i := range offsets {
		offsets[i] = checkpoint.OffsetCommit{Metadata: strings.Repeat("m", 300)}
		offsets[i].Position.Topic = "orders"
	}
	require.Len(t, new(sizes).pieces("shop", offsets), 1)
	require.Empty(t, new(sizes).pieces("shop", nil))
}

// wide is a checkpoint of 300 partitions whose handles are as long as they may be: 1.2 MB, more than the broker writes at
// once.
type wide struct {
	*env
	in    kafka.Topic
	sends []int // partitions of each request
	rule  *testbed.Rule
}

const wideParts = 300

// newWide makes it. The rule says what a broker does with too much, where the broker is one that does not mind.
func newWide(t *testing.T) *wide {
	w := &wide{env: newEnv(t)}
	topic := w.bed.Topic("wide", wideParts, nil)
	found, err := kafka.DescribeTopics(w.ctx, w.admin, []string{topic})
	require.NoError(t, err)
	w.in = found[topic]
	w.rule = w.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.OffsetCommit}, Before: func(r kmsg.Request) error {
		w.sends = append(w.sends, partitionsOf(r))
		if n := len(r.AppendTo(nil)); n > 1<<20 {
			return fmt.Errorf("a request of %d bytes", n)
		}
		return nil
	}})
	return w
}

func partitionsOf(r kmsg.Request) int {
	n := 0
	switch r := r.(type) {
	case *kmsg.TxnOffsetCommitRequest:
		for _, t := range r.Topics {
			n += len(t.Partitions)
		}
	case *kmsg.OffsetCommitRequest:
		for _, t := range r.Topics {
			n += len(t.Partitions)
		}
	}
	return n
}

func (w *wide) commit(id element.CheckpointID) checkpoint.Commit {
	c := checkpoint.Commit{Name: element.CheckpointName{ID: id, Incarnation: 0xabc}, Permit: checkpointtest.Permit(id)}
	for p := range int32(wideParts) {
		c.Offsets = append(c.Offsets, checkpoint.OffsetCommit{
			Position: element.Position{TopicPartition: element.TopicPartition{Topic: w.in.Name, Partition: p}, TopicID: w.in.ID,
				PartitionCount: w.in.Partitions, Offset: int64(id), LeaderEpoch: -1},
			Metadata: fmt.Sprintf("%-4096d", p),
		})
	}
	return c
}

// stands counts the partitions by their committed offset.
func (w *wide) stands() map[int64]int {
	w.t.Helper()
	var tps []element.TopicPartition
	for p := range int32(wideParts) {
		tps = append(tps, element.TopicPartition{Topic: w.in.Name, Partition: p})
	}
	got, err := kafka.StableOffsets(w.ctx, w.admin, w.group, tps)
	require.NoError(w.t, err)
	out := map[int64]int{}
	for tp, c := range got {
		if c.Found {
			require.Equal(w.t, fmt.Sprintf("%-4096d", tp.Partition), c.Metadata)
			out[c.Offset]++
		}
	}
	return out
}

func (w *wide) either(plain bool, change ...func(*Config)) either {
	if plain {
		return w.plain(change...)
	}
	return w.manager(change...)
}

// TestOffsetsOfVeryManyPartitions: the group's coordinator takes no megabyte of offsets at once.
func TestOffsetsOfVeryManyPartitions(t *testing.T) {
	testbed.Alongside(t)
	for name, plain := range map[string]bool{"transactions": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			w := newWide(t)
			fences := 0
			m := w.either(plain, func(c *Config) {
				c.Fence = func(o []checkpoint.OffsetCommit) (string, int32, string, error) {
					fences++
					require.Len(t, o, wideParts, "the fence is asked for all partitions of the checkpoint")
					return w.fence(o)
				}
			})
			require.NoError(t, m.ProduceBatch(w.ctx, w.records("a")))
			require.NoError(t, m.Seal(w.ctx, 7))
			require.NoError(t, m.Commit(w.ctx, w.commit(7)))
			require.GreaterOrEqual(t, len(w.sends), 2)
			require.GreaterOrEqual(t, fences, len(w.sends))
			require.Equal(t, map[int64]int{7: wideParts}, w.stands())
			require.Equal(t, []string{"a"}, w.read(w.out))
		})
	}
}

// TestAPieceThatFailsFailsAll: in a transaction nothing of a checkpoint counts when the second piece of its offsets is lost,
// refused, or has no fence any more.
func TestAPieceThatFailsFailsAll(t *testing.T) {
	testbed.Alongside(t)
	for _, why := range []string{"no fence", "fenced", "no answer"} {
		t.Run(why, func(t *testing.T) {
			w := newWide(t)
			first := true
			m := w.manager(func(c *Config) {
				c.Fence = func(o []checkpoint.OffsetCommit) (string, int32, string, error) {
					if why == "no fence" && len(w.sends) > 0 && first {
						return "", 0, "", fault.New(fault.Rejoin, fault.Failed, "a partition was lost")
					}
					return w.fence(o)
				}
			})
			w.produce(m, "a")
			require.NoError(t, m.Seal(w.ctx, 7))
			second := &testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, When: func(kmsg.Request) bool { return len(w.sends) > 0 }}
			ctx, cancel := context.WithCancel(w.ctx)
			defer cancel()
			class := fault.Rejoin
			switch why {
			case "fenced":
				second.Answer = testbed.Always(kerr.InvalidProducerEpoch)
			case "no answer":
				class = fault.Restart
				second.Before = func(kmsg.Request) error { cancel(); return errors.New("connection cut") }
			}
			w.tap.Add(second)
			err := m.Commit(ctx, w.commit(7))
			require.Error(t, err)
			require.Equal(t, class, fault.RecoveryOf(err), "%v", err)
			second.Remove()
			first = false
			require.NoError(t, m.Init(w.ctx))
			require.Empty(t, w.stands())
			require.Empty(t, w.read(w.out))
			w.produce(m, "b")
			require.NoError(t, m.Seal(w.ctx, 8))
			require.NoError(t, m.Commit(w.ctx, w.commit(8)))
			require.Equal(t, map[int64]int{8: wideParts}, w.stands())
			require.Equal(t, []string{"b"}, w.read(w.out))
		})
	}
}

// TestPlainPieceThatFails: without transactions the first piece stands. What the group has is a mixture, and the next
// checkpoint makes one of it again.
func TestPlainPieceThatFails(t *testing.T) {
	w := newWide(t)
	p := w.plain()
	require.NoError(t, p.Seal(w.ctx, 7))
	require.NoError(t, p.Commit(w.ctx, w.commit(7)))
	w.sends = nil
	second := w.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, When: func(kmsg.Request) bool { return len(w.sends) > 0 },
		Answer: testbed.Always(kerr.UnknownServerError)})
	require.NoError(t, p.Seal(w.ctx, 8))
	err := p.Commit(w.ctx, w.commit(8))
	require.Error(t, err)
	require.Equal(t, fault.Unconfirmed, fault.RecoveryOf(err), "%v", err)
	stands := w.stands()
	require.Equal(t, wideParts, stands[7]+stands[8])
	require.Equal(t, w.sends[0], stands[8])
	require.NotZero(t, stands[7])
	second.Remove()
	require.NoError(t, p.Init(w.ctx))
	require.NoError(t, p.Seal(w.ctx, 9))
	require.NoError(t, p.Commit(w.ctx, w.commit(9)))
	require.Equal(t, map[int64]int{9: wideParts}, w.stands())
}
