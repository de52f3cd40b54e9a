//go:build failpoints && unix

package failpoint

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// child makes the test binary a program that passes the points of a checkpoint three times.
const child = "FAILPOINT_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	for range 3 {
		Hit(EndTxnBefore)
		if err := Err(FileFsyncBefore); err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
		}
		os.Stdout.WriteString("round\n")
	}
	os.Exit(0)
}

// run starts the child; ended is how it ended.
func run(t *testing.T, list string) (stdout, stderr string, ended syscall.WaitStatus, took time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), child+"=1", env+"="+list)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v", err)
	}
	return out.String(), errs.String(), cmd.ProcessState.Sys().(syscall.WaitStatus), time.Since(start)
}

const rounds = "round\nround\nround\n"

func TestActions(t *testing.T) {
	out, said, ended, _ := run(t, "")
	require.Equal(t, rounds, out)
	require.Empty(t, said)
	require.Zero(t, ended.ExitStatus())

	out, said, ended, _ = run(t, "endtxn-before#2")
	require.True(t, ended.Signaled() && ended.Signal() == syscall.SIGKILL)
	require.Equal(t, "round\n", out)
	require.Equal(t, "failpoint: kill at endtxn-before, hit 2\n", said)

	out, said, ended, _ = run(t, "file-fsync-before#3=error")
	require.Equal(t, "round\nround\nfailpoint file-fsync-before: planted error\nround\n", out)
	require.Equal(t, "failpoint: error at file-fsync-before, hit 3\n", said)
	require.Zero(t, ended.ExitStatus())

	out, said, ended, took := run(t, "endtxn-before=pause:300ms")
	require.Equal(t, rounds, out)
	require.Equal(t, "failpoint: pause of 300ms at endtxn-before, hit 1\n", said)
	require.Zero(t, ended.ExitStatus())
	require.GreaterOrEqual(t, took, 300*time.Millisecond)

	out, _, ended, _ = run(t, "file-fsync-before=error, endtxn-before#2=kill")
	require.Equal(t, "failpoint file-fsync-before: planted error\nround\n", out)
	require.True(t, ended.Signaled())
}

func TestAHangLeavesTheProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), child+"=1", env+"=endtxn-before#2=hang")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.Error(t, cmd.Run())
	require.Error(t, ctx.Err(), "it ends by the test's hand only")
	require.Equal(t, "round\n", out.String())
	require.Equal(t, "failpoint: hang at endtxn-before, hit 2\n", errs.String())
}

func TestWhatCannotBeMeantEndsTheProcess(t *testing.T) {
	out, said, ended, _ := run(t, "nowhere-before")
	require.Empty(t, out)
	require.Equal(t, "failpoint: FAILPOINT: \"nowhere-before\": there is no point of that name\n", said)
	require.Equal(t, 2, ended.ExitStatus())
	for _, list := range []string{"endtxn-before#0", "endtxn-before#x", "endtxn-before#", "endtxn-before=error", "endtxn-before=explode",
		"endtxn-before=hang:1s", "endtxn-before=pause:", "endtxn-before=pause:-1s", "endtxn-before,endtxn-before#2", ",", "#2", "=kill"} {
		_, err := arm(list)
		require.Error(t, err, list)
	}
}
