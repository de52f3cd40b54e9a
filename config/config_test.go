package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/processor"
)

var update = flag.Bool("update", false, "write the golden files and docs/settings.md anew")

// minimal is the least valid service file.
const minimal = `application: app
kafka: {brokers: "localhost:9092"}
sources: {in: {topic: in, key: string, value: json}}
sinks: {out: {from: in, topic: out, key: string, value: json}}
`

func load(text string, set, environ []string) (*Service, *Problems) {
	ps := &Problems{}
	return Parse("f.yaml", []byte(text), set, environ, ps), ps
}

func mustLoad(t testing.TB, text string, set, environ []string) *Service {
	t.Helper()
	s, ps := load(text, set, environ)
	require.NoError(t, ps.Err())
	return s
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "run the test with -update when the change is meant")
}

func TestDefaults(t *testing.T) {
	s := mustLoad(t, minimal, nil, nil)
	require.Equal(t, Service{
		Application:   "app",
		DataDir:       "./data",
		Kafka:         Kafka{Brokers: []string{"localhost:9092"}},
		Checkpointing: Checkpointing{Mode: processor.ExactlyOnce, Interval: time.Second, Timeout: 50 * time.Second, MaxConcurrent: 1, Retention: processor.RetainOnCancellation},
		State: State{Backend: processor.Badger, Checkpoints: Checkpoints{Dir: "data/checkpoints", NumRetained: 3},
			Async: true, Incremental: true, MemoryThreshold: 20 << 10, WriteBufferSize: 4 << 10, MemoryLimit: 256 << 20, LocalRecovery: true, LocalRootDirs: []string{"data/local"}, UncommittedLimit: 64 << 20},
		Restart:     restart.Config{}.WithDefaults(),
		Transaction: Transaction{Timeout: time.Minute},
		Group:       Group{SessionTimeout: 10 * time.Second},
		Sink:        Sink{HoldBackLimit: 64 << 20},
		Shutdown:    Shutdown{Timeout: 30 * time.Second},
	}, settingsOf(s))
	require.Equal(t, "in", s.Plan.Sources[0].Topic)
}

func TestEverySettingCanBeGiven(t *testing.T) {
	obeyAll(t)
	text := minimal + `data-dir: /d
checkpointing: {interval: 2s, timeout: 10s, min-pause: 3s, mode: exactly-once, max-concurrent: 1, tolerable-failures: unlimited, unaligned: true, aligned-timeout: 100ms, retention: delete-on-cancellation, prefer-checkpoint-for-recovery: true, force: true}
state:
  backend: {type: memory, async: false, incremental: false, local-recovery: false, fs: {memory-threshold: 0, write-buffer-size: 64kb}, memory-limit: 1gb}
  local: {root-dirs: [/a, /b]}
  checkpoints: {dir: "file:///c%20d", num-retained: 7}
  savepoints: {dir: "file:///s"}
  uncommitted-limit: 1GB
restart-strategy: {type: failure-rate, same-record-failures: unlimited, failure-rate: {max-failures-per-interval: 5, failure-rate-interval: 2m, delay: 3s}}
transaction: {timeout: 2m}
instance: {id: i-1}
group: {session-timeout: 45s}
sink: {hold-back-limit: 2mb}
shutdown: {timeout: 5s}
`
	text = strings.Replace(text, `"localhost:9092"`, `[a:1, "[::1]:2"]`, 1)
	s := mustLoad(t, text, nil, nil)
	require.Equal(t, Service{
		Application: "app",
		DataDir:     "/d",
		Kafka:       Kafka{Brokers: []string{"a:1", "[::1]:2"}},
		Checkpointing: Checkpointing{Mode: processor.ExactlyOnce, Interval: 2 * time.Second, Timeout: 10 * time.Second, MinPause: 3 * time.Second,
			MaxConcurrent: 1, TolerableFailures: -1, Unaligned: true, AlignedTimeout: 100 * time.Millisecond, Retention: processor.DeleteOnCancellation, PreferCheckpoint: true, Force: true},
		State: State{Backend: processor.Memory, Checkpoints: Checkpoints{Dir: "/c d", NumRetained: 7}, WriteBufferSize: 64 << 10, MemoryLimit: 1 << 30,
			SavepointsDir: "/s", LocalRootDirs: []string{"/a", "/b"}, UncommittedLimit: 1 << 30},
		Restart:     restart.Config{Strategy: restart.FailureRate, SameRecord: -1, Rate: restart.Rate{MaxFailures: 5, Interval: 2 * time.Minute, Delay: 3 * time.Second}},
		Transaction: Transaction{Timeout: 2 * time.Minute},
		Instance:    Instance{ID: "i-1"},
		Group:       Group{SessionTimeout: 45 * time.Second},
		Sink:        Sink{HoldBackLimit: 2 << 20},
		Shutdown:    Shutdown{Timeout: 5 * time.Second},
	}, settingsOf(s))
	again := mustLoad(t, s.Print(), nil, nil)
	require.Equal(t, settingsOf(s), settingsOf(again))
	require.Equal(t, s.Processor(), again.Processor())
}

