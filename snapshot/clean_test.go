package snapshot

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

func TestCleanKeepsTheNewestCommitted(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	var prev *RootRef
	var root *Root
	var refs []RootRef
	for id := 1; id <= 6; id++ {
		ref, next := mustCheckpoint(t, r, id, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val(fmt.Sprint(id))}})
		require.NoError(t, r.MarkCommitted(ctx, ref))
		prev, root = &ref, next
		refs = append(refs, ref)
	}
	replaceFile(t, m, "shop/README.txt", []byte("ours"))
	replaceFile(t, m, "shop/i-0/notes.data", []byte("ours"))
	replaceFile(t, m, "shop/i-0/chk-1-1.root", []byte("not our form"))
	require.NoError(t, m.MkdirAll("shop/i-0/chk-1-0000000000000001.data.d"))

	rep, err := r.Clean(ctx, nil, says())
	require.NoError(t, err)
	require.Equal(t, []element.CheckpointName{nameOf(6, 1), nameOf(5, 1), nameOf(4, 1)}, rep.Retained)
	require.Equal(t, 6, rep.Deleted, "roots and markers of 1 to 3; their runs are in the chain")
	require.Positive(t, rep.DeletedBytes)
	for _, ref := range refs[3:] {
		root, err := r.ReadRoot(ctx, ref)
		require.NoError(t, err)
		_, err = r.Verify(ctx, root.Tasks[0])
		require.NoError(t, err)
	}
	full, err := r.Merge(ctx, nameOf(6, 1), root.Tasks[0])
	require.NoError(t, err)
	_, err = r.Clean(ctx, nil, says())
	require.NoError(t, err)
	require.Contains(t, listAll(t, r), full.File, "no root names it yet, but one will")
	root.Tasks[0].Runs = []RunRef{full}
	for id := 7; id <= 9; id++ {
		ref, next := mustCheckpoint(t, r, id, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val(fmt.Sprint(id))}})
		require.NoError(t, r.MarkCommitted(ctx, ref))
		prev, root = &ref, next
	}
	_, err = r.Clean(ctx, nil, says())
	require.NoError(t, err)
	files := listAll(t, r)
	require.Contains(t, files, full.File)
	for id := 1; id <= 6; id++ {
		require.NotContains(t, files, "shop/i-0/chk-"+nameOf(id, 1).String()+".data")
	}
	// A checkpoint in progress: its pack is there, its root is not yet.
	d := delta(taskA, counts, int(root.Tasks[0].ChainEnd()), 10, change{"totals/acc|a": val("10")})
	packs, err := r.Persist(ctx, nameOf(10, 1), []TaskDelta{d})
	require.NoError(t, err)
	_, err = r.Clean(ctx, []RootRef{*prev}, says(*prev))
	require.NoError(t, err)
	root.Name, root.Predecessor = nameOf(10, 1), prev
	root.Tasks[0].Runs = append(root.Tasks[0].Runs, packs[0].Run)
	_, err = r.WriteRoot(ctx, root)
	require.NoError(t, err)
	_, err = r.Verify(ctx, root.Tasks[0])
	require.NoError(t, err)
	// A root that would name a file which is gone is not written.
	require.NoError(t, r.st.Delete(ctx, full.File))
	root.Name = nameOf(11, 1)
	_, err = openRepo(t, m, "i-0").WriteRoot(ctx, root)
	require.True(t, requireCorrupt(err, full.File), "%v", err)

	require.Contains(t, files, "shop/README.txt")
	require.Contains(t, files, "shop/i-0/notes.data")
	require.Contains(t, files, "shop/i-0/chk-1-1.root")
	_, err = m.Stat("shop/i-0/chk-1-0000000000000001.data.d")
	require.NoError(t, err)
}

