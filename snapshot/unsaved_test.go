package snapshot

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// changeEntries changes what the roots have of their tasks.
func changeEntries(in *ResolveInput, change func(e *TaskEntry)) {
	for ref, l := range in.Roots {
		root := *l.Root
		root.Tasks = append([]TaskEntry(nil), root.Tasks...)
		for i := range root.Tasks {
			change(&root.Tasks[i])
		}
		in.Roots[ref] = LoadedRoot{Root: &root}
	}
}

func TestStateThatACommittedCheckpointHolds(t *testing.T) {
	in := world(t)
	held := in.HeldStates()
	require.Len(t, held, 1)
	require.Equal(t, []element.TaskID{taskA, taskB}, held[0].Tasks)
	require.Equal(t, []string{"last/seen", "totals/acc"}, held[0].States)
	err := RefuseHeld(held)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.Equal(t, fault.Stop, fault.RecoveryOf(err))
	for _, s := range []string{"checkpointing.interval is disabled", "checkpoint 7-0000000000000001", "tasks orders-0, orders-1 (last/seen, totals/acc)", "--allow-dropped-state", "also when checkpoints are on again"} {
		require.ErrorContains(t, err, s)
	}
	require.NotContains(t, err.Error(), "\n")

	in.StoreID = "ff"
	require.ErrorContains(t, RefuseHeld(in.HeldStates()), "another checkpoint directory")
	in = world(t)
	for ref := range in.Roots {
		in.Roots[ref] = LoadedRoot{Err: errors.New("it is torn")}
	}
	require.ErrorContains(t, RefuseHeld(in.HeldStates()), "it is torn")

	in = world(t)
	changeEntries(in, func(e *TaskEntry) { e.Runs = nil })
	require.Empty(t, in.HeldStates(), "nothing is in it")
	require.NoError(t, RefuseHeld(nil))
}

func TestStateBehindAnExchangeIsHeldToo(t *testing.T) {
	s := newStaged(t)
	held := s.in.HeldStates()
	require.Len(t, held, 1)
	require.Equal(t, []element.TaskID{subtask(0), subtask(1)}, held[0].Tasks, "the sources have none")
	require.EqualValues(t, 4, held[0].InFlight)
	require.ErrorContains(t, RefuseHeld(held), "4 records in flight")
}

func TestTasksWithoutCheckpointsBesideOnesWithThem(t *testing.T) {
	s := newStaged(t)
	f := &s.in.Tasks[0].Inputs[0]
	h, err := ParseHandle(f.Metadata)
	require.NoError(t, err)
	h.Kind, h.Root = HandleUnsaved, RootRef{Name: h.Root.Name}
	f.Metadata, err = h.Encode()
	require.NoError(t, err)
	s.refused(ReasonMixedRoots, fault.HandleMismatch, "task orders-0 has gone on with checkpoints disabled", "--allow-dropped-state")

	in := world(t) // without exchanges each task is on its own
	in.Tasks[0].Inputs[0] = factsOf(t, position(0, 700), RootRef{Name: nameOf(7, 1)}, in, HandleUnsaved)
	got, err := Resolve(*in)
	require.NoError(t, err)
	require.Equal(t, StartEmpty, got[taskA].Kind)
	require.True(t, got[taskA].Unsaved)
	require.Equal(t, Restore, got[taskB].Kind)
}
