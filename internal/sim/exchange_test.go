package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine/gate"
)

// exchangeModel is the small model with an exchange: two partitions and two subtasks, and three after the crash. The
// subtasks are slow, so that some records are always on the way.
func exchangeModel(x exchange, crashes ...scriptedEvent) (Result, *script) {
	x.groups, x.limit, x.slow, x.first = 8, 2, time.Millisecond, 8 // 3, 1, 2, 4 follow
	s := &script{records: 8, first: 4, events: crashes, exchange: &x}
	return Run(Config{Seed: 7, Instances: 1, Partitions: 2, script: s}), s
}

// TestEveryCrashPointWithAnExchange kills the process before every step of a run, and what takes its place has another
// parallelism: what was in flight has to come back in other subtasks.
func TestEveryCrashPointWithAnExchange(t *testing.T) {
	for name, x := range map[string]exchange{
		"aligned":   {mode: gate.Aligned},
		"unaligned": {mode: gate.Unaligned},
		"timeout":   {mode: gate.Unaligned, timeout: 50 * time.Microsecond},
		"one ends":  {mode: gate.Unaligned, ends: 2},
		"all end":   {mode: gate.Aligned, ends: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sum Counts
			runs := 0
			for step, over := 1, false; !over; step++ {
				if (testing.Short() || raceEnabled) && step%5 != 0 {
					continue
				}
				for _, keep := range keeps {
					crash := scriptedEvent{step: step, keep: keep, silent: step%2 == 0}
					res, s := exchangeModel(x, crash)
					require.NoError(t, res.Err, "%+v", crash)
					over = over || s.next == 0
					sum.add(res.Counts)
					runs++
				}
			}
			require.NotZero(t, sum.Rescaled)
			require.Equal(t, x.ends != 0, sum.EndedTasks > 0)
			require.Equal(t, x.ends == 3, sum.TriggeredBehindEnds > 0)
			if x.mode == gate.Unaligned {
				require.NotZero(t, sum.InFlight)
				require.NotZero(t, sum.Replayed)
			}
			t.Logf("%d runs: %d subtasks read from others, %d unaligned snapshots, %d of them after a timeout, %d records restored in flight",
				runs, sum.Rescaled, sum.Unaligned, sum.Switched, sum.Replayed)
		})
	}
}
