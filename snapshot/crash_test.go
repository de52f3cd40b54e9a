package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// crashSetup makes a committed checkpoint 1 and gives what a run of checkpoint 2 (with a merge) does after it.
func crashSetup(t *testing.T, threshold int) (m *vfs.Mem, before map[element.TaskID]string, first RootRef, run func() (RootRef, error)) {
	m = vfs.NewMem()
	r := openInline(t, m, threshold)
	ref1, root1 := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{
		taskA: {"totals/acc|a": val(strings.Repeat("1", 1500)), "totals/acc|b": val("1")}, taskB: {"last/seen|x": val("1")},
	})
	require.NoError(t, r.MarkCommitted(ctx, ref1))
	return m, states(t, r, root1), ref1, func() (RootRef, error) {
		full, err := r.Merge(ctx, nameOf(2, 1), root1.Tasks[0])
		if err != nil {
			return RootRef{}, err
		}
		merged := *root1
		merged.Tasks = append([]TaskEntry(nil), root1.Tasks...)
		merged.Tasks[0].Runs = []RunRef{full}
		ref2, _, err := checkpoint(r, nameOf(2, 1), &ref1, &merged, map[element.TaskID]change{
			taskA: {"totals/acc|a": nil, "totals/acc|c": val(strings.Repeat("2", 1500))}, taskB: {"last/seen|x": val("2")},
		})
		if err != nil {
			return RootRef{}, err
		}
		return ref2, r.MarkCommitted(ctx, ref2)
	}
}

func states(t *testing.T, r *Repository, root *Root) map[element.TaskID]string {
	out := map[element.TaskID]string{}
	for _, e := range root.Tasks {
		got, err := restoreModel(r, e)
		require.NoError(t, err)
		out[e.Task] = got.String()
	}
	return out
}

// TestCrashAtEveryOperation cuts the power before each single file operation of a checkpoint, keeping none, half
// or all of what was not synced: afterwards the root is absent, or it and everything it names is complete; the
// committed checkpoint is untouched; the next start works and sweeps up.
func TestCrashAtEveryOperation(t *testing.T) {
	for name, threshold := range map[string]int{"files": 0, "files and the root": 500, "the root alone": 10_000} {
		t.Run(name, func(t *testing.T) { crashAtEveryOperation(t, threshold) })
	}
}

func crashAtEveryOperation(t *testing.T, threshold int) {
	crashes := 0
	for n := 0; ; n++ {
		finished := false
		for _, keep := range []float64{0, 0.5, 0.5, 0.5, 1} {
			for seed := range uint64(3) {
				m, before, ref1, run := crashSetup(t, threshold)
				m.CrashAt(m.Ops() + n)
				ref2, err := run()
				finished = err == nil
				if !finished {
					require.ErrorIs(t, err, vfs.ErrCrashed)
				}
				m.Crash(keep, seed*1000+uint64(n))
				crashes++
				checkAfterCrash(t, m, before, ref1, ref2, fmt.Sprintf("operation %d keep %v seed %d", n, keep, seed))
			}
		}
		if finished {
			t.Logf("%d crashes at %d operations", crashes, n)
			return
		}
	}
}

func checkAfterCrash(t *testing.T, m *vfs.Mem, before map[element.TaskID]string, ref1, ref2 RootRef, at string) {
	r := openRepo(t, m, "i-0")
	root1, err := r.ReadRoot(ctx, ref1)
	require.NoError(t, err, at)
	require.Equal(t, before, states(t, r, root1), at)

	path2 := "shop/i-0/chk-" + nameOf(2, 1).String() + rootSuffix
	root2, got, err := r.loadRoot(ctx, path2)
	if ref2.IsZero() && errors.Is(err, fs.ErrNotExist) {
		root2 = nil
	} else {
		require.NoError(t, err, at)
		if !ref2.IsZero() {
			require.Equal(t, ref2, got, at)
		}
		after := states(t, r, root2)
		require.Equal(t, "totals/acc|\"b\"=\"1\"\ntotals/acc|\"c\"=\""+strings.Repeat("2", 1500)+"\"\n", after[taskA], at)
		require.Equal(t, "last/seen|\"x\"=\"2\"\n", after[taskB], at)
	}
	infos, err := r.List(ctx)
	require.NoError(t, err, at)
	marked := false
	for _, info := range infos {
		require.NoError(t, info.Err, at)
		require.True(t, info.Committed || info.Ref.Path == path2, at)
		marked = marked || info.Committed && info.Ref.Path == path2
	}
	_, err = r.Clean(ctx, []RootRef{ref1}, says(ref1))
	require.NoError(t, err, at)
	require.Equal(t, before, states(t, r, root1), at)
	for _, f := range listAllRaw(t, m) {
		require.False(t, strings.HasSuffix(f, tempSuffix), "%s: %s", at, f)
	}
	if marked {
		return // checkpoint 2 was committed: there is no attempt to repeat
	}
	ref3, root3 := mustCheckpoint(t, r, 2, 2, &ref1, root1, map[element.TaskID]change{taskA: {"totals/acc|z": val("3")}, taskB: {}})
	require.NoError(t, r.MarkCommitted(ctx, ref3), at)
	_, err = r.Clean(ctx, []RootRef{ref3}, says(ref3))
	require.NoError(t, err, at)
	require.Contains(t, states(t, r, root3)[taskA], `"z"="3"`, at)
	for _, f := range listAll(t, r) {
		require.NotContains(t, f, nameOf(2, 1).String(), "%s: of the attempt that crashed nothing is left", at)
	}
}

func listAllRaw(t *testing.T, m *vfs.Mem) []string {
	list, err := m.ReadDir("shop/i-0")
	require.NoError(t, err)
	var out []string
	for _, e := range list {
		out = append(out, e.Name)
	}
	return out
}

func TestCrashWhileTheStoreIDIsCreated(t *testing.T) {
	for n := 0; ; n++ {
		m := vfs.NewMem()
		m.CrashAt(n)
		r, err := OpenRepository(ctx, config(m, "i-0"))
		m.Crash(0.5, uint64(n))
		again := openRepo(t, m, "i-0")
		require.Len(t, again.StoreID(), 32)
		if err == nil {
			require.Equal(t, r.StoreID(), again.StoreID())
			return
		}
	}
}
