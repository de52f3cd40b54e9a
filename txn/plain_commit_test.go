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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// What a real group coordinator says to a stranger and to a generation that is over.
func TestPlainCommitOfAStranger(t *testing.T) {
	testbed.Alongside(t)
	for _, name := range []string{"unknown member", "old generation", "empty member", "no fence"} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			hits := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}})
			sends := 0
			p := e.plain(func(c *Config) {
				c.Fence = func([]checkpoint.OffsetCommit) (string, int32, string, error) {
					sends++
					member, generation := e.member.GroupMetadata()
					switch name {
					case "unknown member":
						return member + "x", generation, "", nil
					case "old generation":
						return member, generation - 1, "", nil
					case "empty member":
						return "", generation, "", nil
					}
					return "", 0, "", fault.New(fault.Rejoin, fault.Failed, "the partition was lost")
				}
			})
			err := e.plainCheckpoint(p, 1, "a")
			require.Error(t, err)
			require.Equal(t, fault.Rejoin, fault.RecoveryOf(err), "%v", err)
			require.ErrorAs(t, err, new(*checkpoint.RefusedError))
			switch name {
			case "unknown member":
				require.ErrorIs(t, err, kerr.UnknownMemberID)
				require.Equal(t, 1, sends)
			case "old generation":
				require.ErrorIs(t, err, kerr.IllegalGeneration)
				require.Equal(t, maxStale+1, sends)
			default:
				require.Zero(t, hits.Hits(), "nothing is sent")
			}
			off, _ := e.committed()
			require.Equal(t, int64(-1), off)
		})
	}
}

// TestPlainAnswersToACommit has the broker answer a commit with an error a number of times.
func TestPlainAnswersToACommit(t *testing.T) {
	testbed.Alongside(t)
	for _, c := range []struct {
		err   *kerr.Error
		times int // -1 = for ever
		class fault.Recovery
		code  fault.Code
		fine  bool
	}{
		{err: kerr.CoordinatorLoadInProgress, times: 3, fine: true},
		{err: kerr.NotCoordinator, times: 3, fine: true},
		{err: kerr.CoordinatorNotAvailable, times: 3, fine: true},
		{err: kerr.RebalanceInProgress, times: 5, fine: true},
		{err: kerr.RequestTimedOut, times: 3, fine: true},
		{err: kerr.IllegalGeneration, times: 5, fine: true},
		{err: kerr.IllegalGeneration, times: -1, class: fault.Rejoin, code: fault.Failed},
		{err: kerr.UnknownMemberID, times: 1, class: fault.Rejoin, code: fault.Failed},
		{err: kerr.FencedInstanceID, times: 1, class: fault.Stop, code: fault.Fenced},
		{err: kerr.GroupAuthorizationFailed, times: 1, class: fault.Stop, code: fault.Denied},
		{err: kerr.OffsetMetadataTooLarge, times: 1, class: fault.Stop, code: fault.Denied},
		{err: kerr.UnknownTopicOrPartition, times: 1, class: fault.Restart, code: fault.UnknownTopic},
		{err: kerr.UnknownServerError, times: 1, fine: true}, // of two partitions: each alone is taken
		{err: kerr.InvalidRequest, times: 1, class: fault.Restart, code: fault.Failed},
	} {
		t.Run(fmt.Sprint(c.err.Message, " ", c.times), func(t *testing.T) {
			e := newEnv(t)
			fences := 0
			p := e.plain(func(cfg *Config) {
				cfg.Fence = func(o []checkpoint.OffsetCommit) (string, int32, string, error) { fences++; return e.fence(o) }
			})
			require.NoError(t, e.plainCheckpoint(p, 1, "a"))
			fences = 0
			e.bed.Fake("a broker that answers commits with errors").Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: c.err, Count: c.times})
			err := e.plainCheckpoint(p, 2, "b")
			if c.fine {
				require.NoError(t, err)
				require.Positive(t, fences)
				e.requireCommitted(2)
				return
			}
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.class, fault.RecoveryOf(err), "%v", err)
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Equal(t, map[bool]int{true: 1, false: maxStale + 1}[c.times == 1], fences, "the fence is read before each send")
		})
	}
}

