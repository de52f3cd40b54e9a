package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/embedded"
	"github.com/millweir/millweir/snapshot"
)

// asProcessor makes the test binary the command itself, for what needs a process: signals.
const asProcessor = "TEST_AS_PROCESSOR"

func TestMain(m *testing.M) {
	if os.Getenv(asProcessor) != "" {
		register(newFailing)
		register(newSlow)
		main()
	}
	_ = os.Unsetenv("KAFKA_BROKERS")
	os.Exit(m.Run())
}

// cli runs a command line in this process.
func cli(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	code = execute(ctx, args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsageErrorsAreOneLineAndExitCode2(t *testing.T) {
	for line, want := range map[string]string{
		"vrify":               `there is no command "vrify": did you mean verify?`,
		"xyz":                 "see processor --help",
		"broker --prt 3":      "unknown flag: --prt",
		"broker x":            "takes no argument",
		"broker --port 70000": "port 70000",
		"broker --topic a:b":  `--topic: topic a: "b" is not a number of partitions`,
		"verify a":            "processor verify takes no argument",
		"verify --input a":    "both --input and --output are needed",
		"verify --input a --output b --format xml":   `format "xml": json or binary`,
		"verify --input a --output b --where status": `--where "status": want FIELD=VALUE`,
		"verify --input a --output b --report xml":   "text or json",
		"demo --kills -1":                 "--kills not negative",
		"demo --sabotage nothing":         `no sabotage is named "nothing"; there are: lose-delta`,
		"demo --duration 1s --kills 5":    "allow at least 500ms",
		"version now":                     "takes no argument",
		"help vrify":                      `there is no command "vrify": did you mean verify?`,
		"help run x":                      `processor run has no sub-command "x"`,
		"broker --port abc":               `not a whole number: "abc"`,
		"broker --data-dir /dev/null/x/y": "data directory",
	} {
		code, stdout, stderr := cli(t, strings.Fields(line)...)
		if strings.HasPrefix(line, "broker --data-dir") {
			require.Equal(t, 20, code, line)
		} else {
			require.Equal(t, 2, code, "%s: %s", line, stderr)
		}
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
		require.True(t, strings.HasPrefix(stderr, "processor: "), stderr)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

func TestAPortInUseIsNamedWithTheFlag(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	code, _, stderr := cli(t, "broker", "--port", port)
	require.Equal(t, 1, code)
	require.Equal(t, "processor: port "+port+" of 127.0.0.1 is used by another process: choose another one with --port (0 takes a free one), or stop that process\n", stderr)
}

func TestADemoThatDidNotBeginLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600))
	code, _, stderr := cli(t, "demo", "--dir", dir)
	require.Equal(t, 2, code)
	require.Equal(t, "processor: "+dir+" is not empty: name a new directory\n", stderr)
}

func TestJoinedErrorsAreOneLine(t *testing.T) {
	require.Equal(t, "one; two", oneLine(errors.Join(errors.New("one"), errors.New("two"))))
}

func TestHelpNamesTheCommandsAndTheFaults(t *testing.T) {
	code, stdout, _ := cli(t)
	require.Zero(t, code)
	for _, name := range []string{"broker", "verify", "demo", "version"} {
		require.Regexp(t, regexp.MustCompile(`(?m)^  `+name+` +[A-Z]`), stdout)
	}
	_, stdout, _ = cli(t, "demo", "--help")
	require.Contains(t, stdout, "lose-delta ")
}

func TestVersion(t *testing.T) {
	code, stdout, _ := cli(t, "version", "--output", "json")
	require.Zero(t, code)
	var v versionInfo
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Equal(t, "github.com/millweir/millweir", v.Module)
	require.True(t, strings.HasPrefix(v.Go, "go1."))
	code, stdout, _ = cli(t, "version")
	require.Zero(t, code)
	require.Contains(t, stdout, v.Module)
	code, same, _ := cli(t, "--version")
	require.Zero(t, code)
	require.Equal(t, stdout, same)
}

func startBroker(t *testing.T) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(context.Background(), embedded.Config{Topics: []embedded.Topic{{Name: "in", Partitions: 1}, {Name: "out", Partitions: 1}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func put(t *testing.T, b *embedded.Broker, topic, key string, values ...string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	require.NoError(t, err)
	defer cl.Close()
	for _, v := range values {
		require.NoError(t, cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(v)}).FirstErr())
	}
}

func TestVerifyTellsTheVerdictByItsExitCode(t *testing.T) {
	b := startBroker(t)
	put(t, b, "in", "anna", `{"amount":5,"status":"paid"}`, `{"amount":9,"status":"open"}`, `{"amount":7,"status":"paid"}`)
	put(t, b, "out", "anna", `{"orders":1,"spent":5}`)
	args := []string{"verify", "--input", "in", "--output", "out", "--brokers", b.Addr(), "--where", "status=paid"}

	code, stdout, stderr := cli(t, append(args, "--partial")...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "1 inputs without an output yet")
	require.True(t, strings.HasSuffix(stdout, "\nexactly-once: verified\n"), stdout)
	require.Empty(t, stderr)

	code, stdout, stderr = cli(t, append(args, "--report", "json")...)
	require.Equal(t, 1, code)
	require.Equal(t, "processor: exactly-once: VIOLATED\n", stderr)
	var report struct {
		Verdict string
		Missing int
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.Equal(t, "exactly-once: VIOLATED", report.Verdict)
	require.Equal(t, 1, report.Missing)

	put(t, b, "out", "anna", `{"orders":2,"spent":12}`)
	code, stdout, stderr = cli(t, args...)
	require.Zero(t, code, stdout+stderr)
	require.Contains(t, stdout, "records in    2 (and 1 filtered)")

	code, _, stderr = cli(t, "verify", "--input", "nowhere", "--output", "out", "--brokers", b.Addr())
	require.Equal(t, 13, code, stderr)
	require.Contains(t, stderr, "topic nowhere does not exist")
}

func TestVerifyTellsWhyThereIsNoVerdict(t *testing.T) {
	b := startBroker(t)
	put(t, b, "in", "anna", `{"amount":9223372036854775807}`, `{"amount":1}`)
	put(t, b, "out", "anna", `{"orders":1,"spent":9223372036854775807}`)
	args := []string{"verify", "--input", "in", "--output", "out", "--brokers", b.Addr()}
	code, stdout, stderr := cli(t, args...)
	require.Equal(t, 1, code)
	require.True(t, strings.HasSuffix(stdout, "\nexactly-once: no verdict\n"), stdout)
	require.Equal(t, "processor: exactly-once: no verdict: 1 of 1 keys have a sum that leaves int64, and no right output from there on\n", stderr)

	put(t, b, "out", "anna", `{"orders":2,"spent":-9223372036854775808}`)
	code, _, stderr = cli(t, args...)
	require.Equal(t, 1, code)
	require.Equal(t, "processor: exactly-once: VIOLATED\n", stderr)
}

// What the engine makes of amounts with a fraction is verified, to the last bit of each sum.
func TestVerifyOfAmountsWithAFraction(t *testing.T) {
	s := newSite(t, "")
	cmd := s.run("a")
	put(t, s.b, "in", "anna", `{"amount":5}`, `{"amount":0.1}`, `{"amount":0.2}`, `{"amount":12.345}`, `{"amount":-17.645}`)
	put(t, s.b, "in", "bert", `{"amount":2.50}`, `{"amount":2.5}`, `{"amount":1e20}`, `{"amount":1152921504606846977}`, `{"amount":1e-9}`)
	args := []string{"verify", "--input", "in", "--output", "out", "--brokers", s.b.Addr()}
	var code int
	var stdout string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if code, stdout, _ = cli(t, args...); code == 0 {
			break
		}
	}
	require.Zero(t, code, stdout)
	require.Contains(t, stdout, "records out   10\n")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	s.ended("a", cmd)

	put(t, s.b, "in", "carl", `{"amount":0.1}`, `{"amount":0.2}`)
	put(t, s.b, "out", "carl", `{"orders":1,"spent":0.1}`, `{"orders":2,"spent":0.3}`) // as one gives that adds decimals
	code, _, stderr := cli(t, args...)
	require.Equal(t, 1, code)
	require.Equal(t, "processor: exactly-once: no verdict: 1 of 3 keys have sums of floats that may differ by rounding only\n", stderr)
}

func TestBrokersComeFromTheEnvironment(t *testing.T) {
	b := startBroker(t)
	t.Setenv("KAFKA_BROKERS", b.Addr())
	code, stdout, stderr := cli(t, "verify", "--input", "in", "--output", "out")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "exactly-once: verified")
}

func TestAnInterruptedCommandSaysSo(t *testing.T) {
	b := startBroker(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	require.Equal(t, interrupted, execute(ctx, []string{"verify", "--input", "in", "--output", "out", "--brokers", b.Addr()}, &out, &errs))
	require.Equal(t, "processor: interrupted\n", errs.String())
}

// process starts the command as a process.
func process(t *testing.T, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProcessor+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }) // whoever reads what it says is not to wait for ever
	t.Cleanup(func() { late.Stop(); _ = cmd.Process.Kill() })
	return cmd, bufio.NewScanner(out)
}

