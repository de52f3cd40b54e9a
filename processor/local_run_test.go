package processor

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/engine"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

// localBed is a bed whose services keep a local copy.
type localBed struct {
	*bed
	log  logBuffer
	app  string
	cfg  Config
	keep *keeper // of the newest service
}

func newLocalBed(t *testing.T, app string) *localBed {
	b := &localBed{bed: newBed(t), app: app}
	b.cfg = b.config()
	b.cfg.Backend, b.cfg.local, b.cfg.InstanceID = Badger, fast, "i1"
	var to io.Writer = &b.log
	if testing.Verbose() {
		to = io.MultiWriter(&b.log, os.Stderr)
	}
	b.cfg.Logger = slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b.cfg.Decorate = func(p *engine.Ports) { b.keep, _ = p.Local.(*keeper) }
	return b
}

// process runs the service until all input is committed.
func (b *localBed) process() (stop func() error) {
	b.t.Helper()
	stop = b.start(countPlan(b.t, b.app), b.cfg)
	require.Eventually(b.t, func() bool { return b.lag(b.app) == 0 }, 20*time.Second, 20*time.Millisecond)
	return stop
}

func (b *localBed) localDir() string { return filepath.Join(b.dir, "local", b.app) }

// committed gives the repository and the newest root, which is committed when the service stopped gracefully. After a kill
// a root of the dead process that was never committed may have a higher id.
func (b *localBed) committed() (*snapshot.Repository, snapshot.RootInfo) {
	repo, err := snapshot.OpenRepository(b.t.Context(), snapshot.Config{Dir: filepath.Join(b.dir, "checkpoints"), Application: b.app, Instance: "i1", ReadOnly: true})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { repo.Close() })
	infos, err := repo.List(b.t.Context())
	require.NoError(b.t, err)
	require.NotEmpty(b.t, infos)
	return repo, slices.MaxFunc(infos, func(x, y snapshot.RootInfo) int {
		return cmp.Compare(x.Root.CreatedUnixMilli, y.Root.CreatedUnixMilli)
	})
}

// openCopy opens the copy of a service that has ended.
func (b *localBed) openCopy(f func(*store.Local)) {
	local, err := store.OpenLocal(store.LocalConfig{Dir: b.localDir(), Cluster: b.clusterID(), Application: b.app, Logger: b.cfg.Logger})
	require.NoError(b.t, err)
	require.False(b.t, local.Stats().Disabled)
	f(local)
	require.NoError(b.t, local.Close())
}

func (b *localBed) clusterID() string {
	_, root := b.committed()
	return root.Root.ClusterID
}

// requireCurrent checks that the copy is the state of the newest checkpoint.
func (b *localBed) requireCurrent() {
	b.t.Helper()
	repo, root := b.committed()
	require.Len(b.t, root.Root.Tasks, 4)
	b.openCopy(func(local *store.Local) {
		for _, e := range root.Root.Tasks {
			v, ok := local.Version(e.Task)
			require.True(b.t, ok, "task %s", e.Task)
			require.Equal(b.t, versionOf(root.Ref, e), v)
		}
		requireCopies(b.t, local, repo, root.Root.Tasks)
	})
}

func (b *localBed) requireExact() {
	b.t.Helper()
	r := b.verify()
	require.True(b.t, r.Exact(), "%+v", r)
}

func TestLocalCopyStandsAtTheLastCheckpointAfterAGracefulStop(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "copy")
	b.produce(0, 3000)
	require.NoError(t, b.process()())
	b.requireCurrent()
	built := b.log.count(builtAnew)
	require.Equal(t, 4, built)
	b.produce(3000, 3000)
	require.NoError(t, b.process()())
	b.requireCurrent()
	require.Equal(t, built, b.log.count(builtAnew), "the second service went on with the first one's copy")
	b.requireExact()
}

func TestLocalCopyOfAShortRun(t *testing.T) {
	b := newLocalBed(t, "short")
	b.cfg.local = localPace{} // as in a real service: it stops before the keeper looks the first time
	b.produce(0, 1000)
	require.NoError(t, b.process()())
	b.requireCurrent()
}

func TestLocalCopyFollowsMergedChains(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "merged")
	b.cfg.Interval = 10 * time.Millisecond
	merged := make(chan struct{}, 100)
	b.cfg.Listener.Merged = func(element.TaskID, int, int64, time.Duration, error) {
		select {
		case merged <- struct{}{}:
		default:
		}
	}
	stop := b.start(countPlan(t, b.app), b.cfg)
	deadline := time.Now().Add(30 * time.Second)
	n := 0
	for len(merged) < 6 {
		require.True(t, time.Now().Before(deadline), "no merges")
		b.produce(n, 40)
		n += 40
	}
	require.Eventually(t, func() bool { return b.lag(b.app) == 0 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stop())
	b.requireCurrent()
	require.Zero(t, b.log.count("could not follow"))
}

// childOf names the broker to the process that TestLocalCopyAfterAKill starts and kills.
const childOf, childDir = "MILLWEIR_TEST_BROKER", "MILLWEIR_TEST_DIR"

func TestLocalCopyChild(t *testing.T) {
	if os.Getenv(childOf) == "" {
		t.Skip("only as a child of TestLocalCopyAfterAKill")
	}
	cfg := Config{Brokers: []string{os.Getenv(childOf)}, DataDir: os.Getenv(childDir), Interval: 20 * time.Millisecond, InstanceID: "i1",
		local: fast, Logger: slog.New(slog.DiscardHandler)}
	require.NoError(t, Run(context.Background(), countPlan(t, "kill"), cfg))
}

