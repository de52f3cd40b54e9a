package snapshot

import (
	"context"
	"io/fs"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// named gives a task's committed offset with the handle of a checkpoint; a root without a path stands for an empty start.
func named(t *testing.T, r *Repository, task element.TaskID, root RootRef) TaskFacts {
	t.Helper()
	h := Handle{Kind: HandleCheckpoint, Root: root, Partition: task.Partition, Offset: 1, LeaderEpoch: -1, ClusterID: "cluster-1", TopicID: topicID, PartitionCount: 4, StoreID: r.StoreID()}
	if root.Path == "" {
		h.Kind = HandleEmpty
	}
	text, err := h.Encode()
	require.NoError(t, err)
	return TaskFacts{Task: task, Inputs: []InputFacts{{TopicID: topicID, Found: true, Offset: 1, Metadata: text}}}
}

func both(v string) map[element.TaskID]change {
	return map[element.TaskID]change{taskA: {"totals/acc|a": val(v)}, taskB: {"totals/acc|b": val(v)}}
}

func onlyA(v string) map[element.TaskID]change {
	return map[element.TaskID]change{taskA: {"totals/acc|a": val(v)}}
}

// whole reads all that a root leads to.
func whole(t *testing.T, r *Repository, ref RootRef) {
	t.Helper()
	root, err := r.ReadRoot(ctx, ref)
	require.NoError(t, err)
	for _, e := range root.Tasks {
		_, err = r.Verify(ctx, e)
		require.NoError(t, err)
	}
}

// Only what surely failed goes: the handle of each of its tasks is known and older.
func TestCleanFailedKeepsWhatMayBeCommitted(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	second, _ := mustCheckpoint(t, r, 2, 1, &first, root, both("2"))

	for name, facts := range map[string][]TaskFacts{
		"no handle is known":                    nil,
		"no offset is committed":                {{Task: taskA, Inputs: []InputFacts{{TopicID: topicID}}}, {Task: taskB, Inputs: []InputFacts{{TopicID: topicID}}}},
		"the other task is another instance's":  {named(t, r, taskA, first)},
		"it is committed":                       {named(t, r, taskA, second), named(t, r, taskB, second)},
		"a handle that is not ours":             {named(t, r, taskA, first), {Task: taskB, Inputs: []InputFacts{{TopicID: topicID, Found: true, Metadata: "other"}}}},
		"the handle is of another topic's task": {named(t, r, taskA, first), func() TaskFacts { f := named(t, r, taskB, first); return otherTopic(t, f) }()},
	} {
		_, err := r.CleanFailed(ctx, facts, says())
		require.NoError(t, err)
		require.Contains(t, listAll(t, r), second.Path, name)
		whole(t, r, second)
		whole(t, r, first)
	}
	rep, err := r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, first), named(t, r, taskB, first)}, says(first))
	require.NoError(t, err)
	require.Equal(t, 2, rep.Deleted)
	require.NotContains(t, listAll(t, r), second.Path)
	whole(t, r, first)
}

func otherTopic(t *testing.T, f TaskFacts) TaskFacts {
	h, err := ParseHandle(f.Inputs[0].Metadata)
	require.NoError(t, err)
	h.TopicID[0]++
	f.Inputs[0].Metadata, err = h.Encode()
	require.NoError(t, err)
	return f
}

// As long as only start positions are committed, every root has failed.
func TestCleanFailedBeforeTheFirstCommit(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	start := RootRef{Name: nameOf(0, 1)}
	mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	_, err := r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, start), named(t, r, taskB, start)}, says(start))
	require.NoError(t, err)
	require.Empty(t, ours(t, r))
}

// What a start from a savepoint has left goes when the start begins again, and with nothing else: without offsets a root may be
// that of a group whose offsets expired.
func TestCleanFailedBeforeTheFirstCommitOfAStartFromASavepoint(t *testing.T) {
	from := SavepointRef{ID: "s", Path: "/s", Digest: Digest{1}}
	unknown := func(id element.TaskID) TaskFacts {
		return TaskFacts{Task: id, Inputs: []InputFacts{{TopicPartition: position(id.Partition, 0).TopicPartition, TopicID: topicID}}}
	}
	facts := []TaskFacts{unknown(taskA), unknown(taskB)}
	for name, c := range map[string]struct {
		facts  []TaskFacts
		origin []SavepointRef
		marked bool
		left   int
	}{
		"again":                             {facts, []SavepointRef{from}, false, 0},
		"without the wish":                  {facts, nil, false, 2},
		"from another one":                  {facts, []SavepointRef{{ID: "o", Path: "/o", Digest: Digest{2}}}, false, 2},
		"it was committed":                  {facts, []SavepointRef{from}, true, 3},
		"the other one is another instance": {facts[:1], []SavepointRef{from}, false, 2},
	} {
		m := vfs.NewMem()
		r := openRepo(t, m, "i-0")
		_, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
		root.Name, root.Origin = nameOf(2, 1), []SavepointRef{from}
		ref, err := r.WriteRoot(ctx, root)
		require.NoError(t, err)
		require.NoError(t, m.Remove("shop/i-0/chk-"+nameOf(1, 1).String()+rootSuffix))
		if c.marked {
			require.NoError(t, r.MarkCommitted(ctx, ref))
		}
		r = openRepo(t, m, "i-0") // the next process
		_, err = r.CleanFailed(ctx, c.facts, says(), c.origin...)
		require.NoError(t, err)
		require.Len(t, ours(t, r), c.left, name)
	}
}

