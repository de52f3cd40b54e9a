package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// A disk that was full when a store began, and is so still: what was tried to be spilled is in memory, and a whole state is
// read from there, as if it had not been tried.
func TestWholeStateWhereTheDiskWasAlwaysFull(t *testing.T) {
	pool := testSpill(t, 1)
	pool.cfg.MinFreeBytes, pool.freeAt = 1000, func(string) (int64, bool) { return 999, true }
	s, tb := newTable(t, Config{Spill: pool})
	t.Cleanup(s.Close)
	keys := numberedKeys(3000)
	read := func(f *Frozen, n int) {
		require.Len(t, copied(f.Full()), n)
		require.NoError(t, f.Err())
		s.Commit(f.ID())
	}
	for id := element.CheckpointID(1); id < 4; id++ {
		for _, k := range keys {
			increment(tb, k)
		}
		s.Freeze(2 * id)
		s.Commit(2 * id)
		pool.pausedUntil.Store(0)
		require.NoError(t, s.EndBatch())
		require.EqualValues(t, id, pool.Stats().Failures)
		require.Nil(t, tb.spill, "nothing is on disk: no look-up has to ask for it")
		read(s.FreezeFull(2*id+1), len(keys))
	}
	pool.pausedUntil.Store(0)
	pool.freeAt = func(string) (int64, bool) { return 1000, true }
	evictAll(t, s)
	require.EqualValues(t, len(keys), tb.spill.entries)
	for _, k := range keys {
		tb.Delete(k)
	}
	increment(tb, []byte("last"))
	s.Freeze(100)
	s.Commit(100)
	evictAll(t, s)
	evictAll(t, s)
	require.EqualValues(t, 1, tb.spill.entries)
	tb.Delete([]byte("last"))
	s.Freeze(101)
	s.Commit(101)
	evictAll(t, s)
	require.Nil(t, tb.spill, "nothing is on disk any more")
	increment(tb, keys[7])
	pool.freeAt = func(string) (int64, bool) { return 999, true }
	pool.pausedUntil.Store(0)
	read(s.FreezeFull(102), 1)
	audit(t, s)
}

// Where the disk has room for what was spilled, but not for the whole state besides, the whole state is read all the same, while
// the owner goes on: in passes over the blocks, and from memory what could not be written either.
func TestWholeStateThatDoesNotFitOnTheDisk(t *testing.T) {
	for name, room := range map[string]int{"nothing": 0, "a part of what is in memory": 1, "what is in memory": 3, "half of all": 10} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			pool := testSpill(t, 1)
			pool.log = slog.New(slog.NewTextHandler(&log, nil))
			keys := numberedKeys(20_000)
			s, tb := counted(t, pool, keys)
			for i, k := range keys { // some are in memory as well, with another value or none, as are some new ones
				switch {
				case i%10 == 0:
					increment(tb, k)
				case i%1000 == 1:
					tb.Delete(k)
				}
			}
			for i := range 1000 {
				increment(tb, fmt.Appendf(nil, "new-%d", i))
			}
			s.Freeze(2)
			s.Commit(2)
			want := map[string]string{}
			for k, v := range tb.All() {
				want[string(k)] = string(v)
			}
			require.Len(t, want, 20_980)
			before := pool.Stats().DiskBytes
			pool.cfg.MinFreeBytes = 1000
			asked := 0
			pool.freeAt = func(string) (int64, bool) {
				if asked++; room > 0 && asked <= 1+room { // to make the file, and for each frame
					return 1000, true
				}
				return 999, true
			}
			f := s.FreezeFull(3)
			for range 2 {
				got := map[string]string{}
				last := ""
				for e := range f.Full() {
					require.Less(t, last, string(e.Key))
					last = string(e.Key)
					require.False(t, e.Deleted)
					got[last] = string(e.Value)
					if len(got)%100 == 0 { // none of it is seen, and nothing that is seen goes
						increment(tb, keys[len(got)%len(keys)])
						tb.Delete(e.Key)
						require.NoError(t, s.EndBatch())
					}
				}
				require.NoError(t, f.Err())
				require.Equal(t, want, got)
				require.EqualValues(t, 1, pool.Stats().Failures)
				require.GreaterOrEqual(t, pool.Stats().DiskBytes, before)
			}
			require.True(t, pool.paused())
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			s.Commit(3)
			pool.freeAt = func(string) (int64, bool) { return 1000, true }
			pool.pausedUntil.Store(0)
			s.Freeze(4)
			s.Commit(4)
			evictAll(t, s)
			require.NoError(t, s.EndBatch())
			require.Equal(t, s.spill.log.disk, pool.Stats().DiskBytes, "nothing but the blocks")
			audit(t, s)
		})
	}
}

// The files of whole states count as what is on disk while they are read.
func TestTheScratchOfAWholeStateCounts(t *testing.T) {
	pool := testSpill(t, 1)
	keys := numberedKeys(5000)
	s, _ := counted(t, pool, keys)
	before := pool.Stats().DiskBytes
	f := s.FreezeFull(2)
	for range f.Full() {
		scratch := pool.Stats().DiskBytes - before
		info, err := f.view.whole.f.Stat()
		require.NoError(t, err)
		require.Equal(t, info.Size(), scratch)
		require.Greater(t, scratch, int64(len(keys)*16))
		break
	}
	s.Commit(2)
	require.NoError(t, s.EndBatch())
	require.Equal(t, before, pool.Stats().DiskBytes)
	s.FreezeFull(3)
	for range s.frozen[0].Full() {
	}
	s.Close()
	require.Zero(t, pool.Stats().DiskBytes, "also when the store is closed before")
}
