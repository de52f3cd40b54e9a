package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// ofTwo has a savepoint taken when the topic had two partitions.
func ofTwo(s *Savepoint) *Savepoint {
	for i := range s.Root.Tasks {
		for k := range s.Root.Tasks[i].Positions {
			s.Root.Tasks[i].Positions[k].PartitionCount = 2
		}
	}
	return s
}

// imported is a savepoint of all partitions and a plan that fits it. Of the plan's three, the last was added right behind the
// moment that the facts of the others are of.
func imported(t *testing.T) (*Savepoint, ResolveInput) {
	s, err := OpenSavepoint(ctx, writeSavepointTo(t, t.TempDir(), 7).Path)
	require.NoError(t, err)
	ofTwo(s)
	t.Cleanup(func() { s.Close() })
	in := ResolveInput{Application: "a-fork", ClusterID: "cluster-1", States: map[string][]StateInfo{"orders": counts, stageName: counts}, Stages: []StageFacts{byUser}}
	for p := range int32(3) {
		in.Tasks = append(in.Tasks, TaskFacts{Task: element.TaskID{Source: "orders", Partition: p},
			Inputs: []InputFacts{{TopicPartition: position(p, 0).TopicPartition, TopicID: topicID, Partitions: max(2, p+1)}}})
	}
	return s, in
}

func TestASavepointIsImported(t *testing.T) {
	s, in := imported(t)
	for _, parallelism := range []int{1, 2, 3} {
		in.Stages[0].Parallelism = parallelism
		d, err := ResolveSavepoints(in, []*Savepoint{s}, map[string]string{"orders": "orders"})
		require.NoError(t, err)
		require.Len(t, d, 3+parallelism)
		require.Equal(t, Imported, d[taskA].Kind)
		require.Equal(t, s.Root.Task(taskA).Positions, d[taskA].Positions)
		require.EqualValues(t, 100, d[taskA].Positions[0].Offset)
		require.Equal(t, Fresh, d[element.TaskID{Source: "orders", Partition: 2}].Kind, "the savepoint does not know it")
		all, flown := model{}, []flying(nil)
		for i := range parallelism {
			got := d[subtask(i)]
			require.Equal(t, Imported, got.Kind)
			require.Zero(t, got.Entry, "it begins no chain")
			for _, src := range got.Sources {
				_, err := s.Restore(ctx, src, got.KeepKeys(), func(e Entry) error {
					require.NotContains(t, all["totals/acc"], string(e.Key))
					all.apply(change{"totals/acc|" + string(e.Key): val(string(e.Value))})
					return nil
				})
				require.NoError(t, err)
				_, err = s.RestoreInFlight(ctx, src, got.KeepInFlight(&src), func(g int, b []byte) error { flown = append(flown, flying{g, string(b)}); return nil })
				require.NoError(t, err)
			}
		}
		require.Equal(t, "totals/acc|\"c\"=\"3\"\n", all.String())
		require.Equal(t, []flying{{3, "r"}, {-1, "s"}}, flown)
	}
}

func TestStateOfASavepointThatNothingTakesUpIsRefused(t *testing.T) {
	for what, c := range map[string]struct {
		spoil   func(*ResolveInput)
		sources map[string]string
		code    fault.Code
		reason  Reason
		dropped int // -1: dropping does not help
	}{
		"another cluster": {func(in *ResolveInput) { in.ClusterID = "other" }, map[string]string{"orders": "orders"}, fault.HandleMismatch, ReasonOtherCluster, -1},
		"made again":      {func(in *ResolveInput) { in.Tasks[0].Inputs[0].TopicID = element.TopicID{9} }, map[string]string{"orders": "orders"}, fault.HandleMismatch, ReasonTopicRecreated, 1},
		"another topic":   {func(in *ResolveInput) { in.Tasks[0].Inputs[0].Topic = "clicks" }, map[string]string{"orders": "clicks"}, fault.StateMismatch, ReasonOtherInputs, 1},
		"more partitions": {func(in *ResolveInput) { in.Tasks[0].Inputs[0].Partitions = 5 }, map[string]string{"orders": "orders"}, fault.StateMismatch, ReasonPartitionCount, -1},
		"another codec": {func(in *ResolveInput) {
			in.States["orders"] = []StateInfo{{Name: "totals/acc", KeyCodec: "string", Codec: "json"}, counts[1]}
		}, map[string]string{"orders": "orders"}, fault.StateMismatch, ReasonCodecChanged, -1},
		"a state is gone":      {func(in *ResolveInput) { in.States["orders"] = counts[:1] }, map[string]string{"orders": "orders"}, fault.StateMismatch, ReasonStateDropped, 0},
		"a stage is gone":      {func(in *ResolveInput) { in.Stages = nil }, map[string]string{"orders": "orders"}, fault.StateMismatch, ReasonStateDropped, 1},
		"a source is gone":     {func(in *ResolveInput) { in.Tasks = nil }, map[string]string{"clicks": "clicks"}, fault.StateMismatch, ReasonStateDropped, 1},
		"other groups of keys": {func(in *ResolveInput) { in.Stages[0].MaxParallelism = 64 }, map[string]string{"orders": "orders"}, fault.StateMismatch, ReasonInFlight, 1},
	} {
		t.Run(what, func(t *testing.T) {
			s, in := imported(t)
			c.spoil(&in)
			_, err := ResolveSavepoints(in, []*Savepoint{s}, c.sources)
			require.Equal(t, c.code, fault.CodeOf(err), "%v", err)
			require.True(t, RefusalOf(err).Has(c.reason), "%v", err)
			require.ErrorContains(t, err, s.Root.Name.String())
			in.DropStates = true
			d, err := ResolveSavepoints(in, []*Savepoint{s}, c.sources)
			if c.dropped < 0 {
				require.True(t, RefusalOf(err).Has(c.reason), "%v", err)
				return
			}
			require.NoError(t, err)
			require.Len(t, DroppedOf(in, []*Savepoint{s}, c.sources, nil), c.dropped)
			if c.reason == ReasonTopicRecreated || c.reason == ReasonOtherInputs {
				require.Equal(t, Fresh, d[taskA].Kind)
				require.Equal(t, Imported, d[taskB].Kind)
				require.Equal(t, Imported, d[subtask(0)].Kind)
			}
		})
	}
}

