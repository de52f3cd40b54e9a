package store

import (
	"bytes"
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
	id, err := parseTaskKey(taskKey(ordersTask))
	require.NoError(t, err)
	require.Equal(t, ordersTask, id)
}
