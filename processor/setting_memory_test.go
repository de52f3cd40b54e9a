package processor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millweir/millweir/engine/restart"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/store"
)

// putWide produces records with long keys, some of n, from a place on in the order of a stride.
func (s *settled) putWide(from, to, n, stride int) {
	s.t.Helper()
	var recs []*kgo.Record
	for i := from; i < to; i++ {
		recs = append(recs, &kgo.Record{Key: fmt.Appendf(nil, "key-%08d-%s", i*stride%n, strings.Repeat("x", 400)), Value: []byte("v")})
	}
	require.NoError(s.t, s.cl.ProduceSync(s.t.Context(), recs...).FirstErr())
}

// spillDirs gives the directories of spilled state of processes.
func (s *settled) spillDirs() []string {
	dirs, err := filepath.Glob(filepath.Join(s.dir, "local", s.app, store.SpillDirName, "process-*"))
	require.NoError(s.t, err)
	return dirs
}

// A state that is more than ten times the limit is counted exactly, over restarts that read it from the local copy and from
// the checkpoints, in about as much memory as the limit. Below the limit nothing is made on disk.
func TestSettingMemoryLimit(t *testing.T) {
	testbed.Alongside(t)
	const keys, part = 25_000, 2500 // some 12 MB; 1.2 MB are not committed at most
	for _, limit := range []int64{1 << 20, 1 << 30} {
		t.Run(fmt.Sprint(limit>>20, " MB"), func(t *testing.T) {
			s := newSettled(t)
			s.cfg.Backend, s.cfg.local, s.cfg.InstanceID = Badger, fast, "i1"
			s.cfg.MemoryLimit, s.cfg.UncommittedLimit = limit, 1<<20
			var running atomic.Pointer[service]
			s.cfg.started = func(v *service) { running.Store(v) }
			var most, loads int64
			rounds := 3
			if limit > 1<<20 {
				rounds = 1
			}
			for round := range rounds {
				if round == 2 {
					require.NoError(t, os.RemoveAll(filepath.Join(s.dir, "local")))
				}
				stop := s.start(s.plan(0), s.cfg)
				for from := 0; from < keys; from += part {
					s.putWide(from, from+part, keys, []int{1, 7919, 104_729}[round])
					s.eventually(func() bool {
						if v := running.Load(); v != nil {
							st := v.spill.Stats()
							most, loads = max(most, st.MemoryBytes), max(loads, st.Loads)
						}
						return s.seen.Load() == int64(round*keys+from+part) && s.lag(s.app) == 0
					}, "all is committed")
				}
				require.Len(t, s.spillDirs(), map[bool]int{true: 1}[limit == 1<<20])
				require.NoError(t, stop())
				require.Zero(t, running.Load().spill.Stats().Stores, "a state was not closed")
				require.Empty(t, s.spillDirs())
				running.Store(nil)
			}
			got := s.byKey()
			require.Len(t, got, keys)
			for key, counts := range got {
				require.Equal(t, span(1, int64(rounds)), counts, key)
			}
			t.Log("most", most, "loads", loads)
			if limit == 1<<20 {
				require.Less(t, most, limit+5<<19, "changes that are not committed come on top")
				require.Greater(t, loads, int64(keys/2))
			} else {
				require.Greater(t, most, int64(10<<20))
				require.Zero(t, loads)
			}
		})
	}
}

// With the memory backend state stays in memory, whatever the limit.
func TestSettingBackendMemorySpillsNothing(t *testing.T) {
	testbed.Alongside(t)
	const keys = 8000
	for backend, spills := range map[Backend]bool{Memory: false, Badger: true} {
		s := newSettled(t)
		s.cfg.Backend, s.cfg.local = backend, fast
		s.cfg.MemoryLimit, s.cfg.UncommittedLimit = 1<<20, 1<<20
		stop := s.start(s.plan(0), s.cfg)
		s.putWide(0, keys, keys, 1) // some 4 MB
		s.eventually(func() bool { return s.seen.Load() == keys && s.lag(s.app) == 0 }, "all is committed")
		require.Equal(t, spills, len(s.spillDirs()) > 0, backend)
		require.NoError(t, stop())
	}
}

