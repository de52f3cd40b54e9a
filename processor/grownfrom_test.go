package processor

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// countLatest counts by key what comes, chained to the source or behind an exchange.
func countLatest(t *testing.T, app string, parallelism int) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String(), topology.StartAt(topology.Latest()))
	if parallelism > 0 {
		in = topology.GroupBy(in, "by", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
	}
	topology.ToTopic(topology.Count(in, "count"), "out", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// A partition that was added since the savepoint begins at its beginning, whatever the source's start is. Under keyed state of the
// source it is refused, with and without the savepoint; state behind an exchange does not care.
func TestPartitionsAddedSinceASavepoint(t *testing.T) {
	testbed.Alongside(t)
	for name, parallelism := range map[string]int{"keyed": 0, "behind": 2} {
		b := newBed(t)
		cfg, out := b.instance(name)
		b.groups[name], b.groups[name+"-fork"] = true, true
		stop := b.start(countLatest(t, name, parallelism), cfg)
		out.says("/readyz", 200, "processing")
		b.put(100)
		b.processed(name, 100)
		part, err := out.client().TriggerSavepoint(t.Context(), filepath.Join(b.dir, "savepoints"))
		require.NoError(t, err)
		require.NoError(t, stop())
		_, err = kadm.NewClient(b.cl).CreatePartitions(t.Context(), 1, inTopic())
		require.NoError(t, err)
		b.writes(4, 500, 3, nil)

		fork, _ := b.instance(name + "-fork")
		fork.From = []string{part.Path}
		if parallelism > 0 {
			stop = b.start(countLatest(t, name+"-fork", parallelism), fork)
			b.processed(name+"-fork", 103)
			require.NoError(t, stop())
			for _, key := range []string{"500", "501", "502"} {
				require.Equal(t, span(1, 1), b.byKey()[key])
			}
			continue
		}
		for app, cfg := range map[string]Config{name: cfg, name + "-fork": fork} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := Run(ctx, countLatest(t, app, parallelism), cfg)
			cancel()
			require.Equal(t, 23, ExitCode(err), "%v", err)
			for _, says := range []string{"had 4 partitions", "now it has 5", "reprocess"} {
				require.ErrorContains(t, err, says)
			}
		}
	}
}
