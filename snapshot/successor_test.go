package snapshot

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// TestCleanOfAReplacedProcessSparesItsSuccessor: a process is stopped (SIGSTOP, a frozen node) right after its commit,
// another one with the same instance id takes its place, commits a checkpoint and merges a chain. Then the first one
// goes on and cleans up, before it learns that it was replaced. The merged run is named by no root yet and not newer
// than the newest committed checkpoint; only the successor knows of it, and is about to commit a root that names it.
func TestCleanOfAReplacedProcessSparesItsSuccessor(t *testing.T) {
	m := vfs.NewMem()
	first := openRepo(t, m, "i-0")
	var prev *RootRef
	root := &Root{}
	for id := 1; id <= 3; id++ {
		ref, next := mustCheckpoint(t, first, id, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val("x")}})
		require.NoError(t, first.MarkCommitted(ctx, ref))
		prev, root = &ref, next
	}
	stopped := *prev

	second := openRepo(t, m, "i-0")
	ref, next := mustCheckpoint(t, second, 4, 2, prev, root, map[element.TaskID]change{taskA: {"totals/acc|b": val("y")}})
	require.NoError(t, second.MarkCommitted(ctx, ref))
	full, err := second.Merge(ctx, ref.Name, next.Tasks[0])
	require.NoError(t, err)

	rep, err := first.Clean(ctx, []RootRef{stopped}, says(stopped))
	require.NoError(t, err)
	require.NotEmpty(t, rep.Retained)

	next.Tasks[0].Runs = []RunRef{full}
	ref, next = mustCheckpoint(t, second, 5, 2, &ref, next, map[element.TaskID]change{taskA: {"totals/acc|c": val("z")}})
	require.NoError(t, second.MarkCommitted(ctx, ref))
	got := 0
	_, err = second.Restore(ctx, next.Tasks[0], nil, func(Entry) error { got++; return nil })
	require.NoError(t, err, "the committed checkpoint opens")
	require.Equal(t, 3, got, "a and b of the merged run, c of the one after it")

	// The next process knows all of them as its predecessors, and forgets none.
	third := openRepo(t, m, "i-0")
	ref, next = mustCheckpoint(t, third, 6, 3, &ref, next, map[element.TaskID]change{taskA: {"totals/acc|d": val("z")}})
	require.NoError(t, third.MarkCommitted(ctx, ref))
	rep, err = third.Clean(ctx, []RootRef{ref}, says(ref))
	require.NoError(t, err)
	require.Len(t, rep.Retained, 3)
	require.NotZero(t, rep.Deleted, "what the first left goes")
	_, err = third.Verify(ctx, next.Tasks[0])
	require.NoError(t, err)
}

// TestSweepOfAReplacedProcessSparesItsSuccessor: the same, with the successor in the middle of writing a file. That it
// fails would cost the successor an attempt.
func TestSweepOfAReplacedProcessSparesItsSuccessor(t *testing.T) {
	m := vfs.NewMem()
	first := openRepo(t, m, "i-0")
	ref, _ := mustCheckpoint(t, first, 1, 1, nil, &Root{}, map[element.TaskID]change{taskA: {"totals/acc|a": val("x")}})
	require.NoError(t, first.MarkCommitted(ctx, ref))
	second := openRepo(t, m, "i-0")
	_, err := second.st.Put(ctx, "shop/i-0/chk-2-0000000000000002.data", func(w io.Writer) error {
		if _, err := w.Write([]byte("half")); err != nil {
			return err
		}
		_, err := first.Clean(ctx, []RootRef{ref}, says(ref))
		return err
	})
	require.NoError(t, err)
}

// A process whose file is removed while it writes it has not lost its directory. Who removes it takes the process for gone,
// or has taken its place; in both cases another attempt is what finds that out.
func TestAFileRemovedWhileItIsWritten(t *testing.T) {
	open := func(dir, instance string) *Repository {
		r, err := OpenRepository(ctx, Config{Dir: dir, Application: "shop", Instance: instance, NumRetained: 1})
		require.NoError(t, err)
		t.Cleanup(func() { r.Close() })
		return r
	}
	for name, remove := range map[string]func(t *testing.T, dir string){
		"by a successor": func(_ *testing.T, dir string) { open(dir, "i-0") },
		"by a cleaner, and the directory with it": func(t *testing.T, dir string) {
			old := time.Now().Add(-2 * time.Hour)
			own, err := filepath.Glob(filepath.Join(dir, "shop/i-0/*"))
			require.NoError(t, err)
			require.Len(t, own, 2, "the announcement and the temporary file")
			for _, f := range own {
				require.NoError(t, os.Chtimes(f, old, old))
			}
			_, err = open(dir, "i-1").CleanGone(ctx, GoneInput{
				Live:      func(context.Context) ([]string, error) { return []string{"i-1"}, nil },
				Committed: func(context.Context) ([]RootRef, error) { return nil, nil },
				Grace:     time.Hour, Now: time.Now(),
			})
			require.NoError(t, err)
			require.NoDirExists(t, filepath.Join(dir, "shop/i-0"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := open(dir, "i-0")
			require.NoError(t, r.Announce(ctx))
			put := func(meanwhile func()) error {
				_, err := r.st.Put(ctx, "shop/i-0/chk-1-0000000000000001.data", func(w io.Writer) error {
					meanwhile()
					_, err := w.Write(make([]byte, 300<<10))
					return err
				})
				return err
			}
			err := put(func() { remove(t, dir) })
			require.ErrorContains(t, err, "the file was removed while it was written")
			require.Equal(t, fault.Restart, fault.RecoveryOf(err))
			require.NoError(t, put(func() {}), "the next attempt's goes through")
			require.NoError(t, os.RemoveAll(dir))
			err = put(func() {})
			require.ErrorContains(t, err, "has vanished")
			require.Equal(t, fault.Stop, fault.RecoveryOf(err))
		})
	}
}
