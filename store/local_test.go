package store

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

var ordersTask = element.TaskID{Source: "orders", Partition: 3}

func version(id int) LocalVersion {
	return LocalVersion{Name: element.CheckpointName{ID: element.CheckpointID(id), Incarnation: 7}, Digest: [32]byte{byte(id)},
		ChainEnd: element.CheckpointID(id), Run: [32]byte{1, byte(id)}}
}

// whole makes the argument of Reset of a state that can be read without an error.
func whole(entries iter.Seq[Entry]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// lockedBuffer collects log lines from several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *lockedBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

// localFixture is a local copy and a store whose checkpoints go into it.
type localFixture struct {
	t     *testing.T
	cfg   LocalConfig
	log   *lockedBuffer
	local *Local
	store *Store
	count *Table
	last  int
}

func newLocalFixture(t *testing.T) *localFixture {
	f := &localFixture{t: t, log: &lockedBuffer{}, cfg: LocalConfig{Dir: t.TempDir(), Cluster: "c", Application: "app",
		MinInterval: time.Hour, MinFreeBytes: -1}}
	f.cfg.Logger = slog.New(slog.NewTextHandler(f.log, nil))
	f.open()
	f.store = New(Config{})
	f.count = f.table("count", "int64")
	return f
}

func (f *localFixture) open() {
	var err error
	f.local, err = OpenLocal(f.cfg)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { f.local.Close() })
}

func (f *localFixture) reopen() {
	require.NoError(f.t, f.local.Close())
	f.open()
}

func (f *localFixture) table(name, codec string) *Table {
	tb, err := f.store.Table(name, codec)
	require.NoError(f.t, err)
	return tb
}

// begin takes the copy up, built anew where it does not stand at the last checkpoint; it says whether it did.
func (f *localFixture) begin() bool {
	if f.local.Begin(ordersTask, version(f.last)) {
		return true
	}
	require.NoError(f.t, f.local.Reset(f.t.Context(), ordersTask, version(f.last), f.store.Tables(), whole(f.store.Entries())))
	return false
}

func (f *localFixture) checkpoint() {
	f.last++
	v := version(f.last)
	frozen := f.store.Freeze(v.Name.ID)
	f.local.Apply(ordersTask, v, frozen.Tables(), frozen.Entries())
	f.store.Commit(v.Name.ID)
}

func (f *localFixture) flush() { require.NoError(f.t, f.local.Flush(f.t.Context())) }

func (f *localFixture) stored() map[string]string {
	got := map[string]string{}
	require.NoError(f.t, f.local.Iterate(ordersTask, func(tb TableInfo, k, v []byte) bool {
		got[tb.Name+"/"+string(k)] = string(v)
		return true
	}))
	return got
}

func (f *localFixture) requireEqual() {
	f.t.Helper()
	want := map[string]string{}
	f.store.All(func(tb int, k, v []byte) bool {
		want[f.store.Tables()[tb].Name+"/"+string(k)] = string(v)
		return true
	})
	require.Equal(f.t, want, f.stored())
}

func TestLocalReadsBackWhatWasCommitted(t *testing.T) {
	f := newLocalFixture(t)
	require.False(t, f.begin())
	for i := range 500 {
		f.count.Put(fmt.Append(nil, "k", i), fmt.Append(nil, i))
	}
	f.count.Put([]byte("empty"), nil)
	f.checkpoint()
	f.flush()
	f.requireEqual()

	second := f.table("second", "json")
	for i := range 100 {
		f.count.Delete(fmt.Append(nil, "k", 3*i))
		f.count.Put(fmt.Append(nil, "k", 5*i), []byte("changed"))
		second.Put(fmt.Append(nil, "s", i), make([]byte, 10*i))
	}
	f.checkpoint()
	f.count.Put([]byte("k1"), []byte("again"))
	f.checkpoint()
	f.flush()
	f.requireEqual()

	f.reopen()
	require.True(t, f.begin(), "the copy is reused at the checkpoint it stands at")
	f.requireEqual()
	f.count.Delete([]byte("empty"))
	f.checkpoint()
	require.NoError(t, f.local.Close())
	f.open()
	require.True(t, f.begin(), "closing writes what was pending")
	f.requireEqual()
	require.Zero(t, f.local.Stats().Failures)
}

func TestLocalWritesAHotKeyOncePerFlush(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	for i := range 50 {
		for k := range 10 {
			f.count.Put(fmt.Append(nil, "hot", k), fmt.Append(nil, i))
		}
		f.checkpoint()
	}
	f.flush()
	st := f.local.Stats()
	require.EqualValues(t, 500, st.Collected)
	require.EqualValues(t, 10, st.Written)
	require.EqualValues(t, 1, st.Flushes)
	require.Zero(t, st.PendingBytes)
	f.requireEqual()
}

