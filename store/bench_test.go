package store

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

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

// BenchmarkSpilling counts per key with uniformly random keys in a state that is so many times the memory, with a freeze and
// a commit every 20 000 operations and batches of 1000. It reports what the store held at most beside the changes that
// were not committed.
func BenchmarkSpilling(b *testing.B) {
	const keys = 2_000_000 // about 107 MB when all is in memory
	for _, times := range []int64{0, 2, 10} {
		b.Run(fmt.Sprintf("state=%dx", times), func(b *testing.B) {
			s := New(Config{})
			if times > 0 {
				s = New(Config{Spill: testSpill(b, 107<<20/times)})
			}
			defer s.Close()
			tb, err := s.Table("count", "int64")
			if err != nil {
				b.Fatal(err)
			}
			key := make([]byte, 8)
			began := time.Now()
			for i := range uint64(keys) {
				binary.BigEndian.PutUint64(key, i*0x9e3779b97f4a7c15)
				if err := s.Load("count", key, key); err != nil {
					b.Fatal(err)
				}
			}
			loads := keys / time.Since(began).Seconds()
			rng := rand.New(rand.NewPCG(1, 2))
			id, i, most := element.CheckpointID(0), 0, int64(0)
			b.ResetTimer()
			for b.Loop() {
				binary.BigEndian.PutUint64(key, rng.Uint64N(keys)*0x9e3779b97f4a7c15)
				v, existed := tb.Upsert(key, 8)
				if !existed {
					b.Fatal("lost", s.Err())
				}
				binary.BigEndian.PutUint64(v, binary.BigEndian.Uint64(v)+1)
				if i++; i%1000 == 0 {
					if err := s.EndBatch(); err != nil {
						b.Fatal(err)
					}
					most = max(most, s.Bytes())
				}
				if i%20_000 == 0 {
					s.Commit(id)
					id++
					s.Freeze(id)
				}
			}
			b.ReportMetric(float64(most)/1e6, "MB")
			b.ReportMetric(loads, "loads/s")
		})
	}
}
