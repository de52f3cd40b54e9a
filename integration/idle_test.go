//go:build unix

package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// Without input no transaction is begun and no file is written, also not after a restart.
func idle(s *site) {
	file := s.file(totals)
	s.orders(0, 2000, 100)
	job := s.run(file)
	s.caughtUp(job)
	look := func() (all struct {
		out, markers map[int32]int64
		files        []string
	}) {
		all.out, _ = s.ends(s.out)
		all.markers, _ = s.ends(s.app + "-checkpoints")
		all.files = s.fileNames()
		return all
	}
	for _, phase := range []string{"after work", "after a restart"} {
		// The housekeeping after the last checkpoint ends by itself.
		before, since := look(), time.Now()
		job.until(20*time.Second, func() bool {
			if now := look(); !equal(now, before) {
				before, since = now, time.Now()
			}
			return time.Since(since) > 3*s.every
		}, "it never comes to rest")
		for end := time.Now().Add(8 * s.every); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			require.Empty(s.t, s.open(), phase)
		}
		require.Equal(s.t, before, look(), phase)
		require.False(s.t, job.ended())
		if phase == "after work" {
			job.kill()
			job = s.run(file)
			job.await("msg=processing")
		}
	}
	// It is not dead, only idle.
	s.orders(2000, 100, 100)
	s.caughtUp(job)
	s.exact(verify.Config{})
	job.stop()
}

func equal(a, b any) bool { return assert.ObjectsAreEqual(a, b) }

func TestIdleBeginsNoTransactionAndWritesNoFile(t *testing.T) {
	t.Parallel()
	idle(embeddedSite(t, 2))
}

func TestRealIdleBeginsNoTransactionAndWritesNoFile(t *testing.T) { idle(realSite(t, 2)) }