func TestLocalWaitsForItsInterval(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.flush() // from now on the next one is an hour away
	f.count.Put([]byte("k"), []byte("v"))
	f.checkpoint()
	f.local.kick()
	require.Never(t, func() bool { return f.local.Stats().Flushes > 1 }, 100*time.Millisecond, 10*time.Millisecond)
	require.Positive(t, f.local.Stats().PendingBytes)
	f.local.Soon()
	require.Eventually(t, func() bool { return f.local.Stats().Flushes == 2 }, 5*time.Second, time.Millisecond)
	f.requireEqual()
	f.count.Put([]byte("k"), []byte("w"))
	f.checkpoint()
	f.local.kick()
	require.Never(t, func() bool { return f.local.Stats().Flushes > 2 }, 100*time.Millisecond, 10*time.Millisecond)
}

func TestLocalFlushesEarlyWhenMuchIsPending(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes = 64 << 10
	f.open()
	f.begin()
	f.flush()
	for i := range 40 {
		f.count.Put(fmt.Append(nil, "k", i), make([]byte, 2000))
	}
	f.checkpoint()
	require.Eventually(t, func() bool { return f.local.Stats().Flushes == 2 }, 5*time.Second, time.Millisecond)
	f.requireEqual()
}

func TestLocalGivesUpATaskThatIsTooFast(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes = 64 << 10
	f.open()
	f.begin()
	for i := range 100 {
		f.count.Put(fmt.Append(nil, "k", i), make([]byte, 2000))
	}
	f.checkpoint()
	_, ok := f.local.Version(ordersTask)
	require.False(t, ok)
	require.EqualValues(t, 1, f.local.Stats().Failures)
	require.Contains(t, f.log.String(), "orders-3")
	require.False(t, f.begin(), "the next restore builds it anew, in pieces that fit")
	f.flush()
	f.requireEqual()
}

func TestLocalIsBuiltAnewForAnotherCheckpoint(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.count.Put([]byte("later"), []byte("2"))
	f.checkpoint()
	f.flush()
	f.reopen()

	v := version(f.last)
	v.Digest[31]++
	require.False(t, f.local.Begin(ordersTask, v), "same id, other content")
	require.False(t, f.local.Begin(ordersTask, version(f.last)), "given up")
	f.store = New(Config{})
	f.count = f.table("count", "int64")
	require.NoError(t, f.store.Load("count", []byte("other"), []byte("3")))
	f.last = 1
	require.False(t, f.begin())
	f.flush()
	f.requireEqual()
	require.Equal(t, map[string]string{"count/other": "3"}, f.stored())
	f.reopen()
	require.True(t, f.begin())
}

func TestLocalOfAnotherApplicationIsDropped(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.flush()
	require.NoError(t, f.local.Close())
	for _, change := range []func(){func() { f.cfg.Application = "app2" }, func() { f.cfg.Cluster = "c2" }} {
		change()
		f.open()
		_, ok := f.local.Version(ordersTask)
		require.False(t, ok)
		require.Error(t, f.local.Iterate(ordersTask, func(TableInfo, []byte, []byte) bool { return true }))
		require.False(t, f.begin())
		f.flush()
		f.requireEqual()
		require.NoError(t, f.local.Close())
	}
	require.Contains(t, f.log.String(), "another application")
}

// withDB opens the closed copy's database.
func (f *localFixture) withDB(fn func(db *badger.DB)) {
	require.NoError(f.t, f.local.Close())
	db, err := badger.OpenManaged(f.local.badgerOptions(filepath.Join(f.local.dir, "db")))
	require.NoError(f.t, err)
	fn(db)
	require.NoError(f.t, db.Close())
	f.open()
}

func (f *localFixture) put(db *badger.DB, key, value []byte) {
	wb := db.NewWriteBatchAt(db.MaxVersion() + 1)
	require.NoError(f.t, wb.Set(key, value))
	require.NoError(f.t, wb.Flush())
}

func TestLocalWithADanglingIntentIsBuiltAnew(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.flush()
	f.withDB(func(db *badger.DB) {
		r := taskRecord{state: stateIntent, at: version(2), number: 1, tables: f.store.Tables()}
		f.put(db, taskKey(ordersTask), r.encode())
		f.put(db, appendDataKey(nil, 1, 0, []byte("half")), []byte("written"))
	})
	require.Error(t, f.local.Iterate(ordersTask, func(TableInfo, []byte, []byte) bool { return true }))
	for _, at := range []int{0, 1, 2} {
		require.False(t, f.local.Begin(ordersTask, version(at)))
	}
	require.False(t, f.begin())
	f.flush()
	f.requireEqual()
}

