package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// each runs a test on both implementations.
func each(t *testing.T, fn func(t *testing.T, f FS)) {
	t.Run("mem", func(t *testing.T) { fn(t, NewMem()) })
	t.Run("os", func(t *testing.T) {
		o, err := OpenOS(t.TempDir())
		require.NoError(t, err)
		t.Cleanup(func() { o.Close() })
		fn(t, o)
	})
}

func write(t *testing.T, f FS, name, content string) {
	t.Helper()
	h, err := f.Create(name)
	require.NoError(t, err)
	_, err = h.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, h.Sync())
	require.NoError(t, h.Close())
}

func read(t *testing.T, f FS, name string) string {
	t.Helper()
	h, err := f.Open(name)
	require.NoError(t, err)
	defer h.Close()
	n, err := h.Size()
	require.NoError(t, err)
	b := make([]byte, n)
	if n > 0 {
		_, err = h.ReadAt(b, 0)
		if !errors.Is(err, io.EOF) {
			require.NoError(t, err)
		}
	}
	return string(b)
}

func TestBothKeepTheSameContract(t *testing.T) {
	each(t, func(t *testing.T, f FS) {
		require.NoError(t, f.MkdirAll("a/b"))
		require.NoError(t, f.MkdirAll("a/b"))
		write(t, f, "a/b/one", "hello")
		_, err := f.Create("a/b/one")
		require.ErrorIs(t, err, fs.ErrExist)
		_, err = f.Open("a/b/two")
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = f.Create("no/such/dir")
		require.ErrorIs(t, err, fs.ErrNotExist)

		require.NoError(t, f.Link("a/b/one", "a/two"))
		require.ErrorIs(t, f.Link("a/b/one", "a/two"), fs.ErrExist)
		require.NoError(t, f.Remove("a/b/one"))
		require.ErrorIs(t, f.Remove("a/b/one"), fs.ErrNotExist)
		require.Equal(t, "hello", read(t, f, "a/two"))

		write(t, f, "a/three", "bye")
		require.NoError(t, f.Rename("a/three", "a/two"))
		require.Equal(t, "bye", read(t, f, "a/two"))
		_, err = f.Stat("a/three")
		require.ErrorIs(t, err, fs.ErrNotExist)

		list, err := f.ReadDir("a")
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), list[1].Mod, time.Minute)
		list[1].Mod = time.Time{}
		require.Equal(t, []Entry{{Name: "b", Dir: true, What: "a directory"}, {Name: "two", Size: 3, Regular: true}}, list)
		require.NoError(t, f.SyncDir("a"))
		require.Error(t, f.Remove("a"), "not empty")
		require.NoError(t, f.Remove("a/b"))
		_, err = f.Open("a")
		require.ErrorIs(t, err, fs.ErrInvalid)

		h, err := f.Open("a/two")
		require.NoError(t, err)
		b := make([]byte, 10)
		n, err := h.ReadAt(b, 1)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "ye", string(b[:n]))
		_, err = h.Write([]byte("x"))
		require.Error(t, err, "opened for reading")
		require.NoError(t, h.Close())
		require.ErrorIs(t, h.Close(), fs.ErrClosed)
	})
}

func TestNamesCannotLeaveTheRoot(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o600))
	root := filepath.Join(dir, "root")
	require.NoError(t, os.Mkdir(root, 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link")))
	require.NoError(t, os.Symlink(dir, filepath.Join(root, "up")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	o, err := OpenOS(root)
	require.NoError(t, err)
	defer o.Close()
	for _, name := range []string{"../outside", "/etc/passwd", "link", "up/outside", "a/../../outside", "", "fifo", "."} {
		_, err := o.Open(name)
		require.Error(t, err, name)
	}
	_, err = o.Create("up/new")
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(dir, "new"))
	e, err := o.Stat("link")
	require.NoError(t, err)
	require.False(t, e.Regular)
}
