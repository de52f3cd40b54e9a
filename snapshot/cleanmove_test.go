package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// pauseFS runs a function once, before a directory is read or a file is opened, removed or linked: the process that it
// belongs to was stopped there, and the others went on.
type pauseFS struct {
	vfs.FS
	at func(op, name string) // nil: nobody
}

func (p *pauseFS) pause(op, name string) {
	if p.at != nil {
		p.at(op, name)
	}
}

func (p *pauseFS) ReadDir(dir string) ([]vfs.Entry, error) {
	p.pause("readdir", dir)
	return p.FS.ReadDir(dir)
}

func (p *pauseFS) Open(name string) (vfs.File, error) {
	p.pause("open", name)
	return p.FS.Open(name)
}

func (p *pauseFS) Create(name string) (vfs.File, error) {
	p.pause("create", name)
	return p.FS.Create(name)
}

// once sets what happens before the n-th operation of a kind on a name.
func (p *pauseFS) once(op, name string, n int, do func()) {
	p.at = func(o, at string) {
		if o != op || at != name {
			return
		}
		if n--; n == 0 {
			p.at = nil
			do()
		}
	}
}

func openPaused(t testing.TB, m *vfs.Mem, instance string, retain int) (*Repository, *pauseFS) {
	t.Helper()
	p := &pauseFS{FS: m}
	cfg := config(m, instance)
	cfg.Storage, cfg.NumRetained = NewLocal(p, "/mem"), retain
	r, err := OpenRepository(ctx, cfg)
	require.NoError(t, err)
	return r, p
}

// commits makes committed checkpoints of one task, with markers, and gives the last one.
func commits(t testing.TB, r *Repository, inc, from, to int, prev *RootRef, root *Root, task element.TaskID) (*RootRef, *Root) {
	t.Helper()
	for id := from; id <= to; id++ {
		ref, next := mustCheckpoint(t, r, id, inc, prev, root, map[element.TaskID]change{task: {"totals/acc|" + fmt.Sprint(id%4): val(fmt.Sprint(id))}})
		require.NoError(t, r.MarkCommitted(ctx, ref))
		prev, root = &ref, next
	}
	return prev, root
}

// An instance that starts again with other tasks may have ids far below those of its files. What it is writing is in
// progress all the same, and the old checkpoints do not count as its newest.
func TestCleanOfAnInstanceWhoseIDsBeginLow(t *testing.T) {
	m := vfs.NewMem()
	before := openRepo(t, m, "a")
	prevA, rootA := commits(t, before, 1, 98, 100, nil, nil, taskA)
	b := openRepo(t, m, "b")
	commits(t, b, 2, 101, 103, prevA, rootA, taskA) // taskA moves to b

	a := openRepo(t, m, "a")
	prev, root := commits(t, a, 3, 5, 5, nil, nil, taskB)
	packs, err := a.Persist(ctx, nameOf(6, 3), []TaskDelta{delta(taskB, counts, 5, 6, change{"totals/acc|b": val("6")})})
	require.NoError(t, err)
	rep, err := a.Clean(ctx, []RootRef{*prev}, says(*prev))
	require.NoError(t, err)
	require.Equal(t, []element.CheckpointName{nameOf(5, 3)}, rep.Retained, "b has three newer ones of taskA")
	require.Contains(t, listAll(t, a), packs[0].Run.File, "its root is still to be written")
	root = &Root{Name: nameOf(6, 3), Predecessor: prev, ClusterID: root.ClusterID, Tasks: slices.Clone(root.Tasks)}
	root.Tasks[0].Runs = append(slices.Clone(root.Tasks[0].Runs), packs[0].Run)
	ref, err := a.WriteRoot(ctx, root)
	require.NoError(t, err)
	require.NoError(t, a.MarkCommitted(ctx, ref))
	prev, _ = commits(t, a, 3, 7, 9, &ref, root, taskB)
	rep, err = a.Clean(ctx, []RootRef{*prev}, says(*prev))
	require.NoError(t, err)
	require.Equal(t, []element.CheckpointName{nameOf(9, 3), nameOf(8, 3), nameOf(7, 3)}, rep.Retained)
	infos, err := a.List(ctx)
	require.NoError(t, err)
	for _, info := range infos {
		require.NoError(t, info.Err, "%s", info.Ref.Path)
		_, err = a.Verify(ctx, info.Root.Tasks[0])
		require.NoError(t, err)
	}
}

