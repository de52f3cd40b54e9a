package processor

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// countBoth counts by key what sources a and b read, each in a step of its own.
func countBoth(t *testing.T, app, a, b string) *topology.Plan {
	tb := topology.New(app)
	for name, topic := range map[string]string{"a": a, "b": b} {
		in := topology.FromTopic(tb, name, topic, serde.String(), serde.String())
		topology.ToTopic(topology.Count(in, "count-"+name), "out-"+name, outTopic(), serde.String(), serde.Int64())
	}
	p, err := tb.Plan()
	require.NoError(t, err)
	return p
}

// TestSourcesThatSwapTheirTopics: what one source has counted is never taken up by the other. Without an exchange that is refused
// as well, from a checkpoint and from a savepoint, and where the state is let go both begin empty, whatever else holds a copy of it.
func TestSourcesThatSwapTheirTopics(t *testing.T) {
	testbed.Alongside(t)
	for name, backend := range map[string]Backend{"swapped": Memory, "swapped-copied": Badger} {
		b := newBed(t)
		other := inTopic() + "-" + name
		_, err := kadm.NewClient(b.cl).CreateTopic(t.Context(), 4, -1, nil, other)
		require.NoError(t, err)
		all := 0
		put := func(first, second int) {
			t.Helper()
			for topic, n := range map[string]int{inTopic(): first, other: second} {
				for range n {
					require.NoError(t, b.cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("v")}).FirstErr())
				}
			}
			all += first + second
			require.Eventually(t, func() bool {
				committed, err := kafka.GroupOffsets(t.Context(), b.cl, name, false)
				done := 0
				for _, c := range committed {
					done += int(max(c.Offset, 0))
				}
				return err == nil && done == all
			}, 20*time.Second, 20*time.Millisecond)
		}
		cfg, out := b.instance(name)
		cfg.Backend = backend
		cfg = cfg.withDefaults()
		stop := b.start(countBoth(t, name, inTopic(), other), cfg)
		put(5, 3)
		part, err := out.client().Cancel(t.Context(), admin.Cancel{Savepoint: true, Dir: filepath.Join(b.dir, "savepoints")}) // beside the last checkpoint
		require.NoError(t, err)
		require.NoError(t, stop())

		fork := cfg
		fork.From = []string{part.Path}
		for app, cfg := range map[string]Config{name: cfg, name + "-fork": fork} {
			b.groups[app] = true
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := Run(ctx, countBoth(t, app, other, inTopic()), cfg)
			cancel()
			require.Equal(t, 23, ExitCode(err), "%v", err)
			for _, says := range []string{"belongs to source b, which read " + other, "as source a now", "--allow-dropped-state"} {
				require.ErrorContains(t, err, says)
			}
		}

		var mu sync.Mutex
		var dropped []string
		cfg.AllowDroppedState = true
		cfg.Listener.Dropped = func(d snapshot.DroppedStage) {
			mu.Lock()
			defer mu.Unlock()
			dropped = append(dropped, d.Stage)
		}
		for n := range int64(2) {
			stop = b.start(countBoth(t, name, other, inTopic()), cfg)
			put(1, 1)
			require.NoError(t, stop())
			require.Equal(t, []keyCount{{"k", n + 1}, {"k", n + 1}}, b.counts()[all-2:])
		}
		mu.Lock()
		require.ElementsMatch(t, []string{"a", "b"}, dropped, "once")
		mu.Unlock()
	}
}
