package txn

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// A broker that gives no answer holds nobody up once the patience is over, wherever the transaction stands; what the
// caller is told stays true.
func TestTheEndOfPatienceEndsEveryWait(t *testing.T) {
	testbed.Alongside(t)
	cases := map[kmsg.Key]fault.Recovery{
		kmsg.Produce:         fault.Restart,
		kmsg.TxnOffsetCommit: fault.Restart,
		kmsg.EndTxn:          fault.Unconfirmed,
	}
	for key, want := range cases {
		t.Run(key.Name(), func(t *testing.T) {
			e := newEnv(t)
			patience, end := context.WithCancel(t.Context())
			defer end()
			m := e.manager(func(c *Config) { c.Patience = patience })
			release := make(chan struct{})
			defer close(release)
			e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{key}, Before: func(kmsg.Request) error {
				<-release
				return nil
			}})
			ctx, stop := context.WithCancel(e.ctx)
			time.AfterFunc(100*time.Millisecond, func() { stop(); end() })
			began := time.Now()
			e.produce(m, "a")
			err := m.Seal(ctx, 1)
			if key != kmsg.Produce {
				require.NoError(t, err)
				err = m.Commit(context.WithoutCancel(ctx), e.commitOf(1, 10, "h1"))
			}
			require.Error(t, err)
			require.Equal(t, want, fault.RecoveryOf(err))
			require.NoError(t, m.Abort(e.ctx))
			require.Less(t, time.Since(began), 3*time.Second) // EndTimeout is 5 s
		})
	}
}
