package snapshot

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// group is what CleanGone is told.
type group struct {
	live    []string
	handles []RootRef
	now     time.Time
	err     error // of Committed
	liveErr error
}

func (g *group) input() GoneInput {
	return GoneInput{
		Live:      func(context.Context) ([]string, error) { return g.live, g.liveErr },
		Committed: func(context.Context) ([]RootRef, error) { return g.handles, g.err },
		Grace:     time.Hour, Now: g.now,
	}
}

// goneBed: instance b took taskA over from a, which is gone, and committed often enough; c cleans.
type goneBed struct {
	t       *testing.T
	m       *vfs.Mem
	a, b, c *Repository
	group
	prev *RootRef // of b
	root *Root
	lost RunRef // of a, in b's chain
}

var goneStart = time.Unix(1700000000, 0)

func newGoneBed(t *testing.T) *goneBed {
	g := &goneBed{t: t, m: vfs.NewMem()}
	g.now = goneStart
	g.m.SetClock(func() time.Time { return g.now })
	g.a, g.b, g.c = openRepo(t, g.m, "a"), openRepo(t, g.m, "b"), openRepo(t, g.m, "c")
	prev, root := commits(t, g.a, 1, 40, 44, nil, nil, taskA)
	g.lost = root.Tasks[0].Runs[0]
	g.prev, g.root = commits(t, g.b, 2, 45, 47, prev, root, taskA)
	g.live, g.handles = []string{"b", "c"}, []RootRef{*g.prev}
	return g
}

func (g *goneBed) clean() CleanReport {
	g.t.Helper()
	rep, err := g.c.CleanGone(ctx, g.input())
	require.NoError(g.t, err)
	_, err = g.b.Verify(ctx, g.root.Tasks[0])
	require.NoError(g.t, err)
	return rep
}

// mergeAll makes b independent of a.
func (g *goneBed) mergeAll() {
	g.t.Helper()
	full, err := g.b.Merge(ctx, g.prev.Name, g.root.Tasks[0])
	require.NoError(g.t, err)
	g.root.Tasks[0].Runs = []RunRef{full}
	id := int(g.prev.Name.ID)
	g.prev, g.root = commits(g.t, g.b, 2, id+1, id+3, g.prev, g.root, taskA)
	g.handles = []RootRef{*g.prev}
	_, err = g.b.Clean(ctx, g.handles, says(g.handles...))
	require.NoError(g.t, err)
}

func (g *goneBed) files(instance string) (out []string) {
	for _, f := range listAll(g.t, g.c) {
		if strings.HasPrefix(f, "shop/"+instance+"/") {
			out = append(out, f)
		}
	}
	return out
}

func TestCleanGoneKeepsWhatIsInUse(t *testing.T) {
	g := newGoneBed(t)
	replaceFile(t, g.m, "shop/README.txt", []byte("ours"))
	g.live = append(g.live, "a")
	require.Zero(t, g.clean(), "nobody is gone")
	g.live = []string{"b"}
	rep := g.clean()
	require.Equal(t, 10, rep.Deleted, "roots and markers")
	require.Empty(t, rep.Gone)
	require.Positive(t, rep.KeptBytes)
	require.Len(t, g.files("a"), 5, "its runs are in b's chain")
	require.Len(t, g.files("b"), 9, "b cleans for itself")
	g.mergeAll()
	rep = g.clean()
	require.Zero(t, rep.Deleted, "no root tells of them: they wait for the grace")
	g.now = g.now.Add(time.Hour + time.Second)
	rep = g.clean()
	require.Equal(t, 5, rep.Deleted)
	require.Equal(t, []string{"a"}, rep.Gone)
	_, err := g.m.Stat("shop/a")
	require.ErrorContains(t, err, "not exist")
	require.Contains(t, listAll(t, g.c), "shop/README.txt")
	names, err := g.c.Instances(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, names)
}

// What the superseded roots themselves tell of goes with them.
func TestCleanGoneNeedsNoGraceForWhatIsSuperseded(t *testing.T) {
	g := newGoneBed(t)
	g.mergeAll()
	rep := g.clean()
	require.Equal(t, 15, rep.Deleted)
	require.Equal(t, []string{"a"}, rep.Gone)
}

