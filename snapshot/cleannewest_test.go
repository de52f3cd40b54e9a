package snapshot

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// A checkpoint whose data was there when a cleaner listed is completed while the group's answer is on its way: its root was not read,
// and the answer does not name it. Its data is in progress all the same, as it was when it was listed.
func TestCleanSparesWhatIsCommittedBehindItsListing(t *testing.T) {
	for name, repeats := range map[string]bool{"exactly once": false, "at least once": true} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			left := openRepo(t, m, "a") // has left data without a root, for which the group is asked
			_, err := left.Persist(ctx, nameOf(2, 1), []TaskDelta{delta(taskB, counts, 0, 2, change{"totals/acc|b": val("2")})})
			require.NoError(t, err)
			cfg := config(m, "a")
			cfg.Repeats = repeats
			r, err := OpenRepository(ctx, cfg)
			require.NoError(t, err)
			prev, root := commits(t, r, 2, 1, 3, nil, nil, taskA)
			packs, err := r.Persist(ctx, nameOf(4, 2), []TaskDelta{delta(taskA, counts, 3, 4, change{"totals/acc|a": val("4")})})
			require.NoError(t, err)
			root = &Root{Name: nameOf(4, 2), Predecessor: prev, ClusterID: root.ClusterID, Tasks: []TaskEntry{*root.Task(taskA)}}
			root.Tasks[0].Runs = append(root.Tasks[0].Runs[:len(root.Tasks[0].Runs):len(root.Tasks[0].Runs)], packs[0].Run)
			asked := false
			_, err = r.Clean(ctx, []RootRef{*prev}, func(context.Context) ([]RootRef, error) {
				if !asked {
					asked = true
					ref, err := r.WriteRoot(ctx, root)
					require.NoError(t, err)
					require.NoError(t, r.MarkCommitted(ctx, ref))
				}
				return []RootRef{*prev}, nil
			})
			require.NoError(t, err)
			require.True(t, asked)
			_, err = r.Verify(ctx, root.Tasks[0])
			require.NoError(t, err)
			require.Equal(t, element.CheckpointID(4), r.newest)
		})
	}
}
