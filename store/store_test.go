package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

func newTable(t testing.TB, cfg Config) (*Store, *Table) {
	s := New(cfg)
	tb, err := s.Table("count", "int64")
	require.NoError(t, err)
	return s, tb
}

func increment(tb *Table, key []byte) uint64 {
	v, _ := tb.Upsert(key, 8)
	n := binary.BigEndian.Uint64(v) + 1
	binary.BigEndian.PutUint64(v, n)
	return n
}

func numberedKeys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "key-%06d", i)
	}
	return keys
}

func TestTableWithAnotherCodecIsRefused(t *testing.T) {
	s, tb := newTable(t, Config{})
	again, err := s.Table("count", "int64")
	require.NoError(t, err)
	require.Same(t, tb, again)
	_, err = s.Table("count", "json")
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.ErrorContains(t, err, `"int64"`)
	require.ErrorContains(t, err, `"json"`)
	require.Equal(t, []TableInfo{{"count", "int64"}}, s.Tables())
}

func TestLoadIsStrict(t *testing.T) {
	s, tb := newTable(t, Config{})
	require.Equal(t, fault.StateMismatch, fault.CodeOf(s.Load("unknown", nil, nil)))
	tb.Put([]byte("a"), []byte("1"))
	require.Error(t, s.Load("count", []byte("b"), nil), "there are uncommitted changes")
	s.Freeze(1)
	require.Error(t, s.LoadDelete("count", []byte("b")))
	s.Commit(1)
	require.NoError(t, s.Load("count", []byte("b"), nil))
	require.Zero(t, s.DirtyLen())
	require.Zero(t, s.UncommittedBytes())
	require.Zero(t, s.Freeze(2).Len())
}

// A committed deletion whose entry is still waiting for recycling must not disturb what is loaded over it.
func TestLoadAfterCommittedDeletions(t *testing.T) {
	s, tb := newTable(t, Config{})
	keys := numberedKeys(100)
	for _, k := range keys {
		tb.Put(k, k)
	}
	s.Freeze(1)
	for _, k := range keys {
		tb.Delete(k)
	}
	s.Freeze(2)
	s.Commit(2)
	for _, k := range keys {
		require.NoError(t, s.Load("count", k, k))
		require.NoError(t, s.LoadDelete("count", k))
		require.NoError(t, s.Load("count", k[:9], k))
	}
	for _, k := range keys {
		tb.Put(k, k)
	}
	for _, k := range keys {
		v, ok := tb.Get(k)
		require.True(t, ok)
		require.Equal(t, k, v)
	}
	audit(t, s)
}

func TestWritesBeyondTheLimitsAreReported(t *testing.T) {
	s, tb := newTable(t, Config{MaxKeySize: 10, MaxValueSize: 100})
	tb.Put(make([]byte, 11), nil)
	require.ErrorIs(t, s.Err(), ErrTooLarge)
	require.Equal(t, fault.Stop, fault.RecoveryOf(s.Err()))
	require.ErrorIs(t, s.Freeze(1).Err(), ErrTooLarge, "the checkpoint must not be committed")
	s.Rollback()
	require.NoError(t, s.Err())

	v, existed := tb.Upsert(make([]byte, 11), 8)
	require.Len(t, v, 8, "the caller can write its bytes and learns of the error later")
	require.False(t, existed)
	require.ErrorIs(t, s.Err(), ErrTooLarge)
	s.Rollback()
	v, _ = tb.Upsert([]byte("k"), 101)
	require.Nil(t, v)
	require.ErrorIs(t, s.Err(), ErrTooLarge)
	v, _ = tb.Upsert([]byte("k"), -1)
	require.Nil(t, v)
	require.Error(t, s.Load("count", make([]byte, 11), nil))
	s.Rollback()
	require.Zero(t, s.Len())
}

func TestFullStoreIsReportedAndRollsBack(t *testing.T) {
	for _, size := range []int{8, 30_000} {
		s, tb := newTable(t, Config{MaxBytes: 256 << 10})
		require.NoError(t, s.Load("count", []byte("first"), []byte("1")))
		for i := 0; s.Err() == nil; i++ {
			tb.Put(fmt.Append(nil, i), make([]byte, size))
		}
		require.ErrorIs(t, s.Err(), ErrFull)
		_, existed := tb.Upsert([]byte("more"), size)
		require.False(t, existed)
		s.Rollback()
		require.Equal(t, 1, s.Len())
		tb.Put([]byte("7"), make([]byte, size)) // slots that came back serve their own size class
		require.NoError(t, s.Err())
		require.Equal(t, 2, s.Len())
		audit(t, s)
	}
}

