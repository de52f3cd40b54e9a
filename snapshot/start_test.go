package snapshot

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// startsFrom is a savepoint of application my-shop and the group of a fork, whose offsets a test sets.
type startsFrom struct {
	t    *testing.T
	in   ResolveInput
	want StartInput
}

func newStartsFrom(t *testing.T) *startsFrom {
	s, in := imported(t)
	in.StoreID, in.Roots = "store-1", map[RootRef]LoadedRoot{}
	return &startsFrom{t: t, in: in, want: StartInput{From: []*Savepoint{s}, Sources: map[string]string{"orders": "orders"}}}
}

func (f *startsFrom) savepoint() *Savepoint { return f.want.From[0] }

// commit gives a partition an offset, with a root of all tasks unless id is 0.
func (f *startsFrom) commit(p int32, offset int64, id int, origin ...SavepointRef) {
	at := position(p, offset)
	at.TopicPartition, at.PartitionCount = f.in.Tasks[p].Inputs[0].TopicPartition, f.in.Tasks[p].Inputs[0].Partitions
	h := Handle{Kind: HandleEmpty, Partition: at.Partition, Offset: offset, ClusterID: "cluster-1", TopicID: topicID, PartitionCount: at.PartitionCount, StoreID: f.in.StoreID}
	if id > 0 {
		name := nameOf(id, 5)
		h.Kind, h.Root = HandleCheckpoint, RootRef{Name: name, Path: f.in.Application + "/i-0/chk-" + name.String() + ".root", Digest: Digest{byte(id)}}
		root := f.in.Roots[h.Root].Root
		if root == nil {
			root = &Root{Name: name, ClusterID: "cluster-1", Origin: origin}
		}
		root.Tasks = append(root.Tasks, TaskEntry{Task: f.in.Tasks[p].Task, Positions: []element.Position{at}, States: f.in.States[f.in.Tasks[p].Task.Source]})
		f.in.Roots[h.Root] = LoadedRoot{Root: root}
	}
	text, err := h.Encode()
	require.NoError(f.t, err)
	i := &f.in.Tasks[p].Inputs[0]
	i.Found, i.Offset, i.Metadata = true, offset, text
}

func (f *startsFrom) kinds() map[string]DecisionKind {
	f.t.Helper()
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(f.t, err)
	out := map[string]DecisionKind{}
	for id, d := range s.Decisions {
		out[id.String()] = d.Kind
	}
	return out
}

func (f *startsFrom) refused(reason Reason, words ...string) {
	f.t.Helper()
	_, err := ResolveFrom(f.in, f.want)
	require.True(f.t, RefusalOf(err).Has(reason), "%v", err)
	for _, w := range words {
		require.ErrorContains(f.t, err, w)
	}
}

func TestAFreshGroupStartsFromTheSavepoint(t *testing.T) {
	f := newStartsFrom(t)
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Equal(t, []SavepointRef{f.savepoint().Ref}, s.Origin)
	require.Empty(t, s.Known)
	require.Empty(t, s.Moved)
	require.Equal(t, map[string]DecisionKind{"orders-0": Imported, "orders-1": Imported, "orders-2": Fresh, stageName + "-0": Imported, stageName + "-1": Imported}, f.kinds())
}

func TestTheWishToStartFromASavepointIsGrantedOnce(t *testing.T) {
	for _, again := range []bool{false, true} {
		f := newStartsFrom(t)
		f.in.Stages, f.want.Again = nil, again
		f.in.States["orders"], f.savepoint().Root.Tasks = counts, slices.DeleteFunc(slices.Clone(f.savepoint().Root.Tasks), func(e TaskEntry) bool { return e.Parallelism > 0 })
		for p := range int32(3) {
			f.commit(p, 500, 3, SavepointRef{ID: "moved", Path: "/elsewhere", Digest: f.savepoint().Ref.Digest})
		}
		s, err := ResolveFrom(f.in, f.want)
		require.NoError(t, err)
		require.Len(t, s.Known, 2)
		require.Empty(t, s.Origin)
		require.Zero(t, s.Beyond, "it began with it")
		require.Equal(t, Restore, s.Decisions[taskA].Kind)
		require.EqualValues(t, 3, s.LastID)
	}
}

