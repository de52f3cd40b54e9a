//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millweir/millweir/internal/verify"
)

// refused wants a process to end with a code and, as its last line, a message that has all the texts.
func refused(t *testing.T, p *process, code int, texts ...string) {
	t.Helper()
	got := p.exit(25 * time.Second)
	last := p.stderr.tail(1)
	require.Equal(t, code, got, "%s", p.stderr.tail(5))
	require.True(t, strings.HasPrefix(last, "processor: "), "%s", last)
	for _, text := range texts {
		require.Contains(t, last, text)
	}
	require.NotContains(t, p.stderr.String(), "goroutine ", "no panic")
}

// goesOn wants the service to run on a file, to catch up and to have done everything once.
func (s *site) goesOn(file string, flags ...string) {
	s.t.Helper()
	job := s.run(file, flags...)
	job.await("msg=processing") // before it an old lag of 0 says nothing
	s.caughtUp(job)
	job.stop()
	s.exact(verify.Config{})
}

func TestRefusedUnknownTopic(t *testing.T) {
	t.Parallel()
	s := embeddedSite(t, 2)
	s.orders(0, 100, 10)
	missing := s.app + "-missing"
	refused(t, s.run(s.file(totals, "topic: {{.In}}", "topic: "+missing)), 13, "topic "+missing+" does not exist")
	refused(t, s.run(s.file(totals, "topic: {{.Out}}", "topic: "+missing)), 13, "topic "+missing+" does not exist")
	s.goesOn(s.file(totals))
}

func TestRefusedUnreachableBroker(t *testing.T) {
	t.Parallel()
	s := &site{t: t, brokers: []string{"127.0.0.1:1"}, app: "unreachable", in: "in", out: "out", dir: t.TempDir(), every: time.Second, session: 10 * time.Second}
	file := s.file(totals)
	processorBinary(t)
	start := time.Now()
	refused(t, s.run(file), 10, "no Kafka broker answers at 127.0.0.1:1 within 10s", "connection refused")
	require.Less(t, time.Since(start), 14*time.Second)
}

func TestRefusedOldBroker(t *testing.T) {
	s := fakeSite(t, 1, kfake.MaxVersions(kversion.V3_8_0()))
	refused(t, s.run(s.file(totals)), 11, "Kafka 4.0 or newer with transaction.version=2 is needed")
	require.NoDirExists(t, s.checkpoints())

	// A cluster whose feature is taken back after the service has worked on it, and given again.
	s = fakeSite(t, 2)
	file := worked(s)
	feature := func(level int16) {
		_, err := s.adm.UpdateFeatures(s.ctx, false, kadm.FeatureUpdate{Feature: "transaction.version", MaxVersionLevel: level, UpgradeType: 2})
		require.NoError(t, err)
	}
	feature(1)
	s.untouched(func() { refused(t, s.run(file), 11, "the cluster has transaction.version 1") })
	feature(2)
	s.goesOn(file)
}

func TestRefusedCheckpointDirectory(t *testing.T) {
	s := embeddedSite(t, 2)
	s.orders(0, 100, 10)
	file := s.file(totals)
	plain := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(plain, []byte("a file"), 0o644))
	for _, dir := range []string{plain, filepath.Join(plain, "below"), "/proc/checkpoints"} {
		refused(t, s.run(file, "--set", "state.checkpoints.dir="+dir), 20, "checkpoint directory "+dir)
		refused(t, s.run(file, "--set", "data-dir="+dir), 20, "data directory "+dir)
	}
	require.Empty(t, s.committed(), "nothing was begun")
	s.goesOn(file)
	// A store that cannot be told apart from a foreign one any more.
	id := filepath.Join(s.checkpoints(), storeIDName(t, s))
	good, err := os.ReadFile(id)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(id, []byte("not an id"), 0o644))
	refused(t, s.run(file), 22, filepath.Base(id))
	require.NoError(t, os.WriteFile(id, good, 0o644))
	s.goesOn(file)
}

// storeIDName finds the one file that lies directly in the checkpoint directory.
func storeIDName(t *testing.T, s *site) string {
	t.Helper()
	for _, name := range s.fileNames() {
		if !strings.Contains(name, "/") {
			return name
		}
	}
	require.Fail(t, "the store has no id")
	return ""
}

func TestRefusedChangedState(t *testing.T) {
	s := embeddedSite(t, 2)
	file := s.file(totals)
	s.orders(0, 500, 50)
	s.goesOn(file)
	s.orders(500, 500, 50)
	before := s.files()
	refused(t, s.run(s.file(totals, "orders: count(), ", "orders: count(), largest: max(value.amount), ")), 23, "state totals/", "undo the change of type")
	refused(t, s.run(s.file(totals, "  totals: {from: paid", "  renamed: {from: paid", "totals: {from: totals", "totals: {from: renamed")), 23, "holds state that no step of the topology owns: totals/")
	require.Equal(t, before, s.files())
	s.goesOn(file)
}

