package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// rename gives the source of a plan over topic orders another name, without state in the savepoint if wanted.
func (f *startsFrom) rename(name string, stateless bool) {
	for i := range f.in.Tasks {
		f.in.Tasks[i].Task.Source = name
	}
	f.want.Sources = map[string]string{name: "orders"}
	delete(f.in.States, "orders")
	for i := range f.savepoint().Root.Tasks {
		if e := &f.savepoint().Root.Tasks[i]; stateless && e.Parallelism == 0 {
			e.States, e.Runs = nil, nil
		}
	}
}

// twoSources makes the savepoint one of sources a and orders, without state and exchange, and orders is o2 in the plan.
func twoSources(t *testing.T) *startsFrom {
	f := newStartsFrom(t)
	root := f.savepoint().Root
	root.Tasks = slices.DeleteFunc(root.Tasks, func(e TaskEntry) bool { return e.Parallelism > 0 || e.Task != taskA })
	root.Tasks[0].States, root.Tasks[0].Runs = nil, nil
	root.Tasks[0].Positions[0].PartitionCount = 1
	a := root.Tasks[0]
	a.Task.Source, a.Positions = "a", slices.Clone(a.Positions)
	a.Positions[0].Topic, a.Positions[0].Offset = "others", 30
	root.Tasks = append(root.Tasks, a)
	f.in.Stages, f.in.States = nil, nil
	f.in.Tasks = nil
	for source, topic := range map[string]string{"o2": "orders", "a": "others"} {
		f.in.Tasks = append(f.in.Tasks, TaskFacts{Task: element.TaskID{Source: source},
			Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: topic}, TopicID: topicID, Partitions: 1}}})
	}
	slices.SortFunc(f.in.Tasks, func(a, b TaskFacts) int { return a.Task.Compare(b.Task) })
	f.want.Sources = map[string]string{"a": "others", "o2": "orders"}
	return f
}

// The only source has another name than at the savepoint.
func TestAFreshGroupWithARenamedSourceStartsFromTheSavepoint(t *testing.T) {
	want := map[string]DecisionKind{"clicks-0": Imported, "clicks-1": Imported, "clicks-2": Fresh, stageName + "-0": Imported, stageName + "-1": Imported}
	f := newStartsFrom(t)
	f.rename("clicks", true)
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.EqualValues(t, 100, s.Decisions[f.in.Tasks[0].Task].Positions[0].Offset)
	require.Empty(t, s.Dropped)
	require.Equal(t, want, f.kinds())

	f = newStartsFrom(t)
	f.rename("clicks", false)
	f.refused(ReasonStateDropped, "source orders", "--allow-dropped-state")
	_, err = ResolveFrom(f.in, f.want)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	f.in.DropStates = true
	require.Equal(t, want, f.kinds())
	s, err = ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Dropped, 1)
	require.Equal(t, "orders", s.Dropped[0].Stage)

	f = newStartsFrom(t) // an instance that has nothing but a partition that was added since
	f.rename("clicks", true)
	f.in.Stages, f.in.Tasks = nil, f.in.Tasks[2:]
	f.in.DropStates = true
	require.Equal(t, map[string]DecisionKind{"clicks-2": Fresh}, f.kinds())
}

// A renamed source goes back with the others, or is refused as they are.
func TestARenamedSourceGoesBackWithTheOthers(t *testing.T) {
	f := twoSources(t)
	require.Equal(t, map[string]DecisionKind{"a-0": Imported, "o2-0": Imported}, f.kinds())
	f.commit(0, 500, 9)
	f.commit(1, 600, 9)
	f.refused(ReasonOtherLineage, "a-0", "(and 1 more)")
	f.in.Tasks[0].Inputs[0].Found = false
	f.refused(ReasonOtherLineage, "o2-0", "offset 600 of orders/0", "offset 100)")
	f.in.Tasks[0].Inputs[0].Found = true
	f.want.Again = true
	require.Equal(t, map[string]DecisionKind{"a-0": Imported, "o2-0": Imported}, f.kinds())
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Moved, 2)
	require.Contains(t, s.Moved[0].String(), "others/0: back from 500 to 30,")
	require.Contains(t, s.Moved[1].String(), "orders/0: back from 600 to 100,")

	f = twoSources(t) // in the past of the application, and granted before
	f.commit(0, 500, 9)
	f.commit(1, 600, 9)
	f.in.Application = f.savepoint().Root.Application
	for i := range f.in.Tasks {
		in := &f.in.Tasks[i].Inputs[0]
		h, err := ParseHandle(in.Metadata)
		require.NoError(t, err)
		loaded := f.in.Roots[h.Root]
		h.Root.Path, h.StoreID = "my-shop"+h.Root.Path[len("a-fork"):], f.savepoint().Root.StoreID
		f.in.Roots[h.Root] = loaded
		in.Metadata, err = h.Encode()
		require.NoError(t, err)
	}
	f.in.StoreID = f.savepoint().Root.StoreID
	s, err = ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Known, 2)
	require.EqualValues(t, 9, s.Beyond)
	require.Equal(t, map[string]DecisionKind{"a-0": Restore, "o2-0": Restore}, f.kinds())
}

