package snapshot

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// unread is what is said of handles of which one cannot be read.
func unread(refs ...RootRef) GroupRoots {
	return func(context.Context) ([]RootRef, error) {
		return refs, fmt.Errorf("%w: committed offset 7 of orders/0", ErrHandlesUnread)
	}
}

// One handle that cannot be read may name anything. What it cannot name goes: checkpoints that newer ones have superseded.
func TestOneHandleThatCannotBeReadKeepsOnlyWhatItMayName(t *testing.T) {
	g := newGoneBed(t)
	g.mergeAll()
	third := element.TaskID{Source: "orders", Partition: 5}
	open, _ := mustCheckpoint(t, g.a, 90, 1, nil, nil, map[element.TaskID]change{third: {"totals/acc|x": val("1")}}) // of no task of which a root is committed
	persistOnly(t, g.a, 91, 1, "without a root")
	g.now = g.now.Add(2 * time.Hour)
	in := g.input()
	in.Committed = unread() // not even b's handle

	rep, err := g.c.CleanGone(ctx, in)
	require.ErrorIs(t, err, ErrHandlesUnread)
	require.ErrorContains(t, err, "only what cannot be named is deleted")
	require.ErrorContains(t, err, "of orders/0")
	require.Equal(t, 15, rep.Deleted, "as without the damage")
	require.Empty(t, rep.Gone)
	left := g.files("a")
	require.Len(t, left, 3, "%v", left)
	require.Contains(t, left, open.Path)
	_, err = g.b.Verify(ctx, g.root.Tasks[0])
	require.NoError(t, err)

	in.Committed = says(*g.prev, open)
	rep, err = g.c.CleanGone(ctx, in)
	require.NoError(t, err)
	require.Equal(t, 1, rep.Deleted, "the data without a root")
}

// The newest committed checkpoint may have no marker, and be what the handle named.
func TestAHandleThatCannotBeReadMayNameARootWithoutAMarker(t *testing.T) {
	g := newGoneBed(t)
	prev, root := g.prev, g.root
	d := openRepo(t, g.m, "d")
	last, next := mustCheckpoint(t, d, 60, 9, prev, root, map[element.TaskID]change{taskA: {"totals/acc|1": val("60")}})
	g.now = g.now.Add(2 * time.Hour)
	in := g.input()
	in.Committed = unread()
	for range 2 {
		_, err := g.c.CleanGone(ctx, in)
		require.ErrorIs(t, err, ErrHandlesUnread)
	}
	whole(t, g.c, last)
	_, err := g.c.Verify(ctx, next.Tasks[0])
	require.NoError(t, err)
}

// So it is where the handle of another task of that checkpoint can be read, and names an older one of both.
func TestAHandleThatCannotBeReadBesideOneThatNamesAnOlderRoot(t *testing.T) {
	g := newGoneBed(t)
	d := openRepo(t, g.m, "d")
	moved := element.TaskID{Source: "orders", Partition: 5}
	both, root := mustCheckpoint(t, d, 50, 9, g.prev, g.root, map[element.TaskID]change{taskA: {"totals/acc|1": val("50")}, moved: {"totals/acc|2": val("50")}})
	require.NoError(t, d.MarkCommitted(ctx, both))
	last, next := mustCheckpoint(t, d, 60, 9, &both, root, map[element.TaskID]change{taskA: {"totals/acc|1": val("60")}})
	g.now = g.now.Add(2 * time.Hour)
	in := g.input()
	in.Committed = unread(both)
	for range 2 {
		_, err := g.c.CleanGone(ctx, in)
		require.ErrorIs(t, err, ErrHandlesUnread)
	}
	_, err := d.CleanIdle(ctx, in)
	require.ErrorIs(t, err, ErrHandlesUnread)
	whole(t, g.c, last)
	_, err = g.c.Verify(ctx, next.Tasks[0])
	require.NoError(t, err)
}

// The same in the directory of one that commits nothing, and for what it does behind commits.
func TestCleanIdleAndCleanBesideAHandleThatCannotBeRead(t *testing.T) {
	g := newGoneBed(t)
	g.mergeAll()
	persistOnly(t, g.a, 91, 1, "without a root")
	g.now = g.now.Add(2 * time.Hour)
	in := g.input()
	in.Committed = unread(*g.prev)
	rep, err := g.a.CleanIdle(ctx, in)
	require.ErrorIs(t, err, ErrHandlesUnread)
	require.ErrorContains(t, err, "only what cannot be named is deleted")
	require.Equal(t, 15, rep.Deleted)
	require.Len(t, g.files("a"), 1)

	last, next := mustCheckpoint(t, g.b, 70, 2, g.prev, g.root, map[element.TaskID]change{taskA: {"totals/acc|1": val("70")}})
	require.NoError(t, g.b.MarkCommitted(ctx, last))
	persistOnly(t, g.b, 69, 2, "without a root")
	rep, err = g.b.Clean(ctx, []RootRef{last}, unread(last))
	require.ErrorIs(t, err, ErrHandlesUnread)
	require.ErrorContains(t, err, "data whose own root is gone is not deleted")
	require.Positive(t, rep.Deleted)
	require.Contains(t, strings.Join(g.files("b"), " "), "chk-69-")
	_, err = g.b.Verify(ctx, next.Tasks[0])
	require.NoError(t, err)
}
