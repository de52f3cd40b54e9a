package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocalHasItsDirectoryAlone(t *testing.T) {
	good := t.TempDir()
	l, err := OpenLocal(LocalConfig{Dir: good, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.False(t, l.Stats().Disabled)
	require.Equal(t, filepath.Join(good, LocalDirName), l.dir)

	other, err := OpenLocal(LocalConfig{Dir: good, MinFreeBytes: -1, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.True(t, other.Stats().Disabled, "the directory is in use")
	require.NoError(t, other.Close())
	require.NoError(t, l.Close())
	require.DirExists(t, filepath.Join(good, LocalDirName, "db"))

	_, err = OpenLocal(LocalConfig{})
	require.Error(t, err)
}

func TestLocalDamagedDatabaseIsBuiltAnew(t *testing.T) {
	for name, damage := range map[string]func(dir string){
		"manifest": func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "db", "MANIFEST"), []byte("not a manifest"), 0o600))
		},
		"opening never ended": func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, openingMarker), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLocalFixture(t)
			f.begin()
			f.count.Put([]byte("k"), []byte("1"))
			f.checkpoint()
			require.NoError(t, f.local.Close())
			damage(f.local.dir)
			f.open()
			require.False(t, f.local.Stats().Disabled)
			require.False(t, f.begin())
			f.flush()
			f.requireEqual()
			require.Contains(t, f.log.String(), "built anew")
		})
	}
}

// ofVersion gives a record as one of another format version, whole.
func ofVersion(record []byte, v byte) []byte {
	b := bytes.Clone(record[:len(record)-4])
	b[0] = v
	return seal(b)
}

// A copy that a later version has written is dropped and built anew, whichever record tells.
func TestALocalCopyOfALaterVersionIsBuiltAnew(t *testing.T) {
	for name, c := range map[string]struct {
		key  []byte
		want string
	}{
		"meta": {[]byte{prefixMeta}, "of another application, cluster or format and is dropped"},
		"task": {taskKey(ordersTask), fmt.Sprintf("format version %d: ", localFormat+1)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLocalFixture(t)
			f.begin()
			f.count.Put([]byte("k"), []byte("1"))
			f.checkpoint()
			f.flush()
			db := f.local.db
			txn := db.NewTransactionAt(db.MaxVersion(), true)
			defer txn.Discard()
			item, err := txn.Get(c.key)
			require.NoError(t, err)
			record, err := item.ValueCopy(nil)
			require.NoError(t, err)
			require.NoError(t, txn.Set(c.key, ofVersion(record, localFormat+1)))
			require.NoError(t, txn.CommitAt(db.MaxVersion()+1, nil))
			require.NoError(t, f.local.Close())
			f.open()
			require.False(t, f.local.Stats().Disabled)
			require.False(t, f.begin())
			f.flush()
			f.requireEqual()
			require.Contains(t, f.log.String(), c.want)
		})
	}
}

func TestLocalRecordsSurviveDamageOnlyAsErrors(t *testing.T) {
	r := taskRecord{state: stateApplied, at: version(3), number: 9, tables: []TableInfo{{"a", "int64"}, {"b", "json"}}}
	b := r.encode()
	got, err := decodeTaskRecord(b)
	require.NoError(t, err)
	require.Equal(t, r, got)
	for i := range b {
		for bit := range 8 {
			d := bytes.Clone(b)
			d[i] ^= 1 << bit
			_, err := decodeTaskRecord(d)
			require.ErrorIs(t, err, errRecord)
		}
		_, err := decodeTaskRecord(b[:i])
		require.ErrorIs(t, err, errRecord)
	}
	for _, v := range []byte{0, 1, localFormat + 1, 255} { // whole, but of another version
		_, err := decodeTaskRecord(ofVersion(b, v))
		require.ErrorIs(t, err, errRecord)
		require.ErrorContains(t, err, fmt.Sprintf("format version %d: ", v))
	}
	id, err := parseTaskKey(taskKey(ordersTask))
	require.NoError(t, err)
	require.Equal(t, ordersTask, id)
}
