package txn

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

const shortTimeout = time.Second

// timedOut waits until the broker has aborted the transaction that is open on the output.
func (e *env) timedOut() {
	e.t.Helper()
	time.Sleep(shortTimeout) // read waits for the rest
	require.Empty(e.t, e.read(e.out))
}

// TestTransactionThatTimesOutIsNeverCommitted has the broker abort a transaction that stayed open too long, at each step
// that may come next. Whatever the answer is, nothing of it shows, and the same process goes on after Init.
func TestTransactionThatTimesOutIsNeverCommitted(t *testing.T) {
	testbed.Alongside(t)
	for _, when := range []string{"while records are produced", "before the offsets", "before the end"} {
		t.Run(when, func(t *testing.T) {
			e := newEnv(t)
			m := e.manager(func(c *Config) { c.Timeout, c.Slots = shortTimeout, 1 })
			e.produce(m, "late")
			var err error
			switch when {
			case "while records are produced":
				require.Eventually(t, func() bool { return m.current().pending.Load() == 1 }, 5*time.Second, time.Millisecond)
				e.timedOut()
				err = e.checkpoint(m, 1, "after the timeout")
			case "before the offsets":
				require.NoError(t, m.Seal(e.ctx, 1))
				e.timedOut()
				err = m.Commit(e.ctx, e.commitOf(1, 10, "h1"))
			case "before the end":
				require.NoError(t, m.Seal(e.ctx, 1))
				rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.EndTxn}, When: isCommit, Before: func(kmsg.Request) error {
					e.timedOut()
					return nil
				}})
				err = m.Commit(e.ctx, e.commitOf(1, 10, "h1"))
				rule.Remove()
			}
			require.Error(t, err)
			t.Log(err)
			require.NotEqual(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
			require.NoError(t, m.Init(e.ctx))
			off, _ := e.committed()
			require.Equal(t, int64(-1), off)
			require.NoError(t, e.checkpoint(m, 2, "again"))
			require.Equal(t, []string{"again"}, e.read(e.out))
			off, h := e.committed()
			require.Equal(t, "20 h2", fmt.Sprint(off, " ", h))
		})
	}
}

// TestOneIDBackToBack begins each transaction while the markers of the last one of the same id may still be on their way:
// the broker answers CONCURRENT_TRANSACTIONS until they are written.
func TestOneIDBackToBack(t *testing.T) {
	e := newEnv(t)
	m := e.manager(func(c *Config) { c.Slots = 1 })
	var want []string
	retries := 0
	for id := range uint64(40) {
		v := fmt.Sprint("v", id+1)
		want = append(want, v)
		require.NoError(t, e.checkpoint(m, checkpointID(id+1), v))
		if id%10 == 3 { // an abort in between
			e.produce(m, "aborted")
			require.NoError(t, m.Seal(e.ctx, 100))
			require.NoError(t, m.Abort(e.ctx))
		}
	}
	for _, s := range e.ended {
		retries += s.Retries
	}
	t.Log("offsets sent again:", retries)
	require.Equal(t, want, e.read(e.out))
	off, h := e.committed()
	require.Equal(t, "400 h40", fmt.Sprint(off, " ", h))
}

// TestAbortAfterOffsetsReachedTheBroker aborts where both output and offsets are in the transaction: neither stays, nor
// does the next transaction of the same id take the offsets over.
func TestAbortAfterOffsetsReachedTheBroker(t *testing.T) {
	e := newEnv(t)
	m := e.manager(func(c *Config) { c.Slots, c.EndTimeout = 1, 2*time.Second })
	require.NoError(t, e.checkpoint(m, 1, "one"))
	cut := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Cut: true})
	ends := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, When: func(kmsg.Request) bool { return cut.Hits() > 1 }, Before: func(kmsg.Request) error {
		return errors.New("connection cut")
	}})
	e.produce(m, "two")
	require.NoError(t, m.Seal(e.ctx, 2))
	ctx, cancel := context.WithTimeout(e.ctx, time.Second)
	defer cancel()
	err := m.Commit(ctx, e.commitOf(2, 20, "h2"))
	require.Error(t, err)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
	cut.Remove()
	ends.Remove()
	require.NoError(t, m.Init(e.ctx))
	off, h := e.committed()
	require.Equal(t, "10 h1", fmt.Sprint(off, " ", h))
	only := e.commitOf(3, 30, "h3")
	only.Offsets = only.Offsets[1:]
	require.NoError(t, m.Seal(e.ctx, 3))
	require.NoError(t, m.Commit(e.ctx, only))
	require.Equal(t, map[int32]string{0: "10 h1", 1: "30 h3"}, e.committedPer())
	require.Equal(t, []string{"one"}, e.read(e.out))
}