// What is said of a renamed source behind an exchange is what becomes of it.
func TestARenamedSourceIsNotForgotten(t *testing.T) {
	f := newStartsFrom(t)
	f.rename("clicks", true)
	for p := range int32(3) {
		f.commit(p, 500, 9)
	}
	f.refused(ReasonOtherLineage, "clicks-0", "(and 1 more)")
	f.want.Again = true
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Len(t, s.Moved, 3)
	require.Contains(t, s.Moved[0].String(), "back from 500 to 100,")
	require.Contains(t, s.Moved[1].String(), "back from 500 to 7,")
	require.Contains(t, s.Moved[2].String(), "offset 500 is forgotten")
	require.Equal(t, Imported, s.Decisions[f.in.Tasks[0].Task].Kind)

	f.want.Again = false // one has lost its offset: it is held, so the others must come from the savepoint
	f.in.Tasks[0].Inputs[0].Found, f.in.Tasks[1].Inputs[0].Found = false, false
	f.refused(ReasonMixedRoots, "clicks-2", "reset")
}

// A source that has kept its name and reads something else has nothing of the savepoint: neither a past nor a place to go back to.
func TestASourceOfTheSavepointThatReadsSomethingElse(t *testing.T) {
	f := twoSources(t)
	f.in.Tasks[1].Task.Source, f.want.Sources = "orders", map[string]string{"a": "others", "orders": "third"}
	f.in.Tasks[1].Inputs[0].Topic = "third"
	f.in.Application, f.in.StoreID = f.savepoint().Root.Application, f.savepoint().Root.StoreID
	f.commit(1, 500, 9)
	f.refused(ReasonOtherLineage, "offset 500 of third/0", "where it reads something else")
	f.want.Again = true
	f.refused(ReasonOtherInputs, "covers orders/0, which the task does not read", "--allow-dropped-state")
	f.in.DropStates = true
	s, err := ResolveFrom(f.in, f.want)
	require.NoError(t, err)
	require.Equal(t, Fresh, s.Decisions[f.in.Tasks[1].Task].Kind)
	require.Equal(t, Imported, s.Decisions[f.in.Tasks[0].Task].Kind)
	require.Contains(t, s.Moved, MovedInput{TopicPartition: f.in.Tasks[1].Inputs[0].TopicPartition, From: 500, Forgotten: true})
}

// Two sources have changed names, and their parts are of two instances: each goes on where it was read, in one part.
func TestSourcesThatHaveChangedNames(t *testing.T) {
	for _, stateful := range []bool{false, true} {
		f := twoSources(t)
		f.in.Tasks[0].Task.Source, f.in.Tasks[1].Task.Source = "orders", "a"
		f.want.Sources = map[string]string{"a": "orders", "orders": "others"}
		one := f.savepoint()
		other := *one
		root := *one.Root
		other.Root, other.Ref.Path, other.Ref.Digest[0] = &root, "/other", other.Ref.Digest[0]+1
		root.Tasks = root.Tasks[1:]
		one.Root.Tasks = one.Root.Tasks[:1]
		f.want.From = append(f.want.From, &other)
		if stateful {
			one.Root.Tasks[0].States = counts[:1]
			f.refused(ReasonStateDropped, "belongs to source orders", "as source a now")
			f.in.DropStates = true
		}
		s, err := ResolveFrom(f.in, f.want)
		require.NoError(t, err)
		require.EqualValues(t, 100, s.Decisions[element.TaskID{Source: "a"}].Positions[0].Offset)
		require.EqualValues(t, 30, s.Decisions[element.TaskID{Source: "orders"}].Positions[0].Offset)
		require.Len(t, s.Dropped, map[bool]int{true: 1}[stateful], "what is let go is said")
	}
}
