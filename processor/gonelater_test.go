package processor

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
)

// The brokers could not list their transactions as long as the successor of a dead instance was ready to wait. It has gone
// to work; the dead one's output still holds readers up, so it is looked for until the brokers answer.
func TestWhatADeadInstanceLeftOpenIsLookedForUntilTheBrokersAnswer(t *testing.T) {
	testbed.Alongside(t)
	tb, fake := testbed.NewFake(t, "the broker answers with an error of its own")
	b := bedOn(t, tb)
	app := "later" + inTopic()
	as := func(instance string) Config {
		cfg := b.config()
		cfg.InstanceID, cfg.DataDir, cfg.CheckpointsDir = instance, filepath.Join(b.dir, instance), filepath.Join(b.dir, "checkpoints")
		cfg.SessionTimeout = 6 * time.Second
		return cfg
	}
	b.produce(0, 500)
	stop := b.start(countPlan(t, app), as("a"))
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	_, err := tb.Admin().LeaveGroup(t.Context(), kadm.LeaveGroup(app).InstanceIDs("a"))
	require.NoError(t, err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.TransactionalID(app+"-a-1"), kgo.TransactionTimeout(time.Minute))
	require.NoError(t, err)
	defer cl.Close()
	require.NoError(t, cl.BeginTransaction())
	require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: outTopic(), Value: make([]byte, 16)}).FirstErr())

	refused := fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListTransactions}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
	b.produce(500, 500)
	stop = b.start(countPlan(t, app), as("b"))
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, goneWait+10*time.Second, 20*time.Millisecond)
	refused.Remove()
	require.Eventually(t, func() bool {
		stable, err := tb.Admin().ListCommittedOffsets(t.Context(), outTopic())
		require.NoError(t, err)
		high, err := tb.Admin().ListEndOffsets(t.Context(), outTopic())
		require.NoError(t, err)
		open := false
		high.Each(func(o kadm.ListedOffset) {
			s, _ := stable.Lookup(o.Topic, o.Partition)
			open = open || s.Offset != o.Offset
		})
		return !open
	}, goneLater+3*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	r := b.verify()
	require.True(t, r.Exact(), "%s", r.String())
	require.EqualValues(t, 1000, r.RecordsOut)
}