// ours are the files below the instance's directory that belong to checkpoints.
func ours(t *testing.T, r *Repository) (out []string) {
	for _, name := range listAll(t, r) {
		if parseFilePath(name).kind != foreignFile {
			out = append(out, name)
		}
	}
	return out
}

// What a killed predecessor has left goes, with and without a root, and not what appears beside this process: that is of
// somebody who lives, whoever was there first.
func TestCleanFailedTakesWhatItFoundAndNothingThatCameLater(t *testing.T) {
	m := vfs.NewMem()
	old := openRepo(t, m, "i-0")
	first, root := mustCheckpoint(t, old, 1, 1, nil, nil, both("1"))
	failed, _ := mustCheckpoint(t, old, 2, 1, &first, root, both("2"))
	persistOnly(t, old, 3, 1, "3")
	merged, err := old.Merge(ctx, nameOf(2, 1), root.Tasks[0])
	require.NoError(t, err)

	r := openRepo(t, m, "i-0")
	later, _ := mustCheckpoint(t, old, 4, 1, &first, root, both("4"))
	persistOnly(t, old, 5, 1, "5")
	_, err = r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, first), named(t, r, taskB, first)}, says(first))
	require.NoError(t, err)
	left := listAll(t, r)
	require.NotContains(t, left, failed.Path)
	require.NotContains(t, left, "shop/i-0/chk-"+nameOf(2, 1).String()+".data")
	require.NotContains(t, left, "shop/i-0/chk-"+nameOf(3, 1).String()+".data")
	require.NotContains(t, left, merged.File)
	require.Contains(t, left, later.Path)
	require.Contains(t, left, "shop/i-0/chk-"+nameOf(5, 1).String()+".data")
	whole(t, r, first)
	whole(t, r, later)
}

// persistOnly writes changes that no root names.
func persistOnly(t *testing.T, r *Repository, id, from int, v string) {
	t.Helper()
	_, err := r.Persist(ctx, nameOf(id, 1), []TaskDelta{delta(taskA, counts, from, id, onlyA(v)[taskA])})
	require.NoError(t, err)
}

// A partition that moved takes its chain along: data without a root here is named by the root of its new owner.
func TestCleanFailedKeepsTheChainOfATaskThatMoved(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	other := openRepo(t, m, "i-1")
	moved := *root
	moved.Tasks = root.Tasks[:1]
	theirs, _ := mustCheckpoint(t, other, 7, 2, &first, &moved, onlyA("2"))
	mine := *root
	mine.Tasks = root.Tasks[1:]
	second, _ := mustCheckpoint(t, r, 2, 1, &first, &mine, map[element.TaskID]change{taskB: {"totals/acc|b": val("2")}})
	third, _ := mustCheckpoint(t, r, 3, 1, &second, &mine, map[element.TaskID]change{taskB: {"totals/acc|b": val("3")}})
	require.NoError(t, r.st.Delete(ctx, first.Path))
	_, err := r.CleanFailed(ctx, []TaskFacts{named(t, r, taskB, second)}, says(second))
	require.NoError(t, err)
	require.NotContains(t, listAll(t, r), third.Path)
	whole(t, r, second)
	whole(t, r, theirs)
}

// A root that is lost takes nothing with it.
func TestCleanFailedLeavesWhatBelongsToALostRoot(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	second, _ := mustCheckpoint(t, r, 2, 1, &first, root, both("2"))
	require.NoError(t, r.MarkCommitted(ctx, second))
	require.NoError(t, r.st.Delete(ctx, second.Path))
	_, err := r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, first), named(t, r, taskB, first)}, says(first))
	require.NoError(t, err)
	require.Contains(t, listAll(t, r), "shop/i-0/chk-"+nameOf(2, 1).String()+".data")
	require.Contains(t, listAll(t, r), "shop/i-0/chk-"+nameOf(2, 1).String()+".committed")
}