// A state that is read in through another parallelism stays within the limit, before its first checkpoint, with it and after it.
func TestImportedStateStaysWithinTheMemoryLimit(t *testing.T) {
	const keys, limit = 12_000, 1 << 20 // some 6 MB
	s := newSettled(t)
	s.cfg.Backend, s.cfg.local, s.cfg.MemoryLimit, s.cfg.UncommittedLimit = Badger, fast, limit, 1<<20
	var running atomic.Pointer[service]
	s.cfg.started = func(v *service) { running.Store(v) }
	for round, subtasks := range []int{1, 3, 2} {
		running.Store(nil)
		done := make(chan struct{})
		var most int64
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
				if v := running.Load(); v != nil && v.spill != nil {
					most = max(most, v.spill.Stats().MemoryBytes)
				}
			}
		}()
		stop := s.start(s.plan(subtasks), s.cfg)
		const part = 2000
		for from := 0; from < keys; from += part {
			s.putWide(from, from+part, keys, []int{1, 7919, 104_729}[round])
			s.eventually(func() bool { return s.seen.Load() == int64(round*keys+from+part) && s.lag(s.app) == 0 }, "all is committed")
		}
		require.NoError(t, stop())
		close(done)
		<-watched
		for _, e := range s.failures() {
			require.NoError(t, e.err)
		}
		t.Log(subtasks, "subtasks: most", most)
		require.Less(t, most, int64(limit+5<<19), "changes that are not committed come on top")
	}
	got := s.byKey()
	require.Len(t, got, keys)
	for key, counts := range got {
		require.Equal(t, span(1, 3), counts, key)
	}
}

// What a process that was killed has left of spilled state goes at the next start, whatever its backend is.
func TestSpilledStateOfAKilledProcessGoes(t *testing.T) {
	for _, backend := range []Backend{Badger, Memory} {
		t.Run(fmt.Sprint(backend), func(t *testing.T) {
			s := newSettled(t)
			s.cfg.Backend, s.cfg.local = backend, fast
			left := filepath.Join(s.dir, "local", s.app, store.SpillDirName, "process-1")
			require.NoError(t, os.MkdirAll(left, 0o750))
			require.NoError(t, os.WriteFile(filepath.Join(left, "00000001.state"), []byte("x"), 0o600))
			stop := s.start(s.plan(0), s.cfg)
			s.eventually(func() bool { return len(s.spillDirs()) == 0 }, "it is gone")
			require.NoError(t, stop())
		})
	}
}

// State on disk that is damaged ends the attempt. The next one reads the checkpoint, and nothing wrong has come out.
func TestDamagedSpillIsRestoredFromTheCheckpoint(t *testing.T) {
	testbed.Alongside(t)
	const keys = 8000
	s := newSettled(t)
	s.cfg.Backend, s.cfg.local = Badger, fast
	s.cfg.MemoryLimit, s.cfg.UncommittedLimit = 1<<20, 1<<20
	s.cfg.Restart = restart.Config{Strategy: restart.FixedDelay, Fixed: restart.Fixed{Attempts: 20, Delay: 10 * time.Millisecond}}
	stop := s.start(s.plan(0), s.cfg)
	s.putWide(0, keys, keys, 1)
	s.eventually(func() bool { return s.seen.Load() == keys && s.lag(s.app) == 0 }, "all is committed")
	require.Empty(t, s.failures())
	files, err := filepath.Glob(filepath.Join(s.spillDirs()[0], "*.state"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NoError(t, os.Truncate(f, 100))
	}
	s.putWide(0, keys, keys, 7919)
	s.eventually(func() bool { return s.seen.Load() >= 2*keys && s.lag(s.app) == 0 }, "all is committed again")
	require.NoError(t, stop())
	got := s.byKey()
	require.Len(t, got, keys)
	for key, counts := range got {
		require.Equal(t, []int64{1, 2}, counts, key)
	}
	require.NotEmpty(t, s.failures())
	require.ErrorIs(t, s.failures()[0].err, store.ErrSpill)
}
