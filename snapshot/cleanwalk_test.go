package snapshot

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// walkBed: instance a had taskA, its run is in the chain, its roots of it are gone. b has taskA now.
type walkBed struct {
	t     *testing.T
	m     *vfs.Mem
	a     *Repository
	pause *pauseFS
	own   *RootRef // a's newest, of another task
	task  element.TaskID
	owner string
	prev  *RootRef // of taskA
	root  *Root
	chain string // a's file in it
}

func newWalkBed(t *testing.T, others ...string) *walkBed {
	w := &walkBed{t: t, m: vfs.NewMem(), task: element.TaskID{Source: "orders", Partition: 9}, owner: "b"}
	w.a, w.pause = openPaused(t, w.m, "a", 1)
	w.prev, w.root = commits(t, w.a, 1, 1, 1, nil, nil, taskA)
	w.chain = w.root.Tasks[0].Runs[0].File
	b, _ := openPaused(t, w.m, "b", 1)
	w.prev, w.root = commits(t, b, 2, 2, 3, w.prev, w.root, taskA)
	for i, other := range others {
		commits(t, openRepo(t, w.m, other), 10+i, 1, 1, nil, nil, taskB)
	}
	w.own, _ = commits(t, w.a, 1, 2, 3, nil, nil, w.task)
	_, err := w.a.Clean(ctx, []RootRef{*w.own}, says(*w.own, *w.prev))
	require.NoError(t, err)
	files := listAll(t, w.a)
	require.Contains(t, files, w.chain)
	require.NotContains(t, files, "shop/a/chk-1-0000000000000001.root")
	return w
}

// stall stops a before it reads the directory of taskA's owner, at each of a number of listings. Another instance takes the
// task over and commits, and removes what the one before it, which is gone, has left.
func (w *walkBed) stall(times int) {
	w.pause.at = func(op, name string) {
		if times == 0 || op != "readdir" || name != "shop/"+w.owner {
			return
		}
		times--
		w.owner = fmt.Sprintf("z%d", times)
		next, _ := openPaused(w.t, w.m, w.owner, 1)
		id := int(w.prev.Name.ID)
		w.prev, w.root = commits(w.t, next, 20+id, id+1, id+2, w.prev, w.root, taskA)
		_, err := next.CleanGone(ctx, GoneInput{
			Live:      func(context.Context) ([]string, error) { return []string{"a", "aa", w.owner}, nil },
			Committed: says(*w.prev, *w.own), Grace: time.Hour, Now: time.Now(),
		})
		require.NoError(w.t, err)
	}
}

func (w *walkBed) says(context.Context) ([]RootRef, error) { return []RootRef{*w.own, *w.prev}, nil }

// A cleaner is stopped in its listings while a task moves on, and the directory that it came from goes. No listing shows a root
// of the task, and the cleaner's own file is in its chain.
func TestCleanersAskTheGroupWhoseDataItIs(t *testing.T) {
	for _, others := range [][]string{nil, {"aa"}} {
		for what, clean := range map[string]func(*walkBed, GroupRoots) (CleanReport, error){
			"Clean": func(w *walkBed, group GroupRoots) (CleanReport, error) {
				return w.a.Clean(ctx, []RootRef{*w.own}, group)
			},
			"CleanFailed": func(w *walkBed, group GroupRoots) (CleanReport, error) {
				return w.a.CleanFailed(ctx, []TaskFacts{named(t, w.a, w.task, *w.own)}, group)
			},
		} {
			w := newWalkBed(t, others...)
			w.a, w.pause = openPaused(t, w.m, "a", 1)
			w.stall(2)
			_, err := clean(w, w.says)
			require.NoError(t, err)
			require.NotEqual(t, "b", w.owner, "it was stopped")
			_, err = openRepo(t, w.m, "viewer").Verify(ctx, w.root.Tasks[0])
			require.NoError(t, err, "%s beside %v", what, others)

			w = newWalkBed(t, others...)
			w.a, w.pause = openPaused(t, w.m, "a", 1)
			w.stall(2)
			_, err = clean(w, func(context.Context) ([]RootRef, error) { return nil, errors.New("no broker") })
			require.ErrorContains(t, err, "data whose own root is gone is not deleted: the group's committed handles: no broker", what)
			require.Contains(t, listAll(t, w.a), w.chain)
		}
	}
}

