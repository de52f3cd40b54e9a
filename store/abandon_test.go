package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// heldReader is an iteration over a Frozen that stands still while the owner goes on, whatever becomes of the Frozen.
type heldReader struct {
	f    *Frozen
	next func() (Entry, bool)
	stop func()
	want []Entry // what is still to come
}

func holdReader(f *Frozen, seq iter.Seq[Entry], want []Entry) *heldReader {
	h := &heldReader{f: f, want: want}
	h.next, h.stop = iter.Pull(seq)
	return h
}

// step takes up to n entries and reports that the iteration has ended.
func (h *heldReader) step(t require.TestingT, n int) bool {
	for range n {
		e, ok := h.next()
		if !ok {
			require.Empty(t, h.want, "an iteration of checkpoint %d ended early", h.f.ID())
			return true
		}
		require.NotEmpty(t, h.want)
		requireEntry(t, h.want[0], e)
		h.want = h.want[1:]
	}
	return false
}

func requireEntry(t require.TestingT, want, got Entry) {
	require.Equal(t, want.Table, got.Table)
	require.Equal(t, want.Deleted, got.Deleted)
	require.True(t, bytes.Equal(want.Key, got.Key), "key %q instead of %q", got.Key, want.Key)
	require.True(t, bytes.Equal(want.Value, got.Value), "value of %q: %q instead of %q", got.Key, got.Value, want.Value)
}

// copied gives entries that share no memory with the store.
func copied(seq iter.Seq[Entry]) (es []Entry) {
	for e := range seq {
		e.Key, e.Value = bytes.Clone(e.Key), bytes.Clone(e.Value)
		es = append(es, e)
	}
	return es
}

// abandon gives up a checkpoint and all later ones.
func (p *program) abandon(t *rapid.T) {
	id := p.next - element.CheckpointID(rapid.IntRange(0, min(8, int(p.next))).Draw(t, "back"))
	bytesBefore := p.s.UncommittedBytes()
	p.s.Abandon(id)
	from := slices.IndexFunc(p.m.frozen, func(f modelFrozen) bool { return f.id >= id })
	if from < 0 {
		require.Equal(t, bytesBefore, p.s.UncommittedBytes())
		return
	}
	union := map[string]*string{}
	given := p.m.frozen[from:]
	for _, f := range given {
		for k, v := range f.changes {
			union[k] = v
		}
		require.True(t, f.f.closed.Load())
	}
	for k, v := range p.m.active {
		union[k] = v
	}
	p.m.active, p.m.frozen = union, p.m.frozen[:from:from]
	require.LessOrEqual(t, p.s.UncommittedBytes(), bytesBefore)
}

// hold starts an iteration over a Frozen and leaves it standing.
func (p *program) hold(t *rapid.T) {
	if len(p.m.frozen) == 0 || len(p.held) >= 3 {
		return
	}
	f := rapid.SampledFrom(p.m.frozen).Draw(t, "of").f
	seq := f.Sorted()
	switch rapid.IntRange(0, 2).Draw(t, "how") {
	case 0:
		seq = f.Entries()
	case 1:
		if f.view != nil {
			seq = f.Full()
		}
	}
	h := holdReader(f, seq, copied(seq))
	if !h.step(t, 1) {
		p.held = append(p.held, h)
	}
}

// readOn takes an iteration further that stands, perhaps to its end.
func (p *program) readOn(t *rapid.T) {
	if len(p.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.held)-1).Draw(t, "which")
	if p.held[i].step(t, rapid.SampledFrom([]int{1, 3, 1 << 30}).Draw(t, "steps")) {
		p.held = slices.Delete(p.held, i, i+1)
	} else if rapid.IntRange(0, 3).Draw(t, "stop") == 0 {
		p.held[i].stop()
		p.held = slices.Delete(p.held, i, i+1)
	}
}

// endReaders lets every iteration that stands run to its end.
func (p *program) endReaders(t require.TestingT) {
	for _, h := range p.held {
		require.True(t, h.step(t, 1<<30))
	}
	p.held = nil
}

