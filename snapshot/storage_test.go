package snapshot

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// eachStorage runs a test on the real directory and on the one in memory; both must keep Storage's contract.
func eachStorage(t *testing.T, fn func(t *testing.T, st Storage)) {
	t.Run("dir", func(t *testing.T) {
		l, err := OpenLocal(filepath.Join(t.TempDir(), "sub", "dir"))
		require.NoError(t, err)
		defer l.Close()
		fn(t, l)
	})
	t.Run("mem", func(t *testing.T) { fn(t, NewLocal(vfs.NewMem(), "/mem")) })
}

func TestStorageContract(t *testing.T) {
	eachStorage(t, func(t *testing.T, st Storage) {
		info, err := st.Put(ctx, "a/b/x", writeBytes([]byte("hello")))
		require.NoError(t, err)
		require.Equal(t, FileInfo{Name: "a/b/x", Length: 5, CRC32C: crc32c([]byte("hello"))}, info)
		_, err = st.Put(ctx, "a/b/x", writeBytes([]byte("other")))
		require.ErrorIs(t, err, fs.ErrExist)
		b, err := readAll(ctx, st, "a/b/x", 5)
		require.NoError(t, err)
		require.Equal(t, "hello", string(b), "write-once")
		_, err = readAll(ctx, st, "a/b/x", 4)
		require.ErrorContains(t, err, "at most 4")
		_, err = st.Open(ctx, "a/b/none")
		require.ErrorIs(t, err, fs.ErrNotExist)

		_, err = st.Put(ctx, "top", writeBytes(nil))
		require.NoError(t, err)
		list, err := st.List(ctx, "")
		require.NoError(t, err)
		for i := range list {
			require.WithinDuration(t, time.Now(), list[i].Modified, time.Minute)
			list[i].Modified = time.Time{}
		}
		require.Equal(t, []FileInfo{{Name: "a/b/x", Length: 5}, {Name: "top"}}, list)
		list, err = st.List(ctx, "a/")
		require.NoError(t, err)
		require.Len(t, list, 1)
		list, err = st.List(ctx, "none/")
		require.NoError(t, err)
		require.Empty(t, list)

		boom := errors.New("boom")
		_, err = st.Put(ctx, "a/y", func(w io.Writer) error {
			w.Write([]byte("half"))
			return boom
		})
		require.ErrorIs(t, err, boom)
		ended, cancel := context.WithCancel(ctx)
		_, err = st.Put(ended, "a/z", func(w io.Writer) error {
			cancel()
			_, err := w.Write(make([]byte, 4*DefaultWriteBufferSize))
			return err
		})
		require.ErrorIs(t, err, context.Canceled)
		ended, cancel = context.WithCancel(ctx)
		_, err = st.Put(ended, "a/z", func(w io.Writer) error { cancel(); return nil })
		require.ErrorIs(t, err, context.Canceled)
		list, err = st.List(ctx, "a/")
		require.NoError(t, err)
		require.Len(t, list, 1, "failed puts leave nothing")

		require.NoError(t, st.Delete(ctx, "a/b/x"))
		require.ErrorIs(t, st.Delete(ctx, "a/b/x"), fs.ErrNotExist)
	})
}

func TestNamesThatAreNotNames(t *testing.T) {
	eachStorage(t, func(t *testing.T, st Storage) {
		for _, name := range []string{"", ".", "..", "/", "/etc/passwd", "../x", "a/../b", "a//b", "a/", "a/./b", "a\x00b", "a b", "é", "a\\b",
			"a/b/c/d/e", "0123456789abcdef.tmp", "a/" + strings.Repeat("n", 256), "~", "a:b", "%2e%2e/x", "a\n", "-rf*", "a/..", "...//", "C:\\x", "a/b/../../../x"} {
			_, err := st.Put(ctx, name, writeBytes(nil))
			require.ErrorIs(t, err, fs.ErrInvalid, name)
			_, err = st.Open(ctx, name)
			require.ErrorIs(t, err, fs.ErrInvalid, name)
			require.ErrorIs(t, st.Delete(ctx, name), fs.ErrInvalid, name)
			if name != "" {
				_, err = st.List(ctx, strings.TrimSuffix(name, "/")+"/..")
				require.ErrorIs(t, err, fs.ErrInvalid, name)
			}
			require.False(t, ValidName(name), name)
		}
	})
}