// A task moves from an instance whose directory is still to be listed to one whose directory was listed already. No
// listing shows a root of it, and the cleaner's own file is in its chain.
func TestCleanSeesATaskThatMovesWhileItLists(t *testing.T) {
	for _, op := range []string{"readdir", "open"} {
		m := vfs.NewMem()
		a, _ := openPaused(t, m, "a", 1)
		b, _ := openPaused(t, m, "b", 1)
		c, _ := openPaused(t, m, "c", 1)
		prev, root := commits(t, a, 1, 1, 1, nil, nil, taskA)
		chain := root.Tasks[0].Runs[0].File
		prev, root = commits(t, c, 3, 2, 3, prev, root, taskA) // moves to c
		commits(t, b, 2, 1, 1, nil, nil, taskB)
		prevA, _ := commits(t, a, 1, 2, 3, nil, nil, element.TaskID{Source: "orders", Partition: 9})
		_, err := a.Clean(ctx, []RootRef{*prevA}, says(*prevA))
		require.NoError(t, err)
		require.Contains(t, listAll(t, a), chain)

		move := func() {
			prev, root = commits(t, b, 2, 4, 5, prev, root, taskA)                                       // moves to b
			prevC, _ := commits(t, c, 3, 6, 6, nil, nil, element.TaskID{Source: "orders", Partition: 8}) // c has others
			_, err := c.Clean(ctx, []RootRef{*prevC}, says(*prevC))
			require.NoError(t, err)
		}
		a, pause := openPaused(t, m, "a", 1)
		prevA, _ = commits(t, a, 11, 4, 4, nil, nil, element.TaskID{Source: "orders", Partition: 9})
		if op == "readdir" {
			pause.once(op, "shop/c", 1, move)
		} else { // listed, but gone when it is read
			pause.once(op, "shop/c/chk-3-0000000000000003.committed", 1, move)
		}
		_, err = a.Clean(ctx, []RootRef{*prevA}, says(*prevA))
		require.NoError(t, err)
		require.Nil(t, pause.at, "it was stopped")
		require.NotContains(t, listAll(t, a), "shop/c/chk-3-0000000000000003.root")
		_, err = b.Verify(ctx, root.Tasks[0])
		require.NoError(t, err, "%s: a's run is in b's chain", op)
	}
}

// Another instance removes checkpoints while this one looks for newer ones of its tasks. That is no lost root, and its
// own tasks start.
func TestACheckpointThatIsRemovedWhileItIsListedIsNotMissing(t *testing.T) {
	m := vfs.NewMem()
	a, pause := openPaused(t, m, "a", 3)
	b, _ := openPaused(t, m, "b", 1)
	prevA, _ := commits(t, a, 1, 1, 2, nil, nil, taskA)
	prevB, rootB := commits(t, b, 2, 500, 502, nil, nil, taskB)
	for what, list := range map[string]func() ([]RootInfo, error){
		"committed": func() ([]RootInfo, error) { return a.CommittedAfter(ctx, prevA.Name.ID) },
		"all":       func() ([]RootInfo, error) { return a.List(ctx) },
	} {
		prevB, rootB = commits(t, b, 2, int(prevB.Name.ID)+1, int(prevB.Name.ID)+2, prevB, rootB, taskB)
		gone := strings.Replace(prevB.Path, prevB.Name.String(), nameOf(int(prevB.Name.ID)-1, 2).String(), 1)
		pause.once("open", gone, 1, func() {
			_, err := b.Clean(ctx, []RootRef{*prevB}, says(*prevB))
			require.NoError(t, err)
		})
		infos, err := list()
		require.NoError(t, err)
		require.Nil(t, pause.at, "b has cleaned")
		require.NotEmpty(t, infos)
		for _, info := range infos {
			require.NoError(t, info.Err, what)
			require.NotEqual(t, gone, info.Ref.Path, what)
		}
	}
}

