package store

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// model is the store as plain maps: a committed state, frozen change sets and an active one. A nil pointer is a deletion.
type model struct {
	committed map[string]string
	frozen    []modelFrozen
	active    map[string]*string
}

type modelFrozen struct {
	id      element.CheckpointID
	changes map[string]*string
	before  map[string]string // the state below the changes
	f       *Frozen
}

func (m *model) view() map[string]string {
	v := maps.Clone(m.committed)
	for _, f := range m.frozen {
		apply(v, f.changes)
	}
	return v
}

func (m *model) current() map[string]string {
	v := m.view()
	apply(v, m.active)
	return v
}

func apply(to map[string]string, changes map[string]*string) {
	for k, v := range changes {
		if v == nil {
			delete(to, k)
		} else {
			to[k] = *v
		}
	}
}

// modelKey packs a table number and a key, so that its string order is the order of Sorted.
func modelKey(table int, key []byte) string { return string(rune('0'+table)) + string(key) }

// checkFrozen compares a Frozen, which must be open, with the model's.
func checkFrozen(t require.TestingT, m modelFrozen) {
	want := map[string]*string{}
	for k, v := range m.changes {
		if _, had := m.before[k]; v != nil || had {
			want[k] = v
		}
	}
	var keys []string
	for e := range m.f.Sorted() {
		k := modelKey(e.Table, e.Key)
		keys = append(keys, k)
		v, ok := want[k]
		require.True(t, ok, "%q is not in the model", k)
		require.Equal(t, v == nil, e.Deleted)
		if v != nil {
			require.Equal(t, *v, string(e.Value))
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), keys)
	require.Equal(t, len(want), m.f.Len())
	n := 0
	for e := range m.f.Entries() {
		require.Contains(t, want, modelKey(e.Table, e.Key))
		n++
	}
	require.Equal(t, len(want), n)
	require.NoError(t, m.f.Err())
}

// TestStoreFollowsTheModel runs random programs on the store and on plain maps.
func TestStoreFollowsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(Config{})
		var tables []*Table
		m := &model{committed: map[string]string{}, active: map[string]*string{}}
		next := element.CheckpointID(1)

		register := func() {
			tb, err := s.Table(fmt.Sprint("t", len(tables)), "bytes")
			require.NoError(t, err)
			tables = append(tables, tb)
		}
		register()
		key := rapid.OneOf(
			rapid.SliceOfN(rapid.Byte(), 0, 2),
			rapid.Map(rapid.IntRange(0, 40), func(i int) []byte { return fmt.Appendf(nil, "customer-%08d", i) }),
			rapid.Map(rapid.IntRange(0, 3), func(i int) []byte { return bytes.Repeat([]byte{'k'}, 1000+i) }),
		)
		size := rapid.OneOf(rapid.IntRange(0, 24), rapid.IntRange(0, 300), rapid.SampledFrom([]int{8, 8, 8, 8, 16383, 16384, 16385, 20000, 70000}))
		fill := func(label string) []byte {
			b := make([]byte, size.Draw(t, label))
			if c := rapid.Byte().Draw(t, "fill"); len(b) > 0 {
				for i := range b {
					b[i] = c + byte(i)
				}
			}
			return b
		}
		pick := func() (int, *Table) {
			i := rapid.IntRange(0, len(tables)-1).Draw(t, "table")
			return i, tables[i]
		}
		defer func() { audit(t, s) }()
		t.Repeat(map[string]func(*rapid.T){
			"table": func(t *rapid.T) {
				if len(tables) < 3 {
					register()
				}
			},
			"put": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					i, tb := pick()
					k, v := key.Draw(t, "key"), fill("size")
					tb.Put(k, v)
					str := string(v)
					m.active[modelKey(i, k)] = &str
				}
			},
			"upsert": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					i, tb := pick()
					k, n := key.Draw(t, "key"), size.Draw(t, "size")
					old, had := m.current()[modelKey(i, k)]
					b, existed := tb.Upsert(k, n)
					require.Len(t, b, n)
					require.Equal(t, had && len(old) == n, existed)
					if existed {
						require.Equal(t, old, string(b))
					} else {
						require.Equal(t, make([]byte, n), b)
					}
					if n > 0 {
						b[0]++
						b[n-1] ^= 0x55
					}
					str := string(b)
					m.active[modelKey(i, k)] = &str
				}
			},
			"delete": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					i, tb := pick()
					k := key.Draw(t, "key")
					tb.Delete(k)
					if _, had := m.current()[modelKey(i, k)]; had {
						m.active[modelKey(i, k)] = nil
					}
				}
			},
			"get": func(t *rapid.T) {
				i, tb := pick()
				k := key.Draw(t, "key")
				want, had := m.current()[modelKey(i, k)]
				got, ok := tb.Get(k)
				require.Equal(t, had, ok)
				require.Equal(t, want, string(got))
			},
			"freeze": func(t *rapid.T) {
				if len(m.frozen) >= 4 {
					return
				}
				require.Equal(t, !noopsOnly(m), s.DirtyLen() > 0)
				f := s.Freeze(next)
				require.Equal(t, next, f.ID())
				m.frozen = append(m.frozen, modelFrozen{id: next, changes: m.active, before: m.view(), f: f})
				m.active = map[string]*string{}
				next += element.CheckpointID(rapid.IntRange(1, 3).Draw(t, "step"))
			},
			"commit": func(t *rapid.T) {
				id := next - element.CheckpointID(rapid.IntRange(0, min(6, int(next))).Draw(t, "back"))
				s.Commit(id)
				for len(m.frozen) > 0 && m.frozen[0].id <= id {
					apply(m.committed, m.frozen[0].changes)
					m.frozen = m.frozen[1:]
				}
			},
			"rollback": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
					return
				}
				s.Rollback()
				m.frozen, m.active = nil, map[string]*string{}
				require.Zero(t, s.UncommittedBytes())
				require.Zero(t, s.DirtyLen())
			},
			"load": func(t *rapid.T) {
				i, _ := pick()
				k := key.Draw(t, "key")
				if len(m.frozen) > 0 || len(m.active) > 0 {
					return
				}
				if rapid.Bool().Draw(t, "delete") {
					require.NoError(t, s.LoadDelete(fmt.Sprint("t", i), k))
					delete(m.committed, modelKey(i, k))
					return
				}
				v := fill("size")
				require.NoError(t, s.Load(fmt.Sprint("t", i), k, v))
				m.committed[modelKey(i, k)] = string(v)
			},
			"": func(t *rapid.T) {
				want := m.current()
				require.Equal(t, len(want), s.Len())
				got := map[string]string{}
				s.All(func(table int, k, v []byte) bool {
					got[modelKey(table, k)] = string(v)
					return true
				})
				require.Equal(t, want, got)
				for _, f := range m.frozen {
					checkFrozen(t, f)
				}
				require.NoError(t, s.Err())
				checkUncommitted(t, s, m)
			},
		})
	})
}