func TestPrecedence(t *testing.T) {
	text := minimal + "checkpointing: {interval: 2s}\nstate: {backend: memory}\n"
	for _, c := range []struct {
		set, env []string
		want     time.Duration
		origin   string
	}{
		{nil, nil, 2 * time.Second, "f.yaml:5:27"},
		{nil, []string{"MILLWEIR_CHECKPOINTING_INTERVAL=3s"}, 3 * time.Second, "environment MILLWEIR_CHECKPOINTING_INTERVAL"},
		{[]string{"checkpointing.interval=4s"}, []string{"MILLWEIR_CHECKPOINTING_INTERVAL=3s"}, 4 * time.Second, "--set"},
		{[]string{"checkpointing.interval=4s", "checkpointing.interval=5s"}, nil, 5 * time.Second, "--set"},
	} {
		s := mustLoad(t, text, c.set, c.env)
		require.Equal(t, c.want, s.Checkpointing.Interval)
		for _, v := range s.Values() {
			if v.Setting.Path == "checkpointing.interval" {
				require.Equal(t, c.origin, v.Origin)
			}
		}
	}
	for _, way := range [][2][]string{{{"state.backend=badger"}, nil}, {{"state.backend.type=badger"}, nil}, {nil, {"MILLWEIR_STATE_BACKEND=badger"}}, {nil, {"MILLWEIR_STATE_BACKEND_TYPE=badger"}}} {
		require.Equal(t, processor.Badger, mustLoad(t, text, way[0], way[1]).State.Backend)
	}
	s := mustLoad(t, strings.Replace(minimal, `kafka: {brokers: "localhost:9092"}`, "", 1), []string{"kafka.brokers=a:1,b:2"}, nil)
	require.Equal(t, []string{"a:1", "b:2"}, s.Kafka.Brokers)
}

func TestC43_TheSameRulesOnAllWaysIn(t *testing.T) {
	for value, want := range map[string]string{
		"30": "is not a duration: it has no unit; write it as 500ms, 10s, 1m or 1h30m", "0s": "zero is not possible here: from 10ms to 1h, or disabled",
		"-5s": "it must not be negative", "1d": `unknown unit "d", the units are ms, s, m, h`, "10 s": "it has a space", "": "a value is required",
		"~": "", "Disabled": "is not a duration", "5ms": "is out of range: from 10ms to 1h",
	} {
		_, file := load(minimal+"checkpointing: {interval: "+value+"}", nil, nil)
		_, quoted := load(minimal+"checkpointing: {interval: '"+value+"'}", nil, nil)
		_, env := load(minimal, nil, []string{"MILLWEIR_CHECKPOINTING_INTERVAL=" + value})
		_, set := load(minimal, []string{"checkpointing.interval=" + value}, nil)
		for origin, ps := range map[string]*Problems{"f.yaml:5:27: ": file, "f.yaml:5:27:  ": quoted, "environment MILLWEIR_CHECKPOINTING_INTERVAL: ": env, "--set: ": set} {
			require.Equal(t, 1, ps.Len(), value)
			require.Contains(t, ps.Error(), strings.TrimSpace(origin)+" checkpointing.interval: ")
			require.Contains(t, ps.Error(), want, value)
			require.Equal(t, fault.BadFile, fault.CodeOf(ps.Err()))
		}
	}
	for _, ok := range []string{"1h", "30m", "1m", "500ms", "1m30s"} {
		want := mustLoad(t, minimal+"checkpointing: {interval: "+ok+"}", []string{"transaction.timeout=2h"}, nil).Checkpointing
		require.Equal(t, want, mustLoad(t, minimal, []string{"checkpointing.interval=" + ok}, nil).Checkpointing)
		require.Equal(t, want, mustLoad(t, minimal, nil, []string{"MILLWEIR_CHECKPOINTING_INTERVAL=" + ok}).Checkpointing)
	}
}

