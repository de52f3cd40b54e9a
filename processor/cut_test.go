package processor

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/testbed"
)

// cutsFirst loses the first answers to each kind of request, most often those on connections that were not of use before. A
// client takes that for a sign that TLS or SASL are not as they should be, unless it is told not to.
func cutsFirst(n int) (*testbed.Tap, func() map[kmsg.Key]int) {
	var mu sync.Mutex
	met := map[kmsg.Key]int{}
	var tap testbed.Tap
	tap.Add(&testbed.Rule{Closed: true, When: func(r kmsg.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		key := kmsg.Key(r.Key())
		met[key]++
		return met[key] <= n
	}})
	return &tap, func() map[kmsg.Key]int {
		mu.Lock()
		defer mu.Unlock()
		return met
	}
}

// A connection that breaks is no reason to end, whatever was asked on it: neither a start nor a command.
func TestNoSingleCutEndsAStartOrACommand(t *testing.T) {
	testbed.Alongside(t)
	for _, mode := range []Mode{ExactlyOnce, AtLeastOnce} {
		s := newSettled(t)
		s.cfg.Mode, s.cfg.Retention = mode, DeleteOnCancellation
		tapped := func() Config {
			cfg := s.cfg
			tap, met := cutsFirst(2)
			cfg.ClientOptions = []kgo.Opt{tap.Opt()}
			t.Cleanup(func() { t.Logf("%v", met()) })
			return cfg
		}
		s.put(10)
		stop := s.start(s.plan(0), tapped())
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "all is committed")
		out, err := SendAll(t.Context(), s.app, tapped(), Send{Command: SavepointCommand, Dir: t.TempDir(), Timeout: 20 * time.Second})
		require.NoError(t, err)
		require.NoError(t, out.Err())
		_, err = HangingTransactions(t.Context(), s.plan(0), tapped(), false)
		require.NoError(t, err)
		require.EqualValues(t, 10, s.seen.Load())
		if mode == ExactlyOnce {
			out, err := Cancel(t.Context(), s.app, tapped(), Send{Timeout: 20 * time.Second})
			require.NoError(t, err)
			require.NoError(t, out.Err())
			require.NotNil(t, out.Deleted)
			continue
		}
		require.NoError(t, stop())
		r, err := PlanReset(t.Context(), s.app, tapped())
		require.NoError(t, err)
		require.NoError(t, r.Do(t.Context()))
	}
}