// Discard takes a checkpoint of this process alone, and none that is known to be committed.
func TestDiscardTakesOneCheckpointOfThisProcess(t *testing.T) {
	m := vfs.NewMem()
	old := openRepo(t, m, "i-0")
	first, root := mustCheckpoint(t, old, 1, 1, nil, nil, both("1"))
	r := openRepo(t, m, "i-0")
	second, next := mustCheckpoint(t, r, 2, 2, &first, root, both("2"))
	third, _ := mustCheckpoint(t, r, 3, 2, &second, next, both("3"))
	require.NoError(t, r.MarkCommitted(ctx, second))

	for _, name := range []element.CheckpointName{first.Name, nameOf(4, 2)} {
		rep, err := r.Discard(ctx, name)
		require.NoError(t, err)
		require.Zero(t, rep.Deleted, name)
	}
	_, err := r.Discard(ctx, second.Name)
	require.ErrorContains(t, err, "marked as committed")
	whole(t, r, third)

	blind := &failsOn{r.st, third.Path[:len(third.Path)-len(rootSuffix)] + ".committed"}
	r.st = blind
	_, err = r.Discard(ctx, third.Name)
	require.ErrorIs(t, err, syscall.EMFILE)
	require.NotContains(t, err.Error(), "marked as committed")
	r.st = blind.Storage
	whole(t, r, third)
	rep, err := r.Discard(ctx, third.Name)
	require.NoError(t, err)
	require.Equal(t, 2, rep.Deleted)
	whole(t, r, second)
	require.NotContains(t, listAll(t, r), third.Path)
}

// A root that others have superseded is what tells cleaners of other instances, who may be reading the directories right
// now, of its tasks' chains. It goes with a newer one of this instance, which tells that there is news.
func TestCleanFailedKeepsASupersededRootUntilANewerOneIsBesideIt(t *testing.T) {
	m := vfs.NewMem()
	old := openRepo(t, m, "i-0")
	first, root := mustCheckpoint(t, old, 1, 1, nil, nil, onlyA("1"))
	require.NoError(t, old.MarkCommitted(ctx, first))
	other := openRepo(t, m, "i-1")
	theirs, next := mustCheckpoint(t, other, 2, 2, &first, root, onlyA("2"))
	require.NoError(t, other.MarkCommitted(ctx, theirs))
	later, last := mustCheckpoint(t, other, 3, 2, &theirs, next, onlyA("3"))
	require.NoError(t, other.MarkCommitted(ctx, later))

	r := openRepo(t, m, "i-0")
	r.retain = 1
	_, err := r.CleanFailed(ctx, nil, says())
	require.NoError(t, err)
	require.Contains(t, listAll(t, r), first.Path)

	back, _ := mustCheckpoint(t, r, 4, 3, &later, last, onlyA("4"))
	_, err = r.CleanFailed(ctx, []TaskFacts{named(t, r, taskA, back)}, says(back))
	require.NoError(t, err)
	require.NotContains(t, listAll(t, r), first.Path)
	whole(t, r, back)
}

// onOpen calls a function before a file is opened, once.
type onOpen struct {
	Storage
	name string
	do   func()
}

func (s *onOpen) Open(ctx context.Context, name string) (Object, error) {
	if do := s.do; name == s.name && do != nil {
		s.do = nil
		do()
	}
	return s.Storage.Open(ctx, name)
}

// A checkpoint may be discarded while what a commit has left over is cleaned.
func TestCleanBesideDiscard(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	r.retain = 1
	first, root := mustCheckpoint(t, r, 1, 1, nil, nil, both("1"))
	second, next := mustCheckpoint(t, r, 2, 1, &first, root, both("2"))
	third, _ := mustCheckpoint(t, r, 3, 1, &second, next, both("3"))
	r.st = &onOpen{Storage: r.st, name: third.Path, do: func() {
		rep, err := r.Discard(ctx, third.Name)
		require.NoError(t, err)
		require.Equal(t, 2, rep.Deleted)
	}}
	rep, err := r.Clean(ctx, []RootRef{second}, says(second))
	require.NoError(t, err)
	require.Equal(t, 1, rep.Deleted)
	whole(t, r, second)
	require.NotContains(t, listAll(t, r), first.Path)
	require.NotContains(t, listAll(t, r), third.Path)
}

// failsOn cannot open one file: too many are.
type failsOn struct {
	Storage
	name string
}

func (s *failsOn) Open(ctx context.Context, name string) (Object, error) {
	if name == s.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EMFILE}
	}
	return s.Storage.Open(ctx, name)
}
