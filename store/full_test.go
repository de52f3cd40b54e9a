package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// full compares the whole state of a Frozen with the model's.
func (p *program) full(t *rapid.T) {
	if len(p.m.frozen) == 0 {
		return
	}
	m := rapid.SampledFrom(p.m.frozen).Draw(t, "of")
	if m.f.view == nil {
		return
	}
	want := maps.Clone(m.before)
	apply(want, m.changes)
	var keys []string
	for e := range m.f.Full() {
		k := modelKey(e.Table, e.Key)
		keys = append(keys, k)
		require.False(t, e.Deleted)
		v, ok := want[k]
		require.True(t, ok, "%q is not in the model", k)
		require.Equal(t, v, string(e.Value))
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), keys)
	require.Equal(t, len(keys), m.f.FullLen())
	require.NoError(t, m.f.Err())
}

// The whole state is read on another goroutine while the owner changes, deletes and inserts keys, so that the index
// grows, freezes, commits, gives up and rolls back. What is read is the state at the freeze, exactly. Run with -race.
func TestOwnerWritesWhileTheWholeStateIsRead(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { readWhole(t, Config{}, rand.New(rand.NewPCG(seed, 11))) })
	}
}

func readWhole(t *testing.T, cfg Config, rng *rand.Rand) {
	s, tb := newTable(t, cfg)
	defer s.Close()
	second, err := s.Table("second", "bytes")
	require.NoError(t, err)
	tables := []*Table{tb, second}
	keys := numberedKeys(12_000)
	type state [2]map[string]uint64
	clone := func(st state) state { return state{maps.Clone(st[0]), maps.Clone(st[1])} }
	now, committed := state{{}, {}}, state{{}, {}}
	open := map[element.CheckpointID]state{}
	var ids []element.CheckpointID
	var wg sync.WaitGroup
	failures := make(chan string, 1000)
	// read must have begun before the Frozen is closed; whether its scan has ended by then is left to chance.
	read := func(f *Frozen, want state, begun chan struct{}, pause time.Duration) {
		f.readers.Add(1)
		close(begun)
		time.Sleep(pause)
		n, last, lastTable := 0, []byte(nil), 0
		if f.closed.Load() { // given up before the scan: the view may be forgotten, and nothing may be asked of it
			f.readers.Add(-1)
			return
		}
		for e := range f.Full() {
			if w, ok := want[e.Table][string(e.Key)]; !ok || binary.BigEndian.Uint64(e.Value) != w {
				failures <- fmt.Sprintf("checkpoint %d: %q is not as it was", f.ID(), e.Key)
				break
			}
			if e.Table == lastTable && bytes.Compare(last, e.Key) >= 0 && n > 0 {
				failures <- "order"
			}
			last, lastTable = append(last[:0], e.Key...), e.Table
			n++
		}
		f.readers.Add(-1)
		if f.Err() == nil && (n != len(want[0])+len(want[1]) || n != f.FullLen()) {
			failures <- fmt.Sprintf("checkpoint %d: %d of %d", f.ID(), n, f.FullLen())
		}
	}
	id, write, reach := element.CheckpointID(0), uint64(0), 500
	for range 40 {
		reach = min(len(keys), reach+rng.IntN(800))
		for range 1000 {
			i := rng.IntN(2)
			k := keys[rng.IntN(reach)]
			write++
			switch size := 8 + rng.IntN(3)*rng.IntN(2)*9000; rng.IntN(8) {
			case 0, 1:
				tables[i].Delete(k)
				delete(now[i], string(k))
			case 2:
				tables[i].Put(k, append(binary.BigEndian.AppendUint64(nil, write), make([]byte, size-8)...))
				now[i][string(k)] = write
			default:
				v, _ := tables[i].Upsert(k, 8)
				binary.BigEndian.PutUint64(v, write)
				now[i][string(k)] = write
			}
			if write%64 == 0 {
				require.NoError(t, s.EndBatch())
			}
		}
		if id%4 == 0 && cfg.Spill != nil {
			wg.Wait() // while they read nothing may be evicted
			require.NoError(t, s.EndBatch())
		}
		id++
		ids, open[id] = append(ids, id), clone(now)
		if rng.IntN(3) == 0 {
			s.Freeze(id)
		} else {
			f, begun := s.FreezeFull(id), make(chan struct{})
			want, pause := open[id], time.Duration(rng.IntN(3))*time.Millisecond
			wg.Go(func() { read(f, want, begun, pause) })
			<-begun
		}
		switch n := rng.IntN(12); {
		case n < 4 || len(ids) > 3:
			committed = open[ids[0]]
			s.Commit(ids[0])
			ids = ids[1:]
		case n < 6:
			at := rng.IntN(len(ids))
			s.Abandon(ids[at])
			ids = ids[:at]
		case n < 7:
			s.Rollback()
			now, ids = clone(committed), nil
		}
	}
	wg.Wait()
	close(failures)
	for f := range failures {
		t.Error(f)
	}
	require.Equal(t, now, state{epochsOf(tb), epochsOf(second)})
	s.Rollback()
	require.Equal(t, committed, state{epochsOf(tb), epochsOf(second)})
	audit(t, s)
}