func TestC43_UnknownNamesOnTheOtherWaysIn(t *testing.T) {
	_, ps := load(minimal, []string{"checkpointing.intervall=1s", "interval", "x=1", "sources.in.topic=y"}, []string{"MILLWEIR_CHECKPOINTING_INTERVALL=1s", "MILLWEIR_X=1", "OTHER=1"})
	require.Equal(t, `--set checkpointing.intervall: names no setting; did you mean checkpointing.interval?
--set interval: has no value; write --set path=value, for example --set checkpointing.interval=1s
--set sources.in.topic: names no setting; docs/settings.md lists them
--set x: names no setting; docs/settings.md lists them
environment MILLWEIR_CHECKPOINTING_INTERVALL: names no setting; did you mean MILLWEIR_CHECKPOINTING_INTERVAL?
environment MILLWEIR_X: names no setting; docs/settings.md lists them`, ps.Error())
}

func TestVariablesThatKubernetesSetsAreNoSettings(t *testing.T) {
	mustLoad(t, minimal, nil, []string{"MILLWEIR_SERVICE_HOST=10.0.0.1", "MILLWEIR_SERVICE_PORT=80", "MILLWEIR_SERVICE_PORT_HTTP=80", "MILLWEIR_PORT=tcp://10.0.0.1:80",
		"MILLWEIR_PORT_80_TCP=x", "MILLWEIR_PORT_80_TCP_ADDR=x", "MILLWEIR_ADMIN_SERVICE_HOST=x", "MILLWEIR_ADMIN_PORT=x", "MILLWEIR_ADMIN_PORT_80_TCP_PROTO=tcp"})
}

func TestTheEnvironmentNamesOfTheSettingsAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, s := range Settings() {
		require.Empty(t, seen[s.Env()], s.Path)
		seen[s.Env()] = s.Path
		require.False(t, serviceLink.MatchString(s.Env()), s.Path)
		require.NotEmpty(t, s.Doc)
		require.NotEmpty(t, s.Type)
	}
}

func TestC45_VariablesInTheServiceFile(t *testing.T) {
	text := strings.Replace(minimal, `"localhost:9092"`, `"${HOST}:${PORT:-9092}"`, 1)
	s := mustLoad(t, text, nil, []string{"HOST=h"})
	require.Equal(t, []string{"h:9092"}, s.Kafka.Brokers)
	_, ps := load(text, nil, nil)
	require.Equal(t, "f.yaml:2:18: kafka.brokers: environment variable HOST is not set; set it, or write ${HOST:-default}", ps.Error())
	_, ps = load(text, nil, []string{"HOST=user:canary@h/x"})
	require.ErrorContains(t, ps.Err(), `"${HOST}:${PORT:-9092}" is not host:port`)
	require.NotContains(t, ps.Error(), "canary")
	// Not replaced on the other ways in.
	s = mustLoad(t, minimal, []string{"data-dir=${HOST}"}, []string{"HOST=h"})
	require.Equal(t, "${HOST}", s.DataDir)
	require.Equal(t, "${HOST}", mustLoad(t, s.Print(), nil, []string{"HOST=h"}).DataDir)
}

