package snapshot

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// Where records may repeat, the offsets of a checkpoint go in several requests, and may be committed in part: a task that has a newer
// root which another one's handle names may stand at an older one all the same. Whoever the task moves to needs that one.
func TestCleanKeepsWhereACommitInPartHasLeftATask(t *testing.T) {
	for name, unread := range map[string]error{"": nil, "without an answer": errors.New("no answer"), "with a handle that cannot be read": ErrHandlesUnread} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			cfg := config(m, "a")
			cfg.NumRetained, cfg.Repeats = 2, true
			r, err := OpenRepository(ctx, cfg)
			require.NoError(t, err)
			both := func(value string) map[element.TaskID]change {
				return map[element.TaskID]change{taskA: {"totals/acc|a": val(value)}, taskB: {"totals/acc|b": val(value)}}
			}
			ref1, root1 := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
			require.NoError(t, r.MarkCommitted(ctx, ref1))
			ref2, root2 := mustCheckpoint(t, r, 2, 1, &ref1, root1, both("2"))
			require.NoError(t, r.MarkCommitted(ctx, ref2))
			ref3, root3 := mustCheckpoint(t, r, 3, 1, &ref2, root2, both("3")) // that of taskA only
			ref4, root4 := mustCheckpoint(t, r, 4, 1, &ref3, root3, both("4")) // likewise
			ref5, _ := mustCheckpoint(t, r, 5, 1, &ref4, root4, map[element.TaskID]change{taskA: {"totals/acc|a": val("5")}})
			require.NoError(t, r.MarkCommitted(ctx, ref5))
			_, err = r.Clean(ctx, []RootRef{ref5}, func(c context.Context) ([]RootRef, error) {
				refs, _ := says(ref5, ref2)(c)
				return refs, unread
			})
			if unread != nil {
				require.ErrorIs(t, err, unread)
			} else {
				require.NoError(t, err)
			}
			root, err := r.ReadRoot(ctx, ref2)
			require.NoError(t, err)
			_, err = r.Verify(ctx, *root.Task(taskB))
			require.NoError(t, err)
			_, err = r.ReadRoot(ctx, ref1)
			require.Equal(t, unread == nil || errors.Is(unread, ErrHandlesUnread), err != nil, "what no handle names goes: %v", err)
		})
	}
}
