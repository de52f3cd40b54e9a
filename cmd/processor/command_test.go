package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/processor"
)

// site is a broker, a service file, and the instances that run it.
type site struct {
	t    *testing.T
	b    *embedded.Broker
	dir  string
	file string
	more []string // flags of run
	as   string   // the command in its place; "" = none
	to   *os.File // where its log goes; nil = the file that log reads
}

func newSite(t *testing.T, more string) *site {
	s := &site{t: t, b: startBroker(t), dir: t.TempDir()}
	s.file = filepath.Join(s.dir, "totals.yaml")
	require.NoError(t, os.WriteFile(s.file, fmt.Appendf(nil, `application: totals
kafka: {brokers: %q}
checkpointing: {interval: 200ms}
state: {checkpoints: {dir: %q}, savepoints: {dir: %q}}
%s
sources: {orders: {topic: in, key: string, value: json}}
steps: {totals: {from: orders, aggregate: {orders: count(), spent: sum(value.amount)}}}
sinks: {totals: {from: totals, topic: out, key: string, value: json}}
`, s.b.Addr(), s.path("checkpoints"), s.path("savepoints"), more), 0o600))
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// run starts an instance as a process and waits until it is ready.
func (s *site) run(name string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{cmp.Or(s.as, "run"), s.file, "--set", "data-dir=" + s.path(name)}, s.more...)...)
	cmd.Env = append(os.Environ(), asProcessor+"=1")
	log, err := os.Create(s.path(name + ".log"))
	require.NoError(s.t, err)
	defer log.Close()
	cmd.Stderr = cmp.Or(s.to, log)
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() { _ = cmd.Process.Kill() })
	require.Eventually(s.t, func() bool {
		addr, _, err := admin.ReadAddress(s.path(name))
		if err != nil {
			return false
		}
		rep, err := admin.Client{Address: addr, Token: os.Getenv(tokenVariable)}.Checkpoints(s.t.Context())
		return err == nil && (rep.State == "running" || rep.State == "standing-by" && strings.Contains(s.log(name), "joined the group"))
	}, 30*time.Second, 20*time.Millisecond, "%s", func() string { return s.log(name) })
	return cmd
}

func (s *site) log(name string) string {
	b, err := os.ReadFile(s.path(name + ".log"))
	require.NoError(s.t, err)
	return string(b)
}

// ended wants that an instance ends by itself, in order.
func (s *site) ended(name string, cmd *exec.Cmd) {
	s.t.Helper()
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	require.NoError(s.t, cmd.Wait(), s.log(name))
}

// ask runs a command line with JSON as its output.
func (s *site) ask(into any, args ...string) (code int, stderr string) {
	s.t.Helper()
	code, stdout, stderr := cli(s.t, append(args, "--output", "json")...)
	if stdout != "" {
		require.NoError(s.t, json.Unmarshal([]byte(stdout), into), stdout)
	}
	return code, stderr
}

func TestSavepointsAndCancelOfTwoInstances(t *testing.T) {
	s := newSite(t, "")
	code, _, stderr := cli(t, "savepoint", "trigger", s.file)
	require.Equal(t, 43, code)
	require.Equal(t, "processor: no instance of totals is running: its group has no members\n", stderr)
	a, b := s.run("a"), s.run("b") // one partition: b stands by
	put(t, s.b, "in", "anna", `{"amount":5}`, `{"amount":9}`)
	require.Eventually(t, func() bool {
		code, _, _ := cli(t, "verify", "--input", "in", "--output", "out", "--brokers", s.b.Addr())
		return code == 0
	}, 20*time.Second, 50*time.Millisecond)

	code, stdout, stderr := cli(t, "savepoint", "trigger", s.file)
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 2, stdout)
	require.Contains(t, stdout, s.path("savepoints")+"/savepoint-totals-")
	require.Contains(t, stdout, "1 partition, digest ")
	require.Contains(t, stdout, "stands by: it has no partitions")

	answers := map[int]string{} // of one at a time: who stands by has none to take, which is no failure of all together
	for _, name := range []string{"a", "b"} {
		code, stdout, stderr := cli(t, "savepoint", "trigger", s.file, "--admin", "here", "--set", "data-dir="+s.path(name), "--dir", s.path("single"))
		answers[code] = stdout + stderr
	}
	require.Contains(t, answers[0], "1 partition, digest ")
	require.Contains(t, answers[43], "no savepoint: the instance stands by, without partitions")

	var list struct{ Savepoints []admin.SavepointInfo }
	code, stderr = s.ask(&list, "savepoint", "list", s.file)
	require.Zero(t, code, stderr)
	require.Len(t, list.Savepoints, 1)
	require.Equal(t, []admin.Position{{Topic: "in", Offset: 2}}, list.Savepoints[0].Positions)
	path := list.Savepoints[0].Path
	code, stdout, stderr = cli(t, "savepoint", "inspect", path)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "verified: every checksum is right")
	require.Contains(t, stdout, "in/0:2")

	code, stdout, stderr = cli(t, "checkpoint", "trigger", s.file)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "nothing has changed")
	code, _, stderr = cli(t, "reset", s.file, "--yes")
	require.Equal(t, 45, code)
	require.Contains(t, stderr, "nothing is deleted: the group totals has i-")

	var o processor.Outcome
	code, stderr = s.ask(&o, "cancel", s.file, "--savepoint="+s.path("last"))
	require.Zero(t, code, stderr)
	require.Len(t, o.Replies, 2)
	s.ended("a", a)
	s.ended("b", b)
	var saved []string
	for _, r := range o.Replies {
		if r.Path != "" {
			saved = append(saved, r.Path)
		}
	}
	require.Len(t, saved, 1)
	require.Equal(t, s.path("last"), filepath.Dir(saved[0]))

	s.disposes(path, saved[0])
	s.resets()
}

