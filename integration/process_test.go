//go:build unix

package integration

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// output collects what a process writes, for readers while it runs.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// tail gives the last lines.
func (o *output) tail(n int) string {
	lines := strings.Split(strings.TrimSpace(o.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// process is one run of a job.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdout  output
	stderr  output
	started time.Time
	done    chan struct{} // closed when it has ended
	err     error         // of Wait, after done
}

func startProcess(t *testing.T, name string, args []string, env ...string) *process {
	t.Helper()
	return startProcessWith(t, childAttr(), name, args, env...)
}

func startProcessWith(t *testing.T, attr *syscall.SysProcAttr, name string, args []string, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = &p.stdout, &p.stderr, attr
	started := make(chan error, 1)
	go func() {
		// The kernel ties the child to this thread, so the thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.started = time.Now()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", strings.Join(p.cmd.Args[1:], " "), p.stderr.tail(25))
		}
	})
	return p
}

// ended says whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill is SIGKILL; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error says that it is gone
	<-p.done
}

// exit waits for the process to end by itself and gives its exit code.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		require.Fail(p.t, "the process has not ended", "after %v", within)
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return exit.ExitCode()
	}
	require.NoError(p.t, p.err)
	return 0
}

// stop is SIGTERM, after which the process must end well.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM), p.stderr.tail(3))
	require.Zero(p.t, p.exit(30*time.Second))
}

// stopAll stops instances of one application one after the other. Those that go on get what the ones before them had, and may
// be at its restoring still when it is their turn: they say so by 42, and have nothing to commit.
func stopAll(jobs ...*process) {
	for _, p := range jobs {
		p.t.Helper()
		require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM), p.stderr.tail(3))
		if code := p.exit(30 * time.Second); code != 0 {
			require.Equal(p.t, 42, code, p.stderr.tail(3))
			require.Contains(p.t, p.stderr.String(), "it was still restoring its state")
		}
	}
}

// await waits until the log has a text.
func (p *process) await(text string) {
	p.t.Helper()
	p.until(30*time.Second, func() bool { return strings.Contains(p.stderr.String(), text) }, "no %q in the log", text)
}

// until waits for a condition while the process runs.
func (p *process) until(within time.Duration, cond func() bool, format string, args ...any) {
	p.t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(10 * time.Millisecond) {
		if p.ended() {
			require.Fail(p.t, "the process has ended", p.stderr.tail(5))
		}
		if time.Now().After(end) {
			require.Failf(p.t, "waited in vain", "%v: "+format, append([]any{within}, args...)...)
		}
	}
}