// judge takes the worst of what the partitions are answered with, and an answer that leaves one out for none.
func TestPlainJudgesEveryPartition(t *testing.T) {
	asked := []checkpoint.OffsetCommit{{Position: element.Position{TopicPartition: element.TopicPartition{Topic: "t"}}},
		{Position: element.Position{TopicPartition: element.TopicPartition{Topic: "t", Partition: 1}}}}
	answer := func(errs ...*kerr.Error) *kmsg.OffsetCommitResponse {
		resp := kmsg.NewPtrOffsetCommitResponse()
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic = "t"
		for i, e := range errs {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			if rp.Partition = int32(i); e != nil {
				rp.ErrorCode = e.Code
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
		return resp
	}
	require.NoError(t, judge(answer(nil, nil), asked).err)
	s := judge(answer(nil, kerr.NotCoordinator), asked)
	require.True(t, s.again)
	require.ErrorContains(t, s.err, "t/1: NOT_COORDINATOR")
	s = judge(answer(kerr.NotCoordinator, kerr.UnknownMemberID), asked)
	require.False(t, s.again)
	require.ErrorIs(t, s.err, kerr.UnknownMemberID)
	s = judge(answer(kerr.UnknownMemberID, kerr.OffsetMetadataTooLarge), asked)
	require.Equal(t, fault.Stop, s.rec)
	s = judge(answer(kerr.UnknownTopicOrPartition, kerr.NotCoordinator), asked)
	require.Equal(t, fault.UnknownTopic, s.code)
	s = judge(answer(nil), asked)
	require.True(t, s.again && s.lost)
	require.ErrorContains(t, s.err, "1 of 2 partitions")
}

// An answer that is lost does not matter: the offsets are sent again, and if time runs out, a read tells.
func TestPlainLostAnswers(t *testing.T) {
	testbed.Alongside(t)
	t.Run("once", func(t *testing.T) {
		e := newEnv(t)
		p := e.plain()
		left := 3
		rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, When: func(kmsg.Request) bool { left--; return left >= 0 }, Cut: true})
		require.NoError(t, e.plainCheckpoint(p, 1, "a"))
		require.Equal(t, 3, rule.Hits())
		e.requireCommitted(1)
	})
	t.Run("for ever", func(t *testing.T) {
		e := newEnv(t)
		p := e.plain(func(c *Config) { c.Timeout = time.Second })
		mute := make(chan struct{})
		defer close(mute)
		rule := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, Mute: mute})
		err := e.plainCheckpoint(p, 1, "a")
		require.Equal(t, fault.Unconfirmed, fault.RecoveryOf(err), "%v", err)
		rule.Remove()
		e.requireCommitted(1)
		require.NoError(t, p.Init(e.ctx))
		require.NoError(t, e.plainCheckpoint(p, 2, "b"))
		e.requireCommitted(2)
	})
	t.Run("patience", func(t *testing.T) {
		e := newEnv(t)
		patience, over := context.WithCancel(e.ctx)
		p := e.plain(func(c *Config) { c.Patience = patience })
		mute := make(chan struct{})
		defer close(mute)
		sent := func(kmsg.Request) bool { time.AfterFunc(100*time.Millisecond, over); return true }
		e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, When: sent, Mute: mute})
		require.Equal(t, fault.Unconfirmed, fault.RecoveryOf(e.plainCheckpoint(p, 1, "a")))
	})
}

// A delayed copy of a commit may set the group back. It is a complete checkpoint, and the next commit goes beyond it.
func TestPlainDelayedCopySetsBackByOne(t *testing.T) {
	e := newEnv(t)
	p := e.plain()
	require.NoError(t, e.plainCheckpoint(p, 1, "a"))
	require.NoError(t, e.plainCheckpoint(p, 2, "b"))
	member, generation, _, err := e.fence(nil)
	require.NoError(t, err)
	req := plainRequest(e.commitOf(1, 10, "h1").Offsets)
	req.Group, req.MemberID, req.Generation = e.group, member, generation
	resp, err := req.RequestWith(e.ctx, e.admin)
	require.NoError(t, err)
	require.NoError(t, judge(resp, e.commitOf(1, 10, "h1").Offsets).err)
	e.requireCommitted(1)
	require.NoError(t, e.plainCheckpoint(p, 3, "c"))
	e.requireCommitted(3)
}

// Whether a commit that failed may still have happened, or happen, is known from the answers to all its copies.
func TestPlainCommitsThatWereSurelyRefused(t *testing.T) {
	testbed.Alongside(t)
	for _, c := range []struct {
		err  *kerr.Error
		cut  int  // copies without an answer before it
		gone bool // the broker has closed their connections: the client sends the next copy by itself
		sure bool
	}{
		{err: kerr.IllegalGeneration, sure: true}, {err: kerr.UnknownMemberID, sure: true}, {err: kerr.FencedInstanceID, sure: true},
		{err: kerr.GroupAuthorizationFailed, sure: true}, {err: kerr.UnknownTopicOrPartition, sure: true},
		{err: kerr.NotCoordinator}, {err: kerr.CoordinatorNotAvailable}, {err: kerr.RequestTimedOut},
		{err: kerr.UnknownMemberID, cut: 1}, {err: kerr.FencedInstanceID, cut: 2},
		{err: kerr.UnknownMemberID, cut: 1, gone: true}, {err: kerr.FencedInstanceID, cut: 2, gone: true},
	} {
		t.Run(fmt.Sprint(c.err.Message, " ", c.cut, " ", c.gone), func(t *testing.T) {
			e := newEnv(t)
			tried := !c.sure && c.cut == 0 // until the time is over
			p := e.plain(func(cfg *Config) {
				if tried {
					cfg.Timeout = time.Second
				}
			})
			require.NoError(t, e.plainCheckpoint(p, 1, "a"))
			left := c.cut
			e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.OffsetCommit}, When: func(kmsg.Request) bool { left--; return left >= 0 }, Cut: !c.gone, Closed: c.gone})
			e.bed.Fake("a broker that answers commits with errors").Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: c.err, Count: -1})
			err := e.plainCheckpoint(p, 2, "b")
			require.Error(t, err)
			if !tried {
				require.ErrorIs(t, err, c.err)
			}
			require.Equal(t, c.sure, errors.As(err, new(*checkpoint.RefusedError)), "%v", err)
		})
	}
	asked := []checkpoint.OffsetCommit{{}, {Position: element.Position{TopicPartition: element.TopicPartition{Partition: 1}}}}
	rt := kmsg.NewOffsetCommitResponseTopic()
	rt.Partitions = []kmsg.OffsetCommitResponseTopicPartition{{}, {Partition: 1, ErrorCode: kerr.UnknownTopicOrPartition.Code}}
	require.True(t, judge(&kmsg.OffsetCommitResponse{Topics: []kmsg.OffsetCommitResponseTopic{rt}}, asked).lost, "one of them is taken")
	rt.Partitions = rt.Partitions[1:]
	require.True(t, judge(&kmsg.OffsetCommitResponse{Topics: []kmsg.OffsetCommitResponseTopic{rt}}, asked).maybe, "nothing is said of one of them")
}