// The readers of given-up Frozens run on another goroutine while the owner writes, gives up again, commits and rolls
// back. Each value holds the epoch that wrote it, so a reader that sees another one has seen a later write. Run with -race.
func TestReadersOfGivenUpFrozensGoOn(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { readGivenUp(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

func readGivenUp(t *testing.T, rng *rand.Rand) {
	s, tb := newTable(t, Config{})
	keys := numberedKeys(1000)
	newest, committed := map[string]uint64{}, map[string]uint64{}
	type snapshot struct {
		id    element.CheckpointID
		state map[string]uint64
	}
	var open []snapshot
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failures []string
	read := func(f *Frozen, started chan struct{}, before uint64) {
		n := 0
		for e := range f.Sorted() {
			if n++; n == 1 {
				close(started)
			}
			if !e.Deleted && binary.BigEndian.Uint64(e.Value) > before {
				mu.Lock()
				failures = append(failures, fmt.Sprintf("a later value in checkpoint %d", f.ID()))
				mu.Unlock()
			}
		}
		if n != f.Len() {
			mu.Lock()
			failures = append(failures, fmt.Sprintf("checkpoint %d: %d of %d", f.ID(), n, f.Len()))
			mu.Unlock()
		}
		if n == 0 {
			close(started)
		}
	}
	clone := func(m map[string]uint64) map[string]uint64 {
		c := make(map[string]uint64, len(m))
		for k, v := range m {
			c[k] = v
		}
		return c
	}
	id, write := element.CheckpointID(0), uint64(0)
	for round := range 120 {
		for range 400 {
			k := keys[rng.IntN(len(keys))]
			write++
			switch size := 8 + rng.IntN(3)*rng.IntN(2)*9000; rng.IntN(6) {
			case 0:
				tb.Delete(k)
				delete(newest, string(k))
			case 1:
				tb.Put(k, append(binary.BigEndian.AppendUint64(nil, write), make([]byte, size-8)...))
				newest[string(k)] = write
			default:
				v, _ := tb.Upsert(k, 8)
				binary.BigEndian.PutUint64(v, write)
				newest[string(k)] = write
			}
		}
		id++
		f := s.Freeze(id)
		open = append(open, snapshot{id, clone(newest)})
		started, before := make(chan struct{}), write
		wg.Go(func() { read(f, started, before) })
		<-started
		switch n := rng.IntN(10); {
		case n < 5 || len(open) > 3:
			from := rng.IntN(len(open))
			s.Abandon(open[from].id)
			open = open[:from]
		case n < 6:
			s.Rollback()
			newest, open = clone(committed), nil
		case n < 8:
			s.Commit(open[0].id)
			committed, open = open[0].state, open[1:]
		}
		if round%10 == 9 {
			wg.Wait()
			require.Equal(t, newest, epochsOf(tb))
		}
	}
	wg.Wait()
	require.Empty(t, failures)
	s.Rollback()
	require.Equal(t, committed, epochsOf(tb))
	audit(t, s)
}

func epochsOf(tb *Table) map[string]uint64 {
	got := map[string]uint64{}
	for k, v := range tb.All() {
		got[string(k)] = binary.BigEndian.Uint64(v)
	}
	return got
}

// What is given up while it is read is copied at its first write, and only then; the slot that the reader saw comes
// back after it.
func TestAbandonProtectsWhatIsBeingRead(t *testing.T) {
	s, tb := newTable(t, Config{})
	tb.Put([]byte("a"), []byte("one-----"))
	tb.Put([]byte("b"), []byte("one-----"))
	f := s.Freeze(1)
	h := holdReader(f, f.Sorted(), copied(f.Sorted()))
	require.False(t, h.step(t, 1))
	s.Abandon(1)
	require.Equal(t, 2, s.DirtyLen())
	for range 3 {
		v, existed := tb.Upsert([]byte("b"), 8)
		require.True(t, existed)
		copy(v, "two-")
	}
	require.True(t, h.step(t, 5))
	require.NoError(t, f.Err())
	require.Empty(t, copied(f.Sorted()))
	require.ErrorIs(t, f.Err(), ErrReleased)

	got := copied(s.Freeze(2).Sorted())
	require.Equal(t, []Entry{{Key: []byte("a"), Value: []byte("one-----")}, {Key: []byte("b"), Value: []byte("two-----")}}, got)
	s.Commit(2)
	audit(t, s)
}

// A state that was given up is part of the next checkpoint once, and values between are not.
func TestAbandonedChangesAreOnePerKey(t *testing.T) {
	s, tb := newTable(t, Config{})
	for i := range element.CheckpointID(5) {
		tb.Put([]byte("k"), fmt.Append(nil, i))
		tb.Put(fmt.Append(nil, "only ", i), nil)
		tb.Put([]byte("comes and goes"), nil)
		s.Freeze(i + 1)
		tb.Delete([]byte("comes and goes"))
	}
	require.Equal(t, 5, len(s.frozen))
	s.Abandon(3)
	require.Equal(t, 2, len(s.frozen), "earlier ones stay")
	require.Equal(t, 5, s.DirtyLen(), "k, three of their own, and the deletion of what came with an earlier one")
	s.Abandon(1)
	require.Equal(t, 6, s.DirtyLen(), "what came is gone again: nothing to persist")
	s.Abandon(1)
	f := s.Freeze(9)
	require.Equal(t, 6, f.Len())
	require.Len(t, copied(f.Entries()), 6)
	s.Commit(9)
	audit(t, s)
}

func TestLoadIsRefusedWhileAGivenUpFrozenIsRead(t *testing.T) {
	s, tb := newTable(t, Config{})
	tb.Put([]byte("k"), []byte("1"))
	f := s.Freeze(1)
	h := holdReader(f, f.Sorted(), copied(f.Sorted()))
	require.False(t, h.step(t, 1))
	s.Abandon(1)
	s.Rollback()
	require.ErrorContains(t, s.Load("count", []byte("k"), []byte("2")), "being read")
	require.True(t, h.step(t, 1))
	require.NoError(t, s.Load("count", []byte("k"), []byte("2")))
	audit(t, s)
}

// BenchmarkAbandon gives up a checkpoint of 100 000 changes with as many active ones.
func BenchmarkAbandon(b *testing.B) {
	keys := numberedKeys(benchKeys)
	s := New(Config{})
	tb, _ := s.Table("count", "int64")
	id := element.CheckpointID(0)
	for b.Loop() {
		b.StopTimer()
		for _, k := range keys {
			tb.Upsert(k, 8)
		}
		id++
		s.Freeze(id)
		for _, k := range keys {
			tb.Upsert(k, 8)
		}
		b.StartTimer()
		s.Abandon(id)
	}
}
