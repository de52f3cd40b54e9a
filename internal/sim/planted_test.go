package sim

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlantedBugsAreCaught is why the checkers can be believed: every planted bug is found within 500 schedules, from
// outside (the driver's own assertion, I14, is off while a bug is planted).
func TestPlantedBugsAreCaught(t *testing.T) {
	const most = 500
	for bug := NoBug + 1; bug < NumBugs; bug++ {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			seed, v := firstCaught(bug, most)
			require.NotNil(t, v, "not caught in %d schedules", most)
			require.NotEqual(t, "driver", v.Invariant, "the run broke down instead of being caught: %v", v)
			t.Logf("%v: caught by %s in schedule %d: %s\n  replay: %s", bug, v.Invariant, seed, v.What, replay(Config{Seed: seed, Bug: bug, AtLeastOnce: bug.ofPlain()}))
		})
	}
}

func firstCaught(bug Bug, most uint64) (uint64, *Violation) {
	for seed := uint64(1); seed <= most; seed++ {
		var v *Violation
		if errors.As(Run(Config{Seed: seed, Bug: bug, AtLeastOnce: bug.ofPlain()}).Err, &v) {
			return seed, v
		}
	}
	return 0, nil
}

// TestPlantedBugRates tells for each planted bug in how many of 500 schedules which invariant finds it. SIM_RATES=1.
func TestPlantedBugRates(t *testing.T) {
	if os.Getenv("SIM_RATES") == "" {
		t.Skip("SIM_RATES=1 runs it")
	}
	for bug := NoBug + 1; bug < NumBugs; bug++ {
		by := map[string]int{}
		for seed := uint64(1); seed <= 500; seed++ {
			var v *Violation
			if errors.As(Run(Config{Seed: seed, Bug: bug, AtLeastOnce: bug.ofPlain()}).Err, &v) {
				by[v.Invariant]++
			}
		}
		t.Logf("%-28v %v", bug, by)
	}
}

// TestBugNames: every bug can be asked for by name.
func TestBugNames(t *testing.T) {
	for bug := NoBug; bug < NumBugs; bug++ {
		got, ok := ParseBug(bug.String())
		require.True(t, ok && got == bug, bug)
	}
	_, ok := ParseBug("unknown")
	require.False(t, ok)
}
