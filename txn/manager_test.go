package txn

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

func TestOutputOffsetsAndHandleAppearTogether(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "a", "b", "c")
	require.NoError(t, m.Seal(e.ctx, 1))
	// Sealed and acknowledged, but no reader sees any of it.
	off, _ := e.committed()
	require.Equal(t, int64(-1), off)
	require.NoError(t, m.Commit(e.ctx, e.commitOf(1, 30, "handle-1")))
	off, h := e.committed()
	require.Equal(t, int64(30), off)
	require.Equal(t, "handle-1", h)
	require.ElementsMatch(t, []string{"a", "b", "c"}, e.read(e.out))
	require.Empty(t, e.read(e.markers), "no marker beside records")
	require.Len(t, e.ended, 1)
	require.Equal(t, Stats{Slot: 0, Checkpoint: 1, State: Committed, Records: 3},
		Stats{Slot: e.ended[0].Slot, Checkpoint: e.ended[0].Checkpoint, State: e.ended[0].State, Records: e.ended[0].Records, Marker: e.ended[0].Marker})
	require.Positive(t, e.ended[0].Flush)
	require.Positive(t, e.ended[0].Offsets)
	require.Positive(t, e.ended[0].End)
}

// The client takes a new epoch by itself where the broker has forgotten its producer, in the middle of a transaction. What was
// acknowledged in the old one is aborted by that, so the rest must not be committed.
func TestATransactionOfTwoEpochsIsNotCommitted(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "a")
	require.NoError(t, m.Seal(e.ctx, 1))
	c := m.clients[0]
	id, epoch, err := c.cl.ProducerID(e.ctx)
	require.NoError(t, err)
	require.Equal(t, &producer{id, epoch}, c.acked.Load())
	c.acked.Store(&producer{id, epoch - 1})
	e.refusesTwoEpochs(m)
}

// refusesTwoEpochs: the sealed transaction is not committed, not even its offsets, and the next one is.
func (e *env) refusesTwoEpochs(m *Manager) {
	t := e.t
	t.Helper()
	offsets := e.tap.Watch(nil, kmsg.TxnOffsetCommit)
	err := m.Commit(e.ctx, e.commitOf(1, 30, "handle-1"))
	require.ErrorContains(t, err, "within the transaction")
	require.Equal(t, fault.Restart, fault.RecoveryOf(err))
	require.Zero(t, offsets.Hits())
	require.NoError(t, m.Abort(e.ctx))
	require.NoError(t, m.Init(e.ctx))
	require.NoError(t, e.checkpoint(m, 2, "b"))
	require.Equal(t, []string{"b"}, e.read(e.out))
}

// The record of the old epoch may be the last one that is acknowledged: its broker is slow, and it was sent before.
func TestAnOldEpochThatIsAcknowledgedLateIsNotCommitted(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "a")
	c := m.clients[0]
	require.Eventually(t, func() bool { return c.acked.Load() != nil }, 10*time.Second, time.Millisecond)
	by := c.acked.Load()
	c.pending.Add(1)
	c.answered(&kgo.Record{ProducerID: by.id, ProducerEpoch: by.epoch - 1}, nil)
	require.NoError(t, m.Seal(e.ctx, 1))
	e.refusesTwoEpochs(m)
}

// A record that was refused ends the transaction although the others may wait for a broker for long.
func TestSealDoesNotWaitBehindAFailure(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	mute := make(chan struct{})
	stuck := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Mute: mute})
	e.produce(m, "waits")
	require.Eventually(t, func() bool { return stuck.Hits() > 0 }, 10*time.Second, time.Millisecond)
	c := m.clients[0]
	c.pending.Add(1)
	time.AfterFunc(50*time.Millisecond, func() { c.answered(&kgo.Record{Topic: e.out}, kerr.InvalidRecord) })
	begun := time.Now()
	err := m.Seal(e.ctx, 1)
	require.ErrorIs(t, err, kerr.InvalidRecord)
	require.Equal(t, fault.BadRecord, fault.CodeOf(err))
	require.Less(t, time.Since(begun), 15*time.Second, "it waits for the other one")
	stuck.Remove()
	close(mute)
	require.NoError(t, m.Abort(e.ctx))
	require.NoError(t, m.Init(e.ctx))
	require.NoError(t, e.checkpoint(m, 2, "b"))
	require.Equal(t, []string{"b"}, e.read(e.out))
}

