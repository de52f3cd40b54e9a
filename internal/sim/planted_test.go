package sim

import (
	"errors"
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
			t.Logf("caught by %s in schedule %d: %s", v.Invariant, seed, v.What)
		})
	}
}

func firstCaught(bug Bug, most uint64) (uint64, *Violation) {
	for seed := uint64(1); seed <= most; seed++ {
		var v *Violation
		if errors.As(Run(Config{Seed: seed, Bug: bug}).Err, &v) {
			return seed, v
		}
	}
	return 0, nil
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
