package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/processor"
)

// The positions in a savepoint are those of one cluster. Who starts from it on another one is told what can be done.
func TestASavepointOfAnotherClusterNamesTheWay(t *testing.T) {
	s, other := newSite(t, "admin: {listen: 127.0.0.1:0}"), newSite(t, "admin: {listen: 127.0.0.1:0}")
	a := s.run("a")
	put(t, s.b, "in", "anna", `{"amount":5}`)
	require.Eventually(t, func() bool {
		code, _, _ := cli(t, "verify", "--input", "in", "--output", "out", "--brokers", s.b.Addr())
		return code == 0
	}, 20*time.Second, 50*time.Millisecond)
	var o processor.Outcome
	code, stderr := s.ask(&o, "cancel", s.file, "--savepoint="+s.path("last"))
	require.Zero(t, code, stderr)
	s.ended("a", a)
	code, _, stderr = cli(t, "run", other.file, "--set", "data-dir="+other.path("a"), "--set", "application=fork", "--from", o.Replies[0].Path)
	require.Equal(t, 21, code, stderr)
	require.Contains(t, stderr, "is of cluster ")
	require.Contains(t, stderr, "start from it on the cluster that it is of (kafka.brokers)")
}