func TestMarkerWhenThereIsNoOutput(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	ends := e.tap.Watch(nil, kmsg.EndTxn)
	require.NoError(t, m.CommitInitial(e.ctx, e.commitOf(0, 5, "empty")))
	off, h := e.committed()
	require.Equal(t, int64(5), off)
	require.Equal(t, "empty", h)
	require.NoError(t, e.checkpoint(m, 1))
	off, h = e.committed()
	require.Equal(t, int64(10), off)
	require.Equal(t, "h1", h)
	require.Equal(t, 2, ends.Hits(), "both were real transactions")
	require.Equal(t, []string{`{"checkpoint":"0-0000000000000abc"}`, `{"checkpoint":"1-0000000000000abc"}`}, e.read(e.markers))
	require.Empty(t, e.read(e.out))
}

func TestAbortLeavesNothingAndLeaksNothing(t *testing.T) {
	e := newEnv(t)
	m := e.manager(func(c *Config) { c.Slots = 1 }) // the leak would be in the same client's next transaction
	require.NoError(t, e.checkpoint(m, 1, "one"))
	// Offsets that reached the broker, then an abort.
	refused := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Rewrite: testbed.Times(1, kerr.RequestTimedOut)})
	err := e.checkpoint(m, 2, "two")
	require.ErrorIs(t, err, kerr.RequestTimedOut)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err))
	require.Equal(t, 1, refused.Told())
	off, h := e.committed()
	require.Equal(t, int64(10), off)
	require.Equal(t, "h1", h)
	// An abort asked for, with records and without.
	e.produce(m, "three")
	require.NoError(t, m.Abort(e.ctx))
	require.NoError(t, m.Abort(e.ctx), "nothing open: nothing to do")
	require.NoError(t, m.Seal(e.ctx, 3))
	require.NoError(t, m.Abort(e.ctx))
	// The next one commits its own offsets, on another partition, and only those.
	e.produce(m, "four")
	require.NoError(t, m.Seal(e.ctx, 4))
	c := e.commitOf(4, 40, "h4")
	require.NoError(t, m.Commit(e.ctx, c))
	off, _ = e.committed()
	require.Equal(t, int64(40), off)
	require.ElementsMatch(t, []string{"one", "four"}, e.read(e.out))
	require.Empty(t, e.read(e.markers))
}

func TestAbortedOffsetsStayAwayFromTheNextTransaction(t *testing.T) {
	e := newEnv(t)
	m := e.manager(func(c *Config) { c.Slots = 1 })
	require.NoError(t, e.checkpoint(m, 1))
	// The broker takes both partitions, the answer for one is an error: everything is aborted.
	e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Partitions: []int32{1}, Rewrite: testbed.Times(1, kerr.OffsetMetadataTooLarge)})
	require.ErrorIs(t, e.checkpoint(m, 2), kerr.OffsetMetadataTooLarge)
	only := e.commitOf(3, 30, "h3")
	only.Offsets = only.Offsets[1:]
	require.NoError(t, m.Seal(e.ctx, 3))
	require.NoError(t, m.Commit(e.ctx, only))
	require.Equal(t, map[int32]string{0: "10 h1", 1: "30 h3"}, e.committedPer())
}