// A root of the application and the store that the savepoint is of contains it, when it is not older.
func TestASavepointInTheGroupsOwnPast(t *testing.T) {
	chained := func() *startsFrom {
		f := newStartsFrom(t)
		f.in.Stages = nil
		f.savepoint().Root.Tasks = slices.DeleteFunc(slices.Clone(f.savepoint().Root.Tasks), func(e TaskEntry) bool { return e.Parallelism > 0 })
		f.in.Application, f.in.StoreID = f.savepoint().Root.Application, f.savepoint().Root.StoreID
		return f
	}
	f := chained()
	for p := range int32(2) {
		f.commit(p, 500, 9)
	}
	require.Equal(t, map[string]DecisionKind{"orders-0": Restore, "orders-1": Restore, "orders-2": Fresh}, f.kinds())
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Known, 2)
	require.EqualValues(t, 9, s.Beyond)

	f.want.Again = true
	s, err = ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Zero(t, s.Beyond)
	require.Equal(t, Imported, s.Decisions[taskA].Kind)
	require.EqualValues(t, 9, s.LastID, "new checkpoints are above those that are given up")
	require.Len(t, s.Moved, 2)
	require.Contains(t, s.Moved[0].String(), "back from 500 to 100, the outputs of 400 offsets repeat")

	f = chained()
	f.commit(0, 100, 7) // where a cancel with a savepoint ends
	f.commit(1, 7, 7)
	s, err = ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Known, 2)
	require.Zero(t, s.Beyond)

	for what, spoil := range map[string]func(f *startsFrom){
		"an older checkpoint":   func(f *startsFrom) { f.commit(0, 500, 6) },
		"an older offset":       func(f *startsFrom) { f.commit(0, 50, 9) },
		"another application":   func(f *startsFrom) { f.in.Application = "a-fork"; f.commit(0, 500, 9) },
		"another store":         func(f *startsFrom) { f.in.StoreID = "other"; f.commit(0, 500, 9) },
		"another savepoint":     func(f *startsFrom) { f.in.Application = "a-fork"; f.commit(0, 500, 9, SavepointRef{Digest: Digest{9}}) },
		"offsets without state": func(f *startsFrom) { f.commit(0, 500, 0) },
	} {
		f := chained()
		spoil(f)
		f.refused(ReasonOtherLineage, "orders-0", f.savepoint().Ref.Path, "another application name", "accept that outputs repeat", "reset")
		f.want.Again = true
		require.Equal(t, Imported, f.kinds()["orders-0"], what)
	}
}

// A committed checkpoint that cannot be read may come from the savepoint: it is refused, never silently left for it.
func TestADamagedRootIsNoReasonToGoBackToTheSavepoint(t *testing.T) {
	f := newStartsFrom(t)
	f.in.Stages, f.want.Again, f.in.DropStates = nil, true, true
	f.commit(0, 500, 3)
	for ref := range maps.Clone(f.in.Roots) {
		f.in.Roots[ref] = LoadedRoot{Err: fault.Stopf(fault.Corrupt, "damaged")}
	}
	f.refused(ReasonRootUnusable, "damaged")
}

