package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A state that comes and goes: each round has other keys, of which few stay, after one that had many. The files are bounded by
// what lives, whatever was there; the directory of buckets by what there was at most.
func TestTheFilesOfAStateThatHasShrunk(t *testing.T) {
	pool := testSpill(t, 1)
	s, tb := newTable(t, Config{Spill: pool})
	t.Cleanup(s.Close)
	settle := func() {
		id := s.lastID + 1
		s.Freeze(id)
		s.Commit(id)
		evictAll(t, s)
		require.NoError(t, s.EndBatch())
		require.NoError(t, s.compactSpill(1<<30))
	}
	round := func(i, n int) {
		for k := range n {
			increment(tb, fmt.Appendf(nil, "%d-%d", i, k))
		}
		settle()
		for k := range n - 10 {
			tb.Delete(fmt.Appendf(nil, "%d-%d", i, k))
		}
		settle()
	}
	round(0, 100_000)
	most := tb.spill.memory
	for i := 1; i < 60; i++ {
		round(i, 500)
		l := &s.spill.log
		require.EqualValues(t, 10*(i+1), tb.spill.entries)
		require.LessOrEqual(t, tb.spill.memory, most+int64(16*tb.spill.entries), i)
		require.LessOrEqual(t, l.disk, 2*l.live+2*pool.least+pool.least, i)
	}
}