func TestFailedPromiseNeverCommits(t *testing.T) {
	for _, c := range []struct {
		err  *kerr.Error
		rec  fault.Recovery
		code fault.Code
	}{
		{kerr.MessageTooLarge, fault.Restart, fault.BadRecord}, // smaller batches may be taken
		{kerr.PolicyViolation, fault.Stop, fault.Denied},
		{kerr.TopicAuthorizationFailed, fault.Stop, fault.Denied},
		{kerr.TransactionAbortable, fault.Restart, fault.Failed},
		{kerr.InvalidProducerEpoch, fault.Rejoin, fault.Fenced},
	} {
		t.Run(c.err.Message, func(t *testing.T) {
			e := newEnv(t)
			m := e.manager()
			e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{2}, Rewrite: testbed.Times(1, c.err)})
			e.produce(m, "p0", "p1", "p2", "p3")
			err := m.Seal(e.ctx, 1)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, e.out+"/2")
			require.Equal(t, c.rec, fault.RecoveryOf(err))
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Error(t, m.Commit(e.ctx, e.commitOf(1, 10, "h1")))
			off, _ := e.committed()
			require.Equal(t, int64(-1), off)
			// A new attempt in the same process.
			require.NoError(t, m.Init(e.ctx))
			require.NoError(t, e.checkpoint(m, 2, "again"))
			require.Equal(t, []string{"again"}, e.read(e.out))
		})
	}
}

func TestRecordLargerThanTheBatchIsRefusedBeforeItIsSent(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "small", strings.Repeat("x", 2<<20))
	err := m.Seal(e.ctx, 1)
	require.ErrorIs(t, err, kerr.MessageTooLarge)
	require.Equal(t, fault.BadRecord, fault.CodeOf(err))
	require.Empty(t, e.read(e.out))
}

func TestOldTimestampsAreDelivered(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	require.NoError(t, m.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out, Value: []byte("old"), Timestamp: time.UnixMilli(1)}}))
	require.NoError(t, e.checkpoint(m, 1))
	require.Equal(t, []string{"old"}, e.read(e.out))
}

func TestProducersLearnOfAFailureBeforeTheSeal(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	most := "1000"
	set, err := e.bed.Admin().AlterTopicConfigs(e.ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &most}}, e.out)
	require.NoError(t, err)
	require.NoError(t, set[0].Err)
	e.produce(m, strings.Repeat("x", 2000))
	require.Eventually(t, func() bool {
		return errors.Is(m.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out}}), kerr.MessageTooLarge)
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, m.Abort(e.ctx))
	require.NoError(t, e.checkpoint(m, 1, "small"))
	require.Equal(t, []string{"small"}, e.read(e.out))
}

func TestConcurrentTransactionsOnOffsetsIsRetried(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	busy := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Answer: testbed.Times(3, kerr.ConcurrentTransactions)})
	require.NoError(t, e.checkpoint(m, 1, "a"))
	require.Equal(t, 3, busy.Told())
	require.Equal(t, 3, e.ended[0].Retries)
	_, h := e.committed()
	require.Equal(t, "h1", h)
}

func TestErrorOfEndTxnIsUnconfirmed(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprintf("applied=%v", applied), func(t *testing.T) {
			e := newEnv(t)
			m := e.manager(func(c *Config) { c.EndTimeout = 500 * time.Millisecond })
			require.NoError(t, e.checkpoint(m, 1, "a"))
			refused := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.EndTxn}, When: isCommit, Cut: applied, Before: func(kmsg.Request) error {
				if !applied {
					return errors.New("connection cut")
				}
				return nil
			}})
			aborts := e.tap.Watch(func(r kmsg.Request) bool { return !isCommit(r) }, kmsg.EndTxn)
			err := e.checkpoint(m, 2, "b")
			require.Error(t, err)
			require.Equal(t, fault.Unconfirmed, fault.RecoveryOf(err))
			require.NoError(t, m.Abort(e.ctx), "the engine aborts after any failure; nothing must be sent")
			require.ErrorContains(t, m.ProduceBatch(e.ctx, []kgo.Record{{Topic: e.out}}), "slot 1 is unconfirmed")
			require.Zero(t, aborts.Hits())
			require.NoError(t, m.Init(e.ctx))
			off, h := e.committed()
			if applied {
				require.Equal(t, "20 h2", fmt.Sprint(off, " ", h))
				require.ElementsMatch(t, []string{"a", "b"}, e.read(e.out))
			} else {
				require.Equal(t, "10 h1", fmt.Sprint(off, " ", h))
				require.Equal(t, []string{"a"}, e.read(e.out))
			}
			refused.Remove()
			require.NoError(t, e.checkpoint(m, 3, "c"))
		})
	}
}

