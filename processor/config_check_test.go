package processor

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/testbed"
)

func checked(change func(*Config)) string {
	c := Config{Brokers: []string{"h:1"}}
	change(&c)
	var lines []string
	for _, m := range c.Check() {
		lines = append(lines, m.String())
	}
	return strings.Join(lines, "\n")
}

func TestCheckRefusesWithBothValues(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                                  func(*Config) {},
		"kafka.brokers: no broker is given": func(c *Config) { c.Brokers = nil },
		`admin.listen: 0.0.0.0:8080 can be reached from other machines: set admin.token, or listen on 127.0.0.1`: func(c *Config) { c.AdminListen = "0.0.0.0:8080" },
		`admin.listen: "8080" is not host:port, for example 127.0.0.1:8080, nor off`:                             func(c *Config) { c.AdminListen = "8080" },
		`admin.token: the value is no token: 16 to 256 printable characters without blanks`:                      func(c *Config) { c.AdminToken = "secret" },
		`kafka.brokers: "h" is not host:port, for example localhost:9092`:                                        func(c *Config) { c.Brokers = []string{"h"} },
		`data-dir: "s3://x" is not a path of a directory on this machine`:                                        func(c *Config) { c.DataDir, c.CheckpointsDir, c.LocalDirs = "s3://x", "c", []string{"l"} },
		`state.local.root-dirs: "/a/" is named twice`:                                                            func(c *Config) { c.LocalDirs = []string{"/a", "/b", "/a/"} },
		`instance.id: "a/b" is not a name: 1 to 128 letters, digits, dots, underscores or hyphens`:               func(c *Config) { c.InstanceID = "a/b" },
		`state.backend: unknown value "heap"; allowed: badger, memory`:                                           func(c *Config) { c.Backend = "heap" },
		`checkpointing.mode: unknown value "x"; allowed: exactly-once, at-least-once`:                            func(c *Config) { c.Mode = "x" },
		"checkpointing.interval: 5ms is out of range: from 10ms to 1h":                                           func(c *Config) { c.Interval = 5 * time.Millisecond },
		"checkpointing.min-pause: -1s is out of range: from 0s to 24h":                                           func(c *Config) { c.MinPause = -time.Second },
		"checkpointing.max-concurrent: 65 is out of range: from 1 to 64":                                         func(c *Config) { c.MaxConcurrent = 65 },
		"state.backend.fs.memory-threshold: 1048577b is out of range: from 0b to 1mb":                            func(c *Config) { c.MemoryThreshold = 1<<20 + 1 },
		"state.backend.fs.write-buffer-size: -1 is out of range: from 1kb to 64mb":                               func(c *Config) { c.WriteBufferSize = -1 },
		"shutdown.timeout: 2h is out of range: from 1s to 1h":                                                    func(c *Config) { c.ShutdownTimeout = 2 * time.Hour },
		"checkpointing.unaligned: true excludes checkpointing.mode at-least-once, where barriers wait for nothing; set the mode to exactly-once, or unaligned to false": func(c *Config) {
			c.Unaligned, c.Mode = true, AtLeastOnce
		},
		"checkpointing.unaligned: true excludes checkpointing.max-concurrent 3: unaligned checkpoints are taken one at a time; set max-concurrent to 1, or unaligned to false": func(c *Config) {
			c.Unaligned, c.MaxConcurrent = true, 3
		},
		"checkpointing.aligned-timeout: 100ms has no effect with checkpointing.unaligned false; set unaligned to true, or leave aligned-timeout out": func(c *Config) {
			c.AlignedTimeout = 100 * time.Millisecond
		},
		"checkpointing.min-pause: 2s excludes checkpointing.max-concurrent 2: a pause between checkpoints means one at a time; set max-concurrent to 1, or min-pause to 0s": func(c *Config) {
			c.MinPause, c.MaxConcurrent = 2*time.Second, 2
		},
		"transaction.timeout: 1m is too short: the larger of checkpointing.interval (2s) and checkpointing.min-pause (9s), plus checkpointing.timeout (50s), plus 5s needs at least 1m4s": func(c *Config) {
			c.Interval, c.MinPause, c.TransactionTimeout = 2*time.Second, 9*time.Second, time.Minute
		},
		"restart-strategy.fixed-delay.attempts: has no effect with restart-strategy.type none; set the type to fixed-delay, or leave this out": func(c *Config) {
			c.Restart = restart.Config{Strategy: restart.None, Fixed: restart.Fixed{Attempts: 2}}
		},
	} {
		require.Equal(t, want, checked(change))
	}
	// What excludes each other is nothing where it has no effect anyway.
	require.Empty(t, checked(func(c *Config) {
		c.DisabledCheckpoints, c.Unaligned, c.MaxConcurrent, c.TransactionTimeout = true, true, 3, time.Second
	}))
	require.Empty(t, checked(func(c *Config) { c.Mode, c.TransactionTimeout = AtLeastOnce, time.Second }))
	require.Empty(t, checked(func(c *Config) {
		c.Unaligned, c.AlignedTimeout, c.TolerableFailures, c.MemoryThreshold = true, time.Second, -7, -1
	}))
}