func TestCleanGoneKeepsTheNewestCommittedOfEveryTask(t *testing.T) {
	g := newGoneBed(t)
	other := element.TaskID{Source: "orders", Partition: 7}
	d := openRepo(t, g.m, "d")
	commits(t, d, 4, 1, 5, nil, nil, other)
	g.now = g.now.Add(1000 * time.Hour)
	g.clean()
	infos, err := d.List(ctx)
	require.NoError(t, err)
	var kept []string
	for _, i := range infos {
		if i.Instance == "d" {
			kept = append(kept, i.Ref.Name.String())
			require.True(t, i.Committed)
			_, err := d.Verify(ctx, i.Root.Tasks[0])
			require.NoError(t, err)
		}
	}
	require.Equal(t, []string{nameOf(5, 4).String(), nameOf(4, 4).String(), nameOf(3, 4).String()}, kept, "no handle names one, and only they lead back")
}

// What an instance was writing when it went stays for the grace: a checkpoint that is not known to be committed, one
// without a root, a file that has no name yet.
func TestCleanGoneWaitsForTheGrace(t *testing.T) {
	g := newGoneBed(t)
	g.mergeAll()
	_, root := mustCheckpoint(t, g.a, 90, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|z": val("1")}})
	_, err := g.a.Persist(ctx, nameOf(91, 1), []TaskDelta{delta(taskA, counts, int(root.Tasks[0].ChainEnd()), 91, change{"totals/acc|z": val("2")})})
	require.NoError(t, err)
	temp := "shop/a/" + strings.Repeat("ab", 8) + tempSuffix
	replaceFile(t, g.m, temp, []byte("half"))
	left := []string{"shop/a/chk-" + nameOf(90, 1).String() + ".data", "shop/a/chk-" + nameOf(90, 1).String() + ".root", "shop/a/chk-" + nameOf(91, 1).String() + ".data"}
	for _, later := range []time.Duration{0, time.Hour} {
		g.now = goneStart.Add(later)
		require.Empty(t, g.clean().Gone)
		require.Equal(t, left, g.files("a"))
		_, err = g.m.Stat(temp)
		require.NoError(t, err)
	}
	g.now = goneStart.Add(time.Hour + 1)
	require.Equal(t, []string{"a"}, g.clean().Gone)
}

// Without a handle nobody knows whether it was committed.
func TestCleanGoneKeepsAnUnconfirmedCheckpointOfATaskWithoutAHandle(t *testing.T) {
	g := newGoneBed(t)
	ref, root := mustCheckpoint(t, g.a, 90, 1, nil, nil, map[element.TaskID]change{taskB: {"totals/acc|z": val("1")}})
	g.now = g.now.Add(1000 * time.Hour)
	g.clean()
	_, err := g.c.ReadRoot(ctx, ref)
	require.NoError(t, err)
	_, err = g.c.Verify(ctx, root.Tasks[0])
	require.NoError(t, err)
	g.handles = append(g.handles, ref) // it was
	g.clean()
	_, err = g.c.Verify(ctx, root.Tasks[0])
	require.NoError(t, err)
}

// A process that was thrown out of the group and is stopped keeps a merged run in memory. When it is back, and the task
// with it, the run replaces the beginning of the chain, as long as the chain has that beginning.
func TestCleanGoneKeepsAMergedRunThatStillFits(t *testing.T) {
	g := newGoneBed(t)
	full, err := g.a.Merge(ctx, nameOf(44, 1), TaskEntry{Task: taskA, States: counts, Runs: g.root.Tasks[0].Runs[:5]})
	require.NoError(t, err)
	g.now = g.now.Add(1000 * time.Hour)
	g.clean()
	require.Contains(t, g.files("a"), full.File)
	e := g.root.Tasks[0]
	e.Runs = append([]RunRef{full}, e.Runs[5:]...)
	_, err = g.a.Verify(ctx, e)
	require.NoError(t, err)
	g.mergeAll()
	g.now = g.now.Add(2 * time.Hour)
	require.Equal(t, []string{"a"}, g.clean().Gone)
}

// That a root which named it came to nothing, and is superseded, changes nothing about that.
func TestCleanGoneKeepsAMergedRunThatStillFitsWhenItsRootIsSuperseded(t *testing.T) {
	g := newGoneBed(t)
	e := g.root.Tasks[0]
	full, err := g.a.Merge(ctx, nameOf(44, 1), TaskEntry{Task: taskA, States: counts, Runs: e.Runs[:5]})
	require.NoError(t, err)
	e.Runs = []RunRef{full}
	ref, err := g.a.WriteRoot(ctx, &Root{Name: nameOf(45, 1), ClusterID: "cluster-1", Tasks: []TaskEntry{e}})
	require.NoError(t, err)
	g.clean()
	require.Contains(t, g.files("a"), full.File)
	require.NotContains(t, g.files("a"), ref.Path)
	g.mergeAll()
	g.now = g.now.Add(2 * time.Hour)
	require.Equal(t, []string{"a"}, g.clean().Gone)
}

func TestCleanGoneDeletesNothingWhenItCannotTell(t *testing.T) {
	damage := func(path string) func(*goneBed) {
		return func(g *goneBed) {
			b := readFile(t, g.m, path)
			b[len(b)/2] ^= 8
			replaceFile(t, g.m, path, b)
		}
	}
	for want, spoil := range map[string]func(*goneBed){
		"shop/a/chk-41-0000000000000001.root":      damage("shop/a/chk-41-0000000000000001.root"),
		"shop/a/chk-42-0000000000000001.committed": damage("shop/a/chk-42-0000000000000001.committed"),
		"shop/b/chk-46-0000000000000002.root":      damage("shop/b/chk-46-0000000000000002.root"),
		"shop/a/chk-44-0000000000000001.root":      func(g *goneBed) { require.NoError(t, g.m.Remove("shop/a/chk-44-0000000000000001.root")) },
		"shop/b/chk-47-0000000000000002.root": func(g *goneBed) { // without a marker: only the handle knows
			require.NoError(t, g.m.Remove(g.prev.Path))
			require.NoError(t, g.m.Remove(strings.TrimSuffix(g.prev.Path, rootSuffix)+markerSuffix))
		},
		"who is in the group": func(g *goneBed) { g.liveErr = errors.New("no coordinator") },
		"committed handles":   func(g *goneBed) { g.group.err = errors.New("unstable") },
		"input/output error": func(g *goneBed) {
			g.m.SetFault(func(op vfs.Op) error {
				if op.Kind == vfs.OpRead && strings.HasPrefix(op.Name, "shop/a/chk-44") {
					return syscall.EIO
				}
				return nil
			})
		},
	} {
		g := newGoneBed(t)
		spoil(g)
		before := listAll(t, g.c)
		rep, err := g.c.CleanGone(ctx, g.input())
		require.ErrorContains(t, err, "nothing is deleted")
		require.ErrorContains(t, err, want)
		require.Zero(t, rep)
		require.Equal(t, before, listAll(t, g.c), want)
	}
}

// Between the answer of the group and the reading, b goes on and cleans.
func TestCleanGoneAsksAgainWhenAHandleIsOvertaken(t *testing.T) {
	g := newGoneBed(t)
	asked := 0
	in := g.input()
	in.Committed = func(context.Context) ([]RootRef, error) {
		if asked++; asked > 1 {
			return g.handles, nil
		}
		g.prev, g.root = commits(t, g.b, 2, 48, 48, g.prev, g.root, taskA)
		old := *g.prev
		g.prev, g.root = commits(t, g.b, 2, 49, 52, g.prev, g.root, taskA)
		g.handles = []RootRef{*g.prev}
		_, err := g.b.Clean(ctx, g.handles, says(g.handles...))
		require.NoError(t, err)
		return []RootRef{old}, nil
	}
	rep, err := g.c.CleanGone(ctx, in)
	require.NoError(t, err)
	require.Equal(t, 3, asked, "it is listed again after an answer that names what was not known")
	require.Equal(t, 10, rep.Deleted, "five roots with their markers")
	_, err = g.b.Verify(ctx, g.root.Tasks[0])
	require.NoError(t, err)
}

// A process returns under the name while its directory is removed: at every step of its write.
func TestCleanGoneAndAProcessThatReturns(t *testing.T) {
	for _, op := range []string{"create", "link"} {
		g := newGoneBed(t)
		g.mergeAll()
		back, pause := openPaused(t, g.m, "a", 3)
		pause.at = func(o, name string) {
			if o == op && strings.HasPrefix(name, "shop/a/") {
				pause.at = nil
				rep := g.clean()
				require.Equal(t, 15, rep.Deleted)
				require.Equal(t, op == "create", len(rep.Gone) == 1)
			}
		}
		ref, root := mustCheckpoint(t, back, 51, 9, g.prev, g.root, map[element.TaskID]change{taskA: {"totals/acc|back": val("1")}})
		require.Nil(t, pause.at)
		_, err := g.c.ReadRoot(ctx, ref)
		require.NoError(t, err)
		_, err = g.c.Verify(ctx, root.Tasks[0])
		require.NoError(t, err)
	}
}

// TestC27_KilledInstancesLeaveNoOrphans: three instances, 30 checkpoints, 3 retained. The tasks move all the time; every
// second attempt dies at a random operation, its cleaning included, by an error or by a power cut; then a survivor goes
// on with all.
func TestC27_KilledInstancesLeaveNoOrphans(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 27))
		g := &goneBed{t: t, m: vfs.NewMem(), group: group{now: goneStart}}
		g.m.SetClock(func() time.Time { return g.now })
		g.c = openRepo(t, g.m, "watch")
		var prev *RootRef
		root := &Root{}
		for i := range 30 {
			inst := []string{"a", "b", "c"}[rng.IntN(3)]
			if i == 29 {
				inst = "a"
			}
			r := openRepo(t, g.m, inst)
			failing, power := i%2 == 1 && i < 29, rng.IntN(2) == 0
			if failing {
				at := g.m.Ops() + rng.IntN(60)
				g.m.SetFault(func(op vfs.Op) error {
					switch {
					case op.Number < at:
						return nil
					case power:
						return vfs.ErrCrashed
					}
					return syscall.EIO
				})
			}
			id, n := 1, 1+rng.IntN(3)
			if prev != nil {
				id = int(prev.Name.ID) + 1
			}
			if i == 29 {
				n = 4 // so that all of the others is superseded, merged runs by one
			}
			chain := root // with merged runs that this process knows of
			for range n {
				ch := map[element.TaskID]change{taskA: {fmt.Sprintf("totals/acc|%d", rng.IntN(9)): val(fmt.Sprint(i))}, taskB: {"totals/acc|b": val(fmt.Sprint(i))}}
				var ref RootRef
				var next *Root
				var err error
				if ref, next, err = checkpoint(r, nameOf(id, i+1), prev, chain, ch); err != nil {
					break
				}
				prev, root, chain = &ref, next, next // committed from here on
				id++
				if err = r.MarkCommitted(ctx, ref); err == nil && (i == 29 || rng.IntN(3) == 0) {
					var full RunRef
					if full, err = r.Merge(ctx, ref.Name, root.Tasks[0]); err == nil {
						chain = &Root{Tasks: slices.Clone(root.Tasks)}
						chain.Tasks[0].Runs = []RunRef{full}
					}
				}
				g.live, g.handles = []string{inst}, []RootRef{ref}
				if err == nil {
					_, err = r.Clean(ctx, g.handles, says(g.handles...))
				}
				if err == nil {
					_, err = r.CleanGone(ctx, g.input())
				}
				require.True(t, err == nil || failing, "seed %d: %v", seed, err)
			}
			if g.m.SetFault(nil); failing && power {
				g.m.Crash(rng.Float64(), seed)
			}
			g.now = g.now.Add(time.Duration(rng.IntN(40)) * time.Minute)
			replaceFile(t, g.m, "shop/README.txt", []byte("x"))
			g.c = openRepo(t, g.m, "watch")
			c27Whole(t, g, prev, seed)
		}
		c27Left(t, g, seed)
	}
}

