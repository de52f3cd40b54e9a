package main

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/snapshot"
)

// code gives the exit code of an instance that is told to stop by a signal.
func (s *site) code(name string, cmd *exec.Cmd) int {
	s.t.Helper()
	require.NoError(s.t, cmd.Process.Signal(syscall.SIGTERM))
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// failing is the command that is run, but for a disk that fails in a way that may pass. Only processes of tests have it.
const failing = "failing-job"

func newFailing() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{Use: failing + " FILE.yaml", Hidden: true, Args: exactArgs("FILE.yaml")}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runDecorated(cmd, args[0], f, func(p *engine.Ports) { p.Checkpoints = tired{p.Checkpoints} })
	}
	return cmd
}

// tired writes no state.
type tired struct{ engine.Checkpoints }

func (tired) Persist(context.Context, element.CheckpointName, []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	return nil, errors.New("the disk is tired")
}

// waits starts an instance whose attempt fails since no state can be written, and returns when it waits for the next attempt.
func (s *site) waits(name string) *exec.Cmd {
	s.t.Helper()
	s.as = failing
	cmd := s.run(name)
	put(s.t, s.b, "in", "anna", `{"amount":5}`)
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var got admin.Attempts
		code, stderr := s.ask(&got, "attempts", s.file, "--set", "data-dir="+s.path(name))
		if code == 0 && got.State == "waiting" {
			return cmd
		}
		require.True(s.t, time.Now().Before(until), "%d %s %+v: %s", code, stderr, got, s.log(name))
	}
}

// slow is the command that is run, but for a disk that takes a checkpoint when it is told to give up.
const slow = "slow-job"

func newSlow() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{Use: slow + " FILE.yaml", Hidden: true, Args: exactArgs("FILE.yaml")}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return runDecorated(cmd, args[0], f, func(p *engine.Ports) { p.Checkpoints = patient{p.Checkpoints} })
	}
	return cmd
}

type patient struct{ engine.Checkpoints }

func (patient) Persist(ctx context.Context, _ element.CheckpointName, _ []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A last checkpoint that is too slow for the shutdown timeout is one that is missing, although all that was in its way has
// heeded the end of the time: not a command that was interrupted.
func TestALastCheckpointThatTakesTooLongIsExitCode42(t *testing.T) {
	s := newSite(t, "shutdown: {timeout: 1s}")
	s.as = slow
	a := s.run("a")
	put(t, s.b, "in", "anna", `{"amount":5}`)
	require.Equal(t, 42, s.code("a", a), s.log("a"))
	require.Contains(t, s.log("a"), "took longer than the shutdown timeout of 1s")
}

const longWait = "restart-strategy: {type: fixed-delay, fixed-delay: {delay: 10m, attempts: 5}}"

// A stop between a failed attempt and the next one: no last checkpoint was possible, and the process says so with its code.
func TestAStopBetweenTwoAttemptsIsExitCode42(t *testing.T) {
	s := newSite(t, longWait)
	a := s.waits("a")
	var got admin.Attempts
	code, stderr := s.ask(&got, "attempts", s.file, "--set", "data-dir="+s.path("a"))
	require.Zero(t, code, stderr)
	require.Len(t, got.Attempts, 1)
	require.Equal(t, 1, got.Restarts)
	require.EqualValues(t, 600_000, got.Attempts[0].DelayMs)
	code, stdout, stderr := cli(t, "attempts", s.file, "--set", "data-dir="+s.path("a"))
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, ": waiting, 1 restart since its process began\nATTEMPT  STARTED")
	require.Regexp(t, `\n1  +\S+Z  +\S+Z  +\S+  +failed  +restart  +10m  .*the disk is tired`, stdout)

	require.Equal(t, 42, s.code("a", a), s.log("a"))
	require.Contains(t, s.log("a"), "processor: stopped without a last checkpoint, the next start does again what was not committed: the last attempt had failed: ")

	code, _, stderr = cli(t, "attempts", s.file, "--set", "data-dir="+s.path("a"))
	require.Equal(t, 43, code)
	require.Contains(t, stderr, "no instance runs with data-dir")
}

// A cancel is told the same, and the process ends with the same code.
func TestACancelBetweenTwoAttemptsIsExitCode42(t *testing.T) {
	s := newSite(t, longWait)
	a := s.waits("a")
	code, _, stderr := cli(t, "cancel", s.file, "--admin", adminHere, "--set", "data-dir="+s.path("a"))
	require.Equal(t, 42, code, stderr)
	require.Contains(t, stderr, "the last attempt had failed: ")
	late := time.AfterFunc(30*time.Second, func() { _ = a.Process.Kill() })
	defer late.Stop()
	_ = a.Wait()
	require.Equal(t, 42, a.ProcessState.ExitCode(), s.log("a"))
}
