package processor

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/kafka"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

func TestSettingAsync(t *testing.T) {
	testbed.Alongside(t)
	for _, sync := range []bool{true, false} {
		s := newSettled(t)
		s.cfg.SyncSnapshots = sync
		gate, waits := make(chan struct{}), make(chan struct{}, 100)
		s.beforePersist(func(ctx context.Context) error {
			waits <- struct{}{}
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		s.put(10)
		stop := s.start(s.plan(0), s.cfg)
		<-waits // all tasks have taken their snapshot, and it is not written
		before := s.seen.Load()
		s.put(100)
		if sync {
			time.Sleep(500 * time.Millisecond)
			require.Equal(t, before, s.seen.Load(), "processing waits for the state to be written")
		}
		if !sync {
			s.eventually(func() bool { return s.seen.Load() == before+100 }, "processing goes on")
		}
		close(gate)
		s.eventually(func() bool { return s.lag(s.app) == 0 && s.seen.Load() >= 110 }, "all is committed")
		require.NoError(t, stop())
	}
}

// Behind an exchange, what an unaligned barrier has overtaken waits as well: the sources stand still in any case.
func TestSettingAsyncBehindAnExchange(t *testing.T) {
	testbed.Alongside(t)
	const records, early = 600, 100
	for _, sync := range []bool{true, false} {
		s := newSettled(t)
		s.cfg.SyncSnapshots, s.cfg.Unaligned, s.cfg.Interval = sync, true, 20*time.Millisecond
		s.work = func(string) error { time.Sleep(time.Millisecond); return nil }
		gate, waits := make(chan struct{}), make(chan struct{}, 100)
		s.beforePersist(func(ctx context.Context) error {
			if s.seen.Load() < early {
				return nil // the channels are not full yet
			}
			waits <- struct{}{}
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		s.put(records)
		stop := s.start(s.plan(2), s.cfg)
		<-waits
		before := s.seen.Load()
		require.Less(t, before, int64(records-early))
		if sync {
			time.Sleep(300 * time.Millisecond)
			require.Equal(t, before, s.seen.Load(), "processing waits for the state to be written")
		} else {
			s.eventually(func() bool { return s.seen.Load() >= before+early }, "processing goes on")
		}
		close(gate)
		s.eventually(func() bool { return s.lag(s.app) == 0 && s.seen.Load() >= records }, "all is committed")
		require.NoError(t, stop())
	}
}

// newestRoot gives the newest root in the directory.
func (s *settled) newestRoot() *snapshot.Root {
	s.t.Helper()
	repo, err := snapshot.OpenRepository(s.t.Context(), snapshot.Config{Dir: filepath.Join(s.dir, "checkpoints"), Application: s.app, Instance: "none", ReadOnly: true})
	require.NoError(s.t, err)
	defer repo.Close()
	infos, err := repo.List(s.t.Context())
	require.NoError(s.t, err)
	require.NotEmpty(s.t, infos)
	newest := infos[0].Root
	for _, i := range infos {
		if i.Root.Name.ID > newest.Name.ID {
			newest = i.Root
		}
	}
	return newest
}

func TestSettingIncremental(t *testing.T) {
	testbed.Alongside(t)
	for _, full := range []bool{true, false} {
		s := newSettled(t)
		s.cfg.FullSnapshots = full
		stop := s.start(s.plan(0), s.cfg)
		for round := range 4 {
			s.put(100)
			s.eventually(func() bool { return s.seen.Load() >= int64(100*(round+1)) && s.lag(s.app) == 0 }, "a checkpoint")
		}
		require.NoError(t, stop())
		most := 0
		for _, task := range s.newestRoot().Tasks {
			most = max(most, len(task.Runs))
			require.True(t, !full || len(task.Runs) == 0 || task.Runs[0].Full, "%s", task.Task)
		}
		require.Equal(t, full, most == 1, "a task's state is in %d runs", most)
	}
}

func TestSettingMemoryThreshold(t *testing.T) {
	testbed.Alongside(t)
	for name, c := range map[string]struct {
		threshold int64 // 0: the default
		keys      int
		files     bool
	}{
		"nothing lies in the root":    {-1, 10, true},
		"the default, small state":    {0, 10, false},
		"the default, larger state":   {0, 20_000, true},
		"a megabyte, larger state":    {1 << 20, 20_000, false},
		"one byte, the smallest file": {1, 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSettled(t)
			s.cfg.MemoryThreshold, s.cfg.Interval = c.threshold, 10*time.Minute
			s.putKeys(c.keys, 1)
			stop := s.start(s.plan(0), s.cfg)
			s.eventually(func() bool { return s.seen.Load() == int64(c.keys) }, "all is processed")
			require.NoError(t, stop())
			require.NotZero(t, s.files(".root"))
			require.Equal(t, c.files, s.files(".data") > 0)
		})
	}
}

// An exchange has as many tasks as its parallelism says, whatever the machine has.
func TestParallelismIsTheNumberOfTasks(t *testing.T) {
	testbed.Alongside(t)
	for _, parallelism := range []int{1, 5} {
		s := newSettled(t)
		s.put(100)
		stop := s.start(s.plan(parallelism), s.cfg)
		s.eventually(func() bool { return s.seen.Load() == 100 && s.lag(s.app) == 0 }, "a checkpoint")
		require.NoError(t, stop())
		tasks := 0
		for _, task := range s.newestRoot().Tasks {
			if task.Task.Source == "by-key" {
				tasks++
			}
		}
		require.Equal(t, parallelism, tasks)
	}
}

var writes = regexp.MustCompile(`(?m)^syscw: (\d+)$`)

// The operating system counts how often a file is written to.
func TestSettingWriteBufferSize(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process how often it has written")
	}
	count := func() int {
		text, err := os.ReadFile("/proc/self/io")
		require.NoError(t, err)
		n, err := strconv.Atoi(writes.FindStringSubmatch(string(text))[1])
		require.NoError(t, err)
		return n
	}
	written := func(savepoint bool, size, threshold int64) int {
		cfg := Config{DataDir: t.TempDir(), MemoryThreshold: threshold, WriteBufferSize: size}.withDefaults()
		s := &service{plan: countPlan(t, "buffer"), cfg: cfg, log: cfg.Logger, instance: "i", cluster: &kafka.Cluster{ID: "c"}}
		require.NoError(t, s.openCheckpoints(t.Context()))
		defer s.close()
		before := count()
		entries := func(yield func(snapshot.Entry) bool) {
			for i := range 4096 {
				if !yield(snapshot.Entry{Key: []byte(strconv.Itoa(100_000 + i)), Value: make([]byte, 2048)}) {
					return
				}
			}
		}
		name, task, states := element.CheckpointName{ID: 1, Incarnation: 1}, element.TaskID{Source: "in"}, []snapshot.StateInfo{{Name: "count", KeyCodec: "string", Codec: "int64"}}
		var err error
		if savepoint {
			head := snapshot.SavepointHead{ID: "1", Name: name, Application: "buffer", Instance: "i", ClusterID: "c"}
			_, err = s.writeSavepoint(t.Context(), t.TempDir(), head, []snapshot.SavepointTask{{Task: task, States: states, Entries: entries}})
		} else {
			_, err = s.repo.Persist(t.Context(), name, []snapshot.TaskDelta{{Task: task, States: states, From: 0, To: 1, Entries: entries, Len: 4096}})
		}
		require.NoError(t, err)
		return count() - before
	}
	for _, savepoint := range []bool{false, true} {
		require.Greater(t, written(savepoint, 4<<10, -1), 200, "8 MiB through a buffer of 4 KiB, savepoint %t", savepoint)
		require.Less(t, written(savepoint, 16<<20, -1), 50, "8 MiB through a buffer of 16 MiB, savepoint %t", savepoint)
	}
	require.Less(t, written(true, 4<<10, 1<<20), 50, "the larger of the buffer and the threshold counts for savepoints, too")
}

// So many checkpoints are kept; one more may wait for the next cleaning up. At-least-once keeps two at least.
func TestSettingNumRetained(t *testing.T) {
	testbed.Alongside(t)
	for name, c := range map[string]struct {
		mode           Mode
		retained, kept int
	}{
		"one":                {ExactlyOnce, 1, 1},
		"six":                {ExactlyOnce, 6, 6},
		"one, at-least-once": {AtLeastOnce, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSettled(t)
			s.cfg.Mode, s.cfg.RetainedCheckpoints = c.mode, c.retained
			stop := s.start(s.plan(0), s.cfg)
			for len(s.done()) < 12 {
				before := len(s.done())
				s.put(10)
				s.eventually(func() bool { return len(s.done()) > before }, "a checkpoint")
			}
			s.eventually(func() bool { n := s.files(".root"); return c.kept <= n && n <= c.kept+1 }, "roots are cleaned up to those that are kept")
			require.Never(t, func() bool { return s.files(".root") < c.kept }, 200*time.Millisecond, 10*time.Millisecond)
			require.NoError(t, stop())
			n := s.files(".root")
			require.True(t, c.kept <= n && n <= c.kept+1, "%d roots", n)
		})
	}
}

func TestSettingPlaces(t *testing.T) {
	testbed.Alongside(t)
	s := newSettled(t)
	at := func(name string) string { return filepath.Join(s.dir, name) }
	s.cfg.Backend, s.cfg.local = Badger, fast
	s.cfg.CheckpointsDir = at("chk")
	require.NoError(t, os.WriteFile(at("unusable"), nil, 0o600))
	s.cfg.LocalDirs = []string{at("unusable"), at("disk-2"), at("disk-3")}
	s.put(100)
	stop := s.start(s.plan(0), s.cfg)
	s.eventually(func() bool { return s.lag(s.app) == 0 }, "all is committed")
	require.NoError(t, stop())
	require.DirExists(t, filepath.Join(at("chk"), s.app))
	cluster, err := kafka.Probe(t.Context(), kafka.Config{Brokers: s.cfg.Brokers, ClientID: s.app, Logger: s.cfg.Logger}, kafka.Need{})
	require.NoError(t, err)
	var copies []string // of the tasks, on both disks that can be used
	for _, disk := range []string{"disk-2", "disk-3"} {
		local, err := store.OpenLocal(store.LocalConfig{Dir: filepath.Join(at(disk), s.app), Cluster: cluster.ID, Application: s.app, Logger: s.cfg.Logger})
		require.NoError(t, err)
		require.NotEmpty(t, local.Tasks(), disk)
		for _, task := range local.Tasks() {
			copies = append(copies, task.String())
		}
		require.NoError(t, local.Close())
	}
	require.ElementsMatch(t, []string{"in-0", "in-1", "in-2", "in-3"}, copies)
	require.NoDirExists(t, at("checkpoints"))
	require.NoDirExists(t, at("local"))
}

// What exceeds the memory limit is spread over the directories, too.
func TestSettingPlacesOfSpilledState(t *testing.T) {
	testbed.Alongside(t)
	const keys = 8000
	s := newSettled(t)
	s.cfg.Backend, s.cfg.local = Badger, fast
	s.cfg.MemoryLimit, s.cfg.UncommittedLimit = 1<<20, 1<<20
	s.cfg.LocalDirs = []string{filepath.Join(s.dir, "disk-1"), filepath.Join(s.dir, "disk-2")}
	stop := s.start(s.plan(0), s.cfg)
	s.putWide(0, keys, keys, 1) // some 4 MB
	s.eventually(func() bool { return s.seen.Load() == keys && s.lag(s.app) == 0 }, "all is committed")
	for _, disk := range s.cfg.LocalDirs {
		files, err := filepath.Glob(filepath.Join(disk, s.app, store.SpillDirName, "process-*", "*.state"))
		require.NoError(t, err)
		require.NotEmpty(t, files, disk)
	}
	require.NoError(t, stop())
	require.NoDirExists(t, filepath.Join(s.dir, "local"))
}

// What the engine does by a setting of its own is tested there; here it is seen that it gets it.
func TestSettingsReachTheEngine(t *testing.T) {
	base := Config{Brokers: []string{"h:1"}}
	get := func(c Config) any {
		c = c.withDefaults()
		s := &service{plan: countPlan(t, "reach"), cfg: c, cluster: &kafka.Cluster{ID: "c"}}
		return s.engineConfig()
	}
	for name, change := range map[string]func(*Config){
		"checkpointing.interval":                       func(c *Config) { c.Interval = 3 * time.Second },
		"checkpointing.interval: disabled":             func(c *Config) { c.DisabledCheckpoints = true },
		"checkpointing.mode":                           func(c *Config) { c.Mode = AtLeastOnce },
		"checkpointing.timeout":                        func(c *Config) { c.CheckpointTimeout = 3 * time.Second },
		"checkpointing.min-pause":                      func(c *Config) { c.MinPause = 3 * time.Second },
		"checkpointing.max-concurrent":                 func(c *Config) { c.MaxConcurrent = 3 },
		"checkpointing.tolerable-failures":             func(c *Config) { c.TolerableFailures = 3 },
		"checkpointing.unaligned":                      func(c *Config) { c.Unaligned = true },
		"checkpointing.aligned-timeout":                func(c *Config) { c.AlignedTimeout = time.Second },
		"checkpointing.prefer-checkpoint-for-recovery": func(c *Config) { c.PreferCheckpointForRecovery = true },
		"checkpointing.force":                          func(c *Config) { c.ForceIterations = true },
		"state.backend.async":                          func(c *Config) { c.SyncSnapshots = true },
		"state.backend.incremental":                    func(c *Config) { c.FullSnapshots = true },
		"state.uncommitted-limit":                      func(c *Config) { c.UncommittedLimit = 1 << 20 },
		"transaction.timeout":                          func(c *Config) { c.TransactionTimeout = 10 * time.Minute },
		"shutdown.timeout":                             func(c *Config) { c.ShutdownTimeout = time.Second },
		"restart-strategy":                             func(c *Config) { c.Restart.SameRecord = 3 },
	} {
		c := base
		change(&c)
		require.NotEqual(t, get(base), get(c), name)
	}
}

// A savepoint that was cut along with the last checkpoint is what the next start reads, unless the checkpoint is preferred.
// That nobody looks at it then is seen when it is gone.
func TestSettingPreferCheckpoint(t *testing.T) {
	testbed.Alongside(t)
	for _, prefer := range []bool{true, false} {
		s := newSettled(t)
		var outside outside
		s.cfg, outside = s.instance("a")
		s.cfg.SavepointsDir = filepath.Join(s.dir, "savepoints")
		var missed atomic.Int64
		s.cfg.Listener.SavepointUnusable = func(element.TaskID, snapshot.SavepointRef, error) { missed.Add(1) }
		stop := s.start(s.plan(0), s.cfg)
		s.put(100)
		s.eventually(func() bool { return s.lag(s.app) == 0 }, "all is committed")
		_, err := outside.client().TriggerSavepoint(t.Context(), "")
		require.NoError(t, err)
		require.NoError(t, stop())
		require.Zero(t, missed.Load())
		require.NoError(t, os.RemoveAll(s.cfg.SavepointsDir))

		s.cfg.PreferCheckpointForRecovery = prefer
		stop = s.start(s.plan(0), s.cfg)
		s.put(100)
		s.eventually(func() bool { return s.lag(s.app) == 0 && s.seen.Load() >= 200 }, "all is committed")
		require.NoError(t, stop())
		require.Equal(t, !prefer, missed.Load() > 0)
		require.Len(t, s.counts(), 200)
	}
}
