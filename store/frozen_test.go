package store

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// The owner goes on with every kind of write while another goroutine reads Frozens, several of which exist at once.
// Every value holds its epoch: a reader that sees another one has seen a later write. Run with -race.
func TestOwnerWritesWhileASnapshotIsRead(t *testing.T) {
	s, tb := newTable(t, Config{})
	second, err := s.Table("second", "bytes")
	require.NoError(t, err)
	keys := numberedKeys(2000)
	rng := rand.New(rand.NewPCG(3, 4))

	type job struct {
		f    *Frozen
		id   uint64
		want int
	}
	jobs, done := make(chan job, 8), make(chan uint64, 8)
	var wg sync.WaitGroup
	var failures []string
	wg.Go(func() {
		defer close(done)
		for j := range jobs {
			n, last, lastTable := 0, []byte(nil), 0
			for e := range j.f.Sorted() {
				if e.Table == lastTable && last != nil && bytes.Compare(last, e.Key) >= 0 {
					failures = append(failures, "order")
				}
				if !e.Deleted && binary.BigEndian.Uint64(e.Value) != j.id {
					failures = append(failures, "a value of another epoch")
				}
				last, lastTable = append(last[:0], e.Key...), e.Table
				n++
			}
			if n != j.want || j.f.Err() != nil {
				failures = append(failures, "not complete")
			}
			done <- j.id
		}
	})
	value := func(id uint64, n int) []byte {
		return append(binary.BigEndian.AppendUint64(nil, id), make([]byte, n)...)
	}
	open := 0
	for id := uint64(1); id <= 60; id++ {
		for range 3000 {
			k := keys[rng.IntN(len(keys))]
			switch rng.IntN(8) {
			case 0:
				tb.Delete(k)
			case 1:
				tb.Put(k, value(id, rng.IntN(300)))
			case 2:
				second.Put(k, value(id, rng.IntN(3)*20_000))
			case 3:
				tb.Get(k)
			default:
				v, _ := tb.Upsert(k, 8)
				binary.BigEndian.PutUint64(v, id)
			}
		}
		f := s.Freeze(element.CheckpointID(id))
		jobs <- job{f, id, f.Len()}
		if open++; open >= 3 { // the reader of the oldest is finished before it is committed
			s.Commit(element.CheckpointID(<-done))
			open--
		}
	}
	close(jobs)
	for id := range done {
		s.Commit(element.CheckpointID(id))
	}
	wg.Wait()
	require.Empty(t, failures)
	audit(t, s)
}

// A commit or rollback while an iteration runs breaks the rules. The iteration is still safe, since nothing it can see is
// recycled before it ends, and a later one is told.
func TestFrozenReadTooLateIsDetected(t *testing.T) {
	for name, end := range map[string]func(*Store){
		"commit":   func(s *Store) { s.Commit(1) },
		"rollback": func(s *Store) { s.Rollback() },
	} {
		t.Run(name, func(t *testing.T) {
			s, tb := newTable(t, Config{})
			keys := numberedKeys(1000)
			for _, k := range keys {
				tb.Put(k, k)
			}
			f := s.Freeze(1)
			started, goOn := make(chan struct{}), make(chan struct{})
			var got [][]byte
			var wg sync.WaitGroup
			wg.Go(func() {
				for e := range f.Sorted() {
					if len(got) == 10 {
						close(started)
						<-goOn
					}
					require.Equal(t, e.Key, e.Value)
					got = append(got, bytes.Clone(e.Key))
				}
			})
			<-started
			end(s)
			churn := func(id element.CheckpointID) {
				for _, k := range keys {
					tb.Put(k, []byte("overwritten"))
				}
				s.Freeze(id)
				s.Commit(id)
			}
			churn(2)
			churn(3)
			require.False(t, s.garbage.empty(), "the garbage waits for the reader")
			close(goOn)
			wg.Wait()
			require.Equal(t, keys, got)
			require.NoError(t, f.Err())
			for range f.Sorted() {
				t.Error("a closed Frozen yields nothing")
			}
			require.ErrorIs(t, f.Err(), ErrReleased)
			churn(4)
			churn(5)
			audit(t, s)
		})
	}
}

func TestSortedStopsWhenTheConsumerDoes(t *testing.T) {
	s, tb := newTable(t, Config{})
	for _, k := range numberedKeys(100) {
		tb.Put(k, k)
	}
	f := s.Freeze(1)
	for range 2 {
		n := 0
		for range f.Sorted() {
			if n++; n == 5 {
				break
			}
		}
		require.Equal(t, 5, n)
	}
	require.Zero(t, f.readers.Load())
}

func TestSortedOrdersByKeyBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, prefix := range []string{"", "customer-", "a-very-long-common-prefix-of-all-keys/"} {
		for _, n := range []int{1, 2, 50, 3000} {
			s, tb := newTable(t, Config{})
			var want [][]byte
			for range n {
				k := []byte(prefix)
				for range rng.IntN(20) {
					k = append(k, byte(rng.IntN(3))*127)
				}
				if _, ok := tb.Get(k); !ok {
					want = append(want, k)
				}
				tb.Put(k, nil)
			}
			slices.SortFunc(want, bytes.Compare)
			var got [][]byte
			for e := range s.Freeze(1).Sorted() {
				got = append(got, e.Key)
			}
			require.Equal(t, want, got)
		}
	}
}
