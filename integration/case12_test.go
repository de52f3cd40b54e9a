//go:build unix

package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// named starts the service as an instance with an id of its own, and a directory of its own; the checkpoints are shared.
func (s *site) named(file, id, dir string) *process {
	s.t.Helper()
	return s.run(file, "--set", "instance.id="+id, "--set", "data-dir="+filepath.Join(s.dir, dir), "--set", "state.checkpoints.dir="+s.checkpoints())
}

// Two processes with one instance id: the later one takes over. The earlier one does not go on as if nothing had been, it
// is gone within five seconds and names the id; no output is lost or doubled in between.
func sameInstanceID(s *site) {
	file := s.file(totals)
	id := s.app + "-pod"
	s.orders(0, 5000, 50)
	first := s.named(file, id, "first")
	first.await("msg=processing")
	second := s.named(file, id, "second")
	s.orders(5000, 5000, 50)
	second.await("partitions assigned")
	refused(s.t, first, 40, "another process uses instance id ", id)
	took := time.Since(second.started)
	require.Less(s.t, took, 5*time.Second)
	s.caughtUp(second)
	require.False(s.t, second.ended())
	second.stop()
	require.EqualValues(s.t, 9000, s.exact(verify.Config{}).RecordsOut)
	// What the fenced process had begun under an id that the other one never used again is ended by the broker.
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
	s.t.Logf("the earlier one has ended %v after the start of the later one", took.Round(time.Millisecond))
}

func TestC12_SameInstanceID(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	sameInstanceID(fakeSite(t, 4))
}
func TestC12_RealSameInstanceID(t *testing.T) { sameInstanceID(realSite(t, 4)) }

// The same name again while the group still counts on the dead one: it gets its place back without waiting for the
// session to end, and without help.
func sameNameAgain(s *site) {
	file := s.file(totals)
	s.orders(0, 2000, 50)
	job := s.named(file, s.app+"-pod", "own")
	s.caughtUp(job)
	for round := range 3 {
		s.orders(2000+1000*round, 500, 50)
		job.kill()
		s.orders(2500+1000*round, 500, 50)
		job = s.named(file, s.app+"-pod", "own")
		s.caughtUp(job)
		require.Less(s.t, time.Since(job.started), s.session/2, "it does not wait for the session")
		require.Zero(s.t, job.restarts())
		require.Len(s.t, s.members(), 1)
	}
	job.stop()
	require.EqualValues(s.t, 4500, s.exact(verify.Config{}).RecordsOut)
	s.storeIsWhole()
}

func TestC12_SameNameWithinTheSession(t *testing.T) {
	t.Parallel()
	processorBinary(t)
	sameNameAgain(fakeSite(t, 4))
}
func TestC12_RealSameNameWithinTheSession(t *testing.T) { sameNameAgain(realSite(t, 4)) }
