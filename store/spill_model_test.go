package store

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

func testSpill(t testing.TB, limit int64) *Spill {
	p, err := OpenSpill(SpillConfig{Dirs: []string{t.TempDir()}, Limit: limit, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	if limit < 1<<20 {
		p.least = 512 // so that files come and go
	}
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// endBatch evicts what the budget, which is as good as nothing, says.
func (p *program) endBatch(t *rapid.T) { require.NoError(t, p.s.EndBatch()) }

// evict takes the next parts of the index.
func (p *program) evict(t *rapid.T) {
	if p.s.seen() {
		return
	}
	for range rapid.IntRange(1, 4).Draw(t, "parts") {
		_, err := p.s.sweep(p.s.floorOfChanges())
		require.NoError(t, err)
	}
}

func (p *program) evictAll(t *rapid.T) {
	evictAll(t, p.s)
	require.NoError(t, p.s.compactSpill(1<<30))
	l := &p.s.spill.log
	if len(l.files) < 2 || rapid.IntRange(0, 3).Draw(t, "move") > 0 {
		return
	}
	// Whatever is in it, all blocks of a file are moved.
	f := rapid.SampledFrom(l.files[:len(l.files)-1]).Draw(t, "file")
	for c := (compaction{file: f}); c.table < len(p.s.tables); {
		_, err := p.s.moveBlocks(&c)
		require.NoError(t, err)
	}
	require.Zero(t, f.live)
	l.tidy()
}

// evictAll evicts all that is clean, used or not.
func evictAll(t require.TestingT, s *Store) {
	if s.drain(1 << 30); s.seen() {
		return
	}
	floor := s.floorOfChanges()
	for _, tb := range s.tables {
		for h := uint64(0); h < 1<<32; {
			g := tb.index.dir[uint32(h)>>tb.index.shift]
			for _, slot := range g.slots {
				if slot == 0 {
					continue
				}
				if e := s.arena.chunks.entry(ref(slot)); e.epoch < floor {
					e.change = 0
				}
			}
			h += 1 << (32 - g.depth)
			_, err := s.evict(tb, g, floor)
			require.NoError(t, err)
		}
	}
}

// auditSpilled checks the directory of a table and gives what is in its blocks.
func auditSpilled(t require.TestingT, tb *Table) map[string]string {
	all := map[string]string{}
	if tb.spill == nil {
		return all
	}
	var memory, entries int64
	eachBucket(tb.spill.dir, func(b *bucket) bool {
		block, err := readBlock(b, nil)
		require.NoError(t, err)
		last, n := uint32(0), 0
		for len(block) > 0 {
			e, ok := firstSpilled(block)
			if !ok || tb.hash(e.key) != e.hash || tb.spill.at(e.hash) != b {
				require.Fail(t, "an entry is in the wrong block")
			}
			block = block[e.size:]
			if _, twice := all[string(e.key)]; twice || !filterHas(b.filter, e.hash) || e.hash < last {
				require.Fail(t, "a block is not as it should be")
			}
			all[string(e.key)] = string(e.value)
			last = e.hash
			n++
		}
		require.EqualValues(t, n, b.n)
		entries += int64(n)
		return true
	})
	var before *bucket
	for _, b := range tb.spill.dir {
		if b != before {
			memory += b.memory()
		}
		before = b
	}
	require.Equal(t, tb.spill.entries, entries)
	require.Equal(t, tb.spill.memory, memory)
	return all
}

// auditLog checks that the files know what is in them.
func auditLog(t require.TestingT, s *Store) {
	live := map[*spillFile]int64{}
	var all, entries int64
	for _, tb := range s.tables {
		if tb.spill == nil {
			continue
		}
		entries += tb.spill.entries
		eachBucket(tb.spill.dir, func(b *bucket) bool {
			live[b.file] += int64(b.size)
			all += int64(b.size)
			return true
		})
	}
	l := &s.spill.log
	for f := range live {
		require.Contains(t, l.files, f)
	}
	var disk int64
	for _, f := range l.files {
		require.Equal(t, live[f], f.live)
		disk += f.size
	}
	require.Equal(t, l.live, all)
	require.Equal(t, l.disk, disk)
	require.Equal(t, l.pool.live.Load(), all)
	require.Equal(t, l.pool.entries.Load(), entries)
	require.Equal(t, l.pool.disk.Load(), disk)
}

// A store whose memory is nearly nothing is the same map, whatever is evicted, loaded back and read meanwhile.
func TestSpillingStoreFollowsTheModel(t *testing.T) {
	pool, moved := testSpill(t, 1), 0
	program := func(t *rapid.T) {
		s := New(Config{Spill: pool})
		defer s.Close()
		follow(t, s)
		evictAll(t, s)
		for _, tb := range s.tables {
			tb.index.all(func(ref) bool { require.Fail(t, "an entry is left"); return false })
		}
		audit(t, s)
		auditLog(t, s)
		moved += s.spill.moved
		s.Close()
		st := pool.Stats()
		require.Zero(t, st.MemoryBytes+st.Bytes+st.DiskBytes+st.Entries+int64(st.Stores))
	}
	for range 20 { // with -short a single round is too few to have all of it
		rapid.Check(t, program)
		if st := pool.Stats(); st.Loads > 10 && st.Evicted > 100 && moved > 0 {
			break
		}
	}
	st := pool.Stats()
	t.Logf("%d loads, %d evicted, %d blocks moved", st.Loads, st.Evicted, moved)
	require.Greater(t, st.Loads, int64(10))
	require.Greater(t, st.Evicted, int64(100))
	require.Positive(t, moved)
	files, err := os.ReadDir(ownDir(pool))
	require.NoError(t, err)
	require.Len(t, files, 1, "the lock is left")
}

// As TestOwnerWritesWhileTheWholeStateIsRead, while keys go to disk and come back. Run with -race.
func TestOwnerSpillsWhileTheWholeStateIsRead(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			pool := testSpill(t, 64<<10)
			readWhole(t, Config{Spill: pool}, rand.New(rand.NewPCG(seed, 12)))
			st := pool.Stats()
			require.Greater(t, st.Loads, int64(1000))
			require.Zero(t, st.DiskBytes)
		})
	}
}

