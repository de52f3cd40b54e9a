package processor

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// Brokers that cannot write down that a member has come in place of another one take it back, and answer it as if somebody
// else had its id. Nobody has, so the start is tried again; not for ever, since somebody may.
func TestAMemberThatTheBrokersTakeBackStartsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		fenced int32
		works  bool
	}{"twice": {2, true}, "each time": {1 << 20, false}} {
		t.Run(name, func(t *testing.T) {
			tb, cluster := testbed.NewFake(t, "a broker that takes a member back, on demand")
			b := bedOn(t, tb)
			var fenced atomic.Int32
			cluster.ControlKey(int16(kmsg.SyncGroup), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
				cluster.KeepControl()
				if fenced.Add(1) > c.fenced {
					return nil, nil, false
				}
				resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
				resp.ErrorCode = kerr.FencedInstanceID.Code
				return resp, nil, true
			})
			cfg := b.config()
			cfg.InstanceID, cfg.takenBackPause = "a", 10*time.Millisecond
			b.produce(0, 100)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- Run(ctx, countPlan(t, "takenback"), cfg) }()
			if !c.works {
				select {
				case err := <-done:
					require.Equal(t, fault.Fenced, fault.CodeOf(err), "%v", err)
				case <-time.After(30 * time.Second):
					t.Fatal("it goes on for ever")
				}
				require.EqualValues(t, 1+takenBackTries, fenced.Load())
				return
			}
			require.Eventually(t, func() bool { return b.lag("takenback") == 0 }, 20*time.Second, 20*time.Millisecond)
			cancel()
			require.NoError(t, <-done)
			require.Greater(t, fenced.Load(), c.fenced)
		})
	}
}

// Who was cancelled does not start again, although the cancel came when the start had failed already.
func TestAMemberThatIsTakenBackAndCancelledDoesNotStartAgain(t *testing.T) {
	tb, cluster := testbed.NewFake(t, "a broker that takes a member back, on demand")
	b := bedOn(t, tb)
	var fenced atomic.Int32
	cluster.ControlKey(int16(kmsg.SyncGroup), func(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
		if fenced.Add(1) > 1 {
			return nil, nil, false
		}
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
		resp.ErrorCode = kerr.FencedInstanceID.Code
		return resp, nil, true
	})
	cfg := b.config()
	cfg.InstanceID, cfg.takenBackPause = "a", 10*time.Millisecond
	starts := make(chan *service, 1+takenBackTries)
	cfg.started = func(s *service) { starts <- s }
	cfg.Listener.AttemptEnded = func(int, error, fault.Recovery, time.Duration) {
		s := <-starts
		s.cancel(context.Background(), false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := Run(ctx, countPlan(t, "takencancelled"), cfg)
	require.NoError(t, ctx.Err(), "it works on")
	require.Equal(t, fault.Fenced, fault.CodeOf(err), "%v", err)
	require.EqualValues(t, 1, fenced.Load())
}
