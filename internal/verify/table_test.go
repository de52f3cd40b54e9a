package verify

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAnEntryIs64BytesWithoutPointers(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(entry{}))
}

// Whatever the keys and the budget, the passes together see each key exactly once with all its records.
func TestPassesCoverEachKeyOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Uint64Range(0, 50)
		wide := rapid.Uint64()
		recs := rapid.SliceOf(rapid.Custom(func(t *rapid.T) keyHash {
			h := wide.Draw(t, "hash")
			if rapid.Bool().Draw(t, "near") {
				h = small.Draw(t, "hash")
			}
			return keyHash{h, mix(h)}
		})).Draw(t, "records")
		budget := rapid.IntRange(1, 20).Draw(t, "budget")
		want := map[keyHash]uint32{}
		for _, h := range recs {
			want[h]++
		}
		got := map[keyHash]uint32{}
		passes := 0
		for lo, hi, more := uint64(0), ^uint64(0), true; more; {
			if passes++; passes > 100+100*len(recs) {
				t.Fatal("too many passes")
			}
			tab := newTable(budget, lo, hi)
			for _, h := range recs {
				if err := tab.addOutput(h, 0, 1, whole(1)); err != nil {
					t.Fatal(err)
				}
			}
			for _, e := range tab.slots {
				if e.out != 0 {
					if got[e.key] != 0 {
						t.Fatalf("key %v in two passes", e.key)
					}
					got[e.key] = e.out
				}
			}
			if tab.used > budget {
				t.Fatalf("%d keys above the budget %d", tab.used, budget)
			}
			lo, hi, more = tab.next()
		}
		require.Equal(t, want, got)
	})
}

func TestEqualHashesBeyondTheBudgetAreAnError(t *testing.T) {
	tab := newTable(2, 7, 7)
	require.NoError(t, tab.addOutput(keyHash{7, 0}, 0, 1, whole(1)))
	require.NoError(t, tab.addOutput(keyHash{7, 1}, 0, 1, whole(1)))
	require.ErrorIs(t, tab.addOutput(keyHash{7, 2}, 0, 1, whole(1)), errHashRange)
}

func TestTheTableGrowsAndKeepsAll(t *testing.T) {
	tab := newTable(1<<20, 0, ^uint64(0))
	const n = 50_000
	for i := range uint64(n) {
		require.NoError(t, tab.addOutput(keyHash{mix(i), mix(i + n)}, 0, int64(i), whole(0)))
	}
	for i := range uint64(n) {
		require.NotNil(t, tab.find(keyHash{mix(i), mix(i + n)}))
	}
	require.Nil(t, tab.find(keyHash{1, 2}))
	require.LessOrEqual(t, tab.used*fillDen, len(tab.slots)*fillNum)
	allocs := testing.AllocsPerRun(100, func() { _ = tab.addInput(keyHash{mix(5), mix(5 + n)}, 0, whole(1)) })
	require.Zero(t, allocs)
}
