package processor

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// failsWhenTold fails a commit when it is told to.
type failsWhenTold struct {
	engine.Committer
	now *atomic.Bool
}

func (f failsWhenTold) Commit(ctx context.Context, c checkpoint.Commit) error {
	if f.now.Load() {
		return errors.New("asked to fail")
	}
	return f.Committer.Commit(ctx, c)
}

// The cluster's transaction.version is lowered while the service runs. Its clients know what they knew; those of the next attempt
// would work without what exactly-once needs, so it ends and says so. At-least-once does not need it.
func TestATransactionVersionThatIsLoweredUnderTheService(t *testing.T) {
	for name, mode := range map[string]Mode{"exact": ExactlyOnce, "loose": AtLeastOnce} {
		t.Run(name, func(t *testing.T) {
			tb, _ := testbed.NewFake(t, "a feature is the cluster's")
			b := bedOn(t, tb)
			fail, app := &atomic.Bool{}, "lowered"
			cfg := b.config()
			cfg.Mode = mode
			cfg.Decorate = func(p *engine.Ports) { p.Committer = failsWhenTold{p.Committer, fail} }
			failed := make(chan struct{}, 100)
			cfg.Listener.AttemptEnded = func(int, error, fault.Recovery, time.Duration) { failed <- struct{}{} }
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { ended <- Run(ctx, countByKey(t, app), cfg) }()
			b.put(10)
			b.keepsUp(app)
			_, err := kadm.NewClient(b.cl).UpdateFeatures(t.Context(), false, kadm.FeatureUpdate{Feature: "transaction.version", MaxVersionLevel: 1, UpgradeType: 2})
			require.NoError(t, err)
			b.put(10)
			b.keepsUp(app)
			fail.Store(true)
			b.put(1)
			<-failed
			fail.Store(false)
			if mode == AtLeastOnce {
				b.keepsUp(app)
				cancel()
				require.NoError(t, <-ended)
				return
			}
			err = <-ended
			require.Equal(t, int(fault.BrokerTooOld), ExitCode(err), "%v", err)
			require.ErrorContains(t, err, "the cluster has transaction.version 1")
		})
	}
}