func TestLocalCopyAfterAKill(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "kill")
	n, compared := 0, 0
	for _, delay := range []time.Duration{0, 30 * time.Millisecond, 77 * time.Millisecond} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLocalCopyChild$")
		cmd.Env = append(os.Environ(), childOf+"="+b.addr, childDir+"="+b.dir)
		require.NoError(t, cmd.Start())
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		b.produce(n, 2000)
		n += 2000
		require.Eventually(t, func() bool { return b.lag("kill") == 0 }, 20*time.Second, 10*time.Millisecond)
		b.produce(n, 500)
		n += 500
		time.Sleep(delay)
		require.NoError(t, cmd.Process.Kill())
		<-done
		// What is there is whole and at some committed checkpoint, or is known not to be.
		repo, newest := b.committed()
		infos, err := repo.List(t.Context())
		require.NoError(t, err)
		b.openCopy(func(local *store.Local) {
			for _, e := range newest.Root.Tasks {
				v, ok := local.Version(e.Task)
				for i := 0; ok && i < len(infos); i++ {
					if infos[i].Ref.Digest == v.Digest { // its runs are kept
						requireCopies(t, local, repo, []snapshot.TaskEntry{*infos[i].Root.Task(e.Task)})
						compared++
					}
				}
			}
		})
	}
	t.Log("copies compared after a kill:", compared)
	b.produce(n, 500)
	require.NoError(t, b.process()())
	b.requireCurrent()
	b.requireExact()
}

func TestLocalCopyOfAnotherClusterIsReplaced(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "moved")
	other, err := store.OpenLocal(store.LocalConfig{Dir: b.localDir(), Cluster: "another", Application: b.app, Logger: b.cfg.Logger})
	require.NoError(t, err)
	task := element.TaskID{Source: "in", Partition: 1}
	require.NoError(t, other.Reset(t.Context(), task, store.LocalVersion{Name: element.CheckpointName{ID: 1}}, []store.TableInfo{{Name: "x", Codec: "y"}},
		func(yield func(store.Entry, error) bool) {
			yield(store.Entry{Key: []byte("k"), Value: []byte("v")}, nil)
		}))
	require.NoError(t, other.Close())
	b.produce(0, 1000)
	require.NoError(t, b.process()())
	require.Equal(t, 1, b.log.count("of another application, cluster or format"))
	b.requireCurrent()
}

func TestLocalCopyForgetsSourcesThatAreGone(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "gone")
	b.produce(0, 1000)
	require.NoError(t, b.process()())
	task := element.TaskID{Source: "before", Partition: 1}
	b.openCopy(func(local *store.Local) {
		require.NoError(t, local.Reset(t.Context(), task, store.LocalVersion{}, nil, func(func(store.Entry, error) bool) {}))
	})
	b.openCopy(func(local *store.Local) { require.Contains(t, local.Tasks(), task) })
	b.produce(1000, 1000)
	require.NoError(t, b.process()())
	b.openCopy(func(local *store.Local) { require.NotContains(t, local.Tasks(), task) })
	b.requireCurrent()
}

func TestServiceRunsWithoutItsLocalCopy(t *testing.T) {
	testbed.Alongside(t)
	for name, spoil := range map[string]func(b *localBed){
		"no directory": func(b *localBed) {
			require.NoError(t, os.MkdirAll(filepath.Dir(b.localDir()), 0o755))
			require.NoError(t, os.WriteFile(b.localDir(), nil, 0o600))
		},
		"in use": func(b *localBed) {
			other, err := store.OpenLocal(store.LocalConfig{Dir: b.localDir(), Logger: slog.New(slog.DiscardHandler)})
			require.NoError(b.t, err)
			b.t.Cleanup(func() { other.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLocalBed(t, "without")
			spoil(b)
			b.produce(0, 1000)
			require.NoError(t, b.process()())
			require.Nil(t, b.keep)
			require.Equal(t, 1, b.log.count("DISABLED"))
			b.requireExact()
		})
	}
}

func TestBrokenLocalCopyIsBuiltAnew(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "broken")
	b.produce(0, 1000)
	require.NoError(t, b.process()())
	db := filepath.Join(b.localDir(), "local-state", "db")
	files, err := os.ReadDir(db)
	require.NoError(t, err)
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "LOCK") {
			require.NoError(t, os.WriteFile(filepath.Join(db, f.Name()), []byte("damaged"), 0o600))
		}
	}
	b.produce(1000, 1000)
	require.NoError(t, b.process()())
	b.requireCurrent()
	b.requireExact()
}

func TestMemoryBackendKeepsNoCopy(t *testing.T) {
	b := newLocalBed(t, "memory")
	b.cfg.Backend = Memory
	b.produce(0, 500)
	require.NoError(t, b.process()())
	require.Nil(t, b.keep)
	require.NoDirExists(t, filepath.Join(b.dir, "local"))
}

func TestLocalCopyRestsWhenNothingMoves(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "rest")
	b.produce(0, 1000)
	stop := b.process()
	require.Eventually(t, func() bool {
		at := len(b.keep.tasks(func(l *lane) bool { return l.known && !l.lost && !l.behind() }))
		return at == 4 && b.log.count(builtAnew) == 4
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, b.keep.local.Flush(t.Context()))
	require.Eventually(t, func() bool { // a flush of its own may just have begun
		was := b.keep.local.Stats()
		time.Sleep(300 * time.Millisecond)
		return was == b.keep.local.Stats()
	}, 5*time.Second, 10*time.Millisecond)
	require.NoError(t, stop())
}
