package snapshot

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
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

	rep, err := first.Clean(ctx, []RootRef{stopped})
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
	rep, err = third.Clean(ctx, []RootRef{ref})
	require.NoError(t, err)
	require.Len(t, rep.Retained, 3)
	require.NotZero(t, rep.Deleted, "what the first left goes")
	_, err = third.Verify(ctx, next.Tasks[0])
	require.NoError(t, err)
}

// TestSweepOfAReplacedProcessSparesItsSuccessor: the same, with the successor in the middle of writing a file. That it
// fails would end the successor: its directory seems to have vanished.
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
		_, err := first.Clean(ctx, []RootRef{ref})
		return err
	})
	require.NoError(t, err)
}