func TestStoreIDIsCreatedOnceByMany(t *testing.T) {
	dir := t.TempDir()
	ids := make([]string, 16)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			r, err := OpenRepository(ctx, Config{Dir: dir, Application: "shop", Instance: "i", NumRetained: 1, Logger: silent})
			if err == nil {
				ids[i] = r.StoreID()
				r.Close()
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Len(t, id, 32)
		require.Equal(t, ids[0], id)
	}
	text, err := os.ReadFile(filepath.Join(dir, storeIDFile))
	require.NoError(t, err)
	id, err := decodeStoreID(string(text))
	require.NoError(t, err)
	require.Equal(t, ids[0], id)
}

func TestUnusableDirectoryIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, file + "/below", "file://" + file} {
		_, err := OpenRepository(ctx, Config{Dir: dir, Application: "a", Instance: "b", NumRetained: 1})
		require.Equal(t, fault.CheckpointDir, fault.CodeOf(err), dir)
		require.Equal(t, fault.Stop, fault.RecoveryOf(err))
		require.ErrorContains(t, err, file)
		require.ErrorContains(t, err, "not a directory")
	}
	for _, dir := range []string{"", "s3://bucket/x", "file://rel"} {
		_, err := OpenRepository(ctx, Config{Dir: dir, Application: "a", Instance: "b", NumRetained: 1})
		require.Equal(t, fault.BadFile, fault.CodeOf(err), dir)
	}
	_, err := OpenRepository(ctx, Config{Dir: t.TempDir(), Application: "a", Instance: "b", ReadOnly: true})
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))

	m := vfs.NewMem()
	m.SetFault(func(op vfs.Op) error {
		if op.Kind == vfs.OpCreate {
			return syscall.EACCES
		}
		return nil
	})
	_, err = OpenRepository(ctx, config(m, "i-0"))
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	require.ErrorContains(t, err, "/mem")
	require.ErrorContains(t, err, "permission denied")
	require.Error(t, NewLocal(m, "/mem").probe())
}

// TestEveryFailedOperationLeavesNothing fails each file operation of a checkpoint once, in several ways.
func TestEveryFailedOperationLeavesNothing(t *testing.T) {
	changes := map[element.TaskID]change{taskA: {"totals/acc|a": val(strings.Repeat("x", 1000))}, taskB: {"totals/acc|b": val("2")}}
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS, &vfs.ShortWrite{N: 10, Err: syscall.EIO}} {
		for n := 0; ; n++ {
			m := vfs.NewMem()
			r := openRepo(t, m, "i-0")
			before := m.Ops()
			hit := vfs.Op{Number: -1}
			m.SetFault(func(op vfs.Op) error {
				if op.Number == before+n {
					hit = op
					return cause
				}
				return nil
			})
			_, _, err := checkpoint(r, nameOf(1, 1), nil, nil, changes)
			m.SetFault(nil)
			require.Zero(t, m.OpenFiles(), "%v %v", hit, cause)
			if hit.Number < 0 {
				require.NoError(t, err)
				break
			}
			if hit.Kind == vfs.OpRemove { // of the temporary name, after the file got its own: not worth a checkpoint
				require.NoError(t, err)
				continue
			}
			require.Error(t, err, "%v %v", hit, cause)
			require.Equal(t, fault.CheckpointDir, fault.CodeOf(err), "%v", err)
			want := fault.Restart
			if cause == syscall.EROFS {
				want = fault.Stop
			}
			require.Equal(t, want, fault.RecoveryOf(err), "%v", err)
			for _, f := range listAll(t, r) {
				require.NotContains(t, f, ".root", "%v %v", hit, cause)
			}
			swept, err := r.st.Sweep(ctx, "shop/i-0/")
			require.NoError(t, err)
			require.Zero(t, swept, "%v %v: a temporary file is left", hit, cause)
			_, _, err = checkpoint(r, nameOf(2, 1), nil, nil, changes)
			require.NoError(t, err, "the next one succeeds")
		}
	}
}

