//go:build unix

package integration

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An instance sleeps through a reset, in the first life or in one after a cancel that deletes. When it wakes up it ends, and
// whoever began after the reset goes on.
func TestResetUnderASleeper(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(map[bool]string{true: "of the first life", false: "of a later life"}[first], func(t *testing.T) {
			t.Parallel()
			s := fakeSite(t, 4).impatient()
			file := s.file(totals)
			if !first {
				z := s.mortal(processorBinary(t), file, "z")
				z.await("msg=processing")
				s.orders(0, 200, 20)
				s.caughtUp(z)
				code, text := s.cancels(processorBinary(t), file)
				require.Zero(t, code, text)
				require.Zero(t, z.exit(20*time.Second))
			}
			a := s.mortal(processorBinary(t), file, "a")
			a.await("msg=processing")
			s.orders(200, 200, 20)
			s.caughtUp(a)
			require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))
			s.emptied()
			r := startProcess(t, processorBinary(t), []string{"reset", file, "--yes", "--set", "data-dir=" + filepath.Join(s.dir, "other"), "--set", "state.checkpoints.dir=" + s.checkpoints()})
			require.Zero(t, r.exit(20*time.Second), r.stderr.String())
			b := s.mortal(processorBinary(t), file, "b")
			b.await("msg=processing")
			s.orders(400, 200, 20)
			s.caughtUp(b)
			require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
			require.Zero(t, a.exit(20*time.Second), a.stderr.tail(5))
			require.Contains(t, a.stderr.String(), "its state is deleted (or it was reset)")
			s.orders(600, 200, 20)
			s.caughtUp(b)
			require.NotContains(t, b.stderr.String(), "its state is deleted")
			b.stop()
		})
	}
}
