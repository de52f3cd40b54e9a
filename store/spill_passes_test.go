package store

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// The empty key is a key like any other: where a pass keeps nothing but it, what is above comes in the next pass.
func TestAPassMayEndAtTheEmptyKey(t *testing.T) {
	r := passReader{most: 200}
	r.take([]byte{}, nil)
	r.take([]byte("b"), make([]byte, 300))
	require.True(t, r.more)
	r.take([]byte("c"), []byte("above"))
	require.Len(t, r.s.at, 1)
}

// A pass has a quarter of the limit: what is above comes in another one, which reads the disk again. That is seen when nothing
// is there any more once the first entry has come.
func TestAPassHasAQuarterOfTheLimit(t *testing.T) {
	keys := numberedKeys(20_000) // more than a megabyte of a pass
	for limit, again := range map[int64]bool{2 << 20: true, 64 << 20: false} {
		pool := testSpill(t, limit)
		s, _ := counted(t, pool, keys)
		pool.cfg.MinFreeBytes, pool.freeAt = 1000, func(string) (int64, bool) { return 999, true }
		f, n := s.FreezeFull(2), 0
		for range f.Full() {
			if n++; n == 1 {
				hurt(t, s, true)
			}
		}
		if again {
			require.ErrorIs(t, f.Err(), ErrSpill, "limit %d", limit)
			require.Less(t, n, len(keys))
			continue
		}
		require.NoError(t, f.Err(), "limit %d", limit)
		require.Equal(t, len(keys), n)
	}
}

// Nobody says how much is to stay free: 256 MiB.
func TestNothingIsSpilledBelowTheFreeSpaceThatIsKept(t *testing.T) {
	for free, spills := range map[int64]bool{256<<20 - 1: false, 512 << 20: true} {
		pool, err := OpenSpill(SpillConfig{Dirs: []string{t.TempDir()}, Limit: 1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pool.Close()) })
		pool.freeAt = func(string) (int64, bool) { return free, true }
		s, tb := newTable(t, Config{Spill: pool})
		t.Cleanup(s.Close)
		for _, k := range numberedKeys(3000) {
			increment(tb, k)
		}
		s.Freeze(1)
		s.Commit(1)
		require.NoError(t, s.EndBatch())
		require.Equal(t, spills, pool.Stats().DiskBytes > 0, "%d bytes free", free)
		require.Equal(t, spills, pool.Stats().Failures == 0)
	}
}
