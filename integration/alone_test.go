//go:build unix

package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

func TestRefusedSameDataDirectory(t *testing.T) {
	s := embeddedSite(t, 2)
	file := s.file(totals)
	s.orders(0, 500, 50)
	first := s.run(file)
	s.caughtUp(first)
	refused(t, s.run(file), 40, "data directory "+s.dir+" is in use by another process")
	s.orders(500, 500, 50)
	s.caughtUp(first)
	first.stop()
	s.goesOn(file)
}

// Two processes with one instance id: the later one takes over, the earlier one is told, and no output is lost or doubled
// in between.
func sameInstanceID(s *site) {
	file := s.file(totals)
	flags := func(dir string) []string {
		return []string{"--set", "instance.id=" + s.app, "--set", "data-dir=" + filepath.Join(s.dir, dir), "--set", "state.checkpoints.dir=" + s.checkpoints()}
	}
	s.orders(0, 5000, 50)
	first := s.run(file, flags("first")...)
	first.await("msg=processing")
	second := s.run(file, flags("second")...)
	s.orders(5000, 5000, 50)
	refused(s.t, first, 40, "another process uses instance id ")
	s.caughtUp(second)
	second.stop()
	require.EqualValues(s.t, 9000, s.exact(verify.Config{}).RecordsOut)
	// What the fenced process had begun under an id that the other one never used again is ended by the broker.
	s.nothingOpen(nil, time.Now().Add(2*transactionTimeout))
}

func TestRefusedSameInstanceID(t *testing.T) {
	t.Parallel()
	sameInstanceID(fakeSite(t, 4))
}
func TestRealRefusedSameInstanceID(t *testing.T) { sameInstanceID(realSite(t, 4)) }
