package store

import (
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// Limits of one key or value, which are no larger than those of the files of checkpoints, and the default limit of one
// store's arena.
const (
	MaxKeySize      = 16 << 20
	MaxValueSize    = 64 << 20
	DefaultMaxBytes = 32 << 30 // what 32-bit references reach
	maxTables       = 1 << 16
)

// ErrFull is the cause when a store has used up Config.MaxBytes.
var ErrFull = errors.New("state store is full")

// ErrTooLarge is the cause when a key or value is beyond the limits.
var ErrTooLarge = errors.New("state key or value too large")

// Config bounds one store. The zero value takes the defaults.
type Config struct {
	// MaxKeySize and MaxValueSize limit one key or value, in bytes; at most 16 and 64 MiB, which are the defaults.
	MaxKeySize, MaxValueSize int
	// MaxBytes limits the memory for keys and values, superseded ones included; at most 32 GiB, which is the default.
	MaxBytes int64
	// Spill is where state goes that is more than memory may hold. The store must be closed then. Nil: all is in memory.
	Spill *Spill
	// Task is whose state it is. Only which directory of Spill it has depends on it.
	Task element.TaskID
}

// TableInfo names a table and the codec of its values.
type TableInfo struct {
	Name, Codec string
}

// Store is the keyed state of one task. All methods belong to the goroutine that owns the task; only what Freeze
// returns may be read elsewhere.
type Store struct {
	cfg     Config
	seed    maphash.Seed
	arena   arena
	pool    changePool
	garbage garbageQueue

	infos  []TableInfo // grows at its end only, see Frozen
	tables []*Table
	byName map[string]*Table

	epoch  uint32 // of the active changes, from 2
	floor  uint32 // no entry with an active change has a lower epoch
	frozen []*Frozen
	lastID element.CheckpointID
	err    error

	views []*Frozen // by FreezeFull, whose scan may not be over
	spill *spiller  // nil without Config.Spill

	// After an Abandon:
	carried   uint32     // epoch of the keys whose change is active, but whose value a reader may see; or noEpoch
	scraps    changeList // slots of values between, that go to the garbage next
	lingering []*Frozen  // closed, but were still being read when last looked at
}

// New makes an empty store.
func New(cfg Config) *Store {
	cfg.MaxKeySize = limited(cfg.MaxKeySize, MaxKeySize)
	cfg.MaxValueSize = limited(cfg.MaxValueSize, MaxValueSize)
	cfg.MaxBytes = limited(cfg.MaxBytes, DefaultMaxBytes)
	s := &Store{
		cfg: cfg, seed: maphash.MakeSeed(), arena: newArena(cfg.MaxBytes),
		byName: make(map[string]*Table), epoch: loaded + 1, floor: loaded + 1, carried: noEpoch, pool: changePool{keep: 1},
	}
	if cfg.Spill != nil {
		s.spill = newSpiller(cfg.Spill, firstPlace(cfg.Task))
	}
	return s
}

func limited[T int | int64](v, most T) T {
	if v <= 0 || v > most {
		return most
	}
	return v
}

// Table registers a state or finds it again. Its place in the order of registration is its number in Frozen and All.
// Registering a name with another codec is an error (fault.StateMismatch).
func (s *Store) Table(name, codec string) (*Table, error) {
	if t, ok := s.byName[name]; ok {
		if have := s.infos[t.number].Codec; have != codec {
			return nil, fault.Stopf(fault.StateMismatch, "state %q has codec %q, %q was asked for", name, have, codec)
		}
		return t, nil
	}
	if len(s.tables) >= maxTables {
		return nil, fault.Stopf(fault.StateMismatch, "state %q: more than %d states in one task", name, maxTables)
	}
	t := &Table{s: s, number: len(s.tables), index: newIndex()}
	s.tables = append(s.tables, t)
	s.infos = append(s.infos, TableInfo{Name: name, Codec: codec})
	s.byName[name] = t
	return t, nil
}

// Tables lists the tables in the order of registration. The result must not be changed.
func (s *Store) Tables() []TableInfo { return s.infos[:len(s.infos):len(s.infos)] }

// Freeze ends the active epoch: its changes become the Frozen of checkpoint id, and the next write starts a new epoch.
// The cost depends on the number of tables only. Ids must grow; one that does not is reported by Err.
func (s *Store) Freeze(id element.CheckpointID) *Frozen {
	if id <= s.lastID {
		s.fail(fault.Restartf(fault.Failed, "freeze of checkpoint %d after checkpoint %d", id, s.lastID))
	}
	s.lastID = max(s.lastID, id)
	f := &Frozen{id: id, epoch: s.epoch, floor: s.floor, infos: s.Tables(), chunks: s.arena.chunks,
		lists: make([]changeList, len(s.tables)), err: s.Err()}
	blocks := 0
	for i, t := range s.tables {
		f.lists[i] = t.active
		f.len += t.active.live()
		f.bytes += t.active.bytes
		blocks += len(t.active.blocks)
		t.active = s.pool.list()
	}
	s.pool.keep = max(1, 2*blocks, s.pool.keep-s.pool.keep/8)
	s.epoch++
	s.floor, s.carried = s.epoch, noEpoch
	s.discardScraps()
	s.frozen = append(s.frozen, f)
	return f
}

// Commit makes everything frozen for checkpoints up to id the committed state. It does not walk the changes: what they
// superseded is recycled bit by bit by later writes. The Frozens are closed; their readers must be finished.
func (s *Store) Commit(id element.CheckpointID) {
	n := 0
	for _, f := range s.frozen {
		if f.id > id {
			break
		}
		s.close([]*Frozen{f})
		gates := s.gates()
		for i := range f.lists {
			if f.lists[i].len > 0 {
				s.garbage.push(garbage{table: s.tables[i], list: f.lists[i], epoch: f.epoch, floor: f.floor, gates: gates})
			} else {
				s.pool.releaseList(f.lists[i].blocks)
			}
		}
		n++
	}
	rest := copy(s.frozen, s.frozen[n:])
	clear(s.frozen[rest:])
	s.frozen = s.frozen[:rest]
}

// Rollback drops the active changes and every Frozen: the store is again as the last Commit left it. It costs one step
// per dropped change. The Frozens are closed; their readers must be finished. Err is cleared.
func (s *Store) Rollback() {
	frozen := s.frozen
	s.close(frozen)
	gates := s.gates()
	s.frozen = nil
	s.epoch++
	s.carried = noEpoch
	for i, t := range s.tables {
		lists := []changeList{t.active} // newest first
		t.active = s.pool.list()
		for j := len(frozen) - 1; j >= 0; j-- {
			if i < len(frozen[j].lists) {
				lists = append(lists, s.unread(frozen[j], i))
			}
		}
		for _, l := range lists {
			s.undo(t, l)
		}
		for _, l := range lists {
			s.drop(t, l, gates)
		}
	}
	s.discardScraps()
	s.epoch++
	s.floor = s.epoch
	s.err = nil
}

// undo gives the keys of a list the values they had before it, and the epoch of the rollback.
func (s *Store) undo(t *Table, l changeList) {
	for i := range l.len {
		c := l.at(i)
		e := s.arena.chunks.entry(c.entry)
		if had, has := e.valLen != absent, c.prevLen != absent; had && !has {
			t.live--
		} else if !had && has {
			t.live++
		}
		e.change = 0
		t.setHead(e, c.entry, c.prev, c.prevLen, s.epoch)
	}
}

// unread gives a list of a closed Frozen, or a copy while a reader may look at it: drop changes it.
func (s *Store) unread(f *Frozen, table int) changeList {
	l := f.lists[table]
	if f.readers.Load() == 0 {
		return l
	}
	c := s.pool.list()
	for i := range l.len {
		c.add(&s.pool, *l.at(i))
	}
	s.giveBack(l, false)
	return c
}

// drop hands an undone list to the garbage. Of the changes that leave a key without a value only one may take its entry
// away, or the next one would look at memory that serves something else by then: the others forget that there was none.
func (s *Store) drop(t *Table, l changeList, gates []*Frozen) {
	if l.len == 0 {
		s.pool.releaseList(l.blocks)
		return
	}
	const claimed = 1
	for i := range l.len {
		c := l.at(i)
		if c.prevLen != absent {
			continue
		}
		if e := s.arena.chunks.entry(c.entry); e.valLen != absent || e.change == claimed {
			c.prevLen = 0
		} else {
			e.change = claimed
		}
	}
	s.garbage.push(garbage{table: t, list: l, epoch: s.epoch, floor: s.epoch, dropped: true, gates: gates})
}

// Load sets committed state while a task is restored: it leaves no change to persist. The table must be registered.
// Nothing may be uncommitted.
func (s *Store) Load(table string, key, value []byte) error {
	t, err := s.loadable(table, key, value)
	if err != nil {
		return err
	}
	e, r := t.writable(key)
	if e == nil {
		s.reclaim()
		return s.Err()
	}
	n := uint32(len(value))
	if e.valLen == absent || !sameSlot(e.valLen, n) {
		v, ok := s.arena.alloc(n)
		if !ok {
			if e.valLen == absent {
				t.forget(r, e) // just inserted
			}
			s.reclaim()
			return s.err
		}
		if e.valLen != absent {
			s.arena.release(e.val, e.valLen)
		} else {
			t.live++
		}
		e.val = v
	}
	e.valLen, e.epoch = n, loaded
	copy(s.arena.chunks.at(e.val, n), value)
	return nil
}

// LoadDelete takes a key out of the committed state while a task is restored.
func (s *Store) LoadDelete(table string, key []byte) error {
	t, err := s.loadable(table, key, nil)
	if err != nil {
		return err
	}
	h := t.hash(key)
	e, r := t.find(h, key)
	for again := e == nil && t.spill != nil; again; again = s.reclaim() {
		var ok bool
		if e, r, ok = t.fetch(h, key); e != nil || ok {
			break
		}
	}
	if e == nil || e.valLen == absent {
		return s.Err()
	}
	s.arena.release(e.val, e.valLen)
	e.val, e.valLen, e.epoch = 0, absent, loaded
	t.live--
	t.forget(r, e)
	return nil
}

func (s *Store) loadable(table string, key, value []byte) (*Table, error) {
	t, ok := s.byName[table]
	if !ok {
		return nil, fault.Stopf(fault.StateMismatch, "state %q is in the checkpoint but not in the topology", table)
	}
	if len(s.frozen) > 0 || t.active.len > 0 {
		return nil, fault.Restartf(fault.Failed, "state %q: loaded while changes are uncommitted", table)
	}
	if !s.fits(len(key), len(value)) {
		return nil, s.err
	}
	// Garbage may name entries that loading takes away, and a reader may see what it writes in place.
	s.close(nil)
	if s.drain(math.MaxInt); !s.garbage.empty() || len(s.lingering) > 0 {
		return nil, fault.Restartf(fault.Failed, "state %q: loaded while a snapshot is being read", table)
	}
	if sp := s.spill; sp != nil {
		sp.loaded += len(key) + len(value)
		if sp.restored++; sp.restored%loadsPerBatch == 0 || sp.loaded >= loadedAtOnce {
			sp.loaded = 0
			return t, s.EndBatch()
		}
	}
	return t, nil
}

// All visits every key that has a value now, committed or not: tables in order, keys in no order, until fn returns
// false. The bytes are valid during the call; fn must not write to the store.
func (s *Store) All(fn func(table int, key, value []byte) bool) {
	for _, t := range s.tables {
		if !t.all(func(key, value []byte) bool { return fn(t.number, key, value) }) {
			return
		}
	}
}

// Entries is All as a sequence of entries, for what takes the whole state.
func (s *Store) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		s.All(func(table int, key, value []byte) bool {
			return yield(Entry{Table: table, Key: key, Value: value})
		})
	}
}

