package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/txn"
)

// Failures are tolerated as long as the transaction has time for the next checkpoint, however many may fail.
func TestSettingTransactionTimeoutBoundsWhatIsTolerated(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.TolerableFailures, s.cfg.Restart = -1, restart.Config{Strategy: restart.None}
	s.cfg.CheckpointTimeout, s.cfg.TransactionTimeout = 900*time.Millisecond, 6*time.Second
	s.beforePersist(hang)
	s.put(10)
	done := make(chan error, 1)
	go func() { done <- Run(t.Context(), s.plan(0), s.cfg) }()
	select {
	case err := <-done:
		require.ErrorContains(t, err, "900ms")
		require.GreaterOrEqual(t, s.givenUp(), 3)
	case <-time.After(15 * time.Second):
		t.Fatal("failures are tolerated although the transaction is over")
	}
}

// What a cancel and a reset begin or end themselves has the timeout of the settings: another one the brokers may refuse.
func TestSettingTransactionTimeoutOfCommands(t *testing.T) {
	testbed.Alongside(t)
	tb, _ := testbed.NewFake(t, "it has a limit of its own", kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "10000"}))
	b := bedOn(t, tb)
	const app = "narrow"
	cfg, _ := b.instance("a")
	cfg.InstanceID, cfg.Retention = "a", DeleteOnCancellation
	cfg.CheckpointTimeout, cfg.TransactionTimeout = 4*time.Second, 10*time.Second
	left := func() { // by an instance that was killed
		repo, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: cfg.CheckpointsDir, Application: app, Instance: "b", NumRetained: 1})
		require.NoError(t, err)
		require.NoError(t, repo.Announce(t.Context()))
		require.NoError(t, repo.Close())
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID(txn.TransactionalID(app, "b", 0)), kgo.TransactionTimeout(cfg.TransactionTimeout))
		require.NoError(t, err)
		defer cl.Close()
		require.NoError(t, cl.BeginTransaction())
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: outTopic(), Value: make([]byte, 8)}).FirstErr())
	}
	for _, end := range []func(context.Context) error{
		func(ctx context.Context) error {
			out, err := Cancel(ctx, app, cfg, Send{Timeout: 10 * time.Second})
			require.NotNil(t, out.Deleted, "%v %v", out, err)
			return err
		},
		func(ctx context.Context) error {
			r, err := PlanReset(ctx, app, cfg)
			require.NoError(t, err)
			return r.Do(ctx)
		},
	} {
		stop := b.start(countByKey(t, app), cfg)
		b.put(10)
		b.keepsUp(app)
		require.NoError(t, stop())
		_, err := kadm.NewClient(b.cl).LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("a"))
		require.NoError(t, err)
		left()
		require.NoError(t, end(t.Context()))
	}
}

// A commit that no broker answers is waited for until the shutdown timeout is over.
func TestSettingShutdownTimeoutEndsACommit(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	s.cfg.ShutdownTimeout, s.cfg.Interval, s.cfg.Restart = time.Second, 10*time.Minute, restart.Config{Strategy: restart.None}
	var tap testbed.Tap
	s.cfg.ClientOptions = []kgo.Opt{tap.Opt()}
	stop := s.start(s.plan(0), s.cfg)
	s.put(10)
	s.eventually(func() bool { return s.lag(s.app) == 0 }, "the first one")
	mute := make(chan struct{})
	t.Cleanup(func() { close(mute) })
	tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.EndTxn}, Mute: mute})
	s.put(10)
	s.eventually(func() bool { return s.seen.Load() == 20 }, "processed")
	began := time.Now()
	_ = stop() // nobody knows whether the last checkpoint is committed
	took := time.Since(began)
	require.GreaterOrEqual(t, took, 900*time.Millisecond, "the answer has its time")
	require.Less(t, took, 8*time.Second)
}
