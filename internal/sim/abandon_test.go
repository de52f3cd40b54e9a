package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// abandonModel is the small model with three checkpoints in flight, of which one fails when it is persisted: it and those
// behind it are abandoned, and the next one covers their work in the same transaction.
func abandonModel(decline int, crashes ...scriptedEvent) (Result, *script) {
	s := &script{records: 8, first: 2, events: crashes, interval: 500 * time.Microsecond, concurrent: 3, decline: decline}
	return Run(Config{Seed: 7, Instances: 1, Partitions: 2, script: s}), s
}

// TestEveryCrashPointAroundAnAbandon kills the process before every step of a run in which a checkpoint is abandoned, the
// first, one in the middle, or one beside an older one that goes on. The input goes on after it, and what was frozen, held
// back, sealed or written for it is in every state at one of the points.
func TestEveryCrashPointAroundAnAbandon(t *testing.T) {
	var sum Counts
	runs := 0
	for decline := 1; decline <= 5; decline++ {
		for step, over := 1, false; !over; step++ {
			if (testing.Short() || raceEnabled) && step%5 != decline%5 {
				continue
			}
			for _, keep := range keeps {
				crash := scriptedEvent{step: step, keep: keep}
				res, s := abandonModel(decline, crash)
				require.NoError(t, res.Err, "persisting %d fails, %+v", decline, crash)
				over = over || s.next == 0
				sum.add(res.Counts)
				runs++
			}
		}
	}
	require.NotZero(t, sum.Concurrent)
	require.NotZero(t, sum.Abandoned)
	require.NotZero(t, sum.AbandonedBeside)
	require.NotZero(t, sum.Reopened)
	t.Logf("%d runs: %d checkpoints triggered beside others, %d abandoned, %d times beside an older one, %d transactions reopened",
		runs, sum.Concurrent, sum.Abandoned, sum.AbandonedBeside, sum.Reopened)
}
