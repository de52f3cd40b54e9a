package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who reads the log goes away: its lines are lost, and nothing else. The last checkpoint is taken.
func TestRunGoesOnWithoutAReaderOfItsLog(t *testing.T) {
	s := newSite(t, "")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	s.to, s.more = w, []string{"--log-level", "debug"}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	cmd := s.run("a")
	require.NoError(t, w.Close())
	require.NoError(t, r.Close())

	verified := func() bool {
		code, _, _ := cli(t, "verify", "--input", "in", "--output", "out", "--brokers", s.b.Addr())
		return code == 0
	}
	for range 2 { // there are lines to write in between
		put(t, s.b, "in", "anna", `{"amount":5}`)
		require.Eventually(t, verified, 10*time.Second, 20*time.Millisecond)
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	s.ended("a", cmd)
}

// A command whose output nobody reads any more ends as others do in a pipe: without a word.
func TestACommandInAPipeThatClosesEndsQuietly(t *testing.T) {
	s := newCheckpointStore(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	defer w.Close()
	for _, args := range [][]string{{"list"}, {"verify"}, {"inspect", "4"}, {"list", "--output", "json"}} {
		cmd := exec.Command(os.Args[0], append(append([]string{"checkpoints"}, args...), "--dir", s.dir)...)
		cmd.Env = append(os.Environ(), asProcessor+"=1")
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = w, &stderr
		require.Error(t, cmd.Run())
		require.Equal(t, syscall.SIGPIPE, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), args)
		require.Empty(t, stderr.String())
	}
}