func TestValidateReportsAllAtOnceAndWhatIsNotObeyed(t *testing.T) {
	kept := notYet
	t.Cleanup(func() { notYet = kept })
	notYet = []Gap{{Setting: "checkpointing.force", Accepts: "default", asked: func(c Config) bool { return c.ForceIterations }}}
	c := Config{Interval: -1, ForceIterations: true}
	err := c.withDefaults().validate()
	require.EqualError(t, err, "configuration: kafka.brokers: no broker is given\ncheckpointing.interval: -1ns is out of range: from 10ms to 1h\ncheckpointing.force: not available yet; leave it out")
	require.Equal(t, fault.BadFile, fault.CodeOf(err))
	require.NoError(t, Config{Brokers: []string{"h:1"}}.withDefaults().validate())
	notYet = nil
	require.NoError(t, Config{Brokers: []string{"h:1"}, ForceIterations: true}.withDefaults().validate())
}

// The defaults ask for nothing that the process does not obey, and each entry of the list is asked for by one change.
func TestTheListOfWhatIsNotObeyed(t *testing.T) {
	changes := map[string]func(*Config){
		"checkpointing.interval":                       func(c *Config) { c.DisabledCheckpoints = true },
		"checkpointing.mode":                           func(c *Config) { c.Mode = AtLeastOnce },
		"checkpointing.max-concurrent":                 func(c *Config) { c.MaxConcurrent = 2 },
		"checkpointing.tolerable-failures":             func(c *Config) { c.TolerableFailures = -1 },
		"checkpointing.unaligned":                      func(c *Config) { c.Unaligned = true },
		"checkpointing.aligned-timeout":                func(c *Config) { c.AlignedTimeout = 1 },
		"checkpointing.retention":                      func(c *Config) { c.Retention = DeleteOnCancellation },
		"checkpointing.prefer-checkpoint-for-recovery": func(c *Config) { c.PreferCheckpointForRecovery = true },
		"checkpointing.force":                          func(c *Config) { c.ForceIterations = true },
		"state.backend.async":                          func(c *Config) { c.SyncSnapshots = true },
		"state.backend.incremental":                    func(c *Config) { c.FullSnapshots = true },
		"state.backend.fs.memory-threshold":            func(c *Config) { c.MemoryThreshold = -1 },
		"state.backend.fs.write-buffer-size":           func(c *Config) { c.WriteBufferSize = 1 << 20 },
		"state.backend.memory-limit":                   func(c *Config) { c.MemoryLimit = 1 << 30 },
		"restart-strategy.same-record-failures":        func(c *Config) { c.Restart.SameRecord = 3 },
		"restart-strategy.*":                           func(c *Config) { c.Restart.Exponential.Attempts = 3 },
	}
	for _, g := range Gaps() {
		require.False(t, g.asked(Config{}.withDefaults()), g.Setting)
		for setting, change := range changes {
			var c Config
			change(&c)
			require.Equal(t, setting == g.Setting, g.asked(c.withDefaults()), "%s by a change of %s", g.Setting, setting)
		}
	}
}