// Err reports why writes were not stored since the last Rollback: a key or value beyond the limits (ErrTooLarge) or a
// full store (ErrFull). A state with an error must not be committed: the next Frozen carries it, too. An error that wraps
// ErrSpill stays for good.
func (s *Store) Err() error {
	if s.spill != nil {
		if err := s.spill.broken.Load(); err != nil {
			return *err
		}
	}
	return s.err
}

func (s *Store) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// reclaim works off all garbage for a write that found the store full, and says whether trying again makes sense. If not,
// Err reports it.
func (s *Store) reclaim() bool {
	if s.spill != nil && s.spill.broken.Load() != nil {
		return false
	}
	s.discardScraps()
	if before := s.garbage; !before.empty() {
		if s.drain(math.MaxInt); s.garbage.head != before.head {
			return true
		}
	}
	s.fail(fault.Stopf(fault.Failed, "%w: %d bytes allowed", ErrFull, s.cfg.MaxBytes))
	return false
}

func (s *Store) fits(key, value int) bool {
	if key <= s.cfg.MaxKeySize && value <= s.cfg.MaxValueSize && value >= 0 {
		return true
	}
	s.fail(fault.Stopf(fault.BadRecord, "%w: key %d bytes (limit %d), value %d bytes (limit %d)",
		ErrTooLarge, key, s.cfg.MaxKeySize, value, s.cfg.MaxValueSize))
	return false
}