func TestTheBrokerCommandServesUntilSIGTERMAndKeepsItsData(t *testing.T) {
	dir := t.TempDir()
	var id string
	for i := range 2 {
		cmd, out := process(t, "broker", "--port", "0", "--data-dir", dir, "--topic", "orders:2", "--topic", "totals")
		require.True(t, out.Scan())
		m := regexp.MustCompile(`^broker on (127\.0\.0\.1:\d+), cluster (\S{22}), data in `).FindStringSubmatch(out.Text())
		require.Len(t, m, 3, out.Text())
		if i == 1 {
			require.Equal(t, id, m[2])
		}
		id = m[2]
		require.True(t, out.Scan())
		require.Equal(t, "topics orders:2 totals:4", out.Text())
		for out.Scan() && !strings.HasPrefix(out.Text(), "try:") {
		}
		require.Equal(t, fmt.Sprintf("try:   kcat -b %s -L", m[1]), out.Text())
		cl, err := kgo.NewClient(kgo.SeedBrokers(m[1]), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		if i == 0 {
			require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte("kept")}).FirstErr())
		} else {
			fetches := cl.PollFetches(ctx)
			require.NoError(t, fetches.Err())
			require.Equal(t, "kept", string(fetches.Records()[0].Value))
		}
		cancel()
		cl.Close()
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		for out.Scan() {
		}
		require.NoError(t, cmd.Wait(), "a stop by SIGTERM is exit code 0")
	}
}