// The owner rewrites every key while the scan runs over them, again and again: a head that becomes newer between two
// reads of the scan must not give a later value.
func TestHeadsBecomeNewerUnderTheScan(t *testing.T) {
	s, tb := newTable(t, Config{})
	keys := numberedKeys(500)
	for _, k := range keys {
		tb.Put(k, make([]byte, 8))
	}
	frozen, done := make(chan *Frozen), make(chan uint64)
	go func() {
		defer close(done)
		for f := range frozen {
			wrong := uint64(0)
			for e := range f.Full() {
				if binary.BigEndian.Uint64(e.Value) != uint64(f.ID())-1 {
					wrong++
				}
			}
			done <- wrong
		}
	}()
	deadline := time.Now().Add(time.Second)
	for id := uint64(1); time.Now().Before(deadline); id++ {
		frozen <- s.FreezeFull(element.CheckpointID(id))
		for i := range keys {
			v, _ := tb.Upsert(keys[len(keys)-1-i], 8)
			binary.BigEndian.PutUint64(v, id)
		}
		require.Zero(t, <-done, "later values in the state of checkpoint %d", id)
		s.Commit(element.CheckpointID(id))
	}
	close(frozen)
	audit(t, s)
}

// Every interleaving of one write with the scan of its key gives the value at the freeze, once.
func TestAWriteAtEachMomentOfTheScan(t *testing.T) {
	for _, when := range []string{"before the scan", "after it has seen the key", "after the scan"} {
		for _, what := range []string{"put", "delete", "delete and put", "two epochs"} {
			t.Run(when+", "+what, func(t *testing.T) {
				s, tb := newTable(t, Config{})
				for _, k := range numberedKeys(200) {
					tb.Put(k, []byte("old"))
				}
				tb.Put([]byte("gone"), nil)
				tb.Delete([]byte("gone"))
				f := s.FreezeFull(1)
				k := numberedKeys(200)[77]
				change := func() {
					if what == "delete" || what == "delete and put" {
						tb.Delete(k)
					}
					if what != "delete" {
						tb.Put(k, []byte("new"))
					}
					if what == "two epochs" {
						s.Freeze(2)
						tb.Put(k, []byte("newer"))
					}
					tb.Put([]byte("another"), nil)
				}
				v := f.view
				switch when {
				case "before the scan":
					change()
				case "after it has seen the key":
					v.scan.Do(func() { // as run, with the change in its middle
						v.lists = make([]changeList, 1)
						(&index{dir: v.dirs[0]}).all(func(r ref) bool {
							at, ok := v.head(f.chunks, r)
							if ok {
								v.lists[0].add(&changePool{}, at)
							}
							if ok && bytes.Equal(f.chunks.key(r, at.keyLen), k) {
								change()
							}
							return true
						})
						for i := range v.saved[0].len {
							v.lists[0].add(&changePool{}, *v.saved[0].at(i))
						}
						v.over, v.at = true, f.chunks
					})
				}
				got := copied(f.Full())
				if when == "after the scan" {
					change()
					got = copied(f.Full())
				}
				require.Len(t, got, 200)
				for i, e := range got {
					require.Equal(t, Entry{Key: numberedKeys(200)[i], Value: []byte("old")}, e)
				}
				require.Equal(t, 200, f.FullLen())
				s.Commit(9)
				audit(t, s)
			})
		}
	}
}

func TestFullOfAFrozenWithChangesOnly(t *testing.T) {
	s, tb := newTable(t, Config{})
	tb.Put([]byte("k"), nil)
	f := s.Freeze(1)
	require.Empty(t, copied(f.Full()))
	require.ErrorIs(t, f.Err(), ErrNotFull)
	require.Zero(t, f.FullLen())
	f = s.FreezeFull(2)
	s.Commit(2)
	require.Empty(t, copied(f.Full()))
	require.ErrorIs(t, f.Err(), ErrReleased)
	require.Empty(t, s.views, "a view that was never read is forgotten with its Frozen")
	audit(t, s)
}

// A freeze of the whole state costs the owner no more than another one, however many keys there are.
func BenchmarkFreezeFull(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		for _, full := range []bool{false, true} {
			b.Run(fmt.Sprintf("keys=%d/full=%v", n, full), func(b *testing.B) {
				s := New(Config{})
				tb, _ := s.Table("count", "int64")
				var k [8]byte
				for i := range n {
					binary.BigEndian.PutUint64(k[:], uint64(i))
					tb.Upsert(k[:], 8)
				}
				s.Freeze(1)
				s.Commit(1)
				id := element.CheckpointID(1)
				freeze := s.Freeze
				if full {
					freeze = s.FreezeFull
				}
				for b.Loop() {
					id++
					freeze(id)
					s.Commit(id)
				}
			})
		}
	}
}

// BenchmarkFull reads a million keys, sorted.
func BenchmarkFull(b *testing.B) {
	s := New(Config{})
	tb, _ := s.Table("count", "int64")
	var k [8]byte
	for i := range 1_000_000 {
		binary.BigEndian.PutUint64(k[:], uint64(i)*0x9e3779b97f4a7c15)
		tb.Upsert(k[:], 8)
	}
	s.Freeze(1)
	s.Commit(1)
	id := element.CheckpointID(1)
	b.ReportAllocs()
	for b.Loop() {
		id++
		f := s.FreezeFull(id)
		n := 0
		for range f.Full() {
			n++
		}
		if n != 1_000_000 {
			b.Fatal(n)
		}
		s.Commit(id)
	}
}

// BenchmarkUpsertWhileFullWaits is BenchmarkUpsert with a whole state that nobody has begun to read.
func BenchmarkUpsertWhileFullWaits(b *testing.B) {
	key := benchInput()
	s := New(Config{})
	tb, _ := s.Table("count", "int64")
	b.ReportAllocs()
	id, i := element.CheckpointID(0), 0
	for b.Loop() {
		v, _ := tb.Upsert(key(i), 8)
		binary.BigEndian.PutUint64(v, binary.BigEndian.Uint64(v)+1)
		if i++; i%100_000 == 0 {
			s.Commit(id)
			id++
			s.FreezeFull(id)
		}
	}
}
