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
			for _, says := range []string{"had 4 partitions", "now it has 5", "put an exchange before the state"} {
				require.ErrorContains(t, err, says)
			}
		}
	}
}

// copyLatest is countLatest without the keyed step.
func copyLatest(t *testing.T, app string) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", inTopic(), serde.String(), serde.String(), topology.StartAt(topology.Latest()))
	topology.ToTopic(in, "out", outTopic(), serde.String(), serde.String())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// A topic may grow while nothing that reads it keeps state, and a keyed step may come later. From then on it may not.
func TestAKeyedStepOverATopicThatOnceGrew(t *testing.T) {
	testbed.Alongside(t)
	const name = "grew"
	b := newBed(t)
	cfg, out := b.instance(name)
	b.groups[name] = true
	run := func(plan *topology.Plan, p int32, first int) {
		t.Helper()
		stop := b.start(plan, cfg)
		out.says("/readyz", 200, "processing")
		b.writes(p, first, 3, nil)
		require.Eventually(t, func() bool { return b.lag(name) == 0 }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, stop())
	}
	grow := func() {
		_, err := kadm.NewClient(b.cl).CreatePartitions(t.Context(), 1, inTopic())
		require.NoError(t, err)
	}
	refused := func(says ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := Run(ctx, countLatest(t, name, 0), cfg)
		require.Equal(t, 23, ExitCode(err), "%v", err)
		for _, s := range says {
			require.ErrorContains(t, err, s)
		}
	}
	run(copyLatest(t, name), 0, 100)
	grow()
	refused("had 4 partitions", "now it has 5", "run the topology without these steps until a checkpoint is complete") // the added one would begin at its end
	run(copyLatest(t, name), 4, 200)
	run(countLatest(t, name, 0), 4, 300)
	run(countLatest(t, name, 0), 0, 400)
	grow()
	refused("had 5 partitions", "now it has 6", "keys have moved")
}
