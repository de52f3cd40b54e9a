package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/admin"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs/vfstest"
	"github.com/millweir/millweir/snapshot"
)

// A savepoint that the user has no right to read, its directory or its metadata, is listed as that beside the others.
func TestSavepointListGoesOnBehindALackOfAccess(t *testing.T) {
	dir := t.TempDir()
	write := func(id int) string {
		ref, err := snapshot.WriteSavepoint(t.Context(), snapshot.SavepointConfig{Dir: dir}, snapshot.SavepointHead{ID: "s1", Application: "shop", Instance: "i-1",
			Name: element.CheckpointName{ID: element.CheckpointID(id), Incarnation: 1}, ClusterID: "c", StoreID: "s"}, nil)
		require.NoError(t, err)
		return filepath.Base(ref.Path)
	}
	first, second, third := write(1), write(2), write(3)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "private"), 0)) // somebody else's
	t.Chdir(dir)                                                   // the way to it need not be open to everybody
	for place, mode := range map[string]os.FileMode{second + "/_metadata": 0o640, second: 0o750} {
		require.NoError(t, os.Chmod(place, 0))
		var code int
		var stdout, stderr, asJSON string
		vfstest.Unprivileged(t, ".", func() {
			code, stdout, stderr = cli(t, "savepoint", "list", "--dir", ".")
			_, asJSON, _ = cli(t, "savepoint", "list", "--dir", ".", "--output", "json")
		})
		require.Zero(t, code, stderr)
		why := "checkpoint " + second + ": savepoint " + second + "/_metadata cannot be read: permission denied; give the user who runs this (uid "
		require.Contains(t, stdout, "\nunreadable: "+why)
		require.NotContains(t, stdout, "damaged: ")
		require.Contains(t, stdout, first)
		require.Contains(t, stdout, third)
		var list struct{ Savepoints []admin.SavepointInfo }
		require.NoError(t, json.Unmarshal([]byte(asJSON), &list))
		require.Len(t, list.Savepoints, 3)
		for _, s := range list.Savepoints {
			require.Equal(t, filepath.Base(s.Path) == second, s.Unreadable)
			require.Equal(t, s.Unreadable, s.Damage != "")
		}
		require.NoError(t, os.Chmod(place, mode))
	}
	code, stdout, stderr := cli(t, "savepoint", "list", "--dir", ".")
	require.Zero(t, code, stderr)
	require.NotContains(t, stdout, "unreadable")
}
