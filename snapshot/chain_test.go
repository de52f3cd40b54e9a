package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// threeRuns makes three delta runs, ending at 1, 3 and 4: checkpoint 2 changed nothing.
func threeRuns(t *testing.T, r *Repository) TaskEntry {
	ref, root := mustCheckpoint(t, r, 1, 7, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1"), "totals/acc|b": val("1")}})
	ref, root = mustCheckpoint(t, r, 2, 7, &ref, root, map[element.TaskID]change{taskA: {}})
	ref, root = mustCheckpoint(t, r, 3, 7, &ref, root, map[element.TaskID]change{taskA: {"totals/acc|a": nil, "last/seen|x": val("3")}})
	_, root = mustCheckpoint(t, r, 4, 7, &ref, root, map[element.TaskID]change{taskA: {"totals/acc|b": val("4")}})
	return *root.Task(taskA)
}

func readChain(t *testing.T, c *Chain) (out []string) {
	for i, run := range c.Runs() {
		require.NoError(t, c.Read(ctx, i, func(e Entry) error {
			out = append(out, fmt.Sprintf("%d %s|%s=%s %t", run.To, counts[e.State].Name, e.Key, e.Value, e.Deleted))
			return nil
		}))
	}
	return out
}

func TestChainGivesTheRunsAfterACheckpoint(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i1")
	entry := threeRuns(t, r)
	all := []string{"1 totals/acc|a=1 false", "1 totals/acc|b=1 false", "3 totals/acc|a= true", "3 last/seen|x=3 false", "4 totals/acc|b=4 false"}
	for after, want := range map[element.CheckpointID][]string{0: all, 1: all[2:], 3: all[4:], 4: nil, 9: nil} {
		c, err := r.OpenChain(ctx, entry, after)
		require.NoError(t, err)
		require.Equal(t, want, readChain(t, c), "after %d", after)
		c.Close()
	}
	var bad *CorruptError
	_, err := r.OpenChain(ctx, entry, 2)
	require.ErrorAs(t, err, &bad, "no run ends there")

	full, err := r.Merge(ctx, nameOf(4, 7), TaskEntry{Task: taskA, States: counts, Runs: entry.Runs[:2]})
	require.NoError(t, err)
	merged := entry
	merged.Runs = []RunRef{full, entry.Runs[2]}
	c, err := r.OpenChain(ctx, merged, 3)
	require.NoError(t, err)
	require.Equal(t, all[4:], readChain(t, c), "the full run ends where the copy stands")
	c.Close()
	_, err = r.OpenChain(ctx, merged, 1)
	require.ErrorAs(t, err, &bad, "a full run is no change")
}

func TestChainReportsWhatIsWrong(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i1")
	entry := threeRuns(t, r)
	c, err := r.OpenChain(ctx, entry, 0)
	require.NoError(t, err)
	stop := errors.New("stop")
	require.ErrorIs(t, c.Read(ctx, 0, func(Entry) error { return stop }), stop)
	c.Close()

	b := readFile(t, m, entry.Runs[1].File)
	b[len(b)/2] ^= 1
	replaceFile(t, m, entry.Runs[1].File, b)
	c, err = r.OpenChain(ctx, entry, 1)
	require.NoError(t, err)
	var bad *CorruptError
	require.ErrorAs(t, c.Read(ctx, 0, func(Entry) error { return nil }), &bad)
	c.Close()

	require.NoError(t, m.Remove(entry.Runs[2].File))
	_, err = r.OpenChain(ctx, entry, 1)
	require.ErrorAs(t, err, &bad)
	require.ErrorIs(t, err, fs.ErrNotExist)
}