func TestFullDiskRestarts(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	m.SetLimit(2000)
	big := map[element.TaskID]change{taskA: {"totals/acc|a": val(strings.Repeat("x", 100000))}}
	_, _, err := checkpoint(r, nameOf(1, 1), nil, nil, big)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "/mem is full")
	require.Equal(t, fault.Restart, fault.RecoveryOf(err))
	m.SetLimit(0)
	mustCheckpoint(t, r, 2, 1, nil, nil, big)
}

func TestWithoutHardLinksNothingIsReplacedEither(t *testing.T) {
	m := vfs.NewMem()
	st := NewLocal(m, "/mem")
	m.SetFault(func(op vfs.Op) error {
		if op.Kind == vfs.OpLink {
			return syscall.EPERM
		}
		return nil
	})
	_, err := st.Put(ctx, "a/x", writeBytes([]byte("1")))
	require.NoError(t, err)
	_, err = st.Put(ctx, "a/x", writeBytes([]byte("2")))
	require.ErrorIs(t, err, fs.ErrExist)
	require.Equal(t, "1", string(readFile(t, m, "a/x")))
	n, err := st.Sweep(ctx, "a/")
	require.NoError(t, err)
	require.Zero(t, n)
}

// noLinks is a file system without hard links, which tells what it opened and what it is about to rename.
type noLinks struct {
	vfs.FS
	opened, renames func(name string)
}

func (n noLinks) Link(string, string) error { return syscall.EPERM }

func (n noLinks) Open(name string) (vfs.File, error) {
	f, err := n.FS.Open(name)
	if err == nil {
		n.opened(name)
	}
	return f, err
}

func (n noLinks) Rename(from, to string) error {
	n.renames(to)
	return n.FS.Rename(from, to)
}

// Of two first starts the second one looks while the first is about to give its id the name.
func TestWithoutHardLinksFirstStartsAgreeOnTheStoreID(t *testing.T) {
	m, none := vfs.NewMem(), func(string) {}
	sees, read := make(chan struct{}), make(chan string, 1)
	seen := sync.OnceFunc(func() { close(sees) })
	second := noLinks{FS: m, renames: none, opened: func(string) { seen() }}
	first := noLinks{FS: m, opened: none, renames: func(string) {
		go func() {
			id, err := ensureStoreID(ctx, NewLocal(second, "/mem"))
			assert.NoError(t, err)
			read <- id
		}()
		<-sees
	}}
	id, err := ensureStoreID(ctx, NewLocal(first, "/mem"))
	require.NoError(t, err)
	require.Equal(t, id, <-read)

	replaceFile(t, m, storeIDFile, nil)
	_, err = ensureStoreID(ctx, NewLocal(second, "/mem"))
	require.True(t, requireCorrupt(err, storeIDFile), "%v", err)
	require.ErrorContains(t, err, "it is empty")
}

func TestADirectoryThatVanishesIsMadeAgainOrNamed(t *testing.T) {
	dir := t.TempDir()
	r, err := OpenRepository(ctx, Config{Dir: dir, Application: "shop", Instance: "i", NumRetained: 1, Logger: silent})
	require.NoError(t, err)
	defer r.Close()
	ch := map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}}
	mustCheckpoint(t, r, 1, 1, nil, nil, ch)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "shop")))
	mustCheckpoint(t, r, 2, 1, nil, nil, ch)
	require.NoError(t, os.RemoveAll(dir))
	_, _, err = checkpoint(r, nameOf(3, 1), nil, nil, ch)
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	require.ErrorContains(t, err, dir)
}