func TestLocalDropsDataThatNoRecordNames(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.flush()
	f.withDB(func(db *badger.DB) { f.put(db, appendDataKey(nil, 99, 0, []byte("orphan")), []byte("x")) })
	require.EqualValues(t, 100, f.local.nextNumber, "a number is not used again while its data may be there")
	require.True(t, f.begin())
	f.flush()
	f.withDB(func(db *badger.DB) { require.Equal(t, map[uint32]int{1: 1}, dataNumbers(t, db)) })
}

func dataNumbers(t *testing.T, db *badger.DB) map[uint32]int {
	n := map[uint32]int{}
	require.NoError(t, db.View(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixData}})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			n[beUint32(it.Item().Key()[1:])]++
		}
		return nil
	}))
	return n
}

func TestLocalRemovesATaskThatLeaves(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.flush()
	f.local.Remove(ordersTask)
	f.flush()
	require.Error(t, f.local.Iterate(ordersTask, func(TableInfo, []byte, []byte) bool { return true }))
	f.withDB(func(db *badger.DB) { require.Empty(t, dataNumbers(t, db)) })
	require.False(t, f.local.Begin(ordersTask, version(1)))
}

// A reset that ends before it handed over everything must not leave a record that passes for whole.
func TestLocalResetThatStopsHalfwayIsNotUsed(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.flush()
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes = 1 << 10
	f.open()
	ctx, cancel := context.WithCancel(t.Context())
	full := func(yield func(Entry, error) bool) {
		for i := range 1 << 20 {
			if i == 5000 {
				cancel()
			}
			if !yield(Entry{Key: fmt.Append(nil, i), Value: []byte("v")}, nil) {
				return
			}
		}
	}
	require.ErrorIs(t, f.local.Reset(ctx, ordersTask, version(1), f.store.Tables(), full), context.Canceled)
	f.flush()
	f.reopen()
	require.False(t, f.local.Begin(ordersTask, version(1)))
	require.False(t, f.begin())
	f.flush()
	f.requireEqual()
}

func TestLocalErrorDisablesItWithOneLine(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	f.flush()
	f.local.mu.Lock()
	f.local.cfg.MinFreeBytes = 1 << 30
	f.local.freeAt = func(string) (int64, bool) { return 1 << 20, true }
	f.local.mu.Unlock()
	f.count.Put([]byte("k"), []byte("2"))
	f.checkpoint()
	require.ErrorContains(t, f.local.Flush(t.Context()), "no space left in "+f.local.dir)
	for range 10 { // the service goes on
		f.count.Put([]byte("k"), []byte("3"))
		f.checkpoint()
	}
	require.False(t, f.local.Begin(ordersTask, version(f.last)))
	require.NoError(t, f.local.Reset(t.Context(), ordersTask, version(f.last), f.store.Tables(), whole(f.store.Entries())))
	require.Error(t, f.local.Flush(t.Context()))
	require.Equal(t, 1, strings.Count(f.log.String(), "DISABLED"))
	st := f.local.Stats()
	require.True(t, st.Disabled)
	require.EqualValues(t, 1, st.Failures)
	require.NoError(t, f.local.Close())
}

func TestLocalIgnoresWhatItCannotFollow(t *testing.T) {
	f := newLocalFixture(t)
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint() // no Begin: the task has no copy
	require.Zero(t, f.local.Stats().Collected)
	f.begin()
	f.last-- // a checkpoint that is not newer
	f.count.Put([]byte("k"), []byte("2"))
	v := version(1)
	frozen := f.store.Freeze(2)
	f.local.Apply(ordersTask, v, frozen.Tables(), frozen.Entries())
	f.store.Commit(2)
	_, ok := f.local.Version(ordersTask)
	require.False(t, ok)

	f.last = 2
	f.begin()
	f.count.Put([]byte("large"), make([]byte, localMaxValue+1))
	f.checkpoint()
	_, ok = f.local.Version(ordersTask)
	require.False(t, ok, "a value that is too large for it")
	require.False(t, f.local.Stats().Disabled)
}

func TestLocalAppliesASubsumedCheckpointWithTheNext(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("a"), []byte("1"))
	f.count.Put([]byte("b"), []byte("1"))
	one := f.store.Freeze(1)
	f.count.Put([]byte("a"), []byte("2"))
	two := f.store.Freeze(2)
	v := version(2)
	f.local.Apply(ordersTask, v, two.Tables(), func(yield func(Entry) bool) {
		for _, f := range []*Frozen{one, two} {
			for e := range f.Entries() {
				if !yield(e) {
					return
				}
			}
		}
	})
	f.store.Commit(2)
	f.flush()
	f.requireEqual()
	got, ok := f.local.Version(ordersTask)
	require.True(t, ok)
	require.Equal(t, v, got)
}
