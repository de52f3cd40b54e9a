package snapshot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// asSource gives the tasks of world another source's name.
func asSource(in *ResolveInput, name string, states []StateInfo) {
	for i := range in.Tasks {
		in.Tasks[i].Task.Source = name
	}
	in.States = map[string][]StateInfo{name: states}
}

func TestARenamedSourceIsNamedWithItsState(t *testing.T) {
	in := world(t)
	asSource(in, "sales", counts)
	_, err := Resolve(*in)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.True(t, RefusalOf(err).Has(ReasonStateDropped))
	for _, s := range []string{"belongs to source orders", "as source sales now", "totals/acc, last/seen", "rename the source back", "--allow-dropped-state"} {
		require.ErrorContains(t, err, s)
	}
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "<name>.<topic>")

	in.DropStates = true
	got, err := Resolve(*in)
	require.NoError(t, err)
	for _, p := range []int32{0, 1} {
		d := got[element.TaskID{Source: "sales", Partition: p}]
		require.Equal(t, Restore, d.Kind)
		require.Equal(t, "orders", d.Renamed)
		require.Equal(t, []element.Position{position(p, 700)}, d.Positions)
		require.Empty(t, d.Entry.Runs)
		require.Empty(t, d.Entry.States)
	}
	var ref RootRef
	for ref = range in.Roots {
	}
	want := []DroppedStage{{Stage: "orders", Root: ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}
	require.Equal(t, want, in.DroppedStages(got))
	in.Sources = map[string]string{"sales": "orders"} // with an exchange
	require.Equal(t, want, in.DroppedStages(got), "once")

	in = world(t) // topic: orders became topics: [orders]
	asSource(in, "orders.orders", counts)
	_, err = Resolve(*in)
	require.ErrorContains(t, err, "as source orders.orders now (topics and pattern make a source <name>.<topic>")

	changeEntries(in, func(e *TaskEntry) { e.States, e.Runs = nil, nil })
	got, err = Resolve(*in)
	require.NoError(t, err, "without state a name is nothing")
	require.Empty(t, in.DroppedStages(got))
}

// TestARenamedSourceWhoseOffsetsExpired: the store is asked by what a task reads. It says what it says when the offsets are
// there, also to one that would recover.
func TestARenamedSourceWhoseOffsetsExpired(t *testing.T) {
	h := newHistory(t)
	h.expire(0, 1)
	asSource(h.in, "sales", counts)
	_, _, err := h.resolve(t)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	for _, s := range []string{"checkpoint 8-0000000000000001", "belongs to source orders", "as source sales now", "rename the source back", "the store is not asked"} {
		require.ErrorContains(t, err, s)
	}
	require.NotContains(t, err.Error(), "\n")

	in := *h.in
	in.DropStates = true
	in.Stored, err = h.r.List(ctx)
	require.NoError(t, err)
	_, err = Resolve(in)
	require.True(t, RefusalOf(err).Has(ReasonOffsetsExpired), "where to begin is not known, whatever becomes of the state")
	require.ErrorContains(t, err, "task sales-0: ")
	require.ErrorContains(t, err, "holds the task as orders-0")

	h.in.DropStates = true
	got, rec, err := h.resolve(t)
	require.NoError(t, err)
	require.Len(t, rec.Tasks, 2)
	require.Equal(t, "orders/0: outputs of inputs 700 to 799 if an unconfirmed checkpoint was committed", rec.Tasks[0].Repeats())
	require.Len(t, rec.Passed, 1)
	for _, p := range []int32{0, 1} {
		id := element.TaskID{Source: "sales", Partition: p}
		at := []element.Position{position(p, 700)}
		require.Equal(t, Decision{Kind: Recovered, Positions: at, Root: h.refs[7], Entry: TaskEntry{Task: id, Positions: at}, Renamed: "orders"}, got[id])
	}
}

// TestARenamedSourceBesideOneThatIsNot: what keeps the store from being asked is said, whichever task comes first.
func TestARenamedSourceBesideOneThatIsNot(t *testing.T) {
	h := newHistory(t)
	h.expire(0, 1)
	h.in.Tasks[1].Task.Source = "sales"
	h.in.States["sales"] = counts
	_, _, err := h.resolve(t)
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	require.ErrorContains(t, err, "task orders-0: group shop has no committed offset")
	require.ErrorContains(t, err, "the store is not asked: it cannot cure task sales-1: checkpoint 8-0000000000000001 holds state that belongs to source orders")
}

