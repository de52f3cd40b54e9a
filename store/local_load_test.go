package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/stretchr/testify/require"
)

// load gives what Load does, and where the copy stands.
func (f *localFixture) load() (map[string]string, LocalVersion, error) {
	var at LocalVersion
	var tables []TableInfo
	got := map[string]string{}
	err := f.local.Load(f.t.Context(), ordersTask, func(v LocalVersion, of []TableInfo) error {
		at, tables = v, of
		return nil
	}, func(e Entry) error {
		got[tables[e.Table].Name+"/"+string(e.Key)] = string(e.Value)
		return nil
	})
	return got, at, err
}

func (f *localFixture) fill(keys, size int) {
	for i := range keys {
		f.count.Put(fmt.Appendf(nil, "key-%06d", i), fmt.Appendf(nil, "%0*d", size, f.last))
	}
}

func TestLoadPassesErrorsOn(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.fill(3000, 10)
	f.checkpoint()
	f.flush()
	mine := errors.New("mine")
	accept := func(LocalVersion, []TableInfo) error { return nil }
	require.ErrorIs(t, f.local.Load(t.Context(), ordersTask, func(LocalVersion, []TableInfo) error { return mine }, nil), mine)
	n := 0
	require.Equal(t, mine, f.local.Load(t.Context(), ordersTask, accept, func(Entry) error { n++; return mine }))
	require.Equal(t, 1, n)
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, f.local.Load(ctx, ordersTask, accept, func(Entry) error { cancel(); n++; return nil }), context.Canceled)
	require.Less(t, n, 3000)
	require.ErrorIs(t, f.local.Load(t.Context(), ordersTask, accept, func(Entry) error { panic("a fault") }), ErrDamaged)
	other := ordersTask
	other.Partition++
	require.ErrorIs(t, f.local.Load(t.Context(), other, accept, nil), ErrNoCopy)
	require.NoError(t, f.local.Close())
	require.Error(t, f.local.Load(t.Context(), ordersTask, accept, nil))
}

// Whatever Badger itself does not notice.
func TestLoadNoticesEntriesThatAreNotWhatWasWritten(t *testing.T) {
	key := func(i int) []byte { return appendDataKey(nil, 1, 0, fmt.Appendf(nil, "key-%06d", i)) }
	for name, spoil := range map[string]func(f *localFixture, db *badger.DB){
		"one missing": func(f *localFixture, db *badger.DB) {
			wb := db.NewWriteBatchAt(db.MaxVersion() + 1)
			require.NoError(f.t, wb.Delete(key(7)))
			require.NoError(f.t, wb.Flush())
		},
		"one more":     func(f *localFixture, db *badger.DB) { f.put(db, key(1000), []byte("0000000000")) },
		"an older one": func(f *localFixture, db *badger.DB) { f.put(db, key(7), []byte("0000000000")) },
		"other table":  func(f *localFixture, db *badger.DB) { f.put(db, appendDataKey(nil, 1, 1, []byte("k")), nil) },
		"value swapped": func(f *localFixture, db *badger.DB) {
			f.put(db, key(8), []byte("special"))
			f.put(db, key(7), []byte("0000000001"))
		},
		"other record": func(f *localFixture, db *badger.DB) {
			r := taskRecord{state: stateApplied, at: version(2), number: 1, tables: f.store.Tables(), tally: tally{entries: 100}}
			f.put(db, taskKey(ordersTask), r.encode())
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLocalFixture(t)
			f.begin()
			f.fill(100, 10)
			f.checkpoint()
			f.fill(100, 10)
			f.count.Put([]byte("key-000007"), []byte("special"))
			f.count.Delete([]byte("key-000050"))
			f.checkpoint()
			f.flush()
			_, _, err := f.load()
			require.NoError(t, err)
			f.withDB(func(db *badger.DB) { spoil(f, db) })
			_, _, err = f.load()
			require.ErrorIs(t, err, ErrDamaged)
			f.local.Remove(ordersTask)
			require.False(t, f.begin())
			f.flush()
			f.requireEqual()
		})
	}
}

