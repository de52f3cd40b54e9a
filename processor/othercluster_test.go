package processor

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// A cluster that has lost its data, or addresses that lead to another one, under a service that runs: its topics have other
// ids, its group no offsets. The service says what that is, as its next start does, and not that topics were made anew.
func TestAnotherClusterUnderAServiceThatRuns(t *testing.T) {
	for name, topics := range map[string][]string{"with the topics": {inTopic(), outTopic()}, "without them": nil} {
		t.Run(name, func(t *testing.T) {
			tb, cluster := testbed.NewFake(t, "a cluster is exchanged for another one")
			b := bedOn(t, tb)
			_, port, err := net.SplitHostPort(b.addr)
			require.NoError(t, err)
			at, err := strconv.Atoi(port)
			require.NoError(t, err)
			b.produce(0, 1000)
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { done <- Run(ctx, countPlan(t, "moved"), b.config()) }()
			require.Eventually(t, func() bool { return b.lag("moved") == 0 }, 20*time.Second, 20*time.Millisecond)
			cluster.Close()
			opts := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(at), kfake.ClusterID("another")}
			if topics != nil {
				opts = append(opts, kfake.SeedTopics(4, topics...))
			}
			other, err := kfake.NewCluster(opts...)
			require.NoError(t, err)
			defer other.Close()
			select {
			case err = <-done:
			case <-time.After(30 * time.Second):
				t.Fatal("it goes on")
			}
			require.Equal(t, fault.HandleMismatch, fault.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "another")
			require.ErrorContains(t, err, "cluster id")
		})
	}
}
