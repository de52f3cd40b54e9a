package demo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The kernel ends the job when the demo gets kill -9 and can do nothing itself.
func TestTheJobDiesWithADemoThatIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), demoEnv+"="+dir)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var pid int
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(filepath.Join(dir, "job.log"))
		if err != nil {
			return false
		}
		_, err = fmt.Sscanf(string(log), "pid %d\n", &pid)
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, syscall.Kill(pid, 0), "the job runs")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool { return gone(pid) }, 5*time.Second, 10*time.Millisecond)
}

// gone says that a process has ended; as an orphan it may wait as a zombie for an init that reaps.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	var n int
	var name, state string
	_, err = fmt.Sscanf(string(stat), "%d %s %s", &n, &name, &state)
	return err == nil && state == "Z"
}