func TestUpsertOfAnotherSizeStartsFromZero(t *testing.T) {
	_, tb := newTable(t, Config{})
	k := []byte("k")
	tb.Put(k, []byte("12345678"))
	v, existed := tb.Upsert(k, 8)
	require.True(t, existed)
	require.Equal(t, "12345678", string(v))
	v, existed = tb.Upsert(k, 7)
	require.False(t, existed)
	require.Equal(t, make([]byte, 7), v)
	v, existed = tb.Upsert(k, 7)
	require.True(t, existed)
	require.Equal(t, make([]byte, 7), v)
	require.Equal(t, 7, cap(v), "no way into the neighbour's bytes")
}

func TestPutMayCopyFromTheStoreItself(t *testing.T) {
	_, tb := newTable(t, Config{})
	tb.Put([]byte("a"), bytes.Repeat([]byte("x"), 100))
	v, _ := tb.Get([]byte("a"))
	tb.Put([]byte("a"), v[:20])
	v, _ = tb.Get([]byte("a"))
	require.Equal(t, bytes.Repeat([]byte("x"), 20), v)
	tb.Put([]byte("b"), v)
	v, _ = tb.Get([]byte("b"))
	require.Equal(t, bytes.Repeat([]byte("x"), 20), v)
}

func TestFreezeOfAnOldCheckpointIsReported(t *testing.T) {
	s, _ := newTable(t, Config{})
	require.NoError(t, s.Freeze(5).Err())
	s.Commit(5)
	require.Error(t, s.Freeze(5).Err())
}

// Freeze must not look at keys or changes: its work, counted in allocations, is that of an empty store, and it does not
// touch a single entry: what it holds afterwards is the very blocks that the writes filled.
func TestFreezeIsIndependentOfTheNumberOfChanges(t *testing.T) {
	allocs := func(changes int) float64 {
		s, tb := newTable(t, Config{})
		keys := numberedKeys(changes + 1)
		id := element.CheckpointID(0)
		var n float64
		const runs = 5
		for range runs + 1 {
			for _, k := range keys {
				increment(tb, k)
			}
			first, blocks := tb.active.blocks[0], len(tb.active.blocks)
			id++
			var f *Frozen
			got := testing.AllocsPerRun(1, func() { // runs twice: the second freeze is an empty one
				if f == nil {
					f = s.Freeze(id)
				} else {
					id++
					s.Freeze(id)
				}
			})
			n += got / runs
			require.Same(t, first, f.lists[0].blocks[0])
			require.Len(t, f.lists[0].blocks, blocks)
			require.Equal(t, changes+1, f.Len())
			s.Commit(id)
		}
		return n
	}
	require.InDelta(t, allocs(0), allocs(50_000), 1)
}

// Commit hands the changes over to later writes and recycles nothing itself.
func TestCommitDoesNotWalkTheChanges(t *testing.T) {
	s, tb := newTable(t, Config{})
	keys := numberedKeys(10_000)
	for range 2 {
		for _, k := range keys {
			increment(tb, k)
		}
		s.Freeze(s.lastID + 1)
	}
	s.Commit(2)
	require.Len(t, s.garbage.items, 2)
	require.Zero(t, s.garbage.items[0].next)
	require.Zero(t, s.garbage.items[1].next)
	for i, k := range keys {
		increment(tb, k)
		done := 0
		for _, g := range s.garbage.items {
			done += int(g.next)
		}
		require.LessOrEqual(t, done, drainPerChange*(i+1), "a write works off no more than its share")
	}
	require.True(t, s.garbage.empty(), "and all of it is done when as many keys were written again")
	audit(t, s)
}

// The counter is the process's, and databases that other tests have abandoned go on for a while: it counts in a process of
// its own.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	const inside = "STORE_TEST_ALONE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.count", "1", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	s, tb := newTable(t, Config{})
	keys := numberedKeys(2000)
	id := element.CheckpointID(0)
	epoch := func() {
		for _, k := range keys {
			increment(tb, k)
			tb.Get(k)
			increment(tb, k)
		}
		id++
		s.Freeze(id)
		s.Commit(id)
	}
	for range 10 {
		epoch()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(10, epoch), 6.0, "a freeze and a commit allocate a handful, 6000 operations nothing")
}

