package topology_test

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// memTable is keyed state in open addressing: no Go map, no pointer per key. Like a real store it moves values when they
// change their length, so what was read before a write is not valid after it.
type memTable struct {
	seed  maphash.Seed
	index []uint32 // entry + 1, 0 is free
	ents  []entry
	keys  []byte
	vals  []byte
	live  int
}

type entry struct {
	hash       uint64
	key, value span
	live       bool
}

type span struct{ off, n uint32 }

func (s span) of(b []byte) []byte { return b[s.off : s.off+s.n : s.off+s.n] }

// newTable gives an empty table with room for some keys.
func newTable() *memTable {
	return &memTable{seed: maphash.MakeSeed(), index: make([]uint32, 1024)}
}

// find gives the entry of a key, alive or deleted, or -1 and the free place in the index.
func (t *memTable) find(key []byte) (ent int, place int, hash uint64) {
	hash = maphash.Bytes(t.seed, key)
	mask := len(t.index) - 1
	for i := int(hash) & mask; ; i = (i + 1) & mask {
		e := t.index[i]
		if e == 0 {
			return -1, i, hash
		}
		if en := &t.ents[e-1]; en.hash == hash && bytes.Equal(en.key.of(t.keys), key) {
			return int(e - 1), i, hash
		}
	}
}

// Get implements topology.StateTable.
func (t *memTable) Get(key []byte) ([]byte, bool) {
	if e, _, _ := t.find(key); e >= 0 && t.ents[e].live {
		return t.ents[e].value.of(t.vals), true
	}
	return nil, false
}

// Put implements topology.StateTable.
func (t *memTable) Put(key, value []byte) {
	slot, _ := t.Upsert(key, len(value))
	copy(slot, value)
}

// Delete implements topology.StateTable.
func (t *memTable) Delete(key []byte) {
	if e, _, _ := t.find(key); e >= 0 && t.ents[e].live {
		t.ents[e].live = false
		t.live--
	}
}

// Upsert implements topology.StateTable.
func (t *memTable) Upsert(key []byte, size int) ([]byte, bool) {
	e, place, hash := t.find(key)
	if e < 0 {
		e = t.insert(key, place, hash)
	}
	en := &t.ents[e]
	existed := en.live && int(en.value.n) == size
	if !en.live {
		en.live = true
		t.live++
	}
	if int(en.value.n) != size || en.value.off == 0 {
		t.scramble(en.value)
		en.value = span{uint32(len(t.vals)), uint32(size)}
		t.vals = append(t.vals, make([]byte, size)...)
	}
	if !existed {
		t.scramble(en.value)
	}
	return en.value.of(t.vals), existed
}

// scramble makes a value that is no longer valid, or not yet filled, visibly wrong.
func (t *memTable) scramble(s span) {
	for i := range s.of(t.vals) {
		t.vals[int(s.off)+i] = 0xDB
	}
}

func (t *memTable) insert(key []byte, place int, hash uint64) int {
	if len(t.vals) == 0 {
		t.vals = append(t.vals, 0) // offset 0 says "no value yet"
	}
	t.ents = append(t.ents, entry{hash: hash, key: span{uint32(len(t.keys)), uint32(len(key))}})
	t.keys = append(t.keys, key...)
	t.index[place] = uint32(len(t.ents))
	if len(t.ents)*2 > len(t.index) {
		t.grow()
	}
	return len(t.ents) - 1
}

func (t *memTable) grow() {
	t.index = make([]uint32, 2*len(t.index))
	mask := len(t.index) - 1
	for n := range t.ents {
		i := int(t.ents[n].hash) & mask
		for t.index[i] != 0 {
			i = (i + 1) & mask
		}
		t.index[i] = uint32(n + 1)
	}
}

// Len is the number of keys.
func (t *memTable) Len() int { return t.live }

// All gives copies of all keys and values in the order of the keys.
func (t *memTable) All() iter.Seq2[[]byte, []byte] {
	var live []entry
	for _, e := range t.ents {
		if e.live {
			live = append(live, e)
		}
	}
	slices.SortFunc(live, func(a, b entry) int { return bytes.Compare(a.key.of(t.keys), b.key.of(t.keys)) })
	return func(yield func(key, value []byte) bool) {
		for _, e := range live {
			if !yield(bytes.Clone(e.key.of(t.keys)), bytes.Clone(e.value.of(t.vals))) {
				return
			}
		}
	}
}

func TestMemTableMatchesAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, model := newTable(), map[string]string{}
		for range rapid.IntRange(0, 2000).Draw(t, "operations") {
			key := fmt.Sprint(rapid.IntRange(0, 900).Draw(t, "key"))
			size := rapid.IntRange(0, 3).Draw(t, "size")
			old, has := model[key]
			switch rapid.IntRange(0, 3).Draw(t, "operation") {
			case 0:
				model[key] = "xyz"[:size]
				table.Put([]byte(key), []byte("xyz"[:size]))
			case 1:
				slot, existed := table.Upsert([]byte(key), size)
				require.Equal(t, has && len(old) == size, existed)
				if existed {
					require.Equal(t, old, string(slot))
				}
				copy(slot, "uvw")
				model[key] = "uvw"[:size]
			case 2:
				delete(model, key)
				table.Delete([]byte(key))
			case 3:
				got, ok := table.Get([]byte(key))
				require.Equal(t, has, ok)
				require.Equal(t, old, string(got))
			}
		}
		all := map[string]string{}
		for k, v := range table.All() {
			all[string(k)] = string(v)
		}
		require.True(t, maps.Equal(model, all))
		require.Equal(t, len(model), table.Len())
	})
}