func TestTheBrokerAsJSON(t *testing.T) {
	cmd, out := process(t, "broker", "--port", "0", "--output", "json", "--topic", "a:1")
	var text strings.Builder
	for out.Scan() {
		text.WriteString(out.Text())
		if out.Text() == "}" {
			break
		}
	}
	var b struct {
		Address string
		Topics  []string
	}
	require.NoError(t, json.Unmarshal([]byte(text.String()), &b))
	require.Contains(t, b.Address, "127.0.0.1:")
	require.Equal(t, []string{"a:1"}, b.Topics)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
}

func TestCheckpointOfReadsTheHandle(t *testing.T) {
	h := snapshot.Handle{Kind: snapshot.HandleEmpty, Partition: 1, Offset: 5, LeaderEpoch: -1, ClusterID: "c", PartitionCount: 4, StoreID: "s",
		Root: snapshot.RootRef{Name: element.CheckpointName{ID: 17, Incarnation: 3}}}
	text, err := h.Encode()
	require.NoError(t, err)
	id, ok := checkpointOf(text)
	require.True(t, ok)
	require.EqualValues(t, 17, id)
	_, ok = checkpointOf("from another tool")
	require.False(t, ok)
}

// The whole way: this binary as demo, broker, job and checker, with real kill -9.
func TestTheDemoCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, c := range []struct {
		name, sabotage string
		code           int
		verdict        string
	}{{"as it is", "", 0, "exactly-once: verified"}, {"with a planted fault", "lose-delta", 1, "exactly-once: VIOLATED"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"demo", "--duration", "6s", "--kills", "2", "--rate", "3000", "--seed", "11", "--output", "json", "--dir", t.TempDir()}
			if c.sabotage != "" {
				args = append(args, "--sabotage", c.sabotage)
			}
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), asProcessor+"=1")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, _ := cmd.Output()
			require.Equal(t, c.code, cmd.ProcessState.ExitCode(), stderr.String())
			var result struct {
				Kills      []struct{ Recovery_ns int64 }
				Checkpoint uint64
				Report     struct {
					Verdict                string
					Records_in, Duplicates int64
				}
			}
			require.NoError(t, json.Unmarshal(out, &result), string(out))
			require.Equal(t, c.verdict, result.Report.Verdict)
			require.Len(t, result.Kills, 2)
			require.Positive(t, result.Kills[1].Recovery_ns)
			require.Positive(t, result.Checkpoint)
			require.Greater(t, result.Report.Records_in, int64(5000))
		})
	}
}