// The tally follows every kind of change, over flushes, restarts and resets in parts.
func TestLoadCountsWhatIsThere(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes = 20 << 10
	f.open()
	f.fill(1000, 10)
	f.checkpoint()
	f.begin()
	f.flush()
	for round := range 5 {
		for i := range 300 {
			k := fmt.Appendf(nil, "key-%06d", (i*7+round*31)%1100)
			switch i % 4 {
			case 0:
				f.count.Delete(k)
			case 1:
				f.count.Put(k, nil)
			default:
				f.count.Put(k, fmt.Appendf(nil, "%d/%d", round, i))
			}
		}
		f.checkpoint()
		f.flush()
		f.requireEqual()
		if round == 2 {
			f.reopen()
			require.True(t, f.begin())
		}
	}
	require.Zero(t, f.local.Stats().Failures)
}

// A reset that gives a key more than once, in different flushes.
func TestLoadAfterAResetThatRepeatsKeys(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	f.cfg.MaxPendingBytes = 8 << 10
	f.open()
	full := func(yield func(Entry, error) bool) {
		for round := range 3 {
			for i := range 3000 {
				e := Entry{Key: fmt.Appendf(nil, "key-%06d", i), Value: fmt.Append(nil, round), Deleted: round > 0 && i%5 == round}
				if !yield(e, nil) {
					return
				}
			}
		}
	}
	require.NoError(t, f.local.Reset(t.Context(), ordersTask, version(1), f.store.Tables(), full))
	f.flush()
	require.Greater(t, f.local.Stats().Flushes, int64(3))
	got, _, err := f.load()
	require.NoError(t, err)
	require.Len(t, got, 2400)
	require.Equal(t, "2", got["count/key-000001"])
	require.NotContains(t, got, "count/key-000002")
}

// The writer and the dropping of old data leave a copy alone that is being read.
func TestLoadIsNotDisturbed(t *testing.T) {
	f := newLocalFixture(t)
	f.begin()
	f.fill(3000, 10)
	f.checkpoint()
	f.flush()
	first := f.stored()
	n := 0
	got := map[string]string{}
	err := f.local.Load(t.Context(), ordersTask, nil, func(e Entry) error {
		if got["count/"+string(e.Key)] = string(e.Value); n == 100 {
			f.fill(3000, 12)
			f.checkpoint()
			f.flush()
			at, ok := f.local.Version(ordersTask)
			require.True(t, ok)
			require.Equal(t, version(2), at)
		}
		if n == 200 {
			f.local.Remove(ordersTask)
			f.begin()
			f.flush()
		}
		n++
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, first, got)
	f.flush()
	f.requireEqual()
	f.withDB(func(db *badger.DB) { require.Equal(t, map[uint32]int{2: 3000}, dataNumbers(t, db)) })
}

func TestLoadWaitsForTheWriter(t *testing.T) {
	f := newLocalFixture(t)
	require.NoError(t, f.local.Close())
	reached, goOn := make(chan struct{}), make(chan struct{})
	steps := 0
	f.cfg.Step = func() error {
		if steps++; steps == 3 {
			close(reached)
			<-goOn
		}
		return nil
	}
	f.open()
	f.begin()
	f.fill(5000, 10)
	f.checkpoint()
	f.local.mu.Lock()
	f.local.waiters = append(f.local.waiters, make(chan error, 1))
	f.local.mu.Unlock()
	f.local.kick()
	<-reached
	time.AfterFunc(20*time.Millisecond, func() { close(goOn) })
	got, at, err := f.load()
	require.NoError(t, err)
	require.Equal(t, version(1), at)
	require.Len(t, got, 5000)
}

// copyDir copies the files of a database that may be at work: when one of them goes meanwhile it begins again.
func copyDir(from, to string) (err error) {
	for range 20 {
		if err = errors.Join(os.RemoveAll(to), copyOnce(from, to)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func copyOnce(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, rel), 0o755))
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		w, err := os.Create(filepath.Join(to, rel))
		if err != nil {
			return err
		}
		_, err = w.Write([]byte(strings.TrimRight(string(b), "\x00"))) // the rest is a hole
		return errors.Join(err, w.Truncate(int64(len(b))), w.Close())
	})
}