// disposes deletes one savepoint, and one that is damaged.
func (s *site) disposes(path, other string) {
	data := filepath.Join(path, "state.data")
	b, err := os.ReadFile(data)
	require.NoError(s.t, err)
	b[len(b)/2] ^= 1
	require.NoError(s.t, os.WriteFile(data, b, 0o600))
	var found inspectedSavepoint
	code, stderr := s.ask(&found, "savepoint", "inspect", path)
	require.Equal(s.t, 22, code, stderr)
	require.False(s.t, found.Verified)
	require.Contains(s.t, found.Damage, "state.data")

	code, _, stderr = cli(s.t, "savepoint", "dispose", path)
	require.Equal(s.t, 2, code)
	require.Contains(s.t, stderr, "nothing is deleted without --yes")
	require.DirExists(s.t, path)
	code, _, stderr = cli(s.t, "savepoint", "dispose", s.path("checkpoints"), "--yes")
	require.Equal(s.t, 2, code)
	require.Contains(s.t, stderr, "is not a savepoint")
	code, _, stderr = cli(s.t, "savepoint", "dispose", path, other, "--yes")
	require.Zero(s.t, code, stderr)
	require.NoDirExists(s.t, path)
	require.NoDirExists(s.t, other)
}

// resets makes the next run the first one.
func (s *site) resets() {
	code, stdout, stderr := cli(s.t, "reset", s.file, "--set", "data-dir="+s.path("a"))
	require.Equal(s.t, 2, code)
	require.Contains(s.t, stderr, "nothing is deleted without --yes")
	for _, want := range []string{"group        totals", "offsets of 1 partition", "topic        totals-control", "in " + s.path("checkpoints"), "local-state"} {
		require.Contains(s.t, stdout, want)
	}
	require.NotContains(s.t, stdout, "  stays")
	for _, dir := range []string{s.path("nowhere"), s.t.TempDir()} {
		_, stdout, _ = cli(s.t, "reset", s.file, "--set", "data-dir="+s.path("a"), "--set", "state.checkpoints.dir="+dir)
		require.Contains(s.t, stdout, "those checkpoints are not in "+dir+". Are data-dir and state.checkpoints.dir those of the service")
	}
	code, _, stderr = cli(s.t, "reset", s.file, "--set", "data-dir="+s.path("a"), "--yes")
	require.Zero(s.t, code, stderr)
	code, stdout, stderr = cli(s.t, "reset", s.file, "--set", "data-dir="+s.path("a"), "--yes")
	require.Zero(s.t, code, stderr)
	require.Equal(s.t, "there is nothing of totals to delete\n", stdout)
	a := s.run("a")
	var o processor.Outcome
	code, stderr = s.ask(&o, "savepoint", "trigger", "--admin", adminHere, s.file, "--set", "data-dir="+s.path("a"))
	require.Zero(s.t, code, stderr)
	require.Len(s.t, o.Replies, 1)
	code, stderr = s.ask(&o, "cancel", s.file, "--admin", adminHere, "--set", "data-dir="+s.path("a"))
	require.Zero(s.t, code, stderr)
	s.ended("a", a)
	code, _, stderr = cli(s.t, "cancel", s.file, "--admin", adminHere, "--set", "data-dir="+s.path("a"))
	require.Equal(s.t, 43, code)
	require.Contains(s.t, stderr, "no instance runs with data-dir")
}

func TestTheTokenComesFromTheFileOrTheEnvironment(t *testing.T) {
	t.Setenv(tokenVariable, "0123456789abcdef")
	s := newSite(t, "admin: {listen: 127.0.0.1:0}")
	a := s.run("a")
	addr, _, err := admin.ReadAddress(s.path("a"))
	require.NoError(t, err)
	t.Setenv(tokenVariable, "another-token-of-theirs")
	code, _, stderr := cli(t, "cancel", "--admin", addr)
	require.Equal(t, 14, code)
	require.Contains(t, stderr, "admin.token is wanted")
	t.Setenv(tokenVariable, "0123456789abcdef")
	code, stdout, stderr := cli(t, "cancel", "--admin", addr)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "ended after a last checkpoint")
	s.ended("a", a)
}

