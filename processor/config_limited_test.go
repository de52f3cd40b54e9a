package processor

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
)

// The transaction timeout that the log of the start names lets a checkpoint time out: the coordinator gives it up and goes on,
// also where the transaction is as old as it can be and timers are late.
func TestTheNamedTransactionTimeoutToleratesATimeout(t *testing.T) {
	for _, c := range []Config{{}, {MinPause: 30 * time.Second}, {Interval: 20 * time.Second, MinPause: 5 * time.Second}, {CheckpointTimeout: 100 * time.Millisecond}} {
		c.TolerableFailures, c.TransactionTimeout = 1, minTransactionTimeout(c.withDefaults().Interval, c.MinPause, c.withDefaults().CheckpointTimeout)
		lines := Limited(c)
		if c.CheckpointTimeout > 0 { // the least one is enough
			require.Empty(t, lines)
		} else {
			require.Len(t, lines, 1)
			_, named, _ := strings.Cut(lines[0], "; with ")
			var err error
			c.TransactionTimeout, err = time.ParseDuration(strings.TrimSuffix(named, " it does"))
			require.NoError(t, err)
			require.Empty(t, Limited(c))
		}
		c = c.withDefaults()
		co := checkpoint.New(checkpoint.Config{Interval: c.Interval, Timeout: c.CheckpointTimeout, MinPause: c.MinPause,
			TolerableFailures: c.TolerableFailures, TransactionTimeout: c.TransactionTimeout}, 0)
		task := element.TaskID{Source: "in"}
		now := time.Duration(0)
		wake := func() []checkpoint.Action {
			d, ok := co.NextWake(now)
			require.True(t, ok)
			now += d + 10*time.Millisecond
			return co.Tick(now)
		}
		co.AddTask(now, task)
		co.Moved(now, task)
		require.IsType(t, checkpoint.Trigger{}, wake()[0])
		co.BarrierPassed(now, 1, task, checkpoint.TaskAck{})
		co.Moved(now, task)
		co.Flushed(now, 1)
		co.Persisted(now, 1, checkpoint.PersistStats{})
		co.RootWritten(now, 1)
		require.IsType(t, checkpoint.Complete{}, co.Committed(now, 1)[0])
		require.IsType(t, checkpoint.Trigger{}, wake()[0])
		require.IsType(t, checkpoint.Abandon{}, wake()[0], "%+v", c.TransactionTimeout)
	}
	require.Contains(t, Limited(Config{TolerableFailures: 1, CheckpointTimeout: 13 * time.Hour, TransactionTimeout: 24 * time.Hour})[0],
		"; lower checkpointing.timeout, for no transaction.timeout does")
}