// The model finds each of the faults that can be planted; else it would prove nothing.
func TestTheModelFindsPlantedFaults(t *testing.T) {
	for plant, name := range map[plant]string{plantForget: "forget", plantDirty: "dirty", plantStale: "stale", plantUnmasked: "unmasked"} {
		t.Run(name, func(t *testing.T) {
			pool := testSpill(t, 1)
			found := ""
			for seed := uint64(0); found == "" && seed < 400; seed++ {
				s := New(Config{Spill: pool})
				s.spill.plant = plant
				found = churn(s, rand.New(rand.NewPCG(seed, 5)), 2000)
				s.Close()
			}
			require.NotEmpty(t, found)
			t.Log(found)
		})
	}
}

// churn is a plain program on one table. It says what was wrong first.
func churn(s *Store, rng *rand.Rand, steps int) (wrong string) {
	defer func() {
		if p := recover(); p != nil {
			wrong = fmt.Sprint("panic: ", p)
		}
	}()
	tb, _ := s.Table("t", "bytes")
	committed, now := map[string]string{}, map[string]string{}
	var open []map[string]string
	id, done := element.CheckpointID(0), element.CheckpointID(0)
	for step := range steps {
		k := fmt.Appendf(nil, "key-%d", rng.IntN(60))
		switch n := rng.IntN(20); {
		case n < 6:
			v := fmt.Sprint("value-", step)
			tb.Put(k, []byte(v))
			now[string(k)] = v
		case n < 9:
			tb.Delete(k)
			delete(now, string(k))
		case n < 14:
			got, ok := tb.Get(k)
			if want, had := now[string(k)]; had != ok || want != string(got) {
				return fmt.Sprintf("step %d: %q is %q, %v instead of %q, %v", step, k, got, ok, want, had)
			}
		case n < 15:
			id++
			f := s.FreezeFull(id)
			open = append(open, maps.Clone(now))
			whole := map[string]string{}
			for e := range f.Full() {
				whole[string(e.Key)] = string(e.Value)
			}
			if err := f.Err(); err != nil || !maps.Equal(whole, now) {
				return fmt.Sprintf("step %d: the whole state differs: %v", step, err)
			}
		case n < 17 && len(open) > 0:
			done++
			s.Commit(done)
			committed, open = open[0], open[1:]
		case n < 18 && rng.IntN(4) == 0:
			s.Rollback()
			now, open, done = maps.Clone(committed), nil, id
		default:
			if s.drain(1 << 30); !s.seen() {
				for range 1 + rng.IntN(3) {
					if _, err := s.sweep(s.floorOfChanges()); err != nil {
						return err.Error()
					}
				}
			}
		}
		if err := s.EndBatch(); err != nil {
			return err.Error()
		}
		if s.Len() != len(now) {
			return fmt.Sprintf("step %d: %d keys instead of %d", step, s.Len(), len(now))
		}
	}
	return ""
}