// Ids of other instances may lie far above. One of their checkpoints that is damaged, or lost, says nothing about a task
// whose handle leads elsewhere.
func TestADamagedCheckpointOfAnotherInstanceIsNoNewerOne(t *testing.T) {
	m := vfs.NewMem()
	a, b := openRepo(t, m, "a"), openRepo(t, m, "b")
	ref, root := commits(t, a, 1, 1, 2, nil, nil, taskA)
	other, _ := commits(t, b, 2, 500, 501, nil, nil, taskB)
	later, _ := commits(t, a, 1, 3, 3, ref, root, taskA)
	for victim, refused := range map[string]bool{other.Path: false, later.Path: true} {
		good := readFile(t, m, victim)
		replaceFile(t, m, victim, good[:len(good)/2])
		h := Handle{Kind: HandleCheckpoint, Root: *ref, Partition: 0, Offset: root.Tasks[0].Positions[0].Offset, LeaderEpoch: 2,
			ClusterID: "cluster-1", TopicID: topicID, PartitionCount: 4, StoreID: a.StoreID()}
		text, err := h.Encode()
		require.NoError(t, err)
		in := ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: a.StoreID(), States: map[string][]StateInfo{"orders": counts},
			Tasks: []TaskFacts{{Task: taskA, Inputs: []InputFacts{{TopicPartition: root.Tasks[0].Positions[0].TopicPartition, TopicID: topicID, Partitions: 4,
				Found: true, Offset: h.Offset, Metadata: text}}}}}
		in.Roots, err = a.LoadRoots(ctx, []RootRef{*ref})
		require.NoError(t, err)
		in.Listing, err = a.CommittedAfter(ctx, OldestID(in.Tasks))
		require.NoError(t, err)
		if victim == other.Path {
			in.Listing = slices.DeleteFunc(in.Listing, func(i RootInfo) bool { return i.Ref == *later }) // else it is stale
		}
		_, err = Resolve(in)
		if refused {
			require.ErrorContains(t, err, later.Path)
		} else {
			require.NoError(t, err)
		}
		replaceFile(t, m, victim, good)
	}
}

// A merged run that no root names yet lies in the directory of an instance that others took for gone. It is looked at
// before a root names it.
func TestAMergedRunThatWasRemovedIsNotCommitted(t *testing.T) {
	m := vfs.NewMem()
	a := openRepo(t, m, "a")
	prev, root := commits(t, a, 1, 1, 3, nil, nil, taskA)
	full, err := a.Merge(ctx, prev.Name, root.Tasks[0])
	require.NoError(t, err)
	require.NoError(t, m.Remove(full.File))
	next := &Root{Name: nameOf(4, 1), Predecessor: prev, Tasks: slices.Clone(root.Tasks)}
	next.Tasks[0].Runs = []RunRef{full}
	_, err = a.WriteRoot(ctx, next)
	require.True(t, requireCorrupt(err, full.File), "%v", err)
}

// Power fails at any operation of a Clean, and any part of what it removed comes back: there is no marker without its
// root, which would look like a lost one, and no root without its runs.
func TestAnInterruptedCleanLeavesNothingThatLooksLost(t *testing.T) {
	for seed := range uint64(4) {
		for n, finished := 0, false; !finished; n++ {
			m := vfs.NewMem()
			a, b := openRepo(t, m, "a"), openRepo(t, m, "b")
			prev, root := commits(t, a, 1, 100, 103, nil, nil, taskA)
			full, err := a.Merge(ctx, prev.Name, root.Tasks[0])
			require.NoError(t, err)
			root.Tasks[0].Runs = []RunRef{full}
			commits(t, b, 2, 104, 107, prev, root, taskA)
			a = openRepo(t, m, "a")
			prevA, _ := commits(t, a, 3, 7, 9, nil, nil, taskB)
			m.CrashAt(m.Ops() + n)
			_, err = a.Clean(ctx, []RootRef{*prevA}, says(*prevA))
			finished = err == nil
			m.Crash(0.5, seed*1000+uint64(n))
			infos, err := openRepo(t, m, "viewer").List(ctx)
			require.NoError(t, err)
			for _, info := range infos {
				require.NoError(t, info.Err, "operation %d, seed %d", n, seed)
				for _, e := range info.Root.Tasks {
					_, err := b.Verify(ctx, e)
					require.NoError(t, err, "operation %d, seed %d", n, seed)
				}
			}
		}
	}
}

