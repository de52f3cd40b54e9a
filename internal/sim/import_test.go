package sim

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// importModel is the small model at whose end everybody starts from a savepoint.
func importModel(instances int, left keptBack) func(...scriptedEvent) (Result, *script) {
	return func(crashes ...scriptedEvent) (Result, *script) {
		s := &script{records: 4, first: 2, events: crashes, saves: newSavepoints(7, left)}
		return Run(Config{Seed: 7, Instances: instances, Partitions: 2, script: s}), s
	}
}

// TestEveryCrashPointOfAnImport lets all processes die before every step of a start from a savepoint: the read, the first
// checkpoint, its commit, and what comes behind. Those that follow begin again from there, or go on from what is committed.
func TestEveryCrashPointOfAnImport(t *testing.T) {
	stride := 1
	if testing.Short() || raceEnabled {
		stride = 7
	}
	for instances := 1; instances <= 2; instances++ {
		for left := keptAll; left <= keptNothing; left++ {
			t.Run(fmt.Sprintf("%d instances, %v", instances, left), func(t *testing.T) {
				t.Parallel()
				model := importModel(instances, left)
				res, s := model()
				require.NoError(t, res.Err)
				require.Equal(t, 2, res.Counts.Imported)
				var sum Counts
				runs := 0
				for step := s.saves.from + 1; step <= res.Steps; step += stride {
					for _, crash := range []scriptedEvent{{step: step, silent: step%2 == 0}, {step: step, keep: 1, silent: step%2 == 1}} {
						res, _ := model(crash)
						require.NoError(t, res.Err, "%+v", crash)
						sum.add(res.Counts)
						runs++
					}
				}
				require.Greater(t, sum.Imports, sum.Imported, "none has begun again")
				require.Equal(t, 2*runs, sum.Imported)
				t.Logf("steps %d to %d, %d runs: %d tasks from the savepoint", s.saves.from+1, res.Steps, runs, sum.Imports)
			})
		}
	}
}

// TestEveryPairOfCrashPointsOfAnImport has the second start die, too.
func TestEveryPairOfCrashPointsOfAnImport(t *testing.T) {
	first, second := 5, 3
	if testing.Short() || raceEnabled {
		first, second = 19, 11
	}
	for left := keptAll; left <= keptNothing; left++ {
		model := importModel(1, left)
		res, s := model()
		require.NoError(t, res.Err)
		runs := everyStep(t, s.saves.from+1, res.Steps, first, func(step int) int64 {
			return crashTwice(t, model, second, []scriptedEvent{{step: step}, {step: step, keep: 1, silent: true}}, []scriptedEvent{{keep: 0.5}})
		})
		t.Logf("%v: %d runs", left, runs)
	}
}
