package processor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// countBySource counts by key what a source of a name reads.
func countBySource(t *testing.T, app, source string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, source, inTopic(), serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "count"), "out", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// TestForgottenOffsetsAreRefused: the offsets of the group have expired. Neither another name of the source nor a start without
// checkpoints makes of that a group that never began.
func TestForgottenOffsetsAreRefused(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "forgotten"
	stop := b.start(countBySource(t, app, "in"), b.config())
	b.put(100)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	adm := kadm.NewClient(b.cl)
	_, err := adm.DeleteOffsets(t.Context(), app, kadm.TopicsSet{inTopic(): {0: {}, 1: {}, 2: {}, 3: {}}})
	require.NoError(t, err)

	refused := func(source string, change func(*Config), code int, lines ...string) {
		t.Helper()
		cfg := b.config()
		change(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // one that is not refused goes on
		defer cancel()
		err := Run(ctx, countBySource(t, app, source), cfg)
		require.Equal(t, code, ExitCode(err), "%v", err)
		for _, line := range lines {
			require.ErrorContains(t, err, line)
		}
		require.NotContains(t, err.Error(), "\n")
		offsets, err := adm.FetchOffsets(t.Context(), app)
		require.NoError(t, err)
		require.Empty(t, offsets.Offsets())
	}
	renamed := []string{"belongs to source in, which read " + inTopic(), "as source sales now: rename the source back"}
	refused("sales", func(*Config) {}, 23, renamed...)
	refused("sales", func(c *Config) { c.RecoverFromStore = true }, 23, renamed...)
	refused("sales", func(c *Config) { c.AllowDroppedState = true }, 21, "holds the task as in-0")
	refused("in", func(c *Config) { c.DisabledCheckpoints = true }, 21, "has no committed offset", "begin where the sources start with --allow-dropped-state")
	refused("sales", func(c *Config) { c.DisabledCheckpoints = true }, 23, renamed...)

	cfg := b.config()
	cfg.RecoverFromStore, cfg.AllowDroppedState = true, true
	stop = b.start(countBySource(t, app, "sales"), cfg)
	b.put(10)
	require.Eventually(t, func() bool { return b.lag(app) == 0 && len(b.counts()) >= 110 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	require.Len(t, b.counts(), 110, "nothing is processed again")
}
