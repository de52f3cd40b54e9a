//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/snapshot"
)

// A byte of a run is damaged under a process whose state in memory is whole: the damage is told once, the next checkpoint
// has the whole state, and both the service and the directory are as if nothing had been.
func TestARunDamagedUnderARunningProcess(t *testing.T) {
	s := embeddedSite(t, 1)
	s.every = 20 * time.Millisecond
	file := s.file(totals)
	flags := []string{"--set", "state.backend.fs.memory-threshold=0b"}
	p := s.run(file, flags...)
	n := 0
	work := func(until func() bool, what string) {
		p.until(20*time.Second, func() bool {
			s.orders(n, 20, 50)
			n += 20
			return until()
		}, "%s", what)
	}
	s.orders(n, 20, 50)
	n += 20
	s.caughtUp(p)
	var bad string
	var damaged []string // a merge may have read one just before, or read it while the next is damaged
	work(func() bool {
		if !slices.Contains(s.fileNames(), bad) {
			bad = s.newestRunFile()
			if bad == "" {
				return false
			}
			damaged = append(damaged, bad)
			damageIn(t, filepath.Join(s.checkpoints(), bad))
		}
		return strings.Contains(p.stderr.String(), "a checkpoint has the whole state of the task in place of its runs")
	}, "a renewal")
	work(func() bool {
		names := s.fileNames()
		return !slices.ContainsFunc(damaged, func(bad string) bool { return slices.Contains(names, bad) })
	}, "the damaged files go")
	s.caughtUp(p)
	log := p.stderr.String()
	told := 0
	for _, bad := range damaged {
		times := strings.Count(log, "file="+bad+" kind=run")
		require.LessOrEqual(t, times, 1, "%s is told more than once: %s", bad, log)
		told += times
	}
	require.Equal(t, told, strings.Count(log, `msg="a checkpoint file is damaged`), "%s", log)
	require.Positive(t, told, "%s", log)
	require.Zero(t, p.restarts())

	// One that goes ends an attempt, for only the offsets tell damage from a successor that has cleaned up; the process goes on.
	var gone string
	work(func() bool {
		if gone == "" || p.restarts() == 0 && !slices.Contains(s.newestRunFiles(), gone) { // or a merge had read it just before
			if gone = s.newestRunFile(); gone != "" {
				require.NoError(t, os.RemoveAll(filepath.Join(s.checkpoints(), gone)))
			}
		}
		return strings.Count(p.stderr.String(), "a checkpoint has the whole state of the task in place of its runs") > 1
	}, "a second renewal")
	require.Equal(t, 1, p.restarts())
	require.Contains(t, p.stderr.String(), "run "+gone+": the file is missing")
	require.NotContains(t, p.stderr.String()[len(log):], "msg=\"state restored\"", "the state in memory is used")
	s.caughtUp(p)
	s.tidied(p)
	p.stop()
	s.storeIsWhole()
	p = s.run(file, flags...)
	s.orders(n, 200, 50)
	s.caughtUp(p)
	s.exact(verify.Config{})
	p.stop()
}

// damageIn turns a byte of a file over, in place; of a file that is not there it does nothing.
func damageIn(t *testing.T, name string) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], info.Size()-40)
	require.NoError(t, err)
	b[0] ^= 0xff
	_, err = f.WriteAt(b[:], info.Size()-40)
	require.NoError(t, err)
}

// newestRunFile is the file of the newest run of the chain that a committed handle names, "" when there is none.
func (s *site) newestRunFile() string {
	files := s.newestRunFiles()
	if len(files) == 0 {
		return ""
	}
	return files[len(files)-1]
}

// newestRunFiles are those of the first task's chain that a committed handle names, oldest first.
func (s *site) newestRunFiles() (files []string) {
	repo := s.repository()
	for _, h := range s.handles() {
		if h.Kind != snapshot.HandleCheckpoint {
			continue
		}
		root, err := repo.ReadRoot(s.ctx, h.Root)
		if err != nil {
			continue // cleaned meanwhile
		}
		for _, run := range root.Tasks[0].Runs {
			if !run.IsInline() {
				files = append(files, run.File)
			}
		}
	}
	return files
}
