//go:build unix

package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/processor"
)

// An instance sees many others come and go, each of them new. Its goroutines do not become more with their number; and of
// what lies in the checkpoint directory only the announcements of those that went are left, after the first checkpoint of
// one that starts.
func TestManyInstancesComeAndGoWithoutATrace(t *testing.T) {
	s := fakeSite(t, 6).impatient()
	s.every = 50 * time.Millisecond
	const keys, rounds, after = 500, 8, "partitions taken in beside the others"
	file := s.file(totals)
	as := func(name string) *inside {
		return s.inside(file, func(c *processor.Config) {
			c.DataDir, c.CheckpointsDir = filepath.Join(s.dir, name), s.checkpoints()
			c.LocalDirs = []string{filepath.Join(s.dir, name, "local")}
		})
	}
	first := as("a")
	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, keys) }()
	first.until(20*time.Second, func() bool { return s.progress() > 100 }, "it works")
	var goroutines []int
	for round := range rounds {
		guest := as(fmt.Sprint("guest-", round))
		guest.until(20*time.Second, func() bool { return strings.Contains(guest.log.String(), "msg=processing") }, "it gets something")
		time.Sleep(300 * time.Millisecond)
		guest.stop()
		first.until(20*time.Second, func() bool { return strings.Count(first.log.String(), after) > round }, "it has them all again")
		time.Sleep(10 * s.every)
		goroutines = append(goroutines, runtime.NumGoroutine())
	}
	t.Logf("goroutines: %v", goroutines)
	require.LessOrEqual(t, slices.Min(goroutines[rounds/2:]), slices.Max(goroutines[:rounds/2])+rounds/2-1, "not one for each guest")
	require.Empty(t, first.failed())
	first.stop()
	before := s.fileCount()
	last := as("last")
	last.until(20*time.Second, func() bool { return s.fileCount() < 100 }, "the files of the others go")
	t.Logf("%d files before, %d after", before, s.fileCount())
	stop()
	n := <-trickle
	last.caughtUp()
	last.stop()
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	s.handlesAreWhole()
}

// fileCount is the number of files in the checkpoint directory, without announcements.
func (s *site) fileCount() (n int) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.checkpoints(), s.app, "*", "*"))
	require.NoError(s.t, err)
	for _, f := range files {
		if filepath.Base(f) != "instance" {
			n++
		}
	}
	return n
}