func TestTransactionTimeout(t *testing.T) {
	for _, c := range []struct {
		checkpointing string
		want          time.Duration
	}{
		{"{}", time.Minute}, {"{timeout: 10s}", time.Minute}, {"{timeout: 5m}", 5*time.Minute + 6*time.Second},
		{"{interval: 10s, min-pause: 30s}", 85 * time.Second}, {"{interval: 1m}", 115 * time.Second},
	} {
		s := mustLoad(t, minimal+"checkpointing: "+c.checkpointing+"\n", nil, nil)
		require.Equal(t, c.want, s.Transaction.Timeout)
		require.Equal(t, c.want, s.Processor().TransactionTimeout)
	}
	_, ps := load(minimal+"checkpointing: {timeout: 1m}\ntransaction: {timeout: 1m}\n", nil, nil)
	require.Equal(t, "f.yaml:6:24: transaction.timeout: 1m is too short: the larger of checkpointing.interval (1s) and checkpointing.min-pause (0s), plus checkpointing.timeout (1m), plus 5s needs at least 1m6s", ps.Error())
	mustLoad(t, minimal+"checkpointing: {timeout: 1m}\ntransaction: {timeout: 66s}\n", nil, nil)
}

// TestC43_MistakesInServiceFiles compares what is said about whole files: testdata/NAME.yaml with testdata/NAME.errors.
func TestC43_MistakesInServiceFiles(t *testing.T) {
	obeyAll(t)
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s, ps := Load(file, nil, nil)
			require.Nil(t, s)
			require.Equal(t, fault.BadFile, fault.CodeOf(ps.Err()))
			golden(t, strings.TrimSuffix(file, ".yaml")+".errors", ps.Error()+"\n")
		})
	}
}

func TestAFileThatIsNotThere(t *testing.T) {
	s, ps := Load("testdata/none.yml", nil, nil)
	require.Nil(t, s)
	require.EqualError(t, ps.Err(), "testdata/none.yml: cannot be read: no such file or directory")
}

func TestPrint(t *testing.T) {
	obeyAll(t)
	text := strings.Replace(minimal, "in, key", "'${TOPIC}', key", 1) + "checkpointing: {interval: 2s}\nsteps:\n  f:\n    from: in\n    filter: value.a == \"$${x}\"\n"
	text = strings.Replace(text, "from: in, topic: out", "from: f, topic: NO", 1)
	s := mustLoad(t, text, []string{"shutdown.timeout=5s"}, []string{"TOPIC=010", "MILLWEIR_SINK_HOLD_BACK_LIMIT=2mb"})
	golden(t, "testdata/print.txt", s.Print())
	again := mustLoad(t, s.Print(), nil, nil)
	require.Equal(t, settingsOf(s), settingsOf(again))
	require.Equal(t, s.Plan.Sinks, again.Plan.Sinks)
	require.Equal(t, "010", again.Plan.Sources[0].Topic)
	require.Equal(t, "NO", again.Plan.Sinks[0].Topic)
}

func TestTheReferencePageIsUpToDate(t *testing.T) {
	golden(t, "../docs/settings.md", Reference())
}

// FuzzConfigYAML reads any text: no panic, one line per problem, and what is accepted prints to an equal service.
func FuzzConfigYAML(f *testing.F) {
	files, _ := filepath.Glob("../examples/*.yaml")
	bad, _ := filepath.Glob("testdata/*.yaml")
	pipelines, _ := filepath.Glob("../pipeline/testdata/*.yaml")
	for _, file := range append(append(files, bad...), pipelines...) {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(minimal))
	f.Add([]byte("a: &a [*a]\nb: {<<: *a}\n? x\n: |\n  ${A:-b}\n--- !!x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		start := time.Now()
		s, ps := load(string(text), nil, []string{"A=1"})
		require.Less(t, time.Since(start), time.Second)
		require.Equal(t, s == nil, ps.Len() > 0)
		if s == nil {
			require.LessOrEqual(t, strings.Count(ps.Error(), "\n"), ps.Len())
			return
		}
		printed := s.Print()
		again, ps := load(printed, nil, nil)
		require.NoError(t, ps.Err(), printed)
		require.Equal(t, settingsOf(s), settingsOf(again))
		require.Equal(t, []any{s.Plan.Sources, s.Plan.Steps, s.Plan.Sinks, s.Plan.States}, []any{again.Plan.Sources, again.Plan.Steps, again.Plan.Sinks, again.Plan.States})
	})
}
