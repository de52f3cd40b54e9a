package processor

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/topology"
)

// loopPlan sends every job round through its own topic until nothing is left of it. Per key it counts the visits; a job
// that is done says how many there were. stumble is called for each visit and may panic.
func loopPlan(t *testing.T, app string, stumble func()) *topology.Plan {
	b := topology.New(app)
	jobs := topology.FromTopic(b, "jobs", inTopic(), serde.String(), serde.Int64())
	visits := topology.Aggregate(jobs, "visits", totalSerde{}, func(a total, left int64) total {
		stumble()
		return total{a.n + 1, left} // sum holds what is left
	})
	open := topology.Filter(visits, "open", func(_ string, v total) bool { return v.sum > 0 })
	next := topology.Map(open, "next", func(_ string, v total) int64 { return v.sum - 1 })
	topology.ToTopic(next, "again", inTopic(), serde.String(), serde.Int64(), topology.Loop())
	done := topology.Filter(visits, "done", func(_ string, v total) bool { return v.sum == 0 })
	topology.ToTopic(topology.Map(done, "count", func(_ string, v total) int64 { return v.n }), "done", outTopic(), serde.String(), serde.Int64())
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

// TestALoopThroughATopicIsExact: a service that ends without a last checkpoint again and again, in the midst of jobs that
// go round, loses no round and repeats none.
func TestALoopThroughATopicIsExact(t *testing.T) {
	testbed.Alongside(t)
	seed := rand.Uint64()
	if text := os.Getenv("LOOP_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("replay: LOOP_SEED=%d go test -count=1 -run %s ./processor", seed, t.Name())
	rnd := rand.New(rand.NewPCG(seed, 1))
	b := newBed(t)
	const app, jobs = "loop", 200
	want := map[string]int64{}
	recs := make([]*kgo.Record, jobs)
	for i := range recs {
		key, left := fmt.Sprintf("job-%03d", i), 8+rnd.Int64N(17)
		want[key] = left + 1
		recs[i] = &kgo.Record{Key: []byte(key), Value: binary.BigEndian.AppendUint64(nil, uint64(left))}
	}
	require.NoError(t, b.cl.ProduceSync(t.Context(), recs...).FirstErr())

	var fuse atomic.Int64 // visits until the next fall
	plan := loopPlan(t, app, func() {
		if fuse.Add(-1) == 0 {
			panic("a stumble")
		}
	})
	for range 4 {
		fuse.Store(jobs + rnd.Int64N(2*jobs)) // in some later round, far from the end
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		cfg := b.config()
		cfg.Restart.Strategy = restart.None
		err := Run(ctx, plan, cfg)
		cancel()
		require.ErrorContains(t, err, "a stumble")
		require.Equal(t, 30, ExitCode(err))
	}
	fuse.Store(0)
	var completed atomic.Int64
	cfg := b.config()
	cfg.Listener.CheckpointCompleted = func(checkpoint.CheckpointStats) { completed.Add(1) }
	stop := b.start(plan, cfg)
	require.Eventually(t, func() bool { return len(b.counts()) >= jobs && b.lag(app) == 0 }, 30*time.Second, 50*time.Millisecond)
	quiet := completed.Load()
	time.Sleep(10 * cfg.Interval)
	require.LessOrEqual(t, completed.Load(), quiet+1, "the markers of its own transactions must not keep the loop going")
	require.NoError(t, stop())

	got := map[string]int64{}
	for _, c := range b.counts() {
		require.NotContains(t, got, c.key, "a job is done twice")
		got[c.key] = c.n
	}
	require.Equal(t, want, got)
}

type keyCount struct {
	key string
	n   int64
}

// counts gives what is in the output, committed records only.
func (b *bed) counts() (out []keyCount) {
	b.t.Helper()
	b.eachOutput(func(r *kgo.Record) {
		out = append(out, keyCount{string(r.Key), int64(binary.BigEndian.Uint64(r.Value))})
	})
	return out
}
