package demo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/millweir/millweir/internal/fault"
)

// child is one run of the job's process.
type child struct {
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{} // closed when it has ended and is reaped
	err     error         // of Wait, after done
}

// startChild starts a process and reaps it when it ends.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the child to this thread, so the thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		c.started = time.Now()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the job: %w", err)
	}
	return c, nil
}

// kill is kill -9; it returns when the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // an error says that it is gone
	<-c.done
}

// stop asks the process to end and waits; after the bound it is killed and that is the error.
func (c *child) stop(bound time.Duration) error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-c.done:
		if c.err != nil {
			return fmt.Errorf("the job did not stop cleanly: %s", c.ending())
		}
		return nil
	case <-timer.C:
		c.kill()
		return fmt.Errorf("the job did not stop within %v of SIGTERM and was killed", bound)
	}
}

// ending explains how the process ended. Only after done.
func (c *child) ending() string {
	var exit *exec.ExitError
	switch {
	case c.err == nil:
		return "exit code 0"
	case errors.As(c.err, &exit) && exit.ExitCode() >= 0:
		code := exit.ExitCode()
		if why, ok := codes[fault.Code(code)]; ok {
			return fmt.Sprintf("exit code %d (%s)", code, why)
		}
		return fmt.Sprintf("exit code %d", code)
	}
	return c.err.Error()
}

// codes are the exit codes of docs/exit-codes.md in a few words.
var codes = map[fault.Code]string{
	fault.Failed:             "error without a code of its own",
	fault.Usage:              "wrong flags or arguments",
	fault.BadFile:            "mistakes in the service file",
	fault.Unreachable:        "no broker answers",
	fault.BrokerTooOld:       "the cluster lacks transaction.version 2",
	fault.TransactionTimeout: "transaction timeout above the broker's maximum",
	fault.UnknownTopic:       "a topic does not exist",
	fault.Denied:             "the cluster refuses access",
	fault.OffsetGone:         "a committed position is no longer in the topic",
	fault.CheckpointDir:      "the checkpoint directory cannot be read or written",
	fault.HandleMismatch:     "the committed offsets do not match the checkpoints",
	fault.Corrupt:            "a checkpoint file is damaged or missing",
	fault.StateMismatch:      "the state does not fit the topology",
	fault.BadRecord:          "a record could not be processed",
	fault.Fenced:             "another process uses the same instance id",
	fault.Unfinished:         "stopped without a last checkpoint",
}

// logTail gives the last lines of a log file, indented.
func logTail(path string, lines int) string {
	const most = 16 << 10
	f, err := os.Open(path)
	if err != nil {
		return "  (no log: " + err.Error() + ")\n"
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "  (no log: " + err.Error() + ")\n"
	}
	from := max(0, info.Size()-most)
	buf := make([]byte, info.Size()-from)
	n, _ := f.ReadAt(buf, from)
	all := strings.Split(strings.TrimRight(string(buf[:n]), "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	return "  | " + strings.Join(all, "\n  | ") + "\n"
}