func TestCleanKeepsWhatHandlesAndOtherInstancesName(t *testing.T) {
	m := vfs.NewMem()
	a, b := openRepo(t, m, "a"), openRepo(t, m, "b")
	refA1, rootA1 := mustCheckpoint(t, a, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}, taskB: {"totals/acc|b": val("1")}})
	require.NoError(t, a.MarkCommitted(ctx, refA1))
	// taskB moves to instance b, which goes on with a's run; a goes on with taskA alone.
	onlyB := &Root{Tasks: rootA1.Tasks[1:]}
	refB2, rootB2 := mustCheckpoint(t, b, 2, 2, &refA1, onlyB, map[element.TaskID]change{taskB: {"totals/acc|b": val("2")}})
	require.NoError(t, b.MarkCommitted(ctx, refB2))
	for id := 3; id <= 4; id++ {
		prev := refB2
		refB2, rootB2 = mustCheckpoint(t, b, id, 2, &prev, rootB2, map[element.TaskID]change{taskB: {"totals/acc|b": val("2")}})
		require.NoError(t, b.MarkCommitted(ctx, refB2))
	}
	prev, root := &refA1, &Root{Tasks: rootA1.Tasks[:1]}
	for id := 2; id <= 9; id++ {
		ref, next := mustCheckpoint(t, a, id, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val(fmt.Sprint(id))}})
		require.NoError(t, a.MarkCommitted(ctx, ref))
		full, err := a.Merge(ctx, nameOf(id, 1), next.Tasks[0])
		require.NoError(t, err)
		next.Tasks[0].Runs = []RunRef{full}
		prev, root = &ref, next
		_, err = a.Clean(ctx, nil, says())
		require.NoError(t, err)
	}
	require.NotContains(t, listAll(t, a), refA1.Path)
	_, err := b.Verify(ctx, rootB2.Tasks[0])
	require.NoError(t, err, "a's first pack is in b's chain")
	_, err = b.Clean(ctx, nil, says())
	require.NoError(t, err)
	require.Contains(t, listAll(t, a), prev.Path, "b deletes nothing of a")
	// A handle names an old root of a: it stays, with all it names.
	old := listAll(t, a)
	_, err = a.Clean(ctx, []RootRef{refB2}, says(refB2))
	require.NoError(t, err)
	require.Equal(t, old, listAll(t, a))
	_, err = a.Clean(ctx, []RootRef{refA1}, says(refA1))
	require.ErrorContains(t, err, "nothing is deleted")
	require.ErrorContains(t, err, refA1.Path)
}

func TestCleanKeepsATaskThatItsNewOwnerHasNotCommittedYet(t *testing.T) {
	m := vfs.NewMem()
	a, b := openRepo(t, m, "a"), openRepo(t, m, "b")
	refA1, rootA1 := mustCheckpoint(t, a, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}, taskB: {"totals/acc|b": val("1")}})
	require.NoError(t, a.MarkCommitted(ctx, refA1))
	prev, root := &refA1, &Root{Tasks: rootA1.Tasks[:1]}
	for id := 2; id <= 9; id++ { // b restores taskB for a long time; a knows nothing of it
		ref, next := mustCheckpoint(t, a, id, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val(fmt.Sprint(id))}})
		require.NoError(t, a.MarkCommitted(ctx, ref))
		prev, root = &ref, next
		_, err := a.Clean(ctx, []RootRef{ref}, says(ref))
		require.NoError(t, err)
		got, err := b.ReadRoot(ctx, refA1)
		require.NoError(t, err)
		_, err = b.Verify(ctx, got.Tasks[1])
		require.NoError(t, err)
	}
	refB, rootB := mustCheckpoint(t, b, 2, 2, &refA1, &Root{Tasks: rootA1.Tasks[1:]}, map[element.TaskID]change{taskB: {"totals/acc|b": val("2")}})
	_, err := a.Clean(ctx, nil, says())
	require.NoError(t, err)
	require.Contains(t, listAll(t, a), refA1.Path, "b's root is not known to be committed")
	require.NoError(t, b.MarkCommitted(ctx, refB))
	for id := 3; id <= 4; id++ {
		_, err = a.Clean(ctx, nil, says())
		require.NoError(t, err)
		require.Contains(t, listAll(t, a), refA1.Path, "one of the three newest committed ones of taskB")
		prev := refB
		refB, rootB = mustCheckpoint(t, b, id, 2, &prev, rootB, map[element.TaskID]change{taskB: {"totals/acc|b": val("2")}})
		require.NoError(t, b.MarkCommitted(ctx, refB))
	}
	_, err = a.Clean(ctx, nil, says())
	require.NoError(t, err)
	require.NotContains(t, listAll(t, a), refA1.Path)
	_, err = b.Verify(ctx, rootB.Tasks[0])
	require.NoError(t, err)
}

// TestCleanKeepsARootWhoseMarkerIsMissing: the process died between commit and marker, its tasks moved, and it went
// on with another one.
func TestCleanKeepsARootWhoseMarkerIsMissing(t *testing.T) {
	m := vfs.NewMem()
	a := openRepo(t, m, "a")
	ref1, root1 := mustCheckpoint(t, a, 1, 1, nil, nil, map[element.TaskID]change{taskB: {"totals/acc|b": val("1")}})
	require.NoError(t, a.MarkCommitted(ctx, ref1))
	ref2, root2 := mustCheckpoint(t, a, 2, 1, &ref1, root1, map[element.TaskID]change{taskB: {"totals/acc|b": val("2")}})
	a = openRepo(t, m, "a")
	var prev *RootRef
	root := &Root{}
	for id := 3; id <= 9; id++ {
		ref, next := mustCheckpoint(t, a, id, 2, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val(fmt.Sprint(id))}})
		require.NoError(t, a.MarkCommitted(ctx, ref))
		prev, root = &ref, next
		_, err := a.Clean(ctx, []RootRef{ref}, says(ref))
		require.NoError(t, err)
	}
	_, err := a.ReadRoot(ctx, ref2)
	require.NoError(t, err)
	_, err = a.Verify(ctx, root2.Tasks[0])
	require.NoError(t, err)
}

