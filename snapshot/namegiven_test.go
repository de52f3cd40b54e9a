package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// TestASavepointOfASourceWhoseNameIsGivenToAnother: a source with state is taken out, and one without state that stays gets its
// name. It goes on where it stood, and the state is not let go in silence.
func TestASavepointOfASourceWhoseNameIsGivenToAnother(t *testing.T) {
	given := func() *startsFrom {
		f := twoSources(t)
		f.savepoint().Root.Tasks[1].States = counts // of a, which read others
		f.in.Tasks = f.in.Tasks[1:]
		f.in.Tasks[0].Task.Source = "a"
		f.want.Sources = map[string]string{"a": "orders"}
		return f
	}
	want := []DroppedStage{{Stage: "a", Root: given().savepoint().root(), Subtasks: 1, States: []string{"totals/acc", "last/seen"}}}
	same := func(f *startsFrom) {
		s, err := ResolveFrom(f.in, f.want)
		require.NoError(t, err)
		for i := range s.Dropped {
			s.Dropped[i].Root = want[0].Root // each is in a directory of its own
		}
		require.Equal(t, want, s.Dropped)
	}
	f := given()
	f.refused(ReasonStateDropped, "source a", "totals/acc, last/seen", "reads orders", "--allow-dropped-state")
	f.in.DropStates = true
	require.Equal(t, map[string]DecisionKind{"a-0": Imported}, f.kinds())
	same(f)

	f = given() // an instance that has none of the source's partitions says it too
	f.in.Tasks[0].Task.Source, f.in.Tasks[0].Inputs[0].Topic = "third", "third"
	f.want.Sources["third"] = "third"
	f.refused(ReasonStateDropped, "source a", "reads orders")
	f.in.DropStates = true
	same(f)

	f = given() // the state has a source, whose partitions another instance has
	f.in.Tasks[0].Task.Source = "o2"
	f.want.Sources = map[string]string{"a": "others", "o2": "orders"}
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Empty(t, s.Dropped)
}

// TestACheckpointOfASourceWhoseNameIsGivenToAnother is the same for a start as always, where all of the application is here.
func TestACheckpointOfASourceWhoseNameIsGivenToAnother(t *testing.T) {
	in := world(t)
	var ref RootRef
	for ref = range in.Roots {
	}
	at := position(0, 30)
	at.Topic = "others"
	root := in.Roots[ref].Root
	root.Tasks = append(root.Tasks, TaskEntry{Task: element.TaskID{Source: "plain"}, Positions: []element.Position{at}})
	in.Tasks = []TaskFacts{{Task: taskA, Inputs: []InputFacts{factsOf(t, at, ref, in, HandleCheckpoint)}}}
	in.Sources = map[string]string{"orders": "others"}
	_, err := Resolve(*in)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	for _, s := range []string{"stage orders", "totals/acc, last/seen", "source of this name reads others", "--allow-dropped-state"} {
		require.ErrorContains(t, err, s)
	}
	in.DropStates = true
	d, err := Resolve(*in)
	require.NoError(t, err)
	require.Equal(t, []element.Position{at}, d[taskA].Positions)
	require.Equal(t, []DroppedStage{{Stage: "orders", Root: ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}, in.DroppedStages(d))
}