// The crash before the first commit of an import leaves a root that no offset names.
func TestAnImportThatWasNeverCommittedBeginsAgain(t *testing.T) {
	f := newStartsFrom(t)
	root := &Root{Name: nameOf(4, 5), Origin: OriginOf(f.want.From), Tasks: []TaskEntry{{Task: taskA}}}
	f.want.All = []RootInfo{{Ref: RootRef{Name: root.Name, Path: "a-fork/i-0/chk-" + root.Name.String() + ".root"}, Root: root}}
	f.commit(2, 70, 0) // checkpoint 0 of a partition that the savepoint does not hold
	want := map[string]DecisionKind{"orders-0": Imported, "orders-1": Imported, "orders-2": StartEmpty, stageName + "-0": Imported, stageName + "-1": Imported}
	require.Equal(t, want, f.kinds())
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.EqualValues(t, 4, s.LastID)

	// Offsets that were there once and are gone are another thing.
	f.want.All[0].Committed = true
	f.refused(ReasonOffsetsExpired, "orders-0")
	f.want.All[0].Committed, root.Origin = false, nil
	f.refused(ReasonOffsetsExpired, "orders-0")
	f.want.Again = true
	require.Equal(t, Imported, f.kinds()["orders-0"])
	require.Equal(t, Fresh, f.kinds()["orders-2"], "all go back together")
}

// Whatever the offsets that are given up say: the ids of new checkpoints are above all in the store.
func TestGoingBackGoesAboveTheStore(t *testing.T) {
	for _, stages := range []bool{false, true} {
		for what, id := range map[string]int{"foreign": 0, "old": 10} {
			f := newStartsFrom(t)
			if f.want.Again = true; !stages {
				f.in.Stages, f.in.DropStates = nil, true
			}
			for p := range int32(2) {
				f.commit(p, 500, id)
				if id == 0 {
					f.in.Tasks[p].Inputs[0].Metadata = ""
				}
			}
			name := nameOf(80, 5)
			f.want.All = []RootInfo{{Ref: RootRef{Name: name}, Committed: true, Marked: true, Root: &Root{Name: name, Tasks: []TaskEntry{{Task: taskA}}}}}
			s, err := ResolveFrom(f.in, f.want)
			require.NoError(t, err, what)
			require.Equal(t, Imported, s.Decisions[taskA].Kind, what)
			require.EqualValues(t, 80, s.LastID, what)

			f.want.All = append(f.want.All, RootInfo{Ref: RootRef{Name: nameOf(90, 5)}, Marked: true, Err: fault.Stopf(fault.Corrupt, "damaged")})
			s, err = ResolveFrom(f.in, f.want)
			require.NoError(t, err, what)
			require.EqualValues(t, 90, s.LastID, "it may hold the task: %s", what)
		}
	}
}

// Behind an exchange the state is one.
func TestBehindAnExchangeAllTasksGoBackTogether(t *testing.T) {
	f := newStartsFrom(t)
	for p := range int32(3) {
		f.commit(p, 500, 9)
	}
	f.refused(ReasonOtherLineage, "orders-0", "(and 1 more)")
	f.want.Again = true
	require.Equal(t, map[string]DecisionKind{"orders-0": Imported, "orders-1": Imported, "orders-2": Fresh, stageName + "-0": Imported, stageName + "-1": Imported}, f.kinds())
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Moved, 3)
	require.Contains(t, s.Moved[2].String(), "offset 500 is forgotten")

	f.in.Tasks[1].Inputs[0].Found = false // one has lost its offset
	f.want.Again = false
	f.in.Tasks[0].Inputs[0].Found = false
	f.refused(ReasonMixedRoots, "orders-2", "reset")
	f.commit(0, 500, 10, OriginOf(f.want.From)...)
	f.commit(1, 500, 9)
	f.want.Again = true
	f.refused(ReasonMixedRoots, "orders-1", "start without --from", "reset")
}

// A topic was made anew since the savepoint, the flag let go what that had of it, and the process ended before its first checkpoint.
func TestAStartPositionInSomethingElseThanTheSavepointHas(t *testing.T) {
	f := newStartsFrom(t)
	f.commit(0, 0, 0)
	f.refused(ReasonOtherLineage, "accept that outputs repeat")
	_, err := ResolveFrom(f.in, f.want)
	require.NotContains(t, err.Error(), "--allow-dropped-state", "the savepoint has it")
	s := f.savepoint()
	s.Root.Tasks = slices.Clone(s.Root.Tasks)
	e := s.Root.Task(taskA)
	e.Positions = slices.Clone(e.Positions)
	e.Positions[0].TopicID = element.TopicID{9}
	f.refused(ReasonOtherLineage, "accept that outputs repeat", "it has begun to read something else than at the savepoint, and goes on there with --allow-dropped-state")
	f.in.DropStates = true
	require.Equal(t, map[string]DecisionKind{"orders-0": StartEmpty, "orders-1": Imported, "orders-2": Fresh, stageName + "-0": Imported, stageName + "-1": Imported}, f.kinds())
}

