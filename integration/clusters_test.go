//go:build unix

package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Two clusters, one application name, one checkpoint directory: the second one is refused before it has touched anything,
// also when the first has no checkpoint yet, and the first one works on. Nor can a reset be made from there.
func TestASecondClusterOnOneDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	a, b := fakeSite(t, 2, kfake.ClusterID("staging")).impatient(), fakeSite(t, 2, kfake.ClusterID("production")).impatient()
	b.app = a.app
	as := func(s *site, name string) *process {
		return s.run(s.file(totals), "--set", "data-dir="+filepath.Join(s.dir, name), "--set", "state.checkpoints.dir="+a.checkpoints())
	}
	pa := as(a, "a")
	pa.await("processing")
	for range 2 {
		pb := as(b, "b")
		require.Equal(t, 21, pb.exit(20*time.Second), pb.stderr.tail(3))
		require.Contains(t, pb.stderr.tail(1), `has been here with cluster "staging"`)
		a.orders(0, 200, 50)
		a.caughtUp(pa)
	}
	pa.stop()
	files := a.fileCount()
	reset := startProcess(t, processorBinary(t), []string{"reset", b.file(totals), "--yes", "--set", "data-dir=" + filepath.Join(b.dir, "b"), "--set", "state.checkpoints.dir=" + a.checkpoints()})
	require.Equal(t, 21, reset.exit(20*time.Second), "%s", reset.stderr.tail(3))
	require.Contains(t, reset.stderr.tail(1), `has been here with cluster "staging"`)
	require.Equal(t, files, a.fileCount(), "it is not for somebody on another cluster to delete")
	pa = as(a, "a")
	a.orders(200, 200, 50)
	a.caughtUp(pa)
	pa.stop()
}