// A directory that cannot be had is exit code 20, and one line.
func TestTheDemoNamesADirectoryThatIsNone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, args := range [][]string{{"--dir", file}, {"--dir", filepath.Join(file, "below")}} {
		code, _, stderr := cli(t, append([]string{"demo"}, args...)...)
		require.Equal(t, 20, code, stderr)
		require.Equal(t, "processor: the directory of the demo: "+file+" is a file, not a directory\n", stderr)
	}
	t.Setenv("TMPDIR", file)
	code, _, stderr := cli(t, "demo")
	require.Equal(t, 20, code, stderr)
	require.Regexp(t, "^processor: the directory of the demo: .*"+file+".*\n$", stderr)
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	cmd, out := process(t, "demo", "--plain", "--dir", t.TempDir())
	for out.Scan() && !strings.Contains(out.Text(), "first total after") {
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	time.Sleep(2 * sameRequest)
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may be done
	for out.Scan() {
	}
	_ = cmd.Wait()
	require.Contains(t, []int{interrupted, 128 + int(syscall.SIGTERM)}, cmd.ProcessState.ExitCode(), "the second one, unless the first was done before it")
}

func TestOneRequestMayBeSeveralSignals(t *testing.T) {
	cmd, out := process(t, "broker", "--port", "0")
	require.True(t, out.Scan())
	for range 3 {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may be done
	}
	for out.Scan() {
	}
	require.NoError(t, cmd.Wait(), "stopped in order")

	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGINT
	time.AfterFunc(50*time.Millisecond, func() { signals <- syscall.SIGTERM })
	require.Equal(t, syscall.SIGTERM, nextRequest(signals, 20*time.Millisecond))
}

// A terminal that closes asks for a stop in order; a process that began with SIGHUP ignored, as under nohup, goes on.
func TestAClosedTerminalStopsInOrder(t *testing.T) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // the tests themselves may run under nohup: what is caught is not inherited
	cmd, out := process(t, "broker", "--port", "0")
	require.True(t, out.Scan())
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	for out.Scan() {
	}
	require.NoError(t, cmd.Wait(), "stopped in order")

	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	cmd, out = process(t, "broker", "--port", "0")
	require.True(t, out.Scan())
	addr := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(out.Text())
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	time.Sleep(2 * sameRequest)
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err, "it goes on")
	require.NoError(t, conn.Close())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	for out.Scan() {
	}
	require.NoError(t, cmd.Wait())
}
