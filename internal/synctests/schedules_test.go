//go:build synctests

package synctests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/sabotage"
)

// TestSchedules plays schedules of the real service; the flags say which and how many.
func TestSchedules(t *testing.T) {
	if *child {
		t.Skip("this is a child")
	}
	n := *schedules
	if testing.Short() {
		n = min(n, 50)
	}
	began := time.Now()
	b := playAll(t, *seed, n, *processes, *plant, 3)
	for _, o := range b.failed {
		report(t, o, *processes, *plant)
	}
	t.Logf("%d schedules in %v: %s", b.played, time.Since(began).Round(time.Second), b.counts)
	if len(b.failed) == 0 {
		require.Equal(t, n**repeat, b.played)
		require.Positive(t, b.counts.Checkpoints)
		require.Positive(t, b.counts.Kills)
	}
}

// TestPlanted is why the other test can be believed: each mistake that is built into the service on purpose is found
// within 200 schedules.
func TestPlanted(t *testing.T) {
	if *child {
		t.Skip("this is a child")
	}
	const most = 200
	find := func(name string, processes int) {
		t.Run(name, func(t *testing.T) {
			b := playAll(t, 1, most, processes, name, 1)
			require.NotEmpty(t, b.failed, "not found in %d schedules", most)
			o := b.failed[0]
			t.Logf("found within %d schedules, seed %d: %s\n  replay: %s", b.played, o.Seed, o.Err, replay(Draw(Options{Seed: o.Seed, Most: processes, Plant: name})))
		})
	}
	for _, f := range sabotage.Faults {
		find(f.Name, 1)
	}
	for _, p := range plants {
		find(p.name, p.most)
	}
}