// noopsOnly reports that the active changes are all insertions that were taken back, which a freeze leaves out.
func noopsOnly(m *model) bool {
	view := m.view()
	for k, v := range m.active {
		if _, had := view[k]; v != nil || had {
			return false
		}
	}
	return true
}

func checkUncommitted(t require.TestingT, s *Store, m *model) {
	var want int64
	count := func(changes map[string]*string) {
		for k, v := range changes {
			want += int64(len(k)-1) + changeOverhead
			if v != nil {
				want += int64(len(*v))
			}
		}
	}
	count(m.active)
	for _, f := range m.frozen {
		count(f.changes)
	}
	require.Equal(t, want, s.UncommittedBytes())
}

// audit ends the program and checks that every byte of the arena is in exactly one place: free, or in use by a key.
func audit(t require.TestingT, s *Store) {
	s.Rollback()
	s.drain(math.MaxInt)
	require.True(t, s.garbage.empty())
	owner := map[ref]string{}
	var units uint32 // of the slots inside shared chunks
	own := 0         // chunks of one large slot each
	take := func(r ref, n uint32, what string) {
		if n == 0 {
			return
		}
		if other := owner[r]; other != "" {
			require.Failf(t, "a slot is in use twice", "%s and %s", what, other)
		}
		owner[r] = what
		if n > slotUnits<<unitShift {
			own++
		} else {
			units += classUnits(class(n))
		}
	}
	keys := 0
	for _, tb := range s.tables {
		tb.index.all(func(r ref) bool {
			e := s.arena.chunks.entry(r)
			if e.valLen == absent {
				require.Fail(t, "an entry without a value is left")
			}
			take(r, entrySize+e.keyLen, "key")
			take(e.val, e.valLen, "value")
			keys++
			return true
		})
	}
	require.Equal(t, s.Len(), keys)
	for c, slots := range s.arena.free {
		for _, r := range slots {
			take(r, classUnits(c)<<unitShift, "free slot")
		}
	}
	own += len(s.arena.spare)
	if len(s.arena.chunks) == 0 {
		return
	}
	shared := len(s.arena.chunks) - own
	if s.arena.chunks[0] == nil { // reference 0 is not used
		shared--
	} else {
		units++
	}
	if s.arena.off < chunkSize {
		units += (chunkSize - s.arena.off) >> unitShift
	}
	require.EqualValues(t, shared<<chunkUnitsShift, units, "slots lost or given out twice")
}
