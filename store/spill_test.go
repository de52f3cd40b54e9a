package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// counted makes a store with keys that have been evicted.
func counted(t testing.TB, pool *Spill, keys [][]byte) (*Store, *Table) {
	s, tb := newTable(t, Config{Spill: pool})
	t.Cleanup(s.Close)
	for _, k := range keys {
		increment(tb, k)
	}
	s.Freeze(1)
	s.Commit(1)
	evictAll(t, s)
	s.spill.tell()
	require.EqualValues(t, len(keys), s.spill.pool.Stats().Entries)
	return s, tb
}

// hurt changes a byte of each block, or cuts the files off.
func hurt(t testing.TB, s *Store, cut bool) {
	for _, f := range s.spill.log.files {
		if cut {
			require.NoError(t, os.Truncate(f.f.Name(), 10))
			continue
		}
		b, err := os.ReadFile(f.f.Name())
		require.NoError(t, err)
		for i := 20; i < len(b); i += 100 {
			b[i] ^= 1
		}
		require.NoError(t, os.WriteFile(f.f.Name(), b, 0o640))
	}
}

// Damage is never a miss: whatever meets it, the store says so, and does not come back from it.
func TestDamagedSpillIsAnError(t *testing.T) {
	keys := numberedKeys(1000)
	meet := map[string]func(s *Store, tb *Table){
		"get":    func(_ *Store, tb *Table) { tb.Get(keys[5]) },
		"put":    func(_ *Store, tb *Table) { tb.Put(keys[5], []byte("x")) },
		"upsert": func(_ *Store, tb *Table) { tb.Upsert(keys[5], 8) },
		"delete": func(_ *Store, tb *Table) { tb.Delete(keys[5]) },
		"all": func(_ *Store, tb *Table) {
			for range tb.All() {
			}
		},
		"load":        func(s *Store, _ *Table) { _ = s.Load("count", keys[5], []byte("x")) },
		"load delete": func(s *Store, _ *Table) { _ = s.LoadDelete("count", keys[5]) },
		"evict": func(s *Store, tb *Table) {
			for i := range 100 {
				increment(tb, fmt.Appendf(nil, "new-%d", i))
			}
			s.Freeze(2)
			s.Commit(2)
			s.drain(1 << 30)
			for range 1000 {
				_, _ = s.sweep(s.floorOfChanges())
			}
		},
		"full": func(s *Store, _ *Table) {
			f := s.FreezeFull(2)
			for range f.Full() {
			}
			if f.Err() == nil {
				panic("the reader was told nothing")
			}
		},
	}
	for name, fn := range meet {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cut off %v", name, cut), func(t *testing.T) {
				s, tb := counted(t, testSpill(t, 1), keys)
				hurt(t, s, cut)
				fn(s, tb)
				for range 2 {
					err := s.Err()
					require.ErrorIs(t, err, ErrSpill)
					require.ErrorContains(t, err, ownDir(s.spill.pool))
					require.Equal(t, fault.Restart, fault.RecoveryOf(err))
					require.Equal(t, err, s.EndBatch())
					require.Equal(t, err, s.Freeze(s.lastID+1).Err())
					s.Rollback()
				}
			})
		}
	}
}