// A process that was killed leaves its address, and another application, or another instance, has it by now.
func TestACommandIsForNobodyElse(t *testing.T) {
	s := newSite(t, "admin: {listen: 127.0.0.1:0}")
	a := s.run("a")
	addr, _, err := admin.ReadAddress(s.path("a"))
	require.NoError(t, err)
	require.NoError(t, a.Process.Kill())
	_ = a.Wait()
	s.more = []string{"--set", "admin.listen=" + addr}
	b := s.run("b")
	refused := func(args ...string) {
		t.Helper()
		code, _, stderr := cli(t, args...)
		require.Equal(t, 43, code, stderr)
		require.Contains(t, stderr, "here listens instance i-")
	}
	for _, command := range [][]string{{"cancel"}, {"savepoint", "trigger"}, {"checkpoints", "trigger"}, {"attempts"}} {
		refused(append(command, s.file, "--admin", adminHere, "--set", "data-dir="+s.path("a"))...)
	}
	text, err := os.ReadFile(s.file)
	require.NoError(t, err)
	other := filepath.Join(s.dir, "other.yaml")
	require.NoError(t, os.WriteFile(other, []byte(strings.Replace(string(text), "application: totals", "application: others", 1)), 0o600))
	refused("cancel", other, "--admin", addr)
	refused("cancel", other, "--admin", adminHere, "--set", "data-dir="+s.path("b"))
	code, stdout, stderr := cli(t, "cancel", s.file, "--admin", adminHere, "--set", "data-dir="+s.path("b"))
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "ended after a last checkpoint")
	s.ended("b", b)
}

func TestAnAdminAddressThatIsTakenIsAnErrorOfItsOwn(t *testing.T) {
	s := newSite(t, "")
	a := s.run("a")
	addr, _, err := admin.ReadAddress(s.path("a"))
	require.NoError(t, err)
	code, _, stderr := cli(t, "run", s.file, "--set", "data-dir="+s.path("b"), "--set", "admin.listen="+addr)
	require.Equal(t, 44, code)
	require.Contains(t, stderr, "admin.listen: "+addr+" is used by another process")
	code, _, stderr = cli(t, "run", s.file, "--set", "data-dir="+s.path("b"), "--set", "admin.listen=0.0.0.0:0")
	require.Equal(t, 3, code)
	require.Contains(t, stderr, "set admin.token")
	code, _, stderr = cli(t, "cancel", s.file)
	require.Zero(t, code, stderr)
	s.ended("a", a)
}

func TestWrongUseOfTheCommands(t *testing.T) {
	for line, want := range map[string]string{
		"savepoint":                                "",
		"savepoint make":                           "there is no command savepoint make: trigger, list, inspect or dispose",
		"savepoint trigger":                        "takes FILE.yaml, or --admin HOST:PORT",
		"savepoint list":                           "which savepoints?",
		"savepoint inspect":                        "takes SAVEPOINT",
		"savepoint dispose":                        "takes SAVEPOINT...",
		"savepoint inspect /tmp":                   "is not a savepoint",
		"cancel":                                   "takes FILE.yaml, or --admin HOST:PORT",
		"cancel --admin here":                      "takes FILE.yaml, or --admin HOST:PORT",
		"cancel --admin x:y:z --timeout 5s":        "is not host:port",
		"cancel --admin 127.0.0.1:1 --timeout 5ms": "--timeout 5ms: from 1s to 1h",
		"checkpoints trigger":                      "takes FILE.yaml",
		"attempts":                                 "takes FILE.yaml, or --admin HOST:PORT",
		"reset":                                    "takes FILE.yaml",
	} {
		code, _, stderr := cli(t, strings.Fields(line)...)
		if want == "" {
			require.Zero(t, code, line)
			continue
		}
		require.Equal(t, 2, code, "%s: %s", line, stderr)
		require.Contains(t, stderr, want, line)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

// A broker that refuses connections is waited for, by every command.
func TestCommandsWaitForABroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	dir := t.TempDir()
	file := filepath.Join(dir, "totals.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `application: totals
kafka: {brokers: "127.0.0.1:%d"}
data-dir: %q
state: {savepoints: {dir: %q}}
sources: {orders: {topic: in, key: string, value: json}}
sinks: {totals: {from: orders, topic: out, key: string, value: json}}
`, port, dir, dir), 0o600))
	var wait sync.WaitGroup
	for line, want := range map[string]int{"transactions": 0, "reset --yes": 0, "cancel": 43, "checkpoints trigger": 43, "savepoint trigger": 43} {
		wait.Go(func() {
			cmd := exec.Command(os.Args[0], append(strings.Fields(line), file)...)
			cmd.Env = append(os.Environ(), asProcessor+"=1")
			out, _ := cmd.CombinedOutput()
			assert.Equal(t, want, cmd.ProcessState.ExitCode(), "%s: %s", line, out)
		})
	}
	time.Sleep(500 * time.Millisecond)
	b, err := embedded.Start(t.Context(), embedded.Config{Port: port, Topics: []embedded.Topic{{Name: "in", Partitions: 1}, {Name: "out", Partitions: 1}}})
	require.NoError(t, err)
	wait.Wait()
	require.NoError(t, b.Close())
}