// TestMarkerTopicIsMadeAgain: without its marker topic an instance that has no output could never commit again.
func TestMarkerTopicIsMadeAgain(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	m := e.manager(func(c *Config) { c.Slots = 1 })
	require.NoError(t, e.checkpoint(m, 1))
	e.bed.DeleteTopic(e.markers)
	var err error
	id := uint64(2)
	require.Eventually(t, func() bool {
		defer func() { id++ }()
		if err = e.checkpoint(m, checkpointID(id)); err == nil {
			return true
		}
		require.NotEqual(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
		require.NoError(t, m.Init(e.ctx))
		return false
	}, 20*time.Second, 50*time.Millisecond, "%v", err)
	_, h := e.committed()
	require.Equal(t, fmt.Sprint("h", id-1), h)
	require.Len(t, e.read(e.markers), 1)
}

// TestInputTopicDeletedBeforeTheOffsets: the offsets of a topic that is gone are refused and all is dropped.
func TestInputTopicDeletedBeforeTheOffsets(t *testing.T) {
	e := newEnv(t)
	m := e.manager()
	e.produce(m, "a")
	require.NoError(t, m.Seal(e.ctx, 1))
	e.bed.DeleteTopic(e.in)
	err := m.Commit(e.ctx, e.commitOf(1, 10, "h1"))
	require.ErrorContains(t, err, e.in+"/")
	require.True(t, errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition), "%v", err)
	require.NotEqual(t, fault.Unconfirmed, fault.RecoveryOf(err))
	require.Empty(t, e.read(e.out))
}

// TestOutputTopicDeletedBeforeTheCommit: output that was acknowledged goes with its topic; the rest and the offsets are
// committed, and the id stays usable.
func TestOutputTopicDeletedBeforeTheCommit(t *testing.T) {
	e := newEnv(t)
	other := e.bed.Topic("other", 1, nil)
	m := e.manager(func(c *Config) { c.Slots = 1 })
	e.produce(m, "gone")
	require.NoError(t, m.ProduceBatch(e.ctx, []kgo.Record{{Topic: other, Value: []byte("stays")}}))
	require.NoError(t, m.Seal(e.ctx, 1))
	e.bed.DeleteTopic(e.out)
	require.NoError(t, m.Commit(e.ctx, e.commitOf(1, 10, "h1")))
	_, h := e.committed()
	require.Equal(t, "h1", h)
	require.NoError(t, m.ProduceBatch(e.ctx, []kgo.Record{{Topic: other, Value: []byte("next")}}))
	require.NoError(t, e.checkpoint(m, 2))
	require.Equal(t, []string{"stays", "next"}, e.read(other))
}

// TestOutputTopicMadeAgain: a client never takes the id of a topic that is made again under its name, so it must be
// replaced; each slot has one.
func TestOutputTopicMadeAgain(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	m := e.manager()
	for id := range uint64(3) {
		require.NoError(t, e.checkpoint(m, checkpointID(id+1), "old"))
	}
	e.bed.DeleteTopic(e.out)
	e.bed.CreateTopic(e.out, 4, nil)
	var err error
	failed, id := 0, uint64(4)
	for ; id < 20; id++ {
		if err = e.checkpoint(m, checkpointID(id), "new"); err == nil {
			break
		}
		failed++
		require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
		require.Equal(t, fault.UnknownTopic, fault.CodeOf(err), "%v", err)
		require.NoError(t, m.Init(e.ctx))
	}
	require.NoError(t, err)
	t.Log("attempts that failed:", failed)
	require.LessOrEqual(t, failed, DefaultSlots)
	require.Equal(t, []string{"new"}, e.read(e.out))
	_, h := e.committed()
	require.Equal(t, fmt.Sprint("h", id), h)
}

// TestMarkerTopicThatTheBrokersDoNotKnowYet: on a busy cluster it takes a while until all brokers list a topic that was just
// made. That is no mistake of the configuration and ends nothing for good.
func TestMarkerTopicThatTheBrokersDoNotKnowYet(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	fake := e.bed.Fake("metadata without a topic that is there")
	m, err := NewManager(e.config())
	require.NoError(t, err)
	defer m.Close()
	late := fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: e.markers, Err: kerr.UnknownTopicOrPartition, Count: -1})
	err = m.Init(e.ctx)
	require.Error(t, err)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
	late.Remove()
	require.NoError(t, m.Init(e.ctx))
	require.NoError(t, e.checkpoint(m, 1))
	require.Len(t, e.read(e.markers), 1)
}
