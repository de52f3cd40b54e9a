package sim

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// schedules is how many random schedules a normal run takes; SIM_N asks for another number.
const schedules = 20_000

// TestMain lets the heap grow: a run lives on a few megabytes and makes a lot of garbage, so that with the usual setting the
// collector would take a third of the time.
func TestMain(m *testing.M) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(1600)
	}
	os.Exit(m.Run())
}

func envUint(t testing.TB, name string, def uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseUint(text, 0, 64)
	require.NoError(t, err, name)
	return n
}

// replay is the one command that shows a run again.
func replay(cfg Config) string {
	bug := ""
	if cfg.Bug != NoBug {
		bug = "SIM_BUG=" + cfg.Bug.String() + " "
	}
	if cfg.Plain {
		bug += "SIM_PLAIN=1 "
	}
	if cfg.AtLeastOnce {
		bug += "SIM_PRODUCER=plain "
	}
	if cfg.Straight {
		bug += "SIM_STRAIGHT=1 "
	}
	return fmt.Sprintf("%sSIM_SEED=%d go test ./internal/sim -run TestReplay -v", bug, cfg.Seed)
}

// TestSchedules runs random schedules, one per seed from 1 (SIM_FROM) on. A failure names its seed and the command that
// shows it; add the seed to testdata/regressions.txt.
func TestSchedules(t *testing.T) {
	n := envUint(t, "SIM_N", schedules)
	if testing.Short() || raceEnabled {
		n = min(n, schedules/10)
	}
	sum := runAll(t, n, Config{Plain: os.Getenv("SIM_PLAIN") != "", Straight: os.Getenv("SIM_STRAIGHT") != ""})
	if n >= 10_000 { // fewer may miss what is rare
		reachedAll(t, sum)
	}
}

// TestSchedulesAtLeastOnce does the same without transactions.
func TestSchedulesAtLeastOnce(t *testing.T) {
	n := envUint(t, "SIM_N", schedules/20)
	if testing.Short() || raceEnabled {
		n = min(n, schedules/100)
	}
	sum := runAll(t, n, Config{AtLeastOnce: true, Straight: os.Getenv("SIM_STRAIGHT") != ""})
	if n >= 1000 {
		require.NotZero(t, sum.Repeated)
		require.NotZero(t, sum.Recounted)
		require.NotZero(t, sum.SetBack)
		require.NotZero(t, sum.Pieces)
	}
}

// runAll runs schedules on all processors, one per seed from SIM_FROM on, and sums up what happened.
func runAll(t *testing.T, n uint64, cfg Config) Counts {
	first := envUint(t, "SIM_FROM", 1)
	var next atomic.Uint64
	var mu sync.Mutex
	var sum Counts
	var slowest time.Duration
	bad := 0
	var wg sync.WaitGroup
	start := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= n {
					return
				}
				cfg := cfg
				cfg.Seed = first + i
				began := time.Now()
				res := Run(cfg)
				took := time.Since(began)
				again := i%100 == 0 // I12
				var hash uint64
				if again {
					hash = Run(cfg).Hash
				}
				mu.Lock()
				slowest = max(slowest, took)
				sum.add(res.Counts)
				if bad < 5 && (res.Err != nil || (again && hash != res.Hash) || res.Counts.Faults < 5) {
					bad++
					if res.Err == nil {
						res.Err = fmt.Errorf("I12: trace hash %x, then %x; %d faults", res.Hash, hash, res.Counts.Faults)
					}
					t.Errorf("seed %d: %v\n  replay: %s", cfg.Seed, res.Err, replay(cfg))
				}
				stop := bad >= 5
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	t.Logf("%d schedules in %v (%.0f/s, slowest %v): %+v", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), slowest, sum)
	return sum
}

// add sums all counters.
func (c *Counts) add(o Counts) {
	to, from := reflect.ValueOf(c).Elem(), reflect.ValueOf(o)
	for i := range to.NumField() {
		to.Field(i).SetInt(to.Field(i).Int() + from.Field(i).Int())
	}
}

// reachedAll fails when the schedules never got to something: a generator that gets nowhere would prove nothing.
func reachedAll(t *testing.T, sum Counts) {
	v := reflect.ValueOf(sum)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "HealedAt" && name != "ChainsGone" && name != "Repeated" && name != "Recounted" && name != "SetBack" && name != "MarkersAlone" { // these have scenarios, chance rarely comes to them

			require.NotZero(t, v.Field(i).Int(), "no schedule reached %s", name)
		}
	}
}

// TestReplay shows one run: SIM_SEED, and SIM_BUG for a planted one.
func TestReplay(t *testing.T) {
	seed := envUint(t, "SIM_SEED", 0)
	if seed == 0 {
		t.Skip("SIM_SEED says which run")
	}
	cfg := Config{Seed: seed, Trace: true, Plain: os.Getenv("SIM_PLAIN") != "", Straight: os.Getenv("SIM_STRAIGHT") != ""}
	cfg.AtLeastOnce = os.Getenv("SIM_PRODUCER") == "plain"
	if name := os.Getenv("SIM_BUG"); name != "" {
		var ok bool
		cfg.Bug, ok = ParseBug(name)
		require.True(t, ok, "SIM_BUG %q", name)
	}
	res := Run(cfg)
	for _, line := range res.Trace {
		t.Log(line)
	}
	t.Logf("hash %x, %d steps, %+v", res.Hash, res.Steps, res.Counts)
	require.NoError(t, res.Err)
}
