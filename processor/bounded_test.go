package processor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// A run over what is in the topic ends by itself, with everything committed, chained and behind an exchange.
func TestABoundedRun(t *testing.T) {
	testbed.Alongside(t)
	for _, parallelism := range []int{0, 2} {
		b := newBed(t)
		name := fmt.Sprint("bounded-", parallelism)
		tb := topology.New(name)
		in := topology.FromTopic(tb, "in", inTopic(), serde.String(), serde.String(), topology.EndAt(topology.EndLatest()))
		if parallelism > 0 {
			in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(parallelism))
		}
		topology.ToTopic(topology.Count(in, "count"), "out", outTopic(), serde.String(), serde.Int64())
		plan, err := tb.Plan()
		require.NoError(t, err)
		for round := range 2 {
			b.put(200)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			require.NoError(t, Run(ctx, plan, b.config()))
			require.NoError(t, ctx.Err(), "it ended by itself")
			cancel()
			require.Len(t, b.counts(), 200*(round+1))
			require.Zero(t, b.lag(name))
		}
		highest := map[string]int64{}
		for _, c := range b.counts() {
			highest[c.key] = max(highest[c.key], c.n)
		}
		for key, n := range highest {
			require.EqualValues(t, 40, n, key)
		}
	}
}
