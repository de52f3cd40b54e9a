package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millweir/millweir/element"
)

const benchKeys = 100_000

// benchInput gives a million uniformly random keys of 8 bytes, one behind the other as in a batch of records.
func benchInput() (at func(i int) []byte) {
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 0, n*8)
	for range n {
		buf = fmt.Appendf(buf, "k%07d", rng.IntN(benchKeys))
	}
	return func(i int) []byte {
		i = i & (n - 1) * 8
		return buf[i : i+8 : i+8]
	}
}

// BenchmarkUpsert counts per key in place, with a freeze and a commit every 100 000 operations.
func BenchmarkUpsert(b *testing.B) {
	key := benchInput()
	s := New(Config{})
	tb, err := s.Table("count", "int64")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	id := element.CheckpointID(0)
	i := 0
	for b.Loop() {
		v, _ := tb.Upsert(key(i), 8)
		binary.BigEndian.PutUint64(v, binary.BigEndian.Uint64(v)+1)
		if i++; i%100_000 == 0 {
			s.Commit(id)
			id++
			s.Freeze(id)
		}
	}
}

// BenchmarkGoMap is the baseline: the same counts in a built-in map, without versions and without snapshots.
func BenchmarkGoMap(b *testing.B) {
	key := benchInput()
	m := make(map[string]int64)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m[string(key(i))]++
		i++
	}
}

// BenchmarkGoMapBytes is the baseline with a value that is bytes, as the store's are.
func BenchmarkGoMapBytes(b *testing.B) {
	key := benchInput()
	m := make(map[string]*[8]byte)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		k := key(i)
		v := m[string(k)]
		if v == nil {
			v = new([8]byte)
			m[string(k)] = v
		}
		binary.BigEndian.PutUint64(v[:], binary.BigEndian.Uint64(v[:])+1)
		i++
	}
}

// BenchmarkGet reads random keys.
func BenchmarkGet(b *testing.B) {
	key := benchInput()
	s := New(Config{})
	tb, _ := s.Table("count", "int64")
	for i := range 1 << 20 {
		tb.Put(key(i), key(i))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, ok := tb.Get(key(i)); !ok {
			b.Fatal("lost")
		}
		i++
	}
}

// BenchmarkSorted orders the changes of one epoch of 100 000 keys.
func BenchmarkSorted(b *testing.B) {
	key := benchInput()
	s := New(Config{})
	tb, _ := s.Table("count", "int64")
	for i := range 1 << 20 {
		tb.Put(key(i), key(i))
	}
	f := s.Freeze(1)
	for b.Loop() {
		for range f.Sorted() {
		}
	}
}