// The group is asked only where something is to go of which no root tells.
func TestCleanAsksTheGroupSeldom(t *testing.T) {
	m, asked := vfs.NewMem(), 0
	r := openRepo(t, m, "a")
	var prev *RootRef
	var root *Root
	group := func(context.Context) ([]RootRef, error) { asked++; return []RootRef{*prev}, nil }
	deleted := 0
	for id := 1; id <= 30; id++ {
		prev, root = commits(t, r, 1, id, id, prev, root, taskA)
		rep, err := r.Clean(ctx, []RootRef{*prev}, group)
		require.NoError(t, err)
		deleted += rep.Deleted
		if len(root.Tasks[0].Runs) == 10 {
			full, err := r.Merge(ctx, prev.Name, root.Tasks[0])
			require.NoError(t, err)
			root.Tasks[0].Runs = []RunRef{full}
		}
	}
	require.Positive(t, asked)
	require.LessOrEqual(t, asked, 3*len(root.Tasks), "of 30, with so many merges")
	require.Greater(t, deleted, 60)
	_, err := r.Verify(ctx, root.Tasks[0])
	require.NoError(t, err)
}

// While the group cannot be asked, only data whose root is gone stays; it goes when the group answers.
func TestWhatNeedsNoQuestionGoesWhileTheGroupCannotBeAsked(t *testing.T) {
	var prev *RootRef
	for what, clean := range map[string]func(*Repository, GroupRoots) (CleanReport, error){
		"Clean": func(r *Repository, group GroupRoots) (CleanReport, error) {
			return r.Clean(ctx, []RootRef{*prev}, group)
		},
		"CleanFailed": func(r *Repository, group GroupRoots) (CleanReport, error) {
			return r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, *prev)}, group)
		},
	} {
		m := vfs.NewMem()
		r, _ := openPaused(t, m, "a", 1)
		var root *Root
		prev, root = commits(t, r, 1, 1, 2, nil, nil, taskA)
		persistOnly(t, r, 3, 2, "killed before its root")
		full, err := r.Merge(ctx, prev.Name, root.Tasks[0])
		require.NoError(t, err)
		root.Tasks[0].Runs = []RunRef{full}
		prev, _ = commits(t, r, 2, 4, 5, prev, root, taskA)

		r, _ = openPaused(t, m, "a", 1)
		blind := []string{"shop/a/chk-3-0000000000000001.data"}
		rep, err := clean(r, func(context.Context) ([]RootRef, error) { return nil, errors.New("no answer") })
		require.ErrorContains(t, err, "data whose own root is gone is not deleted: the group's committed handles: no answer", what)
		require.Equal(t, 8, rep.Deleted, "%s: roots, markers and packs of 1 and 2, root and marker of 4", what)
		kept := listAll(t, r)
		require.Subset(t, kept, blind)
		size := 0
		for _, f := range kept {
			if f != storeIDFile {
				size += len(readFile(t, m, f))
			}
		}
		require.EqualValues(t, size, rep.KeptBytes, what)
		whole(t, r, *prev)

		rep, err = clean(r, says(*prev))
		require.NoError(t, err)
		require.Equal(t, 1, rep.Deleted, what)
		require.NotContains(t, listAll(t, r), blind[0])
		whole(t, r, *prev)
	}
}

// Where roots appear faster than they are listed the group's word is enough, and without it nothing goes.
func TestCleanAsksTheGroupWhereRootsAppearTooFast(t *testing.T) {
	m := vfs.NewMem()
	a, pause := openPaused(t, m, "a", 1)
	own, _ := commits(t, a, 1, 1, 3, nil, nil, taskA)
	b := openRepo(t, m, "b")
	prev, root := commits(t, b, 2, 1, 1, nil, nil, taskB)
	pause.at = func(op, name string) {
		if op == "readdir" && name == "shop/b" {
			next := int(prev.Name.ID) + 1
			prev, root = commits(t, b, 2, next, next, prev, root, taskB)
		}
	}
	rep, err := a.Clean(ctx, []RootRef{*own}, func(context.Context) ([]RootRef, error) { return nil, errors.New("no answer") })
	require.ErrorContains(t, err, "nothing is deleted: the group's committed handles: no answer")
	require.Zero(t, rep.Deleted)
	rep, err = a.Clean(ctx, []RootRef{*own}, func(context.Context) ([]RootRef, error) { return []RootRef{*own, *prev}, nil })
	require.NoError(t, err)
	require.Equal(t, 4, rep.Deleted, "roots and markers of 1 and 2")
	whole(t, a, *own)
}