func isCommit(r kmsg.Request) bool { e, ok := r.(*kmsg.EndTxnRequest); return ok && e.Commit }

func TestFencedByASecondProcessOfTheSameName(t *testing.T) {
	for _, when := range []string{"before produce", "before offsets"} {
		t.Run(when, func(t *testing.T) {
			e := newEnv(t)
			first := e.manager()
			if when == "before offsets" {
				e.produce(first, "zombie")
				require.NoError(t, first.Seal(e.ctx, 1))
			} else {
				// The client knows the partitions, so that it does not ask the broker before the produce.
				require.NoError(t, e.checkpoint(first, 1, "own"))
			}
			second := e.manager()
			require.NoError(t, e.checkpoint(second, 7, "successor"))
			var err error
			if when == "before offsets" {
				err = first.Commit(e.ctx, e.commitOf(1, 1, "zombie"))
			} else {
				err = e.checkpoint(first, 2, "zombie")
			}
			require.Error(t, err)
			require.Equal(t, fault.Rejoin, fault.RecoveryOf(err), "%v", err)
			require.Equal(t, fault.Fenced, fault.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "another process")
			off, h := e.committed()
			require.Equal(t, "70 h7", fmt.Sprint(off, " ", h))
			require.NotContains(t, e.read(e.out), "zombie")
			require.Contains(t, e.read(e.out), "successor")
		})
	}
}

func TestWrongGenerationRejoins(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	fences := map[string]func([]checkpoint.OffsetCommit) (string, int32, string, error){
		"old generation": func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			m, g := e.member.GroupMetadata()
			return m, g - 1, "", nil
		},
		"unknown member": func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			_, g := e.member.GroupMetadata()
			return "nobody", g, "", nil
		},
		"no member":     func([]checkpoint.OffsetCommit) (string, int32, string, error) { return "", -1, "", nil },
		"no generation": func([]checkpoint.OffsetCommit) (string, int32, string, error) { return "m", -1, "", nil },
		"epoch is over": func([]checkpoint.OffsetCommit) (string, int32, string, error) {
			return "", 0, "", errors.New("ownership epoch 1 is over")
		},
	}
	for name, f := range fences {
		t.Run(name, func(t *testing.T) {
			sent := e.tap.Watch(nil, kmsg.TxnOffsetCommit)
			defer sent.Remove()
			m := e.manager(func(c *Config) { c.Fence = f; c.Instance = strings.ReplaceAll(name, " ", "") })
			err := e.checkpoint(m, 1, "x")
			require.Error(t, err)
			require.Equal(t, fault.Rejoin, fault.RecoveryOf(err), "%v", err)
			off, _ := e.committed()
			require.Equal(t, int64(-1), off)
			require.Empty(t, e.read(e.out))
			if strings.HasPrefix(name, "no ") || name == "epoch is over" {
				require.Zero(t, sent.Hits(), "nothing may be sent without a fence")
			}
		})
	}
}

func TestFenceErrorKeepsItsClass(t *testing.T) {
	e := newEnv(t)
	m := e.manager(func(c *Config) {
		c.Fence = func(offsets []checkpoint.OffsetCommit) (string, int32, string, error) {
			return "", 0, "", fault.Stopf(fault.Fenced, "instance id taken in epoch %d", offsets[0].Epoch)
		}
	})
	require.NoError(t, m.Seal(e.ctx, 1))
	err := m.Commit(e.ctx, e.commitOf(1, 1, "h"))
	require.ErrorContains(t, err, "instance id taken in epoch 0")
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Equal(t, fault.Fenced, fault.CodeOf(err))
}

