package kafka

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/internal/fault"
)

// mute gives the address of a server that takes connections and never answers.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestProbeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	_, err := Probe(ctx, Config{Brokers: []string{mute(t)}, Logger: slog.New(slog.DiscardHandler)}, Need{})
	require.ErrorIs(t, err, context.Canceled)
	require.NotEqual(t, fault.Stop, fault.RecoveryOf(err))
}

// A deadline that is shorter than the bound is one: whoever set it hears that no broker answers, and of what the tries ended.
func TestADeadlineWithoutABrokerIsNoBroker(t *testing.T) {
	for name, addr := range map[string]string{"mute": mute(t), "connection refused": closedPort(t)} {
		t.Run(name, func(t *testing.T) {
			err := Reach(within(t, 600*time.Millisecond), Config{Brokers: []string{addr}, Logger: slog.New(slog.DiscardHandler)})
			requireStop(t, err, fault.Unreachable, "no Kafka broker answers at "+addr+" within 600ms; last error: ")
			require.NotContains(t, err.Error(), "nil")
			if name != "mute" {
				require.ErrorContains(t, err, name)
			}
		})
	}
}

func TestATryThatWasCutOffDoesNotHideTheOneBefore(t *testing.T) {
	var w dialWatch
	cut := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, cut)
	require.ErrorIs(t, w.lastError(), cut)
	before := refused(t)
	w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, before)
	w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, cut)
	require.ErrorIs(t, w.lastError(), before)
}

func TestSeedBrokersOfTwoClustersAreRefused(t *testing.T) {
	a, _ := fakeBed(t, 0, "a cluster id of its own", kfake.ClusterID("cluster-a"))
	b, _ := fakeBed(t, 0, "a cluster id of its own", kfake.ClusterID("cluster-b"))
	one, other := a.cfg.Brokers[0], b.cfg.Brokers[0]
	cfg := a.cfg
	cfg.Brokers = []string{closedPort(t), one, other}
	for range 5 { // whichever answers first
		_, err := Probe(within(t, 20*time.Second), cfg, Need{})
		requireStop(t, err, fault.BadFile, one+" (cluster id cluster-a)", other+" (cluster id cluster-b)")
		requireStop(t, Reach(within(t, 20*time.Second), cfg), fault.BadFile, one, other)
	}
}

func TestSeedBrokersOfOneClusterOrThatDoNotAnswerAreTaken(t *testing.T) {
	b, _ := fakeBed(t, 0, "several brokers", kfake.NumBrokers(3), kfake.ClusterID("cluster-a"))
	for name, more := range map[string]string{"none": "", "mute": mute(t), "refused": closedPort(t)} {
		t.Run(name, func(t *testing.T) {
			cfg := b.cfg
			if more != "" {
				cfg.Brokers = append([]string{more}, cfg.Brokers...)
			}
			got, err := Probe(within(t, 10*time.Second), cfg, Need{})
			require.NoError(t, err, strings.Join(cfg.Brokers, ","))
			require.Equal(t, "cluster-a", got.ID)
		})
	}
}