func TestRefusedMistakes(t *testing.T) {
	s := &site{t: t, brokers: []string{"127.0.0.1:1"}, app: "mistakes", in: "in", out: "out", dir: t.TempDir(), every: 300 * time.Millisecond, session: 10 * time.Second}
	for name, c := range map[string]struct {
		changes []string
		lines   []string
	}{
		"several at once": {
			[]string{"interval: {{.Interval}}", "intervall: 1s", "from: paid", "from: payed", "value: json}\nsteps", "value: jason}\nsteps"},
			[]string{"intervall", "payed", "jason", "4 mistakes"},
		},
		"a bare number":      {[]string{"interval: {{.Interval}}", "interval: 300"}, []string{"interval", "unit"}},
		"a bad expression":   {[]string{`value.status == "paid"`, `value.status = "paid"`}, []string{"steps.paid.filter"}},
		"a loop":             {[]string{"topic: {{.Out}}", "topic: {{.In}}"}, []string{"is read by source orders of this service: a loop"}},
		"not there yet":      {[]string{"sources:", "savepoints: {}\nsources:"}, []string{"savepoints"}},
		"an unset variable":  {[]string{"topic: {{.In}}", `topic: "${NOBODY_SETS_THIS}"`}, []string{"NOBODY_SETS_THIS"}},
		"not YAML":           {[]string{"steps:", "steps: ]"}, []string{"service.yaml:"}},
		"a timeout too low":  {[]string{"timeout: {{.TransactionTimeout}}", "timeout: 1s"}, []string{"transaction.timeout: 1s is too short", "needs at least 10s300ms"}},
		"nothing is written": {[]string{"sinks:\n  totals: {from: totals, topic: {{.Out}}, key: string, value: json}\n", ""}, []string{"sinks"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.run(s.file(totals, c.changes...))
			require.Equal(t, 3, p.exit(20*time.Second), p.stderr.String())
			for _, text := range c.lines {
				require.Contains(t, p.stderr.String(), text)
			}
			require.True(t, strings.HasPrefix(p.stderr.tail(1), "processor: "))
			require.Empty(t, p.stdout.String())
		})
	}
	require.NoDirExists(t, filepath.Join(s.dir, "checkpoints"))
	t.Run("in the environment", func(t *testing.T) {
		p := startProcess(t, processorBinary(t), []string{"run", s.file(totals)}, "MILLWEIR_CHECKPOINTING_INTERVALL=1s")
		require.Equal(t, 3, p.exit(20*time.Second))
		require.Contains(t, p.stderr.String(), "MILLWEIR_CHECKPOINTING_INTERVALL")
	})
	t.Run("no such file", func(t *testing.T) {
		p := s.run(filepath.Join(t.TempDir(), "none.yaml"))
		require.Equal(t, 3, p.exit(20*time.Second), p.stderr.String())
		require.Contains(t, p.stderr.String(), "none.yaml")
	})
}

func TestRefusedFlags(t *testing.T) {
	s := &site{t: t, brokers: []string{"127.0.0.1:1"}, app: "flags", in: "in", out: "out", dir: t.TempDir(), every: time.Second, session: 10 * time.Second}
	file := s.file(totals)
	for _, c := range []struct {
		args string
		text string
	}{
		{"rnu FILE", `there is no command "rnu": did you mean run?`},
		{"run", "takes FILE.yaml, not 0 arguments"},
		{"run FILE FILE", "takes FILE.yaml, not 2 arguments"},
		{"run FILE --sett a=b", "unknown flag: --sett"},
		{"run FILE --log-level loud", `--log-level "loud": debug, info, warn or error`},
		{"run FILE --log-format xml", `--log-format "xml": text or json`},
		{"run FILE --embedded --embedded-port 70000", "port 70000"},
		{"validate", "takes FILE.yaml"},
		{"verify --kafka x", "unknown flag: --kafka"},
	} {
		p := startProcess(t, processorBinary(t), strings.Fields(strings.ReplaceAll(c.args, "FILE", file)))
		refused(t, p, 2, c.text)
		require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), c.args)
	}
	for _, set := range []string{"nosuch.key=1", "checkpointing.interval=1", "checkpointing.interval"} {
		p := s.run(file, "--set", set)
		require.Contains(t, []int{2, 3}, p.exit(20*time.Second), set)
		require.Contains(t, p.stderr.String(), strings.Split(set, "=")[0])
	}
}
