package store

import (
	"bytes"
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

// Where the disk has room for what was spilled, but not for the whole state besides, nothing is spilled for a while after the
// state could not be read: the attempt that follows has all of it in memory, and can read it.
func TestWholeStateThatDoesNotFitOnTheDisk(t *testing.T) {
	var log bytes.Buffer
	pool := testSpill(t, 1)
	pool.log = slog.New(slog.NewTextHandler(&log, nil))
	keys := numberedKeys(3000)
	s, _ := counted(t, pool, keys)
	pool.cfg.MinFreeBytes, pool.freeAt = 1000, func(string) (int64, bool) { return 999, true }
	f := s.FreezeFull(2)
	require.Empty(t, copied(f.Full()))
	require.ErrorIs(t, f.Err(), errNoSpace)
	require.NoError(t, s.Err(), "the store has all of it")
	require.True(t, pool.paused())
	require.EqualValues(t, 1, pool.Stats().Failures)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	s.Close()
	pool.freeAt = func(string) (int64, bool) { return 1000, true } // by what the store had
	next, tb := newTable(t, Config{Spill: pool})
	t.Cleanup(next.Close)
	for _, k := range keys {
		require.NoError(t, next.Load("count", k, make([]byte, 8)))
	}
	require.NoError(t, next.EndBatch())
	require.Nil(t, tb.spill)
	pool.freeAt = func(string) (int64, bool) { return 999, true }
	f = next.FreezeFull(3)
	require.Len(t, copied(f.Full()), len(keys))
	require.NoError(t, f.Err())
}