// TestARenamedSourceWithoutStateWhoseOffsetsExpired: where it stood is in the store, under whatever name.
func TestARenamedSourceWithoutStateWhoseOffsetsExpired(t *testing.T) {
	in := world(t)
	changeEntries(in, func(e *TaskEntry) { e.States, e.Runs = nil, nil })
	asSource(in, "sales", nil)
	for ref, l := range in.Roots {
		in.Stored = []RootInfo{{Ref: ref, Root: l.Root, Committed: true}}
	}
	for i := range in.Tasks {
		f := &in.Tasks[i].Inputs[0]
		f.Found, f.Offset, f.Metadata = false, 0, ""
	}
	_, err := Resolve(*in)
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	require.True(t, RefusalOf(err).Has(ReasonOffsetsExpired))
	got, _, err := Recover(*in, RefusalOf(err), in.Stored)
	require.NoError(t, err)
	require.Equal(t, []element.Position{position(1, 700)}, got[element.TaskID{Source: "sales", Partition: 1}].Positions)

	// Nor does a start from a savepoint take the group for one that never began.
	savepoint := &Savepoint{Ref: SavepointRef{ID: "s", Path: "/s"}, Root: &Root{Application: "other", Tasks: []TaskEntry{{Task: element.TaskID{Source: "sales"}, Positions: []element.Position{position(0, 1), position(1, 1)}}}}}
	_, err = ResolveFrom(*in, StartInput{From: []*Savepoint{savepoint}, Sources: map[string]string{"sales": "orders"}, All: in.Stored})
	require.True(t, RefusalOf(err).Has(ReasonOffsetsExpired), "%v", err)
}

// TestARenamedSourceWhoseOffsetsWentBack: that a newer checkpoint was committed is known of what the task reads.
func TestARenamedSourceWhoseOffsetsWentBack(t *testing.T) {
	for _, drop := range []bool{false, true} {
		h := newHistory(t)
		h.at(t, 5)
		asSource(h.in, "sales", counts)
		h.in.DropStates = drop
		in := *h.in
		var err error
		in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(in.Tasks))
		require.NoError(t, err)
		in.Listing, err = h.r.CommittedAfter(ctx, OldestID(in.Tasks))
		require.NoError(t, err)
		_, err = Resolve(in)
		require.NotNil(t, RefusalOf(err))
		require.True(t, RefusalOf(err).Has(ReasonStaleHandle), "%v", err)
		got, _, err := h.resolve(t)
		if !drop {
			require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
			require.ErrorContains(t, err, "belongs to source orders")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, h.refs[7], got[element.TaskID{Source: "sales"}].Root)
	}
}

// TestTheLeftoversOfARenamedSourceGo: its checkpoints are older ones of what the source reads under its new name, in its own
// directory and in that of an instance that is gone.
func TestTheLeftoversOfARenamedSourceGo(t *testing.T) {
	g := &goneBed{t: t, m: vfs.NewMem()}
	g.a, g.b, g.c = openRepo(t, g.m, "a"), openRepo(t, g.m, "b"), openRepo(t, g.m, "c")
	ofA, rootA := commits(t, g.a, 1, 1, 4, nil, nil, taskA)
	inB, _ := commits(t, g.b, 2, 5, 8, ofA, rootA, taskA)
	g.prev, g.root = commits(t, g.b, 2, 9, 14, nil, nil, element.TaskID{Source: "sales"})
	g.live, g.handles = []string{"b", "c"}, []RootRef{*g.prev}
	g.now = time.Now()
	require.Contains(t, listAll(t, g.c), inB.Path)
	_, err := g.b.Clean(ctx, g.handles, says(g.handles...))
	require.NoError(t, err)
	g.clean()
	names := listAll(t, g.c)
	require.NotContains(t, names, ofA.Path)
	require.NotContains(t, names, inB.Path)
	require.Contains(t, names, g.prev.Path)
}

// TestASavepointOfAnotherTopologyNamesWhatItIsOf: whoever takes the wrong one sees which one it is, and what leads on.
func TestASavepointOfAnotherTopologyNamesWhatItIsOf(t *testing.T) {
	task := func(source, topic string, partition int32) TaskEntry {
		return TaskEntry{Task: element.TaskID{Source: source, Partition: partition}, Positions: []element.Position{{TopicPartition: element.TopicPartition{Topic: topic, Partition: partition}, Offset: 1}}}
	}
	stage := TaskEntry{Task: element.TaskID{Source: "totals-by"}, Parallelism: 1, MaxParallelism: 128}
	savepoint := &Savepoint{Ref: SavepointRef{ID: "s", Path: "/s"}, Root: &Root{Application: "other",
		Tasks: []TaskEntry{task("orders", "sold", 0), task("orders", "sold", 1), task("returns", "back", 0), stage}}}
	in := world(t)
	asSource(in, "sales", nil)
	_, err := ResolveFrom(*in, StartInput{From: []*Savepoint{savepoint}, Sources: map[string]string{"sales": "orders"}})
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.ErrorContains(t, err, "savepoint /s holds none of the sources of this topology (sales), and nothing of what they read: "+
		"it is of another one, which reads source orders from sold, source returns from back; start that one from it, or this one without --from")
}
