package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// Where records may repeat, the checkpoint before the newest stays while a delayed copy of its commit may set the group back to
// it, also beside a newer root that is committed for another task only.
func TestCleanKeepsWhatTheNewestFollowsBesideACommitInPart(t *testing.T) {
	m := vfs.NewMem()
	other, err := OpenRepository(ctx, config(m, "b"))
	require.NoError(t, err)
	part, _ := mustCheckpoint(t, other, 9, 1, nil, nil, map[element.TaskID]change{ // that of taskB only
		taskA: {"totals/acc|a": val("9")}, taskB: {"totals/acc|b": val("9")},
	})
	cfg := config(m, "a")
	cfg.NumRetained, cfg.Repeats = 2, true
	r, err := OpenRepository(ctx, cfg)
	require.NoError(t, err)
	one := func(value string) map[element.TaskID]change {
		return map[element.TaskID]change{taskA: {"totals/acc|a": val(value)}}
	}
	ref1, root1 := mustCheckpoint(t, r, 1, 2, nil, nil, one("1"))
	require.NoError(t, r.MarkCommitted(ctx, ref1))
	ref2, _ := mustCheckpoint(t, r, 2, 2, &ref1, root1, one("2"))
	require.NoError(t, r.MarkCommitted(ctx, ref2))
	_, err = r.Clean(ctx, []RootRef{part, ref2}, says(part, ref2))
	require.NoError(t, err)
	_, err = r.ReadRoot(ctx, ref1)
	require.NoError(t, err)
}

// Where records may repeat, what the roots with a marker follow is listed, marked or not: whether a start position is the one right
// before the newest checkpoint depends on the tasks that it has.
func TestWhatMarkedRootsFollowIsListed(t *testing.T) {
	for name, repeats := range map[string]bool{"exactly once": false, "at least once": true} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			cfg := config(m, "a")
			cfg.NumRetained, cfg.Repeats = 2, repeats
			r, err := OpenRepository(ctx, cfg)
			require.NoError(t, err)
			ref1, root1 := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}}) // not marked: killed
			ref2, _ := mustCheckpoint(t, r, 2, 1, &ref1, root1, map[element.TaskID]change{
				taskA: {"totals/acc|a": val("2")}, taskB: {"totals/acc|b": val("2")},
			})
			require.NoError(t, r.MarkCommitted(ctx, ref2))
			infos, err := r.CommittedAfter(ctx, 0)
			require.NoError(t, err)
			want := []RootRef{ref2}
			if repeats {
				want = append(want, ref1)
			}
			var got []RootRef
			for _, info := range infos {
				got = append(got, info.Ref)
				require.Equal(t, info.Ref == ref2, info.Marked)
			}
			require.Equal(t, want, got)
			infos, err = r.CommittedAfter(ctx, 1)
			require.NoError(t, err)
			require.Len(t, infos, 1)
		})
	}
}
