package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Large values are evicted as they are loaded: what is loaded between two looks at the limit counts in bytes, too.
func TestLoadingLargeValuesStaysBelowTheLimit(t *testing.T) {
	const limit, size = 8 << 20, 200 << 10
	pool := testSpill(t, limit)
	s, _ := newTable(t, Config{Spill: pool})
	t.Cleanup(s.Close)
	var most int64
	for i := range 200 { // fewer than are loaded between two looks by number
		require.NoError(t, s.Load("count", fmt.Appendf(nil, "key-%d", i), make([]byte, size)))
		most = max(most, s.Bytes())
	}
	require.Less(t, most, int64(limit*5/4))
	require.Equal(t, 200, s.Len())
}

// At the limit as much is evicted as makes room for what comes next, also where values have chunks of their own, which are not
// free slots afterwards.
func TestNotMoreIsEvictedThanMakesRoom(t *testing.T) {
	for _, size := range []int{100, 1000, 20_000, 200_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const limit = 16 << 20
			pool := testSpill(t, limit)
			s, tb := newTable(t, Config{Spill: pool})
			t.Cleanup(s.Close)
			n := 0
			for ; s.Bytes() < limit*97/100; n++ {
				tb.Put(fmt.Appendf(nil, "key-%d", n), make([]byte, size))
			}
			s.Freeze(1)
			s.Commit(1)
			s.drain(1 << 30)
			for range 16 { // one pass, of eight rounds or nine, takes what says that all were used lately
				if require.NoError(t, s.EndBatch()); pool.Stats().Evicted > 0 {
					break
				}
			}
			s.counts()
			require.Positive(t, pool.Stats().Evicted)
			require.Less(t, pool.Stats().Evicted, int64(max(n/4, 4)), "of %d", n)
		})
	}
}

// A store that is closed does not count any more, whatever is done with it.
func TestAClosedStoreDoesNotCount(t *testing.T) {
	pool := testSpill(t, 1<<20)
	s, tb := newTable(t, Config{Spill: pool})
	tb.Put([]byte("k"), make([]byte, 100))
	require.NoError(t, s.EndBatch())
	require.Positive(t, pool.Stats().MemoryBytes)
	s.Close()
	for i := range 2000 {
		tb.Put(fmt.Appendf(nil, "key-%d", i), make([]byte, 100))
	}
	require.Error(t, s.EndBatch())
	require.Zero(t, pool.Stats().MemoryBytes)
}