func TestASavepointOfAnotherTopologyIsRefused(t *testing.T) {
	f := newStartsFrom(t)
	f.want.Sources = map[string]string{"clicks": "clicks"}
	_, err := ResolveFrom(f.in, f.want)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.ErrorContains(t, err, "clicks")
	f = newStartsFrom(t)
	f.want.From = append(f.want.From, f.savepoint())
	_, err = ResolveFrom(f.in, f.want)
	require.ErrorContains(t, err, "are the same")
}

func TestWhatIsDroppedIsSaid(t *testing.T) {
	f := newStartsFrom(t)
	f.in.Stages = nil
	f.refused(ReasonStateDropped, stageName)
	f.in.DropStates = true
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Dropped, 1)
	require.Equal(t, stageName, s.Dropped[0].Stage)
}

// What the store has of a topic that was created anew may be let go; the savepoint has the new one, and is not let go with it.
func TestTheSavepointIsTakenWhereWhatTheStoreHasIsLetGo(t *testing.T) {
	for _, stages := range []bool{true, false} {
		f := newStartsFrom(t)
		if !stages {
			f.in.Stages = nil
			f.savepoint().Root.Tasks = slices.DeleteFunc(slices.Clone(f.savepoint().Root.Tasks), func(e TaskEntry) bool { return e.Parallelism > 0 })
		}
		gone := position(0, 900)
		gone.TopicID = element.TopicID{9}
		old := RootInfo{Ref: RootRef{Name: nameOf(80, 5), Path: "a-fork/i-0/chk"}, Committed: true, Root: &Root{Name: nameOf(80, 5), ClusterID: "cluster-1",
			Tasks: []TaskEntry{{Task: taskA, Positions: []element.Position{gone}, States: counts, Runs: []RunRef{{To: 80, Full: true, Entries: 1}}}}}}
		f.want.All = []RootInfo{old}
		f.refused(ReasonTopicRecreated, "orders-0", "--allow-dropped-state")
		f.in.DropStates = true
		s, err := ResolveFrom(f.in, f.want)
		require.NoError(t, err)
		require.Equal(t, Imported, s.Decisions[taskA].Kind, "it is asked for")
		require.EqualValues(t, 100, s.Decisions[taskA].Positions[0].Offset)
		require.Equal(t, []SavepointRef{f.savepoint().Ref}, s.Origin)
		require.EqualValues(t, 80, s.LastID)
		require.Equal(t, []DroppedStage{{Stage: "orders", Root: old.Ref, Subtasks: 1, States: []string{"totals/acc", "last/seen"}}}, s.Dropped)

		// A savepoint of the topic that is gone has nothing of the new one.
		for i := range f.in.Tasks {
			f.in.Tasks[i].Inputs[0].TopicID = element.TopicID{7}
		}
		f.want.All[0].Root.Tasks = f.want.All[0].Root.Tasks[:0:0]
		for p := range int32(3) {
			f.want.All[0].Root.Tasks = append(f.want.All[0].Root.Tasks, TaskEntry{Task: f.in.Tasks[p].Task, Positions: []element.Position{position(p, 900)}})
		}
		if stages { // the stages would begin without what is asked for
			_, err := ResolveFrom(f.in, f.want)
			require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "has nothing of what the topology reads now; give the topology one of its sources back with its topic (source orders from orders)")
			require.ErrorContains(t, err, "start without --from")
			continue
		}
		require.Equal(t, Fresh, f.kinds()["orders-0"])
	}
}