func TestIgnored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"nothing by default": {func(*Config) {}, nil},
		"memory alone":       {func(c *Config) { c.Backend = Memory }, nil},
		"memory with places": {func(c *Config) { c.Backend, c.NoLocalRecovery, c.LocalDirs = Memory, true, []string{"/a"} },
			[]string{"state.local.root-dirs [/a]: state.backend memory keeps no local copy"}},
		"memory with a limit": {func(c *Config) { c.Backend, c.MemoryLimit = Memory, 1<<30 },
			[]string{"state.backend.memory-limit 1gb: state.backend memory keeps all state in memory"}},
		"the default place is none that was given": {func(c *Config) { c.DataDir, c.NoLocalRecovery, c.LocalDirs = "/d", true, []string{"/d/local"} }, nil},
		"places without local recovery": {func(c *Config) { c.NoLocalRecovery, c.LocalDirs = true, []string{"/a"} },
			nil},
		"at-least-once": {func(c *Config) { c.Mode, c.TransactionTimeout, c.HoldBackLimit = AtLeastOnce, 2*time.Minute, 1<<20 }, []string{
			"transaction.timeout 2m: checkpointing.mode at-least-once uses no transactions and holds no output back",
			"sink.hold-back-limit 1mb: checkpointing.mode at-least-once uses no transactions and holds no output back"}},
		"at-least-once with what was derived": {func(c *Config) { c.Mode, c.MinPause, c.TransactionTimeout = AtLeastOnce, time.Minute, 115*time.Second }, nil},
		"a small buffer": {func(c *Config) { c.WriteBufferSize, c.MemoryThreshold = 8<<10, 64<<10 },
			[]string{"state.backend.fs.write-buffer-size 8kb: state.backend.fs.memory-threshold 64kb is larger and counts"}},
		"disabled alone": {func(c *Config) { c.DisabledCheckpoints = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Brokers: []string{"h:1"}}
			c.change(&cfg)
			require.Empty(t, cfg.Check())
			require.Equal(t, c.want, Ignored(cfg))
			require.Equal(t, c.want, Ignored(cfg.withDefaults()), "defaults filled in change nothing")
		})
	}
}

func TestWhatHasLessEffectAndWhichDefaultsHaveNone(t *testing.T) {
	c := Config{TolerableFailures: -1}
	require.Empty(t, Ignored(c))
	require.Equal(t, []string{"checkpointing.tolerable-failures unlimited: a checkpoint that times out is not tolerated, since transaction.timeout 1m leaves no time for another; with 1m42s it does"}, Limited(c))
	c.TransactionTimeout = 102 * time.Second
	require.Empty(t, Limited(c))
	require.Empty(t, Limited(Config{TolerableFailures: 1, DisabledCheckpoints: true}))
	require.Equal(t, []string{"state.checkpoints.num-retained 1: checkpointing.mode at-least-once keeps 2, since the offsets may be those of the last but one"},
		Limited(Config{Mode: AtLeastOnce, RetainedCheckpoints: 1}))
	require.Empty(t, Limited(Config{Mode: AtLeastOnce, RetainedCheckpoints: 2}))
	require.Empty(t, Idle(c))
	c.Backend = Memory
	require.Equal(t, []string{"state.backend.local-recovery true: state.backend memory keeps no local copy"}, Idle(c))
	c.NoLocalRecovery = true
	require.Empty(t, Idle(c))
	require.Equal(t, []string{"state.backend.local-recovery true: checkpointing.interval disabled keeps no local copy"}, Idle(Config{DisabledCheckpoints: true}))
	require.Empty(t, Idle(Config{DisabledCheckpoints: true, NoLocalRecovery: true}))
}

