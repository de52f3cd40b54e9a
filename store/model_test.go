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

// program runs the same random operations on the store and on the model.
type program struct {
	s      *Store
	tables []*Table
	m      *model
	next   element.CheckpointID
	held   []*heldReader // iterations that stand still meanwhile
}

var (
	anyKey = rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 0, 2),
		rapid.Map(rapid.IntRange(0, 40), func(i int) []byte { return fmt.Appendf(nil, "customer-%08d", i) }),
		rapid.Map(rapid.IntRange(0, 3), func(i int) []byte { return bytes.Repeat([]byte{'k'}, 1000+i) }),
	)
	anySize = rapid.OneOf(rapid.IntRange(0, 24), rapid.IntRange(0, 300),
		rapid.SampledFrom([]int{8, 8, 8, 8, 16383, 16384, 16385, 20000, 70000}))
	anyValue = rapid.Custom(func(t *rapid.T) []byte {
		b, c := make([]byte, anySize.Draw(t, "size")), rapid.Byte().Draw(t, "fill")
		for i := range b {
			b[i] = c + byte(i)
		}
		return b
	})
)

// TestStoreFollowsTheModel runs random programs on the store and on plain maps.
func TestStoreFollowsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { follow(t, New(Config{})) })
}

func follow(t *rapid.T, s *Store) {
	p := &program{s: s, next: 1, m: &model{committed: map[string]string{}, active: map[string]*string{}}}
	p.register(t)
	actions := map[string]func(*rapid.T){
		"table":    p.register,
		"put":      p.several(p.put),
		"upsert":   p.several(p.upsert),
		"delete":   p.several(p.delete),
		"get":      p.several(p.get),
		"freeze":   p.freeze,
		"commit":   p.commit,
		"rollback": p.rollback,
		"abandon":  p.abandon,
		"hold":     p.hold,
		"read on":  p.readOn,
		"full":     p.full,
		"load":     p.several(p.load),
		"":         p.check,
	}
	if s.spill != nil {
		actions["end of batch"], actions["evict"], actions["evict all"] = p.endBatch, p.evict, p.evictAll
	}
	t.Repeat(actions)
	p.endReaders(t)
	audit(t, p.s)
}

func (p *program) register(t *rapid.T) {
	if len(p.tables) >= 3 {
		return
	}
	tb, err := p.s.Table(fmt.Sprint("t", len(p.tables)), "bytes")
	require.NoError(t, err)
	p.tables = append(p.tables, tb)
}

// several repeats an operation with another table and key each time.
func (p *program) several(op func(t *rapid.T, table int, key []byte)) func(*rapid.T) {
	return func(t *rapid.T) {
		for range rapid.IntRange(1, 20).Draw(t, "n") {
			op(t, rapid.IntRange(0, len(p.tables)-1).Draw(t, "table"), anyKey.Draw(t, "key"))
			if p.s.spill == nil {
				continue
			}
			switch rapid.IntRange(0, 9).Draw(t, "then") {
			case 0:
				p.evictAll(t)
			case 1:
				p.endBatch(t)
			}
		}
	}
}

func (p *program) put(t *rapid.T, table int, key []byte) {
	v := anyValue.Draw(t, "value")
	p.tables[table].Put(key, v)
	str := string(v)
	p.m.active[modelKey(table, key)] = &str
}

func (p *program) upsert(t *rapid.T, table int, key []byte) {
	n := anySize.Draw(t, "size")
	old, had := p.m.current()[modelKey(table, key)]
	b, existed := p.tables[table].Upsert(key, n)
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
	p.m.active[modelKey(table, key)] = &str
}

func (p *program) delete(t *rapid.T, table int, key []byte) {
	p.tables[table].Delete(key)
	if _, had := p.m.current()[modelKey(table, key)]; had {
		p.m.active[modelKey(table, key)] = nil
	}
}

func (p *program) get(t *rapid.T, table int, key []byte) {
	want, had := p.m.current()[modelKey(table, key)]
	got, ok := p.tables[table].Get(key)
	require.Equal(t, had, ok)
	require.Equal(t, want, string(got))
}