func TestCleanDeletesNothingWhenARootCannotBeRead(t *testing.T) {
	for _, victim := range []string{"shop/i-0/chk-2-0000000000000001.root", "shop/i-0/chk-3-0000000000000001.committed", "shop/other/chk-1-0000000000000009.root"} {
		d := newDamaged(t)
		other := openRepo(t, d.m, "other")
		mustCheckpoint(t, other, 1, 9, nil, nil, map[element.TaskID]change{taskB: {"totals/acc|z": val("1")}})
		orphan := "shop/i-0/chk-2-0000000000000077.data"
		replaceFile(t, d.m, orphan, []byte("left by an attempt"))
		b := readFile(t, d.m, victim)
		b[len(b)/2] ^= 4
		replaceFile(t, d.m, victim, b)
		r := openRepo(t, d.m, "i-0")
		before := listAll(t, r)
		rep, err := r.Clean(ctx, nil, says())
		require.True(t, requireCorrupt(err, victim), "%s: %v", victim, err)
		require.Zero(t, rep)
		require.Equal(t, before, listAll(t, r))
		d.m.SetFault(func(op vfs.Op) error {
			if op.Name == victim {
				return syscall.EIO
			}
			return nil
		})
		_, err = r.Clean(ctx, nil, says())
		require.ErrorIs(t, err, syscall.EIO)
		d.m.SetFault(nil)
		require.Equal(t, before, listAll(t, r))
		b[len(b)/2] ^= 4
		replaceFile(t, d.m, victim, b)
		_, err = r.Clean(ctx, nil, says())
		require.NoError(t, err)
		require.NotContains(t, listAll(t, r), orphan)
	}
}

// TestC27_FailedAttemptsLeaveNoOrphans: 30 checkpoints with 3 retained; every second attempt dies at a random
// operation, by an error or by a power cut; foreign files lie beside.
func TestC27_FailedAttemptsLeaveNoOrphans(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 27))
		m := vfs.NewMem()
		r := openRepo(t, m, "i-0")
		var prev *RootRef
		root := &Root{}
		for i, id := 0, 1; i < 30; i++ {
			ch := map[element.TaskID]change{taskA: {fmt.Sprintf("totals/acc|%d", rng.IntN(20)): val(fmt.Sprint(i))}, taskB: {"totals/acc|b": val(fmt.Sprint(i))}}
			power := rng.IntN(2) == 0
			if i%2 == 1 {
				at := m.Ops() + rng.IntN(20)
				m.SetFault(func(op vfs.Op) error {
					switch {
					case op.Number < at:
						return nil
					case power:
						return vfs.ErrCrashed
					}
					return syscall.EIO
				})
			}
			ref, next, err := checkpoint(r, nameOf(id, i), prev, root, ch)
			m.SetFault(nil)
			if i%2 == 1 && power {
				m.Crash(rng.Float64(), seed)
				r = openRepo(t, m, "i-0")
				err = vfs.ErrCrashed
			}
			id++
			if err != nil {
				continue
			}
			require.NoError(t, r.MarkCommitted(ctx, ref))
			prev, root = &ref, next
			_, err = r.Clean(ctx, []RootRef{ref}, says(ref))
			require.NoError(t, err)
			replaceFile(t, m, "shop/i-0/README.txt", []byte("x"))
		}
		ch := map[element.TaskID]change{taskA: {"totals/acc|z": val("z")}, taskB: {}}
		ref, _ := mustCheckpoint(t, r, 40, 1, prev, root, ch)
		require.NoError(t, r.MarkCommitted(ctx, ref))
		rep, err := r.Clean(ctx, []RootRef{ref}, says(ref))
		require.NoError(t, err)
		require.Len(t, rep.Retained, 3)
		infos, err := r.List(ctx)
		require.NoError(t, err)
		require.Len(t, infos, 3)
		named := map[string]bool{storeIDFile: true, "shop/i-0/README.txt": true}
		for _, info := range infos {
			require.True(t, info.Committed)
			named[info.Ref.Path] = true
			named[strings.TrimSuffix(info.Ref.Path, rootSuffix)+markerSuffix] = true
			for _, e := range info.Root.Tasks {
				_, err := r.Verify(ctx, e)
				require.NoError(t, err)
				for _, run := range e.Runs {
					named[run.File] = true
				}
			}
		}
		for _, f := range listAllRaw(t, m) {
			require.True(t, named["shop/i-0/"+f], "seed %d: orphan %s", seed, f)
		}
	}
}

