package yamlx

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// worked gives the processor time that the thread has used.
func worked(t *testing.T) time.Duration {
	t.Helper()
	const thread = 1 // RUSAGE_THREAD, which package syscall does not name
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(thread, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
