package vfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// What is no file is told as what it is, by Open, Stat and ReadDir, without waiting for it or reading from it.
func TestWhatIsNoFileIsNamedAndNeverOpened(t *testing.T) {
	dir := t.TempDir()
	f, err := OpenOS(dir)
	require.NoError(t, err)
	defer f.Close()
	for _, kind := range vfstest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			path := filepath.Join(dir, "file")
			require.NoError(t, os.WriteFile(path, []byte("good"), 0o644))
			back, ok := kind.Replace(t, path)
			if !ok {
				return
			}
			defer back()
			opened := make(chan error, 1)
			go func() { _, err := f.Open("file"); opened <- err }()
			select {
			case err := <-opened:
				var no *NotFileError
				require.ErrorAs(t, err, &no)
				require.Equal(t, NotFileError{Name: "file", What: kind.What}, *no)
				require.ErrorIs(t, err, fs.ErrInvalid)
			case <-time.After(5 * time.Second):
				require.Fail(t, "it blocks")
			}
			e, err := f.Stat("file")
			require.NoError(t, err)
			require.Equal(t, kind.What, e.What)
			require.False(t, e.Regular)
			list, err := f.ReadDir(".")
			require.NoError(t, err)
			require.Equal(t, []Entry{e}, list)
		})
	}
}

// A directory that is a link is followed within the root. One that leads out of it, or nowhere, is told of, and never absence.
func TestALinkOutOfTheRootIsNamed(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	f, err := OpenOS(dir)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	for _, at := range []string{filepath.Join(dir, "real"), outside} {
		require.NoError(t, os.WriteFile(filepath.Join(at, "x"), []byte("x"), 0o644))
	}
	for name, target := range map[string]string{"in": "real", "out": outside, "nowhere": "gone", "loop": "loop"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		h, oerr := f.Open(name + "/x")
		_, lerr := f.ReadDir(name)
		if name == "in" {
			require.NoError(t, oerr)
			require.NoError(t, lerr)
			require.NoError(t, h.Close())
			continue
		}
		errs := []error{oerr, lerr}
		if name == "out" {
			errs = append(errs, f.MkdirAll(name+"/y"))
		}
		for _, err := range errs {
			var link *LinkError
			require.ErrorAs(t, err, &link, "%s: %v", name, err)
			require.Equal(t, LinkError{Name: name, Target: target}, *link)
			require.NotErrorIs(t, err, fs.ErrNotExist)
		}
	}
	_, err = f.Open("real/none")
	require.ErrorIs(t, err, fs.ErrNotExist)
}