// A source has another name than at the savepoint. It goes on where the savepoint stands and not where a source begins, and
// its state is not let go unasked.
func TestASavepointOfARenamedSource(t *testing.T) {
	renamed := func(stateless bool) (*Savepoint, ResolveInput) {
		s, in := imported(t)
		for i := range in.Tasks {
			in.Tasks[i].Task.Source = "clicks"
		}
		if stateless {
			for i := range s.Root.Tasks {
				if s.Root.Tasks[i].Parallelism == 0 {
					s.Root.Tasks[i].States, s.Root.Tasks[i].Runs = nil, nil
				}
			}
		} else {
			in.States["clicks"] = in.States["orders"]
		}
		delete(in.States, "orders")
		return s, in
	}
	goesOn := func(s *Savepoint, in ResolveInput) {
		d, err := ResolveSavepoints(in, []*Savepoint{s}, map[string]string{"clicks": "orders"})
		require.NoError(t, err)
		got := d[element.TaskID{Source: "clicks", Partition: taskA.Partition}]
		require.Equal(t, Imported, got.Kind)
		require.Equal(t, s.Root.Task(taskA).Positions, got.Positions)
		require.Empty(t, got.Sources)
		require.Equal(t, Fresh, d[element.TaskID{Source: "clicks", Partition: 2}].Kind)
	}
	goesOn(renamed(true))
	s, in := renamed(false)
	_, err := ResolveSavepoints(in, []*Savepoint{s}, map[string]string{"clicks": "orders"})
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "source orders")
	require.ErrorContains(t, err, "--allow-dropped-state")
	in.DropStates = true
	goesOn(s, in)
	d, err := ResolveSavepoints(in, []*Savepoint{s}, map[string]string{"clicks": "orders"})
	require.NoError(t, err)
	require.Len(t, DroppedOf(in, []*Savepoint{s}, map[string]string{"clicks": "orders"}, d), 1)

	s, in = renamed(true) // one of the two parts is missing
	s.Root.Tasks = slices.DeleteFunc(s.Root.Tasks, func(e TaskEntry) bool { return e.Task == taskB })
	_, err = ResolveSavepoints(in, []*Savepoint{s}, map[string]string{"clicks": "orders"})
	require.Equal(t, fault.Usage, fault.CodeOf(err), "%v", err)
}

// TestASavepointOfSeveralInstances: each wrote a directory of its own.
func TestASavepointOfSeveralInstances(t *testing.T) {
	dir := t.TempDir()
	open := func(id int, tasks ...SavepointTask) *Savepoint {
		ref, err := WriteSavepoint(ctx, SavepointConfig{Dir: dir}, savepointHead(id), tasks)
		require.NoError(t, err)
		s, err := OpenSavepoint(ctx, ref.Path)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return ofTwo(s)
	}
	all := savepointTasks()
	one, other, third := open(7, all[0]), open(40, all[3]), open(41, all[0])
	_, in := imported(t)
	in.Stages = nil
	d, err := ResolveSavepoints(in, []*Savepoint{one, other}, map[string]string{"orders": "orders"})
	require.NoError(t, err)
	require.Len(t, d, 3)
	require.Equal(t, one.Ref.Path, d[taskA].Root.Path)
	require.Equal(t, other.Ref.Path, d[taskB].Root.Path)
	_, err = ResolveSavepoints(in, []*Savepoint{one, other, third}, map[string]string{"orders": "orders"})
	require.True(t, RefusalOf(err).Has(ReasonMixedRoots), "%v", err)
	require.ErrorContains(t, err, "not one savepoint")

	in.Stages = []StageFacts{byUser}
	d, err = ResolveSavepoints(in, []*Savepoint{one, other}, map[string]string{"orders": "orders"})
	require.NoError(t, err)
	require.True(t, d[subtask(1)].New, "an exchange that was put in since")
	staged, twice := open(50, all[1], all[2]), open(51, savepointTasks()[1], savepointTasks()[2])
	d, err = ResolveSavepoints(in, []*Savepoint{one, other, staged}, map[string]string{"orders": "orders"})
	require.NoError(t, err)
	require.Equal(t, staged.Ref.Path, d[subtask(1)].Root.Path)
	_, err = ResolveSavepoints(in, []*Savepoint{staged, twice}, map[string]string{"orders": "orders"})
	require.True(t, RefusalOf(err).Has(ReasonMixedRoots), "%v", err)
	d, err = ResolveSavepoints(in, nil, map[string]string{"orders": "orders"})
	require.NoError(t, err)
	require.Equal(t, StartEmpty, d[subtask(0)].Kind)
}
