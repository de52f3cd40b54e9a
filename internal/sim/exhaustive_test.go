package sim

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The small model: one instance, two partitions, records for two checkpoints, no chance. Everything between the first
// trigger and the completion of the second checkpoint is a point to die at.

func smallModel(crashes ...scriptedEvent) (Result, *script) {
	s := &script{records: 4, first: 2, events: crashes}
	return Run(Config{Seed: 7, Instances: 1, Partitions: 2, script: s}), s
}

// window gives the steps of the first trigger and of the second completion, in the run without a crash.
func window(t *testing.T) (from, to int) {
	res, s := smallModel()
	require.NoError(t, res.Err)
	require.NotZero(t, s.from)
	require.Equal(t, 2, res.Counts.Checkpoints)
	return s.from, s.to
}

// TestEveryCrashPoint kills the process before every step of the run, with each share of unsynced data surviving and
// with the requests on their way lost or not.
func TestEveryCrashPoint(t *testing.T) {
	from, to := window(t)
	runs, last := 0, 0
	for step := 1; last == step-1; step++ {
		for _, keep := range keeps {
			for _, silent := range []bool{false, true} {
				crash := scriptedEvent{step: step, keep: keep, silent: silent}
				res, s := smallModel(crash)
				require.NoError(t, res.Err, "%+v", crash)
				if s.next == 1 { // the run was not over by then
					last = step
					runs++
				}
			}
		}
	}
	require.GreaterOrEqual(t, last, to-1)
	t.Logf("two checkpoints in steps %d to %d, %d runs", from, to, runs)
}

// TestEveryPairOfCrashPoints kills it before every step of the two checkpoints, and again before every step from there
// to the end of the run, recovery included.
func TestEveryPairOfCrashPoints(t *testing.T) {
	from, to := window(t)
	stride := 1
	if testing.Short() || raceEnabled {
		stride = 13
	}
	runs := everyStep(t, from, to, stride, func(step int) int64 {
		return crashTwice(t, smallModel, 1, []scriptedEvent{{step: step, keep: 0}, {step: step, keep: 1, silent: true}},
			[]scriptedEvent{{keep: 0, silent: true}, {keep: 1}})
	})
	require.Greater(t, runs, int64(1000))
	t.Logf("%d runs", runs)
}

// everyStep calls f for every stride-th step, on all processors, and sums up the runs.
func everyStep(t *testing.T, from, to, stride int, f func(step int) int64) int64 {
	var runs, next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !t.Failed() {
				step := from + stride*int(next.Add(1)-1)
				if step > to {
					return
				}
				runs.Add(f(step))
			}
		})
	}
	wg.Wait()
	return runs.Load()
}

// crashTwice goes through all second events after a first one, and gives the number of runs.
func crashTwice(t *testing.T, model func(...scriptedEvent) (Result, *script), stride int, firsts, seconds []scriptedEvent) (runs int64) {
	for _, a := range firsts {
		reached := true
		for step := a.step + 1; reached; step += stride {
			for _, b := range seconds {
				b.step = step
				res, s := model(a, b)
				if res.Err != nil {
					t.Errorf("%+v and %+v: %v", a, b, res.Err)
					return runs
				}
				reached = s.next == 2
				runs++
			}
		}
	}
	return runs
}

// The small model with two owners: i0 has both partitions and has committed some records when i1 starts, while more of
// them arrive. One partition moves to i1, which commits it.

func handoverModel(events ...scriptedEvent) (Result, *script) {
	return handover(shortInterval, events...)
}

// quietHandover has so long an interval that the partition goes with a checkpoint of its own.
func quietHandover(events ...scriptedEvent) (Result, *script) {
	return handover(5*shortInterval, events...)
}

func handover(interval time.Duration, events ...scriptedEvent) (Result, *script) {
	s := &script{records: 8, first: 2, handover: true, events: events, interval: interval}
	return Run(Config{Seed: 7, Instances: 2, Partitions: 2, script: s}), s
}

// beyond is longer than a session, and than an expelled member needs to come back.
const beyond = sessionTimeout + 70*time.Millisecond

// mishaps is what can befall each of the two at a step of the hand-over: to lose power and be back at once, to be killed
// and stay away until the other has everything, to stand still until then, and to stand still for a moment.
func mishaps(step int) []scriptedEvent {
	var out []scriptedEvent
	for _, who := range []string{"i0", "i1"} {
		out = append(out, scriptedEvent{step: step, who: who, silent: true}, scriptedEvent{step: step, who: who, keep: 1, away: beyond},
			scriptedEvent{step: step, who: who, freeze: beyond}, scriptedEvent{step: step, who: who, freeze: 15 * time.Millisecond})
	}
	return out
}

// handoverWindow gives the steps from the start of i1 to its first completed checkpoint, in the run without a mishap.
func handoverWindow(t *testing.T, model func(...scriptedEvent) (Result, *script)) (from, to int) {
	res, s := model()
	require.NoError(t, res.Err)
	require.Equal(t, 1, res.Counts.Takeovers)
	require.Equal(t, 1, res.Counts.Left)
	require.NotZero(t, s.to)
	return s.from, s.to
}

// TestEveryMishapOfAHandover lets each of the two owners die or freeze before every step of a hand-over.
func TestEveryMishapOfAHandover(t *testing.T) {
	res, _ := quietHandover()
	require.Equal(t, 1, res.Counts.RevokeCheckpoints)
	for name, model := range map[string]func(...scriptedEvent) (Result, *script){"busy": handoverModel, "quiet": quietHandover} {
		from, to := handoverWindow(t, model)
		stride := 1
		if testing.Short() || raceEnabled {
			stride = 9
		}
		runs := everyStep(t, from, to, stride, func(step int) (runs int64) {
			for _, e := range mishaps(step) {
				if res, _ := model(e); res.Err != nil {
					t.Errorf("%s: %+v: %v", name, e, res.Err)
				}
				runs++
			}
			return runs
		})
		t.Logf("%s: a hand-over in steps %d to %d, %d runs", name, from, to, runs)
	}
}

// TestEveryPairOfMishapsOfAHandover adds a second one, to either of them, at the steps that follow. SIM_FULL=1 leaves
// no step out.
func TestEveryPairOfMishapsOfAHandover(t *testing.T) {
	from, to := handoverWindow(t, handoverModel)
	first, second := 9, 17
	if os.Getenv("SIM_FULL") != "" {
		first, second = 1, 1
	} else if testing.Short() || raceEnabled {
		first, second = 45, 41
	}
	runs := everyStep(t, from, to, first, func(step int) int64 {
		all := mishaps(step)
		return crashTwice(t, handoverModel, second, []scriptedEvent{all[1], all[2], all[6]}, []scriptedEvent{all[0], all[2], all[5], all[6]})
	})
	t.Logf("%d runs", runs)
}