func TestIgnoredWithoutCheckpoints(t *testing.T) {
	c := Config{DisabledCheckpoints: true, Mode: AtLeastOnce, CheckpointTimeout: time.Second, MinPause: time.Second, MaxConcurrent: 2, TolerableFailures: 3, Unaligned: true,
		AlignedTimeout: time.Second, Retention: DeleteOnCancellation, PreferCheckpointForRecovery: true, ForceIterations: true, SyncSnapshots: true, FullSnapshots: true,
		MemoryThreshold: -1, WriteBufferSize: 1 << 20, CheckpointsDir: "/c", RetainedCheckpoints: 1, UncommittedLimit: 1 << 20, TransactionTimeout: time.Hour, HoldBackLimit: 1 << 20,
		Brokers: []string{"h:1"}}
	require.Empty(t, c.Check())
	var want []string
	for _, s := range []string{"checkpointing.mode at-least-once", "checkpointing.timeout 1s", "checkpointing.min-pause 1s", "checkpointing.max-concurrent 2", "checkpointing.tolerable-failures 3",
		"checkpointing.unaligned true", "checkpointing.aligned-timeout 1s", "checkpointing.retention delete-on-cancellation", "checkpointing.prefer-checkpoint-for-recovery true", "checkpointing.force true",
		"state.backend.async false", "state.backend.incremental false", "state.backend.fs.memory-threshold 0b", "state.backend.fs.write-buffer-size 1mb",
		"state.checkpoints.num-retained 1", "state.uncommitted-limit 1mb", "transaction.timeout 1h", "sink.hold-back-limit 1mb"} {
		want = append(want, fmt.Sprintf("%s: checkpointing.interval disabled takes no checkpoints", s))
	}
	require.Equal(t, want, Ignored(c))
	require.Equal(t, []string{"state.checkpoints.dir /c: checkpointing.interval disabled writes no checkpoints there; what is there is read at the start, which refuses to lose it"}, Limited(c))
}

// Without an exchange there is no channel in which a barrier could overtake.
func TestUnalignedHasNoEffectWithoutAnExchange(t *testing.T) {
	c := Config{Unaligned: true, AlignedTimeout: 200 * time.Millisecond}
	s := settled{bed: &bed{t: t}, app: "unaligned"}
	require.Empty(t, ignoredBy(s.plan(2), c))
	require.Equal(t, []string{
		"checkpointing.unaligned true: the topology has no exchange, so no barrier waits behind records in a channel",
		"checkpointing.aligned-timeout 200ms: the topology has no exchange, so no barrier waits behind records in a channel",
	}, ignoredBy(s.plan(0), c))
	require.Len(t, ignoredBy(s.plan(0), Config{Unaligned: true}), 1)
	require.Empty(t, ignoredBy(s.plan(0), Config{}))
	require.Empty(t, ignoredBy(s.plan(0), Config{Unaligned: true, DisabledCheckpoints: true}), "said for another reason")
}

// What has no effect, or less than one may think, is in the log of a start.
func TestASettingWithoutEffectIsNamedAtTheStart(t *testing.T) {
	testbed.Alongside(t)
	b := newBed(t)
	var out bytes.Buffer // read when the service has stopped
	cfg := b.config()
	cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
	cfg.Backend, cfg.LocalDirs, cfg.Unaligned = Memory, []string{filepath.Join(b.dir, "copies")}, true
	cfg.TolerableFailures, cfg.TransactionTimeout = 2, time.Minute
	b.put(10)
	stop := b.start(countByKey(t, "named"), cfg)
	b.processed("named", 10)
	require.NoError(t, stop())
	for level, lines := range map[string][]string{
		`level=WARN msg="a setting has no effect" application=named setting="`: {
			"state.local.root-dirs [" + cfg.LocalDirs[0] + "]: state.backend memory keeps no local copy",
			"checkpointing.unaligned true: the topology has no exchange",
		},
		`level=WARN msg="a setting has less effect than one may think" application=named setting="`: {"checkpointing.tolerable-failures 2: a checkpoint that times out is not tolerated"},
		`level=INFO msg="a default has no effect" application=named setting="`:                      {"state.backend.local-recovery true: state.backend memory keeps no local copy"},
	} {
		for _, line := range lines {
			require.Equal(t, 1, strings.Count(out.String(), level+line), "%s%s in:\n%s", level, line, out.String())
		}
		require.Equal(t, len(lines), strings.Count(out.String(), level))
	}
}
