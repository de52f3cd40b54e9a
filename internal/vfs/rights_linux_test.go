package vfs

import (
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// A name that cannot be looked at is listed with the reason: it must not pass for absent.
func TestANameThatCannotBeLookedAtIsListed(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.Mkdir("d", 0o755))
	require.NoError(t, os.WriteFile("d/x", nil, 0o644))
	require.NoError(t, os.Chmod("d", 0o400)) // to be listed, not searched
	defer os.Chmod("d", 0o700)
	var list []Entry
	var err error
	vfstest.Unprivileged(t, dir, func() {
		var f *OS
		if f, err = OpenOS("."); err == nil {
			defer f.Close()
			list, err = f.ReadDir("d")
		}
	})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "x", list[0].Name)
	require.ErrorIs(t, list[0].Err, fs.ErrPermission)
	require.False(t, list[0].Regular || list[0].Dir)
}