// On a full disk, and when a write fails, what is in memory stays there, and what is on disk is read.
func TestNothingIsEvictedWhereNothingCanBeWritten(t *testing.T) {
	for name, break_ := range map[string]func(p *Spill, s *Store) (repair func()){
		"disk full": func(p *Spill, _ *Store) func() {
			p.cfg.MinFreeBytes, p.freeAt = 1000, func(string) (int64, bool) { return 999, true }
			return func() { p.freeAt = func(string) (int64, bool) { return 1000, true } }
		},
		"write fails": func(_ *Spill, s *Store) func() {
			tail := s.spill.log.files[len(s.spill.log.files)-1]
			real := tail.f
			tail.f, _ = os.Open(real.Name()) // cannot be written
			return func() { tail.f.Close(); tail.f = real }
		},
	} {
		t.Run(name, func(t *testing.T) {
			pool := testSpill(t, 1)
			var log bytes.Buffer
			pool.log, pool.least = slog.New(slog.NewTextHandler(&log, nil)), spillFileMin
			keys := numberedKeys(4000)
			s, tb := counted(t, pool, keys[:2000])
			repair := break_(pool, s)
			before := pool.Stats()
			for i, k := range keys {
				if want := uint64(2); i < 2000 {
					require.Equal(t, want, increment(tb, k))
				} else {
					require.Equal(t, want-1, increment(tb, k))
				}
				pool.pausedUntil.Store(0)
				require.NoError(t, s.EndBatch())
			}
			s.Freeze(2)
			s.Commit(2)
			for range 50 {
				pool.pausedUntil.Store(0)
				require.NoError(t, s.EndBatch())
			}
			require.True(t, pool.paused())
			after := pool.Stats()
			require.Equal(t, before.Evicted, after.Evicted)
			require.Greater(t, after.Failures, int64(2))
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			repair()
			pool.pausedUntil.Store(0)
			require.NoError(t, s.EndBatch())
			require.Greater(t, pool.Stats().Evicted, before.Evicted)
			evictAll(t, s)
			for i, k := range keys {
				v, ok := tb.Get(k)
				require.True(t, ok)
				require.EqualValues(t, 1+(4000-i-1)/2000, binary.BigEndian.Uint64(v))
			}
			audit(t, s)
		})
	}
}

// What a process left that was killed goes when the next one starts; what another one uses stays.
func TestOldSpillsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	open := func() *Spill {
		p, err := OpenSpill(SpillConfig{Dirs: []string{filepath.Join(dir, "not", "there"), dir}, Limit: 1, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return p
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "not"), nil, 0o600)) // the first directory cannot be made
	first := open()
	require.NoFileExists(t, filepath.Join(dir, SpillDirName), "nothing is made before it is needed")
	s, _ := counted(t, first, numberedKeys(100))
	second := open()
	require.DirExists(t, ownDir(first))
	other, _ := counted(t, second, numberedKeys(100))
	require.NotEqual(t, ownDir(first), ownDir(second))
	killed := ownDir(first)
	require.NoError(t, first.roots[1].lock.Close()) // as the end of a process
	third := open()
	require.NoDirExists(t, killed)
	require.DirExists(t, ownDir(second))
	s.Close()
	other.Close()
	require.NoError(t, second.Close())
	require.NoError(t, third.Close())
	left, err := filepath.Glob(filepath.Join(dir, SpillDirName, "process-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// All stores together stay below the limit, although the first took all of it before there were others, and the values
// change their sizes. What is uncommitted comes on top.
func TestStoresShareTheMemory(t *testing.T) {
	const limit = 4 << 20
	pool := testSpill(t, limit)
	type one struct {
		s  *Store
		tb *Table
	}
	var all []one
	id := element.CheckpointID(0)
	key := func(i int) []byte { return fmt.Appendf(nil, "key-%07d", i) }
	var most int64
	for n := range 4 {
		s, tb := newTable(t, Config{Spill: pool})
		defer s.Close()
		all = append(all, one{s, tb})
		for i := range 60_000 {
			require.NoError(t, s.Load("count", key(i), binary.BigEndian.AppendUint64(nil, uint64(n*i))))
			if i%1000 == 0 {
				for _, o := range all {
					require.NoError(t, o.s.EndBatch())
				}
				if i > 20_000 {
					most = max(most, pool.Stats().MemoryBytes)
				}
			}
		}
	}
	require.LessOrEqual(t, most, int64(limit*11/10))
	for size := 16; size <= 160; size += 24 {
		for _, o := range all {
			for i := range 60_000 {
				if i%7 == 0 {
					o.tb.Put(key((i*7919)%60_000), make([]byte, size))
				}
				if i%1000 == 0 {
					require.NoError(t, o.s.EndBatch())
				}
				if i%20_000 == 0 {
					id++
					o.s.Freeze(id)
					o.s.Commit(id)
				}
			}
			most = max(most, pool.Stats().MemoryBytes)
			id++
			o.s.Freeze(id)
			o.s.Commit(id)
			for range 10 {
				require.NoError(t, o.s.EndBatch())
			}
		}
	}
	require.LessOrEqual(t, most, int64(limit*3/2), "up to 6000 changes of up to 400 bytes are not committed")
	for n, o := range all {
		require.Equal(t, 60_000, o.s.Len())
		v, ok := o.tb.Get(key(1))
		require.True(t, ok)
		if len(v) == 8 {
			require.EqualValues(t, n, binary.BigEndian.Uint64(v))
		}
		audit(t, o.s)
	}
}

// A loop over a table may look keys up.
func TestGetWithinAll(t *testing.T) {
	s, tb := counted(t, testSpill(t, 1), numberedKeys(500))
	increment(tb, numberedKeys(500)[7])
	n := 0
	for k, v := range tb.All() {
		got, ok := tb.Get(k)
		require.True(t, ok)
		require.Equal(t, v, got)
		n++
	}
	require.Equal(t, 500, n)
	require.NoError(t, s.Err())
}

// A whole state that is being read keeps nothing from being evicted when memory gets short, and is read from memory where
// nothing can be written and all of it is there.
func TestWholeStateWhenMemoryGetsShort(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprint("disk full ", full), func(t *testing.T) {
			pool := testSpill(t, 1)
			if full {
				pool.cfg.MinFreeBytes, pool.freeAt = 1000, func(string) (int64, bool) { return 999, true }
			}
			s, tb := newTable(t, Config{Spill: pool})
			t.Cleanup(s.Close)
			keys := numberedKeys(3000)
			for _, k := range keys {
				increment(tb, k)
			}
			tb.Put([]byte("gone"), nil)
			tb.Delete([]byte("gone"))
			s.Freeze(1)
			s.Commit(1)
			s.counts()
			f := s.FreezeFull(2)
			increment(tb, keys[0])
			increment(tb, []byte("new"))
			for range 2 {
				got := copied(f.Full())
				require.NoError(t, f.Err())
				require.Len(t, got, 3000)
				for i, e := range got {
					require.Equal(t, Entry{Key: keys[i], Value: []byte{0, 0, 0, 0, 0, 0, 0, 1}}, e)
				}
			}
			require.NoError(t, s.EndBatch())
			require.Equal(t, !full, pool.Stats().Evicted > 0)
			s.Commit(2)
			s.Freeze(3)
			s.Commit(3)
			require.NoError(t, s.EndBatch())
			audit(t, s)
			require.Equal(t, 3001, s.Len())
		})
	}
}

