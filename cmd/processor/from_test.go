package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/processor"
)

func TestFlagsOfAStartFromASavepoint(t *testing.T) {
	const sp = "/savepoints/savepoint-a-1-0000000000000001"
	for line, want := range map[string]string{
		"run f.yaml --from /tmp":                                "/tmp is not a savepoint: its directory is named savepoint-<application>-<checkpoint>",
		"run f.yaml --from " + sp + " --claim-mode mine":        `--claim-mode "mine": no-claim or claim`,
		"run f.yaml --from " + sp + " --recover-from-store":     "leave one of them out",
		"run f.yaml --claim-mode CLAIM":                         "without --from: which savepoint?",
		"run f.yaml --accept-duplicates":                        "it is for going back to a savepoint",
		"run f.yaml --from " + sp + " --claim-mode NO_CLAIM -x": "unknown shorthand flag",
	} {
		code, _, stderr := cli(t, strings.Fields(line)...)
		require.Equal(t, 2, code, line)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

// What the messages of refusals advise is what helps.
func TestTheWayFromASavepoint(t *testing.T) {
	s := newSite(t, "admin: {listen: 127.0.0.1:0}")
	a := s.run("a")
	put(t, s.b, "in", "anna", `{"amount":5}`, `{"amount":9}`)
	require.Eventually(t, func() bool {
		code, _, _ := cli(t, "verify", "--input", "in", "--output", "out", "--brokers", s.b.Addr())
		return code == 0
	}, 20*time.Second, 50*time.Millisecond)
	var o processor.Outcome
	code, stderr := s.ask(&o, "cancel", s.file, "--savepoint="+s.path("last"))
	require.Zero(t, code, stderr)
	s.ended("a", a)
	path := o.Replies[0].Path
	require.NotEmpty(t, path)

	code, _, stderr = cli(t, "run", s.file, "--set", "data-dir="+s.path("b"), "--set", "application=fork", "--from", filepath.Join(s.path("last"), "savepoint-totals-99-0000000000000001"))
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "there is no such directory")

	// A group that has nothing to do with it.
	text, err := os.ReadFile(s.file)
	require.NoError(t, err)
	other := s.path("other.yaml")
	require.NoError(t, os.WriteFile(other, []byte(strings.NewReplacer("application: totals", "application: other", "steps: {totals: ", "steps: {sums: ", "from: totals", "from: sums").Replace(string(text))), 0o600))
	s.file = other
	b := s.run("b")
	code, _, stderr = cli(t, "checkpoint", "trigger", s.file)
	require.Zero(t, code, stderr)
	code, _, stderr = cli(t, "cancel", s.file)
	require.Zero(t, code, stderr)
	s.ended("b", b)
	code, _, stderr = cli(t, "run", s.file, "--set", "data-dir="+s.path("b"), "-s", path)
	require.Equal(t, 21, code, stderr)
	for _, want := range []string{"does not come from savepoint", path, "--accept-duplicates", "`processor reset " + s.file + " --set data-dir=" + s.path("b") + "`", "--set application=NAME"} {
		require.Contains(t, stderr, want)
	}
	s.more = []string{"-s", path, "-n", "--accept-duplicates"}
	b = s.run("b")
	require.Contains(t, s.log("b"), "GOING BACK TO A SAVEPOINT")
	code, _, stderr = cli(t, "cancel", s.file)
	require.Zero(t, code, stderr)
	s.ended("b", b)
	code, _, stderr = cli(t, "reset", s.file, "--set", "data-dir="+s.path("b"), "--yes")
	require.Zero(t, code, stderr)
	code, _, stderr = cli(t, "run", s.file, "--set", "data-dir="+s.path("b"), "-s", path)
	require.Equal(t, 23, code, stderr)
	require.Contains(t, stderr, "holds state that no step of the topology owns: totals/")
	require.Contains(t, stderr, "let it go with --allow-dropped-state")
	s.more = []string{"-s", path, "-n", "--claim-mode", "CLAIM"}
	b = s.run("b")
	require.Eventually(t, func() bool { _, err := os.Stat(path); return os.IsNotExist(err) }, 20*time.Second, 20*time.Millisecond, "%s", func() string { return s.log("b") })
	require.Contains(t, s.log("b"), "state is let go, as allowed")
	code, _, stderr = cli(t, "cancel", s.file)
	require.Zero(t, code, stderr)
	s.ended("b", b)
}