// TestCleanNeverTakesWhatIsNeeded drives two instances that hand a task to and fro, with aborted checkpoints, merges
// and restarts, cleaning at any moment; after each step every committed handle restores to the model.
func TestCleanNeverTakesWhatIsNeeded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := vfs.NewMem()
		repos := map[string]*Repository{"a": openRepo(t, m, "a"), "b": openRepo(t, m, "b")}
		tasks := []element.TaskID{taskA, taskB}
		owner := map[element.TaskID]string{taskA: "a", taskB: "b"}
		handle := map[element.TaskID]RootRef{}
		chain := map[element.TaskID][]RunRef{}
		want := map[element.TaskID]model{taskA: {}, taskB: {}}
		last := map[string]*RootRef{}
		next := 1
		reset := func(id element.TaskID) { // the new owner goes on from what the handle names
			chain[id] = nil
			if ref, ok := handle[id]; ok {
				root, err := repos["a"].ReadRoot(ctx, ref)
				require.NoError(rt, err)
				chain[id] = root.Task(id).Runs
			}
		}
		clean := func(r *Repository) {
			var keep []RootRef
			for _, id := range tasks { // what the caller knows of the group may be little
				if ref, ok := handle[id]; ok && rapid.Bool().Draw(rt, "known") {
					keep = append(keep, ref)
				}
			}
			_, err := r.Clean(ctx, keep, says(keep...))
			require.NoError(rt, err)
		}
		step := func(rt *rapid.T) {
			inst := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "instance")
			r := repos[inst]
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0: // a task moves
				id := rapid.SampledFrom(tasks).Draw(rt, "task")
				owner[id] = inst
				reset(id)
			case 1: // a process starts anew
				repos[inst] = openRepo(t, m, inst)
				for _, id := range tasks {
					if owner[id] == inst {
						reset(id)
					}
				}
			case 2, 3:
				clean(r)
			case 4:
				for _, id := range tasks {
					if owner[id] == inst && len(chain[id]) > 1 {
						full, err := r.Merge(ctx, nameOf(next, next), TaskEntry{Task: id, States: counts, Runs: chain[id]})
						require.NoError(rt, err)
						chain[id] = []RunRef{full}
					}
				}
				next++
			default:
				commit := rapid.IntRange(0, 3).Draw(rt, "commit") > 0
				root := &Root{Name: nameOf(next, next), Predecessor: last[inst]}
				changes := map[element.TaskID]change{}
				for _, id := range tasks {
					if owner[id] != inst {
						continue
					}
					changes[id] = change{}
					for range rapid.IntRange(0, 4).Draw(rt, "entries") {
						k := "totals/acc|" + rapid.StringMatching(`[a-c]`).Draw(rt, "key")
						if changes[id][k] = nil; rapid.Bool().Draw(rt, "put") {
							changes[id][k] = val(fmt.Sprint(next))
						}
					}
					e := TaskEntry{Task: id, States: counts, Positions: []element.Position{position(id.Partition, int64(next))}, Runs: slices.Clone(chain[id])}
					refs, err := r.Persist(ctx, nameOf(next, next*10+int(id.Partition)), []TaskDelta{delta(id, counts, int(e.ChainEnd()), next, changes[id])})
					require.NoError(rt, err)
					if !refs[0].Run.IsZero() {
						e.Runs = append(e.Runs, refs[0].Run)
					}
					root.Tasks = append(root.Tasks, e)
				}
				if rapid.IntRange(0, 3).Draw(rt, "clean") == 0 {
					clean(r)
				}
				ref, err := r.WriteRoot(ctx, root)
				require.NoError(rt, err)
				next++
				if !commit {
					return
				}
				for _, e := range root.Tasks {
					handle[e.Task] = ref
					chain[e.Task] = e.Runs
					want[e.Task].apply(changes[e.Task])
				}
				last[inst] = &ref
				if rapid.IntRange(0, 3).Draw(rt, "marker") > 0 { // else the process died before it
					require.NoError(rt, r.MarkCommitted(ctx, ref))
				}
			}
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			step(rt)
			for id, ref := range handle {
				root, err := repos["a"].ReadRoot(ctx, ref)
				require.NoError(rt, err)
				got, err := restoreModel(repos["a"], *root.Task(id))
				require.NoError(rt, err)
				require.Equal(rt, want[id].String(), got.String())
			}
		}
	})
}