// c27Whole: whatever is listed is whole, and the handle's state is there.
func c27Whole(t *testing.T, g *goneBed, handle *RootRef, seed uint64) {
	infos, err := g.c.List(ctx)
	require.NoError(t, err)
	for _, info := range infos {
		require.NoError(t, info.Err, "seed %d", seed)
		for _, e := range info.Root.Tasks {
			_, err := g.c.Verify(ctx, e)
			require.NoError(t, err, "seed %d: %s", seed, info.Ref.Path)
		}
	}
	if handle != nil {
		_, err = g.c.ReadRoot(ctx, *handle)
		require.NoError(t, err, "seed %d", seed)
	}
}

// c27Left: in the end three checkpoints are left, and what they name.
func c27Left(t *testing.T, g *goneBed, seed uint64) {
	g.now = g.now.Add(2 * time.Hour)
	a := openRepo(t, g.m, "a")
	_, err := a.Clean(ctx, g.handles, says(g.handles...))
	require.NoError(t, err)
	_, err = a.CleanGone(ctx, g.input())
	require.NoError(t, err)
	infos, err := a.List(ctx)
	require.NoError(t, err)
	require.Len(t, infos, 3, "seed %d", seed)
	named := map[string]bool{storeIDFile: true, "shop/README.txt": true}
	for _, info := range infos {
		require.True(t, info.Committed)
		named[info.Ref.Path] = true
		named[strings.TrimSuffix(info.Ref.Path, rootSuffix)+markerSuffix] = true
		for _, e := range info.Root.Tasks {
			for _, run := range e.Runs {
				named[run.File] = true
			}
		}
	}
	for _, f := range listAll(t, a) {
		require.True(t, named[f], "seed %d: orphan %s", seed, f)
	}
}
