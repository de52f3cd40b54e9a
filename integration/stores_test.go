//go:build unix

package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two instances start at the same moment with directories of their own, as when state.checkpoints.dir was forgotten. A broker
// as it is delivered waits for both and then gives each its part, so that neither finds anything of the other: they look
// again when they have committed their start positions.
func TestRealTwoStoresFromTheStart(t *testing.T) {
	needReal(t)
	var k starter
	t.Cleanup(func() { k.broker.Close() })
	s := newSite(t, k.run(t, map[string]string{"group.initial.rebalance.delay.ms": "3000", "group.min.session.timeout.ms": "1000"}), 4)
	file := s.file(totals)
	var jobs [2]*process
	for i, dir := range []string{"a", "b"} {
		d := filepath.Join(s.dir, dir)
		jobs[i] = s.run(file, "--set", "instance.id="+s.app+"-"+dir, "--set", "data-dir="+d, "--set", "state.checkpoints.dir="+filepath.Join(d, "checkpoints"))
	}
	s.orders(0, 500, 50)
	ended := func() *process {
		for _, job := range jobs {
			if job.ended() {
				return job
			}
		}
		return nil
	}
	require.Eventually(t, func() bool { return ended() != nil }, 20*time.Second, 20*time.Millisecond, "both work")
	job := ended()
	require.Equal(t, 21, job.exit(time.Second))
	require.Contains(t, job.stderr.tail(1), "set state.checkpoints.dir to the directory that all instances share")
}
