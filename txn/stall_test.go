package txn

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// Too few replicas are in sync: the client tries again as long as it may. The log says what is waited for, and the work goes
// on when they are back.
func TestOutputsThatAreNotAcknowledgedAreTold(t *testing.T) {
	testbed.Alongside(t)
	e := newEnv(t)
	var log bytes.Buffer
	m := e.manager(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	require.NoError(t, e.checkpoint(m, 1, "one"))
	short := e.tap.Add(&testbed.Rule{Keys: []kmsg.Key{kmsg.Produce}, Answer: testbed.Always(kerr.NotEnoughReplicas)})
	e.produce(m, "two", "three")
	ctx, cancel := context.WithTimeout(e.ctx, stallAfter+500*time.Millisecond)
	defer cancel()
	err := m.Seal(ctx, 2)
	require.Equal(t, fault.Restart, fault.RecoveryOf(err), "%v", err)
	require.Contains(t, log.String(), `msg="the brokers do not acknowledge the outputs" component=txn waiting=3s records=2`)
	short.Remove()
	require.NoError(t, m.Init(e.ctx))
	e.stands(true, 1)
	require.NoError(t, e.checkpoint(m, 3, "four"))
	require.Equal(t, []string{"one", "four"}, e.read(e.out))
}