// scrap gives bytes that belong to no key, so that the caller of a failed Upsert can go on until Err is asked.
func (s *Store) scrap(size int) []byte {
	if size < 0 || size > s.cfg.MaxValueSize {
		return nil
	}
	return make([]byte, size)
}

// Len is the number of keys that have a value now, over all tables.
func (s *Store) Len() int {
	n := 0
	for _, t := range s.tables {
		n += t.live
	}
	return n
}

// DirtyLen is the number of changes that a Freeze would hold now.
func (s *Store) DirtyLen() int {
	n := 0
	for _, t := range s.tables {
		n += t.active.live()
	}
	return n
}

// UncommittedBytes is the size of all changes that are not committed, active and frozen: keys, values and 32 bytes each.
func (s *Store) UncommittedBytes() int64 {
	var n int64
	for _, t := range s.tables {
		n += t.active.bytes
	}
	for _, f := range s.frozen {
		n += f.bytes
	}
	return n
}

// Bytes is the memory that the store holds: chunks, indexes and change lists, free parts included, and what says where the
// spilled keys are.
func (s *Store) Bytes() int64 {
	n := s.arena.bytes + int64(s.pool.total)*changeBlockBytes
	for _, t := range s.tables {
		if n += t.index.slots * 8; t.spill != nil {
			n += t.spill.memory
		}
	}
	for _, f := range s.arena.free {
		n += int64(cap(f)) * 4
	}
	return n
}

// String describes the store for logs.
func (s *Store) String() string {
	return fmt.Sprintf("store(%d tables, %d keys, %d bytes, %d uncommitted)", len(s.tables), s.Len(), s.Bytes(), s.UncommittedBytes())
}
