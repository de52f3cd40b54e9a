package snapshot

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// bigDelta gives n entries with values of 1 KiB without holding them.
func bigDelta(n int, from, to element.CheckpointID) TaskDelta {
	return TaskDelta{Task: taskA, States: counts[:1], From: from, To: to, Len: n, Entries: func(yield func(Entry) bool) {
		value := []byte(strings.Repeat("v", 1024))
		for i := range n {
			if !yield(Entry{Key: fmt.Appendf(nil, "key-%08d", i), Value: value}) {
				return
			}
		}
	}}
}

func TestMemoryDoesNotGrowWithTheState(t *testing.T) {
	r, err := OpenRepository(ctx, Config{Dir: t.TempDir(), Application: "shop", Instance: "i", NumRetained: 1, Logger: silent})
	require.NoError(t, err)
	defer r.Close()
	e := TaskEntry{Task: taskA, States: counts[:1]}
	for i := 1; i <= 3; i++ {
		refs, err := r.Persist(ctx, nameOf(i, 1), []TaskDelta{bigDelta(20_000, e.ChainEnd(), element.CheckpointID(i))})
		require.NoError(t, err)
		e.Runs = append(e.Runs, refs[0].Run)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	st, err := r.Restore(ctx, e, nil, func(Entry) error { return nil })
	require.NoError(t, err)
	require.EqualValues(t, 60_000, st.DeltaEntries)
	require.Greater(t, st.DeltaBytes, int64(60_000*1024))
	full, err := r.Merge(ctx, nameOf(4, 1), e)
	require.NoError(t, err)
	require.EqualValues(t, 20_000, full.Entries)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20), "for 120 MiB read and 20 MiB written")
}

func TestSizesAreCheckedBeforeAnythingIsAllocated(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	_, root := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}})
	for what, change := range map[string]func(*RunRef){
		"file size":        func(r *RunRef) { r.FileSize = 1 << 60; r.Length = 1 << 59 },
		"length":           func(r *RunRef) { r.Length = 1 << 60 },
		"offset":           func(r *RunRef) { r.Offset = 1 << 62 },
		"negative":         func(r *RunRef) { r.Offset = -1 },
		"negative length":  func(r *RunRef) { r.Length = -1 },
		"another file":     func(r *RunRef) { r.File = "../../etc/passwd" },
		"entries":          func(r *RunRef) { r.Entries = 1 << 60 },
		"interval":         func(r *RunRef) { r.To = 2 },
		"digest":           func(r *RunRef) { r.Digest[0]++ },
		"checksum":         func(r *RunRef) { r.CRC++ },
		"full":             func(r *RunRef) { r.Full = true },
		"shorter":          func(r *RunRef) { r.Length-- },
		"one byte further": func(r *RunRef) { r.Offset++; r.Length-- },
	} {
		e := root.Tasks[0]
		ref := e.Runs[0]
		change(&ref)
		e.Runs = []RunRef{ref}
		var err error
		bounded(t, readBuffer, func() { _, err = r.Verify(ctx, e) })
		var c *CorruptError
		require.ErrorAs(t, err, &c, what)
		_, err = r.Merge(ctx, nameOf(2, 1), e)
		require.ErrorAs(t, err, &c, what)
	}
	require.Zero(t, m.OpenFiles())
}

func TestCancellationReleasesFiles(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	refs, err := r.Persist(ctx, nameOf(1, 1), []TaskDelta{bigDelta(2000, 0, 1)})
	require.NoError(t, err)
	e := TaskEntry{Task: taskA, States: counts[:1], Runs: []RunRef{refs[0].Run}}
	files := listAllRaw(t, m)

	ended, cancel := context.WithCancel(ctx)
	n := 0
	_, err = r.Restore(ended, e, nil, func(Entry) error {
		if n++; n == 5 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, n, 2000)
	_, err = r.Merge(ended, nameOf(1, 1), e)
	require.ErrorIs(t, err, context.Canceled)

	for at := range 3 { // while writing, in the middle, at the end
		ended, cancel = context.WithCancel(ctx)
		d := bigDelta(2000, 1, 2)
		src := d.Entries
		d.Entries = func(yield func(Entry) bool) {
			n := 0
			src(func(en Entry) bool {
				if n++; n == 1+at*999 {
					cancel()
				}
				return yield(en)
			})
		}
		_, err = r.Persist(ended, nameOf(2, 1), []TaskDelta{d})
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err = r.WriteRoot(ended, &Root{Name: nameOf(2, 1)})
	require.ErrorIs(t, err, context.Canceled)
	_, err = r.Clean(ended, nil, says())
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, m.OpenFiles())
	require.Equal(t, files, listAllRaw(t, m))
}

// TestCleanBesideCheckpointsAndMerges works on a real directory: nothing that is needed goes, and no file stays open.
func TestCleanBesideCheckpointsAndMerges(t *testing.T) {
	r, err := OpenRepository(ctx, Config{Dir: t.TempDir(), Application: "shop", Instance: "i", NumRetained: 1, Logger: silent})
	require.NoError(t, err)
	defer r.Close()
	open := openFDs(t)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := r.Clean(ctx, nil, says()); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var prev *RootRef
	root := &Root{}
	want := model{}
	for id := 1; id <= 40; id++ {
		ch := change{fmt.Sprintf("totals/acc|%d", id%7): val(fmt.Sprint(id))}
		want.apply(ch)
		ref, next := mustCheckpoint(t, r, id, 1, prev, root, map[element.TaskID]change{taskA: ch})
		require.NoError(t, r.MarkCommitted(ctx, ref))
		prev, root = &ref, next
		if id%5 == 0 {
			full, err := r.Merge(ctx, nameOf(id, 1), root.Tasks[0])
			require.NoError(t, err)
			root.Tasks[0].Runs = []RunRef{full}
		}
		got, err := restoreModel(r, root.Tasks[0])
		require.NoError(t, err)
		require.Equal(t, want.String(), got.String())
	}
	close(done)
	wg.Wait()
	require.Equal(t, open, openFDs(t))
	_, err = r.st.Open(ctx, "shop/i/none")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func openFDs(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	return len(list)
}