// A directory that is removed under the process is made anew: what was in it stays readable, and whole states can be read.
func TestRemovedSpillDirectoryIsMadeAnew(t *testing.T) {
	keys := numberedKeys(2000)
	var log bytes.Buffer
	pool := testSpill(t, 1)
	pool.log = slog.New(slog.NewTextHandler(&log, nil))
	s, tb := counted(t, pool, keys)
	gone := ownDir(pool)
	require.NoError(t, os.RemoveAll(filepath.Dir(gone)))
	f := s.FreezeFull(2)
	n := 0
	for e := range f.Full() {
		require.EqualValues(t, 1, binary.BigEndian.Uint64(e.Value))
		n++
	}
	require.NoError(t, f.Err())
	require.Equal(t, len(keys), n)
	require.NotEqual(t, gone, ownDir(pool))
	require.DirExists(t, ownDir(pool))
	for _, k := range keys {
		require.EqualValues(t, 2, increment(tb, k))
	}
	s.Freeze(3)
	s.Commit(3)
	evictAll(t, s)
	require.NoError(t, s.compactSpill(1<<30))
	require.NoError(t, s.EndBatch())
	s.Close()
	require.Zero(t, pool.Stats().DiskBytes)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	require.NoError(t, pool.Close())
	left, err := os.ReadDir(filepath.Dir(gone))
	require.NoError(t, err)
	require.Len(t, left, 1, "the lock of the directory is left")
}