// A root of another instance that is lost may name anything.
func TestCleanDeletesNothingWhenARootOfAnotherInstanceIsLost(t *testing.T) {
	m := vfs.NewMem()
	a, b := openRepo(t, m, "a"), openRepo(t, m, "b")
	prev, _ := commits(t, a, 1, 1, 6, nil, nil, taskA)
	lost, _ := commits(t, b, 2, 1, 2, nil, nil, taskB)
	require.NoError(t, m.Remove(lost.Path))
	before := listAll(t, a)
	_, err := a.Clean(ctx, []RootRef{*prev}, says(*prev))
	require.ErrorContains(t, err, "nothing is deleted")
	require.ErrorContains(t, err, lost.Path)
	require.True(t, errors.Is(err, fs.ErrNotExist))
	require.Equal(t, before, listAll(t, a))
}

func (p *pauseFS) Link(old, name string) error {
	p.pause("link", name)
	return p.FS.Link(old, name)
}

// A process is stopped after its commit, before or while it writes the marker. Meanwhile the task goes on elsewhere, and the
// root is superseded and removed. No marker stays that tells of a lost root.
func TestAMarkerThatComesLateDoesNotStay(t *testing.T) {
	for _, op := range []string{"open", "create", "link", "open again", "clean", "cut short"} {
		m := vfs.NewMem()
		zombie, pause := openPaused(t, m, "a", 1)
		prev, root := commits(t, zombie, 1, 1, 2, nil, nil, taskA)
		ref, root := mustCheckpoint(t, zombie, 3, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|x": val("3")}})
		marker := strings.TrimSuffix(ref.Path, rootSuffix) + markerSuffix
		a, pauseA := openPaused(t, m, "a", 1)
		b := openRepo(t, m, "b")
		cleaning, cut := context.WithCancel(ctx)
		clean := func() {
			commits(t, b, 2, 4, 6, &ref, root, taskA)
			prevA, _ := commits(t, a, 3, 1, 1, nil, nil, taskB)
			_, err := a.Clean(cleaning, []RootRef{*prevA}, says(*prevA))
			require.ErrorIs(t, err, cleaning.Err())
		}
		switch op {
		case "clean", "cut short": // the marker comes when the cleaner has decided; its attempt may be over then
			pauseA.at = func(o, name string) {
				if o == "remove" && name == ref.Path {
					pauseA.at = nil
					require.NoError(t, zombie.MarkCommitted(ctx, ref))
					if op == "cut short" {
						cut()
					}
				}
			}
			clean()
			require.Nil(t, pauseA.at)
		case "open", "open again":
			pause.once("open", ref.Path, map[string]int{"open": 1, "open again": 2}[op], clean)
			require.NoError(t, zombie.MarkCommitted(ctx, ref))
		default:
			pause.at = func(o, name string) {
				if o == op && (o == "create" || name == marker) {
					pause.at = nil
					clean()
				}
			}
			require.NoError(t, zombie.MarkCommitted(ctx, ref))
		}
		require.Nil(t, pause.at)
		files := listAll(t, b)
		require.NotContains(t, files, ref.Path, op)
		require.NotContains(t, files, marker, op)
		cut()
	}
}

func (p *pauseFS) Remove(name string) error {
	p.pause("remove", name)
	return p.FS.Remove(name)
}
