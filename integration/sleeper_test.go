//go:build unix

package integration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
)

// An instance sleeps in the middle of writing a file, for longer than the grace of those who clean up after it: a suspended
// machine, whose monotonic clock stands. Here it is a pause, and the time of the file is set back. When it wakes up its
// file is gone. It is healthy, and goes on.
func fileRemovedInSleep(s *site) {
	t := s.t
	file := s.file(totals)
	as := func(binary, name string, env ...string) *process {
		return startProcess(t, binary, []string{"run", file, "--log-format", "text", "--set", "instance.id=" + s.app + "-" + name,
			"--set", "data-dir=" + filepath.Join(s.dir, name), "--set", "state.checkpoints.dir=" + s.checkpoints()}, env...)
	}
	a := as(armedBinary(t), "a", "FAILPOINT=rename-before#12=pause:4s")
	a.await("msg=processing")
	b := as(processorBinary(t), "b")
	b.await("msg=processing")
	ctx, stop := context.WithCancel(s.ctx)
	trickle := make(chan int, 1)
	go func() { trickle <- s.trickle(ctx, 0, 500) }()
	a.until(30*time.Second, func() bool {
		tmp, _ := filepath.Glob(filepath.Join(s.checkpoints(), s.app, s.app+"-a", "*.tmp"))
		if len(tmp) != 1 {
			return false
		}
		time.Sleep(200 * time.Millisecond) // others do not last so long
		old := time.Now().Add(-2 * time.Hour)
		return os.Chtimes(tmp[0], old, old) == nil
	}, "it does not pause")
	a.until(30*time.Second, func() bool {
		tmp, _ := filepath.Glob(filepath.Join(s.checkpoints(), s.app, s.app+"-a", "*.tmp"))
		return len(tmp) == 0
	}, "its file is not removed")
	a.until(30*time.Second, func() bool { return strings.Contains(a.stderr.String(), "the file was removed while it was written") }, "it does not tell of it")
	time.Sleep(time.Second)
	require.False(t, a.ended(), a.stderr.tail(3))
	stop()
	n := <-trickle
	s.caughtUp(b)
	r := s.exact(verify.Config{})
	require.EqualValues(t, n, r.RecordsIn+r.Filtered)
	stopAll(a, b)
}

func TestFileRemovedInSleep(t *testing.T) {
	t.Parallel()
	fileRemovedInSleep(fakeSite(t, 4).impatient())
}
