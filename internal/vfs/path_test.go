package vfs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// Files by their paths: what is none is named, not waited for, and nothing is made where a link leads; CreateNew takes its place.
func TestWhatIsNoFileIsNamedByItsPath(t *testing.T) {
	for _, kind := range vfstest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "file")
			if !kind.Put(t, name) {
				return
			}
			done := make(chan error, 3)
			go func() {
				_, err := OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
				done <- err
				_, err = OpenFile(name, os.O_WRONLY, 0)
				done <- err
				_, err = ReadFile(name, 10)
				done <- err
			}()
			for range cap(done) {
				select {
				case err := <-done:
					var no *NotFileError
					require.ErrorAs(t, err, &no)
					require.Equal(t, NotFileError{Name: name, What: kind.What}, *no)
				case <-time.After(5 * time.Second):
					require.Fail(t, "it blocks")
				}
			}
			require.NoFileExists(t, name+"-gone")
			if !kind.Directory() {
				for _, dir := range []string{filepath.Join(name, "x", "y"), filepath.Join(name, "x"), name} {
					err := MkdirAll(dir, 0o750)
					var no *NotDirError
					require.ErrorAs(t, err, &no)
					require.Equal(t, name, no.Name)
					require.Contains(t, err.Error(), name+" is "+kind.What)
				}
			}
			if f, err := CreateNew(name, 0o640); kind.Name == "directory with files" {
				require.Error(t, err)
			} else {
				require.NoError(t, err)
				require.NoError(t, f.Close())
				info, err := os.Lstat(name)
				require.NoError(t, err)
				require.True(t, info.Mode().IsRegular())
			}
		})
	}
}

func TestFilesByTheirPaths(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a", "b")
	_, err := OpenFile(name, os.O_RDONLY, 0)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	require.ErrorIs(t, err, os.ErrNotExist, "the directory is not there")
	require.NoError(t, MkdirAll(filepath.Dir(name), 0o750))
	require.NoError(t, MkdirAll(filepath.Dir(name), 0o750))
	for _, text := range []string{"0123456789", "x"} { // made, then opened
		f, err := OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o640)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		b, err := ReadFile(name, 10)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
	}
	_, err = OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	require.ErrorIs(t, err, os.ErrExist)
	_, err = ReadFile(name, 0)
	require.ErrorContains(t, err, "longer than 0 bytes")
}

// A name is durable when the directory that has it was synced after it was made: before anything is made below it.
func TestADirectoryThatIsMadeIsDurable(t *testing.T) {
	root := t.TempDir()
	var synced []string
	sync := func(dir string) error {
		below, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		require.NoError(t, err)
		if dir != filepath.Dir(root) {
			require.Empty(t, below, "made before the name above it is durable")
		}
		synced = append(synced, dir)
		return SyncDir(dir)
	}
	deep := filepath.Join(root, "a", "b", "c")
	require.NoError(t, mkdirAll(deep, 0o750, sync))
	require.DirExists(t, deep)
	require.Equal(t, []string{filepath.Dir(root), root, filepath.Join(root, "a"), filepath.Join(root, "a", "b")}, synced)

	synced = nil
	require.NoError(t, mkdirAll(deep, 0o750, sync))
	require.Equal(t, []string{filepath.Join(root, "a", "b")}, synced, "who made it may have been killed before the sync")

	full := func(dir string) error {
		if dir == deep {
			return syscall.ENOSPC
		}
		return nil
	}
	require.ErrorIs(t, mkdirAll(filepath.Join(deep, "d"), 0o750, full), syscall.ENOSPC)

	t.Chdir(root)
	synced = nil
	require.NoError(t, mkdirAll("x/y", 0o750, func(dir string) error { synced = append(synced, dir); return nil }))
	require.Equal(t, []string{".", ".", "x"}, synced)
}
