package snapshot

import (
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// benchDelta gives n entries with a key of 12 and a value of 16 bytes, without allocating.
func benchDelta(n int, from, to element.CheckpointID) TaskDelta {
	return TaskDelta{Task: taskA, States: counts[:1], From: from, To: to, Len: n, Entries: func(yield func(Entry) bool) {
		key, value := []byte("cust00000000"), make([]byte, 16)
		e := Entry{Key: key, Value: value}
		for i := range n {
			binary.BigEndian.PutUint64(key[4:], uint64(i))
			binary.BigEndian.PutUint64(value[8:], uint64(i)*7)
			if !yield(e) {
				return
			}
		}
	}}
}

func BenchmarkWriteRun100k(b *testing.B) {
	d := benchDelta(100_000, 0, 1)
	b.ReportAllocs()
	for b.Loop() {
		w := newRunWriter(io.Discard)
		ref, err := writeDelta(w, nameOf(1, 1), &d)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(ref.Length)
	}
}

func benchRepo(b *testing.B) *Repository {
	r, err := OpenRepository(ctx, Config{Dir: b.TempDir(), Application: "shop", Instance: "i", NumRetained: 1, Logger: silent})
	require.NoError(b, err)
	b.Cleanup(func() { r.Close() })
	return r
}

func BenchmarkPersist100k(b *testing.B) {
	r := benchRepo(b)
	b.ReportAllocs()
	for i := 1; b.Loop(); i++ {
		name := nameOf(i, 1)
		refs, err := r.Persist(ctx, name, []TaskDelta{benchDelta(100_000, 0, name.ID)})
		if err != nil {
			b.Fatal(err)
		}
		if err := r.st.Delete(ctx, refs[0].Run.File); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRestoreAndMerge100k(b *testing.B) {
	r := benchRepo(b)
	e := TaskEntry{Task: taskA, States: counts[:1]}
	for i := 1; i <= 4; i++ {
		refs, err := r.Persist(ctx, nameOf(i, 1), []TaskDelta{benchDelta(100_000, e.ChainEnd(), element.CheckpointID(i))})
		require.NoError(b, err)
		e.Runs = append(e.Runs, refs[0].Run)
	}
	b.Run("restore4", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := r.Verify(ctx, e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("merge4", func(b *testing.B) {
		b.ReportAllocs()
		i := 10
		for b.Loop() {
			i++
			full, err := r.Merge(ctx, nameOf(i, 1), e)
			if err != nil || full.Entries != 100_000 {
				b.Fatal(fmt.Sprint(full.Entries, err))
			}
		}
	})
}

// TestPersistAllocatesNothingPerEntry bounds the allocations of a whole run, however many entries it has.
func TestPersistAllocatesNothingPerEntry(t *testing.T) {
	d := benchDelta(20_000, 0, 1)
	allocs := testing.AllocsPerRun(3, func() {
		if _, err := writeDelta(newRunWriter(io.Discard), nameOf(1, 1), &d); err != nil {
			t.Fatal(err)
		}
	})
	require.Less(t, allocs, 30.0)
}
