package sim

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The small model: one instance, two partitions, records for two checkpoints, no chance. Everything between the first
// trigger and the completion of the second checkpoint is a point to die at.

func smallModel(crashes ...scriptedCrash) (Result, *script) {
	s := &script{records: 4, first: 2, crashes: crashes}
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
				crash := scriptedCrash{step, keep, silent}
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
		stride = 7
	}
	var runs atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !t.Failed() {
				first := from + stride*int(next.Add(1)-1)
				if first > to {
					return
				}
				runs.Add(crashTwice(t, first))
			}
		})
	}
	wg.Wait()
	require.Greater(t, runs.Load(), int64(1000))
	t.Logf("%d runs", runs.Load())
}

// crashTwice goes through all second crashes after a first one, and gives the number of runs.
func crashTwice(t *testing.T, first int) (runs int64) {
	for _, a := range []scriptedCrash{{first, 0, false}, {first, 1, true}} {
		reached := true
		for second := first + 1; reached; second++ {
			for _, b := range []scriptedCrash{{second, 0, true}, {second, 1, false}} {
				res, s := smallModel(a, b)
				if res.Err != nil {
					t.Errorf("crashes %+v and %+v: %v", a, b, res.Err)
					return runs
				}
				reached = s.next == 2
				runs++
			}
		}
	}
	return runs
}
