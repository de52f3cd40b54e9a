package processor

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

// restores collects what a service says of its restores.
type restores struct {
	mu    sync.Mutex
	stats map[element.TaskID]snapshot.Stats
}

// watch has the next service tell of its restores.
func (b *localBed) watch() *restores {
	r := &restores{stats: map[element.TaskID]snapshot.Stats{}}
	b.cfg.Listener.Restored = func(task element.TaskID, _ snapshot.RootRef, s snapshot.Stats, _ time.Duration) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stats[task] = s
	}
	return r
}

// sum gives how many tasks came from a copy and how many from the files, and the bytes that were read of the files.
func (r *restores) sum() (local, files int, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.stats {
		if bytes += s.Bytes(); s.Local {
			local++
		} else {
			files++
		}
	}
	return local, files, bytes
}

func (b *localBed) requireLocal(r *restores, wantLocal, wantFiles int) int64 {
	b.t.Helper()
	local, files, bytes := r.sum()
	require.Equal(b.t, wantLocal, local, "from the copy")
	require.Equal(b.t, wantFiles, files, "from the files")
	return bytes
}

func TestRestartReadsNoSnapshotAfterAGracefulStop(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "again")
	for round := range 4 {
		r := b.watch()
		b.produce(round*2000, 2000)
		require.NoError(t, b.process()())
		if round == 0 {
			b.requireLocal(r, 0, 0)
			continue
		}
		require.Zero(t, b.requireLocal(r, 4, 0))
		require.EqualValues(t, 4, b.log.count("local_copy=true"))
		b.log.reset()
	}
	b.requireExact()
	b.requireCurrent()
}

// The checkpoint directory may be far away: a start with a copy asks it for nothing but the roots.
func TestLocalRecoveryOff(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "off")
	b.produce(0, 1000)
	require.NoError(t, b.process()())
	b.cfg.NoLocalRecovery = true
	r := b.watch()
	b.produce(1000, 1000)
	require.NoError(t, b.process()())
	require.Positive(t, b.requireLocal(r, 0, 4))
	require.Nil(t, b.keep)
	b.cfg.NoLocalRecovery = false // the copy that was left alone is old by now
	r = b.watch()
	b.produce(2000, 1000)
	require.NoError(t, b.process()())
	b.requireLocal(r, 4, 0)
	b.requireExact()
	b.requireCurrent()
}

// Whatever lies in the directory, the service starts and its output is right.
func TestRestartWithACopyThatMustNotBeUsed(t *testing.T) {
	testbed.Alongside(t)
	type spoil func(b *localBed, backup string) (local, files int)
	all := func(b *localBed, do func(path string, b []byte) []byte) {
		db := filepath.Join(b.localDir(), "local-state", "db")
		files, err := os.ReadDir(db)
		require.NoError(b.t, err)
		for _, f := range files {
			p := filepath.Join(db, f.Name())
			old, err := os.ReadFile(p)
			require.NoError(b.t, err)
			if damaged := do(p, old); damaged != nil {
				require.NoError(b.t, os.WriteFile(p, damaged, 0o644))
			}
		}
	}
	for name, spoil := range map[string]spoil{
		"tables flipped": func(b *localBed, _ string) (int, int) {
			all(b, func(p string, f []byte) []byte {
				if strings.HasSuffix(p, ".sst") {
					f[len(f)/2] ^= 4
				}
				return f
			})
			return 0, 4
		},
		"tables cut": func(b *localBed, _ string) (int, int) {
			all(b, func(p string, f []byte) []byte {
				if strings.HasSuffix(p, ".sst") {
					return f[:len(f)/2]
				}
				return nil
			})
			return 0, 4
		},
		"tables gone": func(b *localBed, _ string) (int, int) {
			all(b, func(p string, f []byte) []byte {
				if strings.HasSuffix(p, ".sst") {
					require.NoError(b.t, os.Remove(p))
				}
				return nil
			})
			return 0, 4
		},
		"everything gone": func(b *localBed, _ string) (int, int) {
			require.NoError(b.t, os.RemoveAll(b.localDir()))
			return 0, 4
		},
		"an older backup, still on the chain": func(b *localBed, backup string) (int, int) {
			require.NoError(b.t, copyTree(backup, b.localDir()))
			return 4, 0
		},
		"of another application": func(b *localBed, _ string) (int, int) { // at the very same versions
			_, root := b.committed()
			dir := filepath.Join(b.dir, "stranger")
			other, err := store.OpenLocal(store.LocalConfig{Dir: dir, Cluster: b.clusterID(), Application: "stranger", Logger: b.cfg.Logger})
			require.NoError(b.t, err)
			for _, e := range root.Root.Tasks {
				require.NoError(b.t, other.Reset(b.t.Context(), e.Task, versionOf(root.Ref, e), tablesOf(e.States), func(yield func(store.Entry, error) bool) {
					yield(store.Entry{Key: []byte("key-000"), Value: make([]byte, 16)}, nil)
				}))
			}
			require.NoError(b.t, other.Close())
			require.NoError(b.t, copyTree(dir, b.localDir()))
			return 0, 4
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLocalBed(t, "spoilt")
			b.produce(0, 2000)
			require.NoError(t, b.process()())
			backup := filepath.Join(b.dir, "backup")
			require.NoError(t, copyTree(b.localDir(), backup))
			b.produce(2000, 500)
			require.NoError(t, b.process()())
			local, files := spoil(b, backup)
			r := b.watch()
			b.produce(2500, 1000)
			require.NoError(t, b.process()())
			bytes := b.requireLocal(r, local, files)
			require.Positive(t, bytes)
			require.Zero(t, b.log.count("DISABLED"))
			b.requireCurrent()
			b.requireExact()
		})
	}
}

// A state that was restored from the copy goes on as one from the files does, also when the copy is behind.
func TestLocalRecoveryOverManyRestarts(t *testing.T) {
	testbed.Alongside(t)
	b := newLocalBed(t, "many")
	b.cfg.Interval = 20 * time.Millisecond
	for round := range 8 {
		if round%3 == 2 { // a hurried end: the copy is behind
			b.cfg.local.close = time.Nanosecond
		} else {
			b.cfg.local.close = 0
		}
		b.produce(round*700, 700)
		require.NoError(t, b.process()())
	}
	b.requireExact()
}

func (b *logBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}