func (p *program) freeze(t *rapid.T) {
	if len(p.m.frozen) >= 4 {
		return
	}
	require.Equal(t, !noopsOnly(p.m), p.s.DirtyLen() > 0)
	full := rapid.IntRange(0, 2).Draw(t, "full") == 0
	freeze := p.s.Freeze
	if full {
		freeze = p.s.FreezeFull
	}
	f := freeze(p.next)
	require.Equal(t, p.next, f.ID())
	require.Equal(t, full, f.view != nil)
	p.m.frozen = append(p.m.frozen, modelFrozen{id: p.next, changes: p.m.active, before: p.m.view(), f: f})
	p.m.active = map[string]*string{}
	p.next += element.CheckpointID(rapid.IntRange(1, 3).Draw(t, "step"))
}

func (p *program) commit(t *rapid.T) {
	id := p.next - element.CheckpointID(rapid.IntRange(0, min(6, int(p.next))).Draw(t, "back"))
	p.s.Commit(id)
	for len(p.m.frozen) > 0 && p.m.frozen[0].id <= id {
		apply(p.m.committed, p.m.frozen[0].changes)
		p.m.frozen = p.m.frozen[1:]
	}
}

func (p *program) rollback(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return
	}
	p.s.Rollback()
	p.m.frozen, p.m.active = nil, map[string]*string{}
	require.Zero(t, p.s.UncommittedBytes())
	require.Zero(t, p.s.DirtyLen())
}

func (p *program) load(t *rapid.T, table int, key []byte) {
	if len(p.m.frozen) > 0 || len(p.m.active) > 0 {
		return
	}
	p.endReaders(t) // what is being read must not be loaded over
	name := fmt.Sprint("t", table)
	if rapid.Bool().Draw(t, "delete") {
		require.NoError(t, p.s.LoadDelete(name, key))
		delete(p.m.committed, modelKey(table, key))
		return
	}
	v := anyValue.Draw(t, "value")
	require.NoError(t, p.s.Load(name, key, v))
	p.m.committed[modelKey(table, key)] = string(v)
}

func (p *program) check(t *rapid.T) {
	want := p.m.current()
	require.Equal(t, len(want), p.s.Len())
	got := map[string]string{}
	p.s.All(func(table int, k, v []byte) bool {
		got[modelKey(table, k)] = string(v)
		return true
	})
	require.Equal(t, want, got)
	byTable := map[string]string{}
	for i, tb := range p.tables {
		for k, v := range tb.All() {
			byTable[modelKey(i, k)] = string(v)
		}
	}
	require.Equal(t, want, byTable)
	for _, f := range p.m.frozen {
		checkFrozen(t, f)
	}
	require.NoError(t, p.s.Err())
	checkUncommitted(t, p.s, p.m)
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
		blocks := auditSpilled(t, tb)
		tb.index.all(func(r ref) bool {
			e := s.arena.chunks.entry(r)
			take(r, entrySize+e.keyLen, "key")
			key := s.arena.chunks.key(r, e.keyLen)
			inBlock, spilled := blocks[string(key)]
			delete(blocks, string(key))
			if e.valLen == absent {
				// One that hid, or seemed to hide, what is in a block goes when it is evicted.
				if tb.spill == nil || e.epoch >= s.floorOfChanges() {
					require.Fail(t, "an entry without a value is left")
				}
				return true
			}
			take(e.val, e.valLen, "value")
			if e.epoch == backed {
				require.True(t, spilled, "an entry counts as spilled that is not")
				require.Equal(t, inBlock, string(s.arena.chunks.at(e.val, e.valLen)))
			}
			keys++
			return true
		})
		keys += len(blocks)
	}
	require.Equal(t, s.Len(), keys)
	for c, slots := range s.arena.free {
		for _, r := range slots {
			take(r, classUnits(c)<<unitShift, "free slot")
		}
	}
	own += len(s.arena.spare)
	for i, inUse := range s.arena.drain {
		if inUse > 0 {
			units += chunkUnitsMask + 1 - inUse // its free slots are in no list
			require.NotNil(t, s.arena.chunks[i])
		}
	}
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