func TestMemoryIsBoundedOverManyEpochs(t *testing.T) {
	s, tb := newTable(t, Config{})
	keys := numberedKeys(3000)
	var chunks int
	var size int64
	for e := range 1000 {
		for i, k := range keys {
			switch {
			case i%10 == e%10:
				tb.Delete(k)
			case i%10 == (e+1)%10:
				tb.Put(k, make([]byte, i%40))
			default:
				increment(tb, k)
			}
		}
		s.Freeze(element.CheckpointID(e + 1))
		if e%50 == 49 {
			s.Rollback()
		} else if e%3 > 0 {
			s.Commit(element.CheckpointID(e))
		}
		if e == 100 {
			chunks, size = len(s.arena.chunks), s.Bytes()
		}
	}
	require.LessOrEqual(t, len(s.arena.chunks), chunks+2)
	require.LessOrEqual(t, s.Bytes(), size*5/4)
	audit(t, s)
}

func TestLargeValuesComeAndGo(t *testing.T) {
	s, tb := newTable(t, Config{})
	for e := range 50 {
		for k := range 5 {
			tb.Put([]byte{byte(k)}, bytes.Repeat([]byte{byte(e)}, 100_000+e))
		}
		f := s.Freeze(element.CheckpointID(e + 1))
		for en := range f.Sorted() {
			require.Equal(t, bytes.Repeat([]byte{byte(e)}, 100_000+e), en.Value)
		}
		s.Commit(element.CheckpointID(e + 1))
	}
	require.Less(t, s.Bytes(), int64(3<<20))
	audit(t, s)
}

func TestMemoryPerKey(t *testing.T) {
	s, tb := newTable(t, Config{})
	var k [8]byte
	const n = 300_000
	for i := range uint64(n) {
		binary.BigEndian.PutUint64(k[:], i*0x9e3779b97f4a7c15)
		require.NoError(t, s.Load("count", k[:], make([]byte, 16)))
	}
	require.Equal(t, n, s.Len())
	require.Less(t, s.Bytes()/n, int64(80), "8 bytes of key, 16 of value")
	_ = tb
}

func TestRollbackOfKeysThatCameAndWentInSeveralEpochs(t *testing.T) {
	s, tb := newTable(t, Config{})
	k := []byte("k")
	for round := range 20 {
		tb.Put(k, []byte("1"))
		s.Freeze(element.CheckpointID(round*10 + 1))
		tb.Delete(k)
		s.Freeze(element.CheckpointID(round*10 + 2))
		tb.Put(k, []byte("22"))
		tb.Put([]byte("other"), k)
		s.Rollback()
		require.Zero(t, s.Len())
		_, ok := tb.Get(k)
		require.False(t, ok)
		for i := range 10 {
			tb.Put(fmt.Append(nil, "x", i), make([]byte, 3)) // works off the garbage
		}
		s.Rollback()
	}
	audit(t, s)
}

func TestTableAllYieldsWhatHasAValueNow(t *testing.T) {
	s, tb := newTable(t, Config{})
	other, err := s.Table("other", "bytes")
	require.NoError(t, err)
	for i, k := range numberedKeys(1000) {
		tb.Put(k, k[:i%9])
	}
	other.Put([]byte("not of this table"), nil)
	s.Freeze(1)
	for i, k := range numberedKeys(1000) {
		if i%3 == 0 {
			tb.Delete(k)
		}
	}
	tb.Put([]byte("new"), nil)
	got := map[string]string{}
	for k, v := range tb.All() {
		got[string(k)] = string(v)
	}
	want := map[string]string{"new": ""}
	for i, k := range numberedKeys(1000) {
		if i%3 != 0 {
			want[string(k)] = string(k[:i%9])
		}
	}
	require.Equal(t, want, got)

	seen := 0
	for range tb.All() {
		if seen++; seen == 5 {
			break
		}
	}
	require.Equal(t, 5, seen)
	sum := 0
	require.LessOrEqual(t, testing.AllocsPerRun(5, func() {
		for k, v := range tb.All() {
			sum += len(k) + len(v)
		}
	}), 4.0, "nothing per key")
}
