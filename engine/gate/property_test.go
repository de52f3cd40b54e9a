package gate

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	schedules = flag.Int("schedules", 6000, "how many schedules of the model network TestSchedules runs")
	seed      = flag.Uint64("seed", 0, "the one schedule that TestSchedules runs")
	rates     = flag.Bool("rates", false, "tell which check finds each planted mistake in how many of 500 schedules")
	blind     = flag.Bool("blind", false, "do not look into completed checkpoints")
	planted   = flag.String("planted", "", "the mistake to build into it")
)

func replay(s settings) string {
	cmd := fmt.Sprintf("go test ./engine/gate -count=1 -run 'TestSchedules$' -seed %d", s.Seed)
	if s.Plant != noPlant {
		cmd += " -planted " + s.Plant.String()
	}
	if s.Blind {
		cmd += " -blind"
	}
	return cmd
}

// TestSchedules runs the model network with settings and interleavings drawn from seeds.
func TestSchedules(t *testing.T) {
	first, last := uint64(1), uint64(*schedules)
	if testing.Short() {
		last /= 6
	}
	if *seed != 0 {
		first, last = *seed, *seed
	}
	reached, kinds, steps := map[string]int{}, map[kind]int{}, 0
	begin := time.Now()
	for n := first; n <= last; n++ {
		s := draw(n)
		s.Blind = *blind
		for p := noPlant; p <= OvertakenLeft && *planted != ""; p++ {
			if p.String() == *planted {
				s.Plant = p
			}
		}
		w := run(s)
		require.NoError(t, w.err, "%+v\nreplay: %s", s, replay(s))
		for what, n := range w.seen {
			reached[what] += n
		}
		steps += w.steps
		kinds[s.Kind]++
	}
	took := time.Since(begin)
	t.Logf("%d schedules %v, %d moves in %v: %.0f schedules/s", last-first+1, kinds, steps, took.Round(time.Millisecond), float64(last-first+1)/took.Seconds())
	t.Log("reached:", reached)
	if *seed != 0 {
		return
	}
	// A network that never gets anywhere would prove nothing.
	for _, s := range []string{"complete", "crash", "abandoned", "declined", "abort", "block", "snapshot unaligned", "in flight", "close recording", "close recording, overtake", "restored", "duplicate", "fired behind the end", "barrier behind the ends"} {
		require.NotZero(t, reached[s], "no schedule reached %q: %v", s, reached)
	}
}

// TestEqualToTheRunWithoutFaults: state by key and output are those of a run in which nothing fails.
func TestEqualToTheRunWithoutFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := draw(rapid.Uint64().Draw(t, "seed"))
		s.Kind = kind(rapid.IntRange(0, int(numKinds)-1).Draw(t, "kind"))
		s.Sources = rapid.IntRange(1, 5).Draw(t, "sources")
		s.PerSource = rapid.IntRange(0, 20).Draw(t, "records")
		s.Parallel = rapid.IntRange(1, 5).Draw(t, "parallelism")
		s.Direct = s.Direct && s.Sources > 1 && s.Parallel < 5
		s.Capacity = rapid.IntRange(1, 8).Draw(t, "capacity")
		s.InFlight = rapid.IntRange(1, 3).Draw(t, "in flight")
		s.Crashes = rapid.IntRange(0, 5).Draw(t, "crashes")
		s.Aborts = rapid.IntRange(0, 300).Draw(t, "aborts")
		s.Skips = rapid.IntRange(0, 30).Draw(t, "skips")
		calm := s
		calm.Crashes, calm.Aborts, calm.Skips = 0, 0, 0
		want, got := run(calm), run(s)
		require.NoError(t, want.err)
		require.NoError(t, got.err)
		require.Equal(t, want.recs, got.recs)
		wantA, wantB := want.byKey()
		gotA, gotB := got.byKey()
		if got.exactly() {
			require.Equal(t, want.committed, got.committed)
			require.Equal(t, wantA, gotA)
			require.Equal(t, wantB, gotB)
			return
		}
		for i, n := range want.committed {
			require.GreaterOrEqual(t, got.committed[i], n)
		}
		for g := range wantA {
			require.GreaterOrEqual(t, gotA[g], wantA[g])
			require.GreaterOrEqual(t, gotB[g], wantB[g])
		}
	})
}

// TestPlantedMistakesAreCaught is why the schedules can be believed: each mistake is found within 500 of them, and
// within 500 of those in which nobody looks into the checkpoints, so that only what the tasks see, the committed output
// and the state at the end are judged.
func TestPlantedMistakesAreCaught(t *testing.T) {
	for p := noPlant + 1; p < numPlants; p++ {
		t.Run(p.String(), func(t *testing.T) {
			caught(t, p, false)
			if p != NewerJoins { // it takes a crash that restores one of the few checkpoints it spoils
				caught(t, p, true)
			}
		})
	}
}

func caught(t *testing.T, p plant, blind bool) {
	const most = 500
	for n := uint64(1); n <= most; n++ {
		s := draw(n)
		s.Plant, s.Blind = p, blind
		if w := run(s); w.err != nil {
			t.Logf("blind %v: caught by %s in schedule %d: %v\n  replay: %s", blind, w.by, n, w.err, replay(s))
			return
		}
	}
	t.Errorf("blind %v: not caught in %d schedules", blind, most)
}

// TestABarrierLeftInTheChannelIsLate: a driver that does not take out the barrier which has overtaken does no harm.
func TestABarrierLeftInTheChannelIsLate(t *testing.T) {
	for n := uint64(1); n <= 500; n++ {
		s := draw(n)
		s.Plant = OvertakenLeft
		require.NoError(t, run(s).err, replay(s))
	}
}

// TestPlantedRates tells which check finds what. -rates runs it.
func TestPlantedRates(t *testing.T) {
	if !*rates {
		t.Skip("-rates runs it")
	}
	for p := noPlant + 1; p < numPlants; p++ {
		by := [2]map[string]int{{}, {}}
		for n := uint64(1); n <= 500; n++ {
			for i := range by {
				s := draw(n)
				s.Plant, s.Blind = p, i == 1
				if w := run(s); w.err != nil {
					by[i][w.by]++
				}
			}
		}
		t.Logf("%-22v %v, without looking into checkpoints %v", p, by[0], by[1])
	}
}
