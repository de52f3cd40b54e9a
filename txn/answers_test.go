package txn

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// told is an error that the broker answers in one step of a commit, and what has to become of it.
type told struct {
	step  kmsg.Key
	err   *kerr.Error
	times int
	// done: the broker has done it, and the answer says that it has not.
	done bool
	// class of the error of Seal or Commit; nobody asks for it where the commit succeeds.
	class fault.Recovery
	// stands: the transaction is committed, known at once (the request was sent again) or found after Init.
	stands, known bool
}

func (c told) String() string {
	how := "not done"
	if c.done {
		how = "done"
	}
	return fmt.Sprintf("%s %s/%d %s", c.step.Name(), c.err.Message, c.times, how)
}

// tells gives the errors that may come back from each step. What a broker answers TRANSACTION_ABORTABLE to, it has not
// done; a moved coordinator or a fencing may as well be the answer to the second of two attempts.
func tells() (cases []told) {
	again := func(step kmsg.Key, done bool, times int, errs ...*kerr.Error) {
		for _, e := range errs {
			cases = append(cases, told{step: step, err: e, times: times, done: done, stands: true, known: true})
		}
	}
	back := func(step kmsg.Key, done bool, class fault.Recovery, errs ...*kerr.Error) {
		for _, e := range errs {
			cases = append(cases, told{step: step, err: e, times: 1, done: done, class: class, stands: done && step == kmsg.EndTxn})
		}
	}
	back(kmsg.Produce, false, fault.Restart, kerr.TransactionAbortable, kerr.InvalidTxnState)
	back(kmsg.Produce, true, fault.Restart, kerr.TransactionAbortable, kerr.InvalidTxnState)
	back(kmsg.Produce, false, fault.Rejoin, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping)
	back(kmsg.Produce, true, fault.Rejoin, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping)
	again(kmsg.Produce, false, 3, kerr.ConcurrentTransactions, kerr.NotLeaderForPartition, kerr.NotEnoughReplicas)
	again(kmsg.Produce, true, 1, kerr.NotLeaderForPartition, kerr.NotEnoughReplicasAfterAppend)

	moves := []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions}
	for _, done := range []bool{false, true} {
		back(kmsg.TxnOffsetCommit, done, fault.Restart, kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.RequestTimedOut)
		back(kmsg.TxnOffsetCommit, done, fault.Rejoin, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidProducerIDMapping, kerr.UnknownMemberID)
		again(kmsg.TxnOffsetCommit, done, 3, moves...)
		again(kmsg.TxnOffsetCommit, done, 3, kerr.IllegalGeneration)

		back(kmsg.EndTxn, done, fault.Unconfirmed, kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.RequestTimedOut, kerr.UnknownServerError)
		back(kmsg.EndTxn, done, fault.Rejoin, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidProducerIDMapping)
		again(kmsg.EndTxn, done, 3, moves...)
	}
	return cases
}

// TestC05_ErrorsAnsweredInEachStep: whatever a step is answered with, the checkpoint stands as a whole or not at all, what
// the caller is told is true, and the next one goes on from there.
func TestC05_ErrorsAnsweredInEachStep(t *testing.T) {
	testbed.Alongside(t)
	for _, c := range tells() {
		t.Run(c.String(), func(t *testing.T) {
			e := newEnv(t)
			m := e.manager()
			require.NoError(t, e.checkpoint(m, 1, "one"))
			e.produce(m, "two") // the transaction is open on the broker before the error
			require.NoError(t, m.current().cl.Flush(e.ctx))
			rule := e.tell(c)
			err := e.checkpoint(m, 2, "two", "two")
			require.Equal(t, c.times, rule.Told())
			rule.Remove()
			want := []string{"one"}
			if c.stands {
				want = append(want, "two", "two", "two")
			}
			if c.known {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.class, fault.RecoveryOf(err), "%v", err)
				require.NoError(t, m.Abort(e.ctx), "nothing is open any more")
				require.NoError(t, m.Init(e.ctx))
			}
			e.stands(c.stands, 2)
			require.ElementsMatch(t, want, e.read(e.out))
			for id := range uint64(DefaultSlots) { // each id goes on
				require.NoError(t, e.checkpoint(m, checkpointID(id+3), "next"))
				want = append(want, "next")
			}
			e.stands(true, 2+DefaultSlots)
			require.ElementsMatch(t, want, e.read(e.out))
		})
	}
}

// tell adds the rule of a case.
func (e *env) tell(c told) *testbed.Rule {
	rule := &testbed.Rule{Keys: []kmsg.Key{c.step}}
	if c.step == kmsg.EndTxn {
		rule.When = isCommit
	}
	if c.done {
		rule.Rewrite = testbed.Times(c.times, c.err)
	} else {
		rule.Answer = testbed.Times(c.times, c.err)
	}
	return e.tap.Add(rule)
}

