package processor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

// A reset that leaves something for which the next start is refused says so, and what can go, goes.
func TestAResetSaysWhatIsInTheWayOfTheNextStart(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	const app = "leaves"
	plan := countPlan(t, app)
	cfg, _ := b.instance("a")
	cfg = cfg.withDefaults()
	b.produce(0, 100)
	stop := b.start(plan, cfg)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())

	roots, err := filepath.Glob(filepath.Join(cfg.CheckpointsDir, app, "*", "chk-*.root"))
	require.NoError(t, err)
	require.NotEmpty(t, roots)
	require.NoError(t, os.Remove(roots[0]))
	require.NoError(t, os.Symlink("nowhere", roots[0]))
	id := filepath.Join(cfg.CheckpointsDir, "millweir-store-id")
	require.NoError(t, os.WriteFile(id, []byte("damaged"), 0o600))

	reset := func() error {
		r, err := PlanReset(t.Context(), app, cfg)
		require.NoError(t, err)
		require.False(t, r.Empty())
		return r.Do(t.Context())
	}
	err = reset()
	require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "millweir-store-id", "something has the name of a checkpoint's file")
	require.NoError(t, os.WriteFile(id, nil, 0o600))
	require.Equal(t, fault.Corrupt, fault.CodeOf(reset()), "an empty one is no identity either")
	require.NoError(t, os.Remove(id))
	err = reset()
	require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, filepath.Base(roots[0]))
	require.NoError(t, os.Remove(roots[0]))

	require.NoError(t, os.WriteFile(id, []byte("damaged"), 0o600))
	require.NoError(t, reset(), "nothing is there that belongs to it")
	require.NoFileExists(t, id)
	stop = b.start(plan, cfg)
	require.Eventually(t, func() bool { return b.lag(app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
}
