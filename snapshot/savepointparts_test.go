package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// partOf writes a part of a savepoint of a topic that has count partitions.
func partOf(t *testing.T, dir string, id int, count int32, partitions ...int32) *Savepoint {
	return partFor(t, dir, nil, id, count, partitions...)
}

// partFor is partOf for requests.
func partFor(t *testing.T, dir string, requests []string, id int, count int32, partitions ...int32) *Savepoint {
	var tasks []SavepointTask
	for _, p := range partitions {
		pos := position(p, 100)
		pos.PartitionCount = count
		tasks = append(tasks, SavepointTask{Task: element.TaskID{Source: "orders", Partition: p}, Positions: []element.Position{pos}, States: counts})
	}
	head := savepointHead(id)
	head.Requests = requests
	ref, err := WriteSavepoint(ctx, SavepointConfig{Dir: dir}, head, tasks)
	require.NoError(t, err)
	s, err := OpenSavepoint(ctx, ref.Path)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// groupOf is a group that has nothing committed, on a topic that has count partitions.
func groupOf(count int32, states ...StateInfo) ResolveInput {
	in := ResolveInput{Application: "a-fork", ClusterID: "cluster-1", StoreID: "store-1", States: map[string][]StateInfo{"orders": states}, Roots: map[RootRef]LoadedRoot{}}
	for p := range count {
		in.Tasks = append(in.Tasks, TaskFacts{Task: element.TaskID{Source: "orders", Partition: p},
			Inputs: []InputFacts{{TopicPartition: position(p, 0).TopicPartition, TopicID: topicID, Partitions: count}}})
	}
	return in
}

// A part of a savepoint is no savepoint: the partitions of the others would start without state, and be committed.
func TestAPartOfASavepointIsRefused(t *testing.T) {
	dir := t.TempDir()
	one, other := partOf(t, dir, 7, 4, 0, 2), partOf(t, dir, 8, 4, 1, 3)
	sources := map[string]string{"orders": "orders"}
	for name, tasks := range map[string]func(TaskFacts) bool{
		"all":                     func(TaskFacts) bool { return false },
		"those that it holds":     func(f TaskFacts) bool { return f.Task.Partition%2 != 0 },
		"those that it does not":  func(f TaskFacts) bool { return f.Task.Partition%2 == 0 },
		"one of those it has not": func(f TaskFacts) bool { return f.Task.Partition != 3 },
	} {
		t.Run(name, func(t *testing.T) {
			for _, again := range []bool{false, true} {
				in := groupOf(4, counts...)
				in.Tasks, in.DropStates = slices.DeleteFunc(in.Tasks, tasks), again
				_, err := ResolveFrom(in, StartInput{From: []*Savepoint{one}, Sources: sources, Again: again})
				require.Equal(t, fault.Stop, fault.RecoveryOf(err), "%v", err)
				require.Equal(t, fault.Usage, fault.CodeOf(err))
				for _, word := range []string{"partitions 1, 3 of topic orders (2 of 4)", "each with --from", one.Ref.Path, "list --dir " + filepath.Dir(one.Ref.Path), "of application my-shop and about the same time, 2023-11-14T22:13:20Z"} {
					require.ErrorContains(t, err, word)
				}
				_, err = ResolveSavepoints(in, []*Savepoint{one}, sources)
				require.ErrorContains(t, err, "is not complete")
				s, err := ResolveFrom(in, StartInput{From: []*Savepoint{other, one}, Sources: sources, Again: again})
				require.NoError(t, err)
				for _, f := range in.Tasks {
					require.Equal(t, Imported, s.Decisions[f.Task].Kind)
				}
			}
		})
	}
	_, err := ResolveFrom(groupOf(4, counts...), StartInput{From: []*Savepoint{partOf(t, dir, 9, 4, 0, 1, 2)}, Sources: sources})
	require.ErrorContains(t, err, "partition 3 of topic orders (1 of 4)")
}

// Parts of two savepoints have disjoint partitions and would make up a whole. What they were asked for tells them apart.
func TestPartsOfDifferentRequestsAreRefused(t *testing.T) {
	dir := t.TempDir()
	part := func(id int, at []int32, requests ...string) *Savepoint {
		return partFor(t, dir, requests, id, 4, at...)
	}
	even, odd := []int32{0, 2}, []int32{1, 3}
	first, second, both := part(7, even, "r1"), part(8, even, "r2"), part(9, odd, "r2", "r1")
	for _, from := range [][]*Savepoint{{first, both}, {both, second}, {first, part(10, odd, "r1")}, {part(11, even), part(12, odd)}} {
		_, err := ResolveFrom(groupOf(4, counts...), StartInput{From: from, Sources: map[string]string{"orders": "orders"}})
		require.NoError(t, err)
	}
	third, one, old := part(13, odd, "r3"), part(14, []int32{1}, "r1"), part(15, odd)
	for _, from := range [][]*Savepoint{{first, third}, {both, first, third}, {first, both, part(16, odd, "r2")}, {part(17, []int32{0}, "r1"), second, one}, {first, old}, {old, first}} {
		for name, err := range map[string]error{
			"start": func() error {
				_, err := ResolveFrom(groupOf(4, counts...), StartInput{From: from, Sources: map[string]string{"orders": "orders"}, Again: true})
				return err
			}(),
			"resolve": func() error {
				_, err := ResolveSavepoints(groupOf(4, counts...), from, map[string]string{"orders": "orders"})
				return err
			}(),
			"alone": SameRequest(from...),
		} {
			require.Equal(t, fault.Usage, fault.CodeOf(err), name)
			require.ErrorContains(t, err, "are not parts of one savepoint", name)
		}
	}
	err := SameRequest(both, first, third)
	require.ErrorContains(t, err, both.Ref.Path+" (request r1, r2) and "+third.Ref.Path+" (request r3)")
	require.ErrorContains(t, SameRequest(first, old), first.Ref.Path+" (request r1) and "+old.Ref.Path+" (of no known request)")
	require.NoError(t, SameRequest())

	copied := filepath.Join(t.TempDir(), filepath.Base(first.Ref.Path))
	require.NoError(t, os.CopyFS(copied, os.DirFS(first.Ref.Path)))
	again, err := OpenSavepoint(ctx, copied)
	require.NoError(t, err)
	defer again.Close()
	for _, twice := range [][]*Savepoint{{first, first}, {first, both, again}} {
		for _, err := range []error{SameRequest(twice...), func() error {
			_, err := ResolveFrom(groupOf(4, counts...), StartInput{From: twice, Sources: map[string]string{"orders": "orders"}})
			return err
		}()} {
			require.Equal(t, fault.Usage, fault.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, first.Ref.Path+" and "+twice[len(twice)-1].Ref.Path+" are the same: give each part once")
		}
	}

	for _, bad := range [][]string{{""}, {"a/b"}, make([]string, maxSavepoints+1)} {
		head := savepointHead(20)
		head.Requests = bad
		_, err := WriteSavepoint(ctx, SavepointConfig{Dir: dir}, head, nil)
		require.Error(t, err)
	}
	list, err := ListSavepoints(ctx, dir)
	require.NoError(t, err)
	for _, s := range list {
		require.NoError(t, s.Err)
		if s.Name == both.Root.Name {
			require.Equal(t, []string{"r1", "r2"}, s.Requests)
		}
	}
}

// A partition that was added since is in no part.
func TestAPartitionThatWasAddedSinceTheSavepointIsFresh(t *testing.T) {
	dir := t.TempDir()
	from := []*Savepoint{partOf(t, dir, 7, 4, 0, 2), partOf(t, dir, 8, 5, 1, 3, 4)} // one had taken partition 4 already
	for _, s := range from {
		for i := range s.Root.Tasks {
			s.Root.Tasks[i].States = nil // keyed state does not allow it
		}
	}
	s, err := ResolveFrom(groupOf(7), StartInput{From: from, Sources: map[string]string{"orders": "orders"}})
	require.NoError(t, err)
	for id, d := range s.Decisions {
		require.Equal(t, map[bool]DecisionKind{true: Imported, false: Fresh}[id.Partition < 5], d.Kind, "%s", id)
	}
}

// Whoever began with a part keeps what was committed: the wish is granted, and what is refused is to begin.
func TestAPartThatWasGrantedIsNotAskedForAgain(t *testing.T) {
	f := newStartsFrom(t)
	f.in.Stages, f.want.From = nil, []*Savepoint{partOf(t, t.TempDir(), 7, 3, 0, 1)}
	for i := range f.in.Tasks {
		f.in.Tasks[i].Inputs[0].Partitions = 3
	}
	for p := range int32(3) {
		f.commit(p, 500, 9, OriginOf(f.want.From)...)
	}
	require.Equal(t, map[string]DecisionKind{"orders-0": Restore, "orders-1": Restore, "orders-2": Restore}, f.kinds())
}

func TestCoverage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int32Range(0, 20).Draw(t, "count")
		parts := []*Root{{}, {}, {}}
		held := map[int32]bool{}
		for _, p := range rapid.SliceOfN(rapid.Int32Range(0, 25), 1, 20).Draw(t, "partitions") {
			pos := position(p, 1)
			pos.PartitionCount = max(count, p+1)
			r := parts[rapid.IntRange(0, 2).Draw(t, "part")]
			r.Tasks = append(r.Tasks, TaskEntry{Task: element.TaskID{Source: "orders", Partition: p}, Positions: []element.Position{pos}})
			held[p] = true
		}
		all := CoverageOf(parts...)
		require.Len(t, all, 1)
		c := all[0]
		missing := map[int32]bool{}
		for _, r := range c.Missing {
			require.LessOrEqual(t, r[0], r[1])
			for p := r[0]; p <= r[1]; p++ {
				require.False(t, missing[p])
				missing[p] = true
			}
		}
		for p := range c.Count {
			require.NotEqual(t, held[p], missing[p], "partition %d", p)
		}
		require.EqualValues(t, c.Count, int(c.Held)+len(missing))
		require.GreaterOrEqual(t, c.Count, count)
	})
}