// stands wants the offsets of checkpoint id, or of the one before it.
func (e *env) stands(stands bool, id int) {
	e.t.Helper()
	if !stands {
		id--
	}
	off, h := e.committed()
	require.Equal(e.t, fmt.Sprintf("%d h%d", id*10, id), fmt.Sprint(off, " ", h))
}

// TestErrorsAnsweredToAnAbort: an abort that is refused, or was done and is answered with an error, is none that commits.
func TestErrorsAnsweredToAnAbort(t *testing.T) {
	testbed.Alongside(t)
	for _, done := range []bool{false, true} {
		for _, err := range []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions,
			kerr.TransactionAbortable, kerr.InvalidTxnState, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidProducerIDMapping, kerr.RequestTimedOut} {
			c := told{step: kmsg.EndTxn, err: err, times: 1, done: done}
			t.Run(c.String(), func(t *testing.T) {
				e := newEnv(t)
				m := e.manager(func(c *Config) { c.Slots = 1 })
				require.NoError(t, e.checkpoint(m, 1, "one"))
				rule := e.tell(c)
				rule.When = nil
				e.produce(m, "two")
				require.NoError(t, m.Seal(e.ctx, 2))
				if aborted := m.Abort(e.ctx); aborted != nil {
					require.ErrorIs(t, aborted, err)
					require.NotEqual(t, fault.Unconfirmed, fault.RecoveryOf(aborted))
					require.NotEqual(t, fault.Stop, fault.RecoveryOf(aborted))
				}
				require.Equal(t, 1, rule.Told())
				require.NoError(t, m.Init(e.ctx))
				e.stands(false, 2)
				require.NoError(t, e.checkpoint(m, 3, "three"))
				e.stands(true, 3)
				require.Equal(t, []string{"one", "three"}, e.read(e.out))
			})
		}
	}
}

// TestErrorsAnsweredToAnInitialisation: one that passes is waited for; what is not for the client to try again is an error
// of its class, and the next Init mends it. Both also when the broker has initialised the id.
func TestErrorsAnsweredToAnInitialisation(t *testing.T) {
	testbed.Alongside(t)
	for _, done := range []bool{false, true} {
		for err, passes := range map[*kerr.Error]bool{
			kerr.NotCoordinator: true, kerr.CoordinatorLoadInProgress: true, kerr.CoordinatorNotAvailable: true, kerr.ConcurrentTransactions: true,
			kerr.ProducerFenced: false, kerr.TransactionAbortable: false,
		} {
			c := told{step: kmsg.InitProducerID, err: err, times: 3, done: done}
			t.Run(c.String(), func(t *testing.T) {
				e := newEnv(t)
				old := e.manager()
				require.NoError(t, e.checkpoint(old, 1, "one"))
				e.produce(old, "two")
				require.NoError(t, old.Seal(e.ctx, 2))
				old.Close() // a crash with a transaction open
				m, bad := NewManager(e.config())
				require.NoError(t, bad)
				defer m.Close()
				rule := e.tell(c)
				got := m.Init(e.ctx)
				require.Equal(t, 3, rule.Told())
				if !passes {
					require.ErrorIs(t, got, err)
					require.NotEqual(t, fault.Stop, fault.RecoveryOf(got), "%v", got)
					got = m.Init(e.ctx)
				}
				require.NoError(t, got)
				e.stands(true, 1)
				require.NoError(t, e.checkpoint(m, 3, "three"))
				require.Equal(t, []string{"one", "three"}, e.read(e.out))
			})
		}
	}
}

// until is a context whose time is over when a channel is closed.
type until struct {
	context.Context
	over chan struct{}
}

func (u *until) Done() <-chan struct{} { return u.over }

func (u *until) Err() error {
	select {
	case <-u.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestACoordinatorThatStaysAway: the offsets are sent again as long as the caller has time, and then everything is dropped.
func TestACoordinatorThatStaysAway(t *testing.T) {
	testbed.Alongside(t)
	for _, err := range []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.ConcurrentTransactions} {
		t.Run(err.Message, func(t *testing.T) {
			e := newEnv(t)
			m := e.manager()
			require.NoError(t, e.checkpoint(m, 1, "one"))
			asked := make(chan struct{}, 100)
			away := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Answer: func(kmsg.Request) *kerr.Error {
				select {
				case asked <- struct{}{}:
				default:
				}
				return err
			}})
			e.produce(m, "two")
			require.NoError(t, m.Seal(e.ctx, 2))
			ctx := &until{Context: e.ctx, over: make(chan struct{})}
			go func() {
				for range 3 {
					<-asked
				}
				close(ctx.over)
			}()
			got := m.Commit(ctx, e.commitOf(2, 20, "h2"))
			require.ErrorIs(t, got, context.DeadlineExceeded)
			require.Equal(t, fault.Restart, fault.RecoveryOf(got))
			require.Greater(t, away.Told(), 1)
			away.Remove()
			e.stands(false, 2)
			require.NoError(t, e.checkpoint(m, 3, "three"))
			require.Equal(t, []string{"one", "three"}, e.read(e.out))
		})
	}
}
