package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// diesAndTheInputIsMadeAnew leaves a static membership that has all of the input, as a process that was killed does, and makes the
// input anew with fewer partitions.
func (b *bed) diesAndTheInputIsMadeAnew(app string, cfg Config, whole bool) {
	b.t.Helper()
	ctx := b.t.Context()
	dead, err := kafkasrc.JoinGroup(ctx, kafkasrc.GroupConfig{Kafka: kafka.Config{Brokers: []string{b.addr}}, Group: app, InstanceID: cfg.InstanceID,
		SessionTimeout: time.Minute, Topics: []string{inTopic()}, Whole: whole})
	require.NoError(b.t, err)
	require.Eventually(b.t, func() bool { return len(dead.Current().Partitions) == 4 }, 20*time.Second, 10*time.Millisecond)
	dead.Close()
	adm := kadm.NewClient(b.cl)
	_, err = adm.DeleteTopic(ctx, inTopic())
	require.NoError(b.t, err)
	require.Eventually(b.t, func() bool {
		_, err := adm.CreateTopic(ctx, 2, -1, nil, inTopic())
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	b.cl.PurgeTopicsFromClient(inTopic())
	_, err = adm.DeleteOffsets(ctx, app, kadm.TopicsSet{inTopic(): {0: {}, 1: {}, 2: {}, 3: {}}}) // Kafka deletes them with the topic
	require.NoError(b.t, err)
}

// regrouped counts behind an exchange.
func regrouped(t *testing.T, app string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String())
	in = topology.GroupBy(in, "by", serde.String(), serde.String(), func(k, _ string) string { return k })
	topology.ToTopic(topology.Count(in, "count"), "out", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// The group gives a process that starts in place of a killed one what that had: also partitions that the topic, made anew since, has not.
// The refusal is that of a topic made anew, and what it advises is done at once.
func TestAKilledInstancesInputIsMadeAnewWithFewerPartitions(t *testing.T) {
	for _, name := range []string{"refused", "let go", "exchange"} {
		t.Run(name, func(t *testing.T) {
			testbed.Alongside(t)
			b := newBed(t)
			const app = "anew"
			plan, whole := countByKey(t, app), name == "exchange"
			if whole {
				plan = regrouped(t, app)
			}
			cfg := b.config()
			cfg.InstanceID = "one"
			stop := b.start(plan, cfg)
			b.put(40)
			b.keepsUp(app)
			require.NoError(t, stop())

			b.diesAndTheInputIsMadeAnew(app, cfg, whole)
			if cfg.AllowDroppedState = name != "refused"; cfg.AllowDroppedState {
				b.start(plan, cfg)
				b.put(20)
				b.keepsUp(app)
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			for range 2 { // the first one leaves the group, so that the second one joins anew
				err := Run(ctx, plan, cfg)
				require.Equal(t, int(fault.HandleMismatch), ExitCode(err), "%v", err)
				require.ErrorContains(t, err, "it was deleted and created again")
				require.ErrorContains(t, err, "--allow-dropped-state")
			}
		})
	}
}
