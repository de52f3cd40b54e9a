package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/kafkasrc"
)

// A session that the brokers do not allow is refused at the start, with what to change.
func TestASessionThatTheBrokersDoNotAllowIsRefused(t *testing.T) {
	for name, session := range map[string]time.Duration{"too short": time.Second, "too long": 2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			tb, _ := testbed.NewFake(t, "the limits of the embedded broker are those of Kafka")
			b := bedOn(t, tb)
			cfg := b.config()
			cfg.SessionTimeout = session
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := Run(ctx, countPlan(t, "session"), cfg)
			require.ErrorContains(t, err, "group.min.session.timeout.ms")
			require.Equal(t, int(fault.BadFile), ExitCode(err))
		})
	}
}

// A cancel that finds nobody joins the group itself. Where its own short session is not allowed it takes that of the settings.
func TestACancelJoinsWithASessionThatTheBrokersAllow(t *testing.T) {
	tb, _ := testbed.NewFake(t, "it has a limit of its own", kfake.GroupMinSessionTimeout(20*time.Second))
	b := bedOn(t, tb)
	const app = "longer"
	cfg := b.config()
	cfg.SessionTimeout, cfg.Retention = 30*time.Second, DeleteOnCancellation
	stop := b.start(countByKey(t, app), cfg)
	b.put(10)
	b.keepsUp(app)
	require.NoError(t, stop())
	out, err := Cancel(t.Context(), app, cfg, Send{Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NotNil(t, out.Deleted)
}

// A recovery that needs all partitions waits for others until they would no longer be members if they had been stopped.
func TestARecoveryWaitsForTheSessionsOfOthers(t *testing.T) {
	b := newBed(t)
	const app = "waits"
	cfg := b.config()
	stop := b.start(countByKey(t, app), cfg)
	b.put(10)
	b.keepsUp(app)
	require.NoError(t, stop())
	_, err := kadm.NewClient(b.cl).DeleteGroups(t.Context(), app)
	require.NoError(t, err)
	other, err := kafkasrc.JoinGroup(t.Context(), kafkasrc.GroupConfig{Kafka: kafka.Config{Brokers: []string{b.addr}}, Group: app, InstanceID: "other", Topics: []string{inTopic()}})
	require.NoError(t, err)
	defer other.Close()
	require.Eventually(t, func() bool { return other.Current().Member }, 20*time.Second, 10*time.Millisecond)
	waits := make(chan engine.Parted, 100)
	cfg.RecoverFromStore, cfg.SessionTimeout = true, 25*time.Second
	cfg.Listener.Parted = func(p engine.Parted) { waits <- p }
	b.start(countByKey(t, app), cfg)
	select {
	case p := <-waits:
		require.Equal(t, 25*time.Second+othersLast, p.AtMost)
	case <-time.After(20 * time.Second):
		t.Fatal("the recovery does not wait")
	}
}