func TestTopicIDIsSent(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	require.NoError(t, m.Seal(e.ctx, 1))
	c := e.commitOf(1, 1, "h")
	for i := range c.Offsets {
		c.Offsets[i].Position.TopicID[0] ^= 0xff // a topic of the same name that was deleted and created again
	}
	err := m.Commit(e.ctx, c)
	require.ErrorIs(t, err, kerr.UnknownTopicID)
	require.ErrorContains(t, err, e.in+"/0")
}

func TestHandleLimit(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	require.NoError(t, m.Seal(e.ctx, 1))
	require.NoError(t, m.Commit(e.ctx, e.commitOf(1, 1, strings.Repeat("h", 4096))))
	require.NoError(t, m.Seal(e.ctx, 2))
	sent := e.tap.Watch(nil, kmsg.TxnOffsetCommit)
	err := m.Commit(e.ctx, e.commitOf(2, 2, strings.Repeat("h", 4097)))
	require.ErrorContains(t, err, "4097 bytes, a broker takes 4096")
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.Zero(t, sent.Hits())
}

func TestCommitNeedsAPermit(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	require.NoError(t, m.Seal(e.ctx, 1))
	c := e.commitOf(1, 1, "h")
	c.Permit = checkpoint.Permit{}
	require.ErrorContains(t, m.Commit(e.ctx, c), "no permit")
	c = e.commitOf(2, 1, "h")
	c.Name.ID = 1
	require.ErrorContains(t, m.Commit(e.ctx, c), "no permit")
	require.NoError(t, m.Commit(e.ctx, e.commitOf(1, 1, "h")))
}

func TestRotationOverThreeIDs(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	var mu sync.Mutex
	var ids []string
	e.tap.Watch(func(r kmsg.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		ids = append(ids, r.(*kmsg.EndTxnRequest).TransactionalID)
		return true
	}, kmsg.EndTxn)
	for id := range uint64(7) {
		require.NoError(t, e.checkpoint(m, checkpointID(id+1), fmt.Sprint("v", id)))
	}
	mu.Lock()
	defer mu.Unlock()
	var want []string
	for i := range 7 {
		want = append(want, TransactionalID(e.group, "i1", i%3))
	}
	require.Equal(t, want, ids)
	require.ElementsMatch(t, []int{0, 1, 2}, e.inits, "no client was replaced")
}

func TestSealedTransactionTakesNoRecord(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "a")
	require.NoError(t, m.Seal(e.ctx, 1))
	late := []kgo.Record{{Topic: e.out, Value: []byte("late")}}
	require.ErrorIs(t, m.ProduceBatch(e.ctx, late), ErrSealed)
	require.ErrorIs(t, m.Produce(e.ctx, &late[0], nil), ErrSealed)
	require.NoError(t, m.Reopen(e.ctx))
	e.produce(m, "b")
	require.NoError(t, m.Seal(e.ctx, 2))
	require.ErrorContains(t, m.Commit(e.ctx, e.commitOf(1, 10, "h1")), "sealed for checkpoint 2")
	require.NoError(t, m.Commit(e.ctx, e.commitOf(2, 20, "h2")))
	require.ElementsMatch(t, []string{"a", "b"}, e.read(e.out))
	_, h := e.committed()
	require.Equal(t, "h2", h)
}

func TestPromiseOfASingleRecord(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	got := make(chan error, 1)
	require.NoError(t, m.Produce(e.ctx, &kgo.Record{Topic: e.out, Value: []byte("a")}, func(_ *kgo.Record, err error) { got <- err }))
	require.NoError(t, m.Seal(e.ctx, 1))
	require.NoError(t, <-got)
	require.NoError(t, m.Abort(e.ctx))
}
