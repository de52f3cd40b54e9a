package snapshot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// a stands by: b has taken its task over and goes on.
func TestCleanIdleRemovesWhatTheNextOwnerHasSuperseded(t *testing.T) {
	g := newGoneBed(t)
	replaceFile(t, g.m, "shop/README.txt", []byte("ours"))
	g.live = []string{"a", "b", "c"}
	require.Zero(t, g.clean(), "it is in the group")
	require.NoError(t, g.a.Announce(ctx))

	idle := func() CleanReport {
		t.Helper()
		rep, err := g.a.CleanIdle(ctx, g.input())
		require.NoError(t, err)
		_, err = g.b.Verify(ctx, g.root.Tasks[0])
		require.NoError(t, err)
		return rep
	}
	require.Equal(t, 10, idle().Deleted, "roots and markers, also those that it has written itself last")
	require.Len(t, g.files("b"), 9, "b cleans for itself")
	g.mergeAll()
	require.Zero(t, idle().Deleted, "no root tells of the runs: they wait for the grace")
	g.now = g.now.Add(time.Hour + time.Second)
	require.Equal(t, 5, idle().Deleted)
	require.Equal(t, []string{"shop/a/instance"}, g.files("a"), "it stays known")
	require.Contains(t, listAll(t, g.c), "shop/README.txt")

	// It takes the task back.
	g.prev, g.root = commits(t, g.a, 1, int(g.prev.Name.ID)+1, int(g.prev.Name.ID)+3, g.prev, g.root, taskA)
	_, err := g.a.Verify(ctx, g.root.Tasks[0])
	require.NoError(t, err)
}

// A process that was stopped, and replaced under its name, wakes up and cleans: what its successor has committed, and what that
// one is about to commit, stays.
func TestCleanIdleOfAReplacedProcessSparesItsSuccessor(t *testing.T) {
	g := newGoneBed(t)
	next := openRepo(t, g.m, "a")
	prev, root := commits(t, next, 3, 48, 50, g.prev, g.root, taskA)
	g.handles = []RootRef{*prev}
	g.live = nil
	name := nameOf(60, 3)
	_, err := next.Persist(ctx, name, []TaskDelta{delta(taskA, counts, 50, 60, change{"totals/acc|x": val("late")})})
	require.NoError(t, err)
	before := g.files("a")
	g.now = g.now.Add(1000 * time.Hour)                           // it takes its time
	after, late := commits(t, next, 3, 51, 51, prev, root, taskA) // its commit is on the way
	_, err = g.a.CleanIdle(ctx, g.input())
	require.NoError(t, err)
	require.Contains(t, g.files("a"), "shop/a/chk-"+name.String()+".data")
	require.Less(t, len(g.files("a")), len(before), "what it has written itself goes")
	for _, r := range []*Root{root, late} {
		_, err = next.Verify(ctx, r.Tasks[0])
		require.NoError(t, err)
	}
	_, err = next.ReadRoot(ctx, *after)
	require.NoError(t, err)
}

// a has tasks of which no record comes. What b has superseded goes, and what was merged for a task that has left; what a may
// be at work on stays, however old it is.
func TestCleanIdleBesideTasksSparesWhatIsInProgress(t *testing.T) {
	g := newGoneBed(t)
	prev, root := commits(t, g.a, 1, 50, 50, nil, nil, taskB)
	g.handles = append(g.handles, *prev)
	name := nameOf(51, 1)
	refs, err := g.a.Persist(ctx, name, []TaskDelta{delta(taskB, counts, 50, 51, change{"totals/acc|x": val("late")})})
	require.NoError(t, err)
	left, err := g.a.Merge(ctx, nameOf(50, 1), g.root.Tasks[0]) // of a task that has left: the chain of b
	require.NoError(t, err)
	in := g.input()
	in.Busy = true
	in.Now = g.now.Add(1000 * time.Hour)
	rep, err := g.a.CleanIdle(ctx, in)
	require.NoError(t, err)
	require.Equal(t, 10, rep.Deleted, "roots and markers")
	require.Contains(t, g.files("a"), left.File)
	g.a.Forget(left)
	g.mergeAll()
	g.mergeAll() // what was merged fits nowhere in its chain any more
	g.handles = append(g.handles, *prev)
	in = g.input()
	in.Busy, in.Now = true, g.now.Add(1000*time.Hour)
	rep, err = g.a.CleanIdle(ctx, in)
	require.NoError(t, err)
	require.Equal(t, 6, rep.Deleted, "its runs, which b does not use any more, and what was merged")
	require.NotContains(t, g.files("a"), left.File)

	root.Name, root.Predecessor = name, prev
	root.Tasks[0].Runs = append(root.Tasks[0].Runs, refs[0].Run)
	_, err = g.a.WriteRoot(ctx, root)
	require.NoError(t, err)
	_, err = g.a.Verify(ctx, root.Tasks[0])
	require.NoError(t, err)
}

// a has committed a task's checkpoints and one that b took over, and cleaned up since: of its newest committed checkpoint nothing
// is left. What it had given up before that it is not at work on, whatever else it has.
func TestCleanIdleBesideTasksKnowsWhatItHasCommitted(t *testing.T) {
	g := newGoneBed(t)
	prev, root := commits(t, g.a, 1, 47, 47, nil, nil, taskB)
	failed := &Root{Name: nameOf(48, 1), Predecessor: prev, ClusterID: root.ClusterID, Tasks: root.Tasks}
	bad, err := g.a.WriteRoot(ctx, failed)
	require.NoError(t, err)
	taskC := element.TaskID{Source: "orders", Partition: 2}
	moved, after := commits(t, g.a, 1, 49, 49, nil, nil, taskC)
	moved, _ = commits(t, g.b, 2, 50, 53, moved, after, taskC)
	g.handles = append(g.handles, *prev, *moved)
	clean := func() {
		t.Helper()
		in := g.input()
		in.Busy = true
		_, err := g.a.CleanIdle(ctx, in)
		require.NoError(t, err)
	}
	clean()
	require.NotContains(t, g.files("a"), "shop/a/chk-"+nameOf(49, 1).String()+".root")
	require.Contains(t, g.files("a"), bad.Path, "until its grace is over")
	g.now = g.now.Add(1000 * time.Hour)
	clean()
	require.Contains(t, g.files("a"), prev.Path)
	require.NotContains(t, g.files("a"), bad.Path)
}
