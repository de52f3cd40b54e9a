package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// staged is a store with one committed checkpoint of two source tasks and a stage of two subtasks with records in flight.
type staged struct {
	t    *testing.T
	r    *Repository
	ref  RootRef
	root *Root
	in   ResolveInput
}

var byUser = StageFacts{Name: stageName, Parallelism: 2, MaxParallelism: 128}

func newStaged(t *testing.T) *staged {
	s := &staged{t: t, r: openInline(t, vfs.NewMem(), 400)}
	s.ref, s.root = s.checkpoint(5, nil, 2)
	s.in = resolveInput(s.r, nil, byUser)
	s.in.Tasks = []TaskFacts{standsAt(t, s.r, &s.ref, taskA, 500), standsAt(t, s.r, &s.ref, taskB, 500)}
	s.load()
	return s
}

func (s *staged) load() {
	var err error
	s.in.Roots, err = s.r.LoadVerified(ctx, NamedRoots(s.in.Tasks))
	require.NoError(s.t, err)
}

// checkpoint writes one with a number of subtasks, 0: without an exchange.
func (s *staged) checkpoint(id int, prev *RootRef, parallelism int) (RootRef, *Root) {
	name := nameOf(id, 1)
	root := &Root{Name: name, Predecessor: prev, ClusterID: "cluster-1", CreatedUnixMilli: 1700000000000}
	var deltas []TaskDelta
	for i := range parallelism {
		d := delta(subtask(i), counts, 0, id, change{fmt.Sprint("totals/acc|", i): val("1"), "totals/acc|wide": val(strings.Repeat("v", 400*i))})
		d.InFlight = inFlightOf(flying{-1, "a"}, flying{64 * i, "b"})
		deltas = append(deltas, d)
	}
	parts, err := s.r.Persist(ctx, name, deltas)
	require.NoError(s.t, err)
	for i := range parts {
		root.Tasks = append(root.Tasks, TaskEntry{Task: subtask(i), States: counts[:1], Runs: []RunRef{parts[i].Run}, Parallelism: parallelism, MaxParallelism: 128,
			InFlight: []RunRef{parts[i].InFlight}})
		root.Tasks[i].States = counts
	}
	for _, id := range []element.TaskID{taskA, taskB} {
		root.Tasks = append(root.Tasks, TaskEntry{Task: id, Positions: []element.Position{position(id.Partition, int64(name.ID)*100)}})
	}
	ref, err := s.r.WriteRoot(ctx, root)
	require.NoError(s.t, err)
	return ref, root
}

func (s *staged) resolve() map[element.TaskID]Decision {
	s.t.Helper()
	d, err := Resolve(s.in)
	require.NoError(s.t, err)
	return d
}

func (s *staged) refused(reason Reason, code fault.Code, words ...string) *RefusedError {
	s.t.Helper()
	_, err := Resolve(s.in)
	require.Error(s.t, err)
	no := RefusalOf(err)
	require.NotNil(s.t, no)
	require.Equal(s.t, reason, no.Refusals[0].Reason, "%v", err)
	require.Equal(s.t, code, fault.CodeOf(err))
	require.Equal(s.t, fault.Stop, fault.RecoveryOf(err))
	for _, w := range words {
		require.ErrorContains(s.t, err, w)
	}
	return no
}

func TestStagesAreRestoredWithTheTasks(t *testing.T) {
	s := newStaged(t)
	d := s.resolve()
	require.Len(t, d, 4)
	for i := range 2 {
		got := d[subtask(i)]
		require.Equal(t, Restore, got.Kind)
		require.Equal(t, s.ref, got.Root)
		require.Equal(t, s.root.Tasks[i], got.Entry)
		require.Equal(t, []TaskEntry{got.Entry}, got.Sources)
		require.Nil(t, got.KeepKeys())
		require.Nil(t, got.KeepInFlight(&got.Sources[0]))
		require.False(t, got.New)
	}
	require.Nil(t, d[taskA].Stage)
}

func TestAnotherParallelismReadsTheSubtasksThatHadItsKeys(t *testing.T) {
	s := newStaged(t)
	for parallelism, want := range map[int][][]int{1: {{0, 1}}, 3: {{0}, {0, 1}, {1}}, 4: {{0}, {0}, {1}, {1}}, 128: nil} {
		s.in.Stages[0].Parallelism = parallelism
		d := s.resolve()
		require.Len(t, d, 2+parallelism)
		unkeyed := map[int32]int{}
		for i := range parallelism {
			got := d[subtask(i)]
			require.Equal(t, Restore, got.Kind)
			require.Zero(t, got.Entry)
			require.NotNil(t, got.KeepKeys())
			var from []int
			for k := range got.Sources {
				from = append(from, int(got.Sources[k].Task.Partition))
				if got.KeepInFlight(&got.Sources[k])(-1) {
					unkeyed[got.Sources[k].Task.Partition]++
				}
			}
			if want != nil {
				require.Equal(t, want[i], from)
			}
		}
		require.Equal(t, map[int32]int{0: 1, 1: 1}, unkeyed, "each subtask's records without a key group go to one")
	}
}

func TestStagesWithoutACheckpointStartEmpty(t *testing.T) {
	s := newStaged(t)
	s.in.Tasks = []TaskFacts{standsAt(t, s.r, nil, taskA, 0), standsAt(t, s.r, nil, taskB, 0)}
	s.load()
	d := s.resolve()
	require.Equal(t, StartEmpty, d[subtask(1)].Kind)
	require.False(t, d[subtask(1)].New)
	require.Equal(t, 1, d[subtask(1)].Stage.Subtask)
	s.in.Tasks[1].Inputs[0].Found = false // that partition is new
	require.Equal(t, StartEmpty, s.resolve()[subtask(0)].Kind)

	s.in.Tasks[0] = standsAt(t, s.r, &s.ref, taskA, 500)
	s.load()
	require.Equal(t, Restore, s.resolve()[subtask(0)].Kind, "a partition that is new does not keep the others from it")
}

func TestANewStageStartsEmptyAndSaysSo(t *testing.T) {
	s := newStaged(t)
	added := StageFacts{Name: "by-day", Parallelism: 3, MaxParallelism: 64}
	s.in.Stages = append(s.in.Stages, added)
	d := s.resolve()
	require.Equal(t, Restore, d[subtask(0)].Kind)
	got := d[element.TaskID{Source: "by-day", Partition: 2}]
	require.Equal(t, Decision{Kind: StartEmpty, New: true, Root: RootRef{Name: s.ref.Name}, Stage: &StageDecision{StageFacts: added, Subtask: 2}}, got)
}

func TestAMixtureOfCheckpointsIsRefused(t *testing.T) {
	s := newStaged(t)
	newer, _ := s.checkpoint(6, &s.ref, 2)
	s.in.Tasks[1] = standsAt(t, s.r, &newer, taskB, 600)
	s.load()
	no := s.refused(ReasonMixedRoots, fault.HandleMismatch, "orders-0", "orders-1", s.ref.Path, newer.Path, "after a run at-least-once, whose commits may come in part, start once more in that mode")
	require.Equal(t, taskB, no.Refusals[0].Task)
	s.in.Stages = nil // the offset of orders-0 went back all the same
	s.in.DropStates = true
	s.refused(ReasonStaleHandle, fault.HandleMismatch, "orders-0", newer.Path)

	// Before there was an exchange every instance had its own.
	s.in.Stages, s.in.DropStates = []StageFacts{byUser}, false
	old, _ := s.checkpoint(3, nil, 0)
	other, _ := s.checkpoint(4, nil, 0)
	s.in.Tasks = []TaskFacts{standsAt(t, s.r, &old, taskA, 300), standsAt(t, s.r, &other, taskB, 400)}
	s.load()
	require.True(t, s.resolve()[subtask(0)].New)
	s.in.Tasks[1] = standsAt(t, s.r, &s.ref, taskB, 500)
	s.load()
	s.refused(ReasonMixedRoots, fault.HandleMismatch)
}

// TestAMixtureBeginsAtTheNewestWhereRecordsMayRepeat: without transactions some partitions may stand at the checkpoint
// before.
func TestAMixtureBeginsAtTheNewestWhereRecordsMayRepeat(t *testing.T) {
	s := newStaged(t)
	newer, _ := s.checkpoint(6, &s.ref, 2)
	s.in.Repeats = true
	for _, ahead := range []element.TaskID{taskA, taskB} {
		s.in.Tasks = []TaskFacts{standsAt(t, s.r, &s.ref, taskA, 500), standsAt(t, s.r, &s.ref, taskB, 500)}
		s.in.Tasks[ahead.Partition] = standsAt(t, s.r, &newer, ahead, 600)
		s.load()
		d := s.resolve()
		for id, got := range d {
			require.Equal(t, newer, got.Root, "%v", id)
			require.Equal(t, Restore, got.Kind)
		}
		require.Len(t, d, 4)
		require.EqualValues(t, 600, d[taskA].Positions[0].Offset)
		require.EqualValues(t, 600, d[taskB].Positions[0].Offset)
		require.Equal(t, newer.Name.ID, d[subtask(1)].Entry.InFlight[0].To, "the records of that one are in flight")
	}

	// One that does not hold all tasks is no place to begin.
	loaded := s.in.Roots[newer]
	loaded.Root.Tasks = slices.DeleteFunc(slices.Clone(loaded.Root.Tasks), func(e TaskEntry) bool { return e.Task == taskA })
	s.refused(ReasonMixedRoots, fault.HandleMismatch)

	// Without an exchange each task begins where it stands.
	s = newStaged(t)
	s.in.Repeats, s.in.Stages, s.in.DropStates = true, nil, true
	newer, _ = s.checkpoint(6, &s.ref, 2)
	s.in.Tasks[1] = standsAt(t, s.r, &newer, taskB, 600)
	s.load()
	d := s.resolve()
	require.EqualValues(t, 500, d[taskA].Positions[0].Offset)
	require.EqualValues(t, 600, d[taskB].Positions[0].Offset)
}

// The first checkpoint of all, or of a partition, is committed in part: some handles are still those of the start positions.
func TestAFirstCheckpointThatIsCommittedInPart(t *testing.T) {
	s := newStaged(t)
	start := factsOf(t, position(taskB.Partition, 0), RootRef{Name: nameOf(0, 1)}, &s.in, HandleEmpty)
	s.in.Tasks[1].Inputs[0] = start
	s.load()
	s.refused(ReasonStaleHandle, fault.HandleMismatch, "task orders-1: the committed offset is that of checkpoint 0-", "at-least-once")
	s.in.Repeats = true
	d := s.resolve()
	require.Len(t, d, 4)
	for id, got := range d {
		require.Equal(t, s.ref, got.Root, "%v", id)
		require.Equal(t, Restore, got.Kind)
	}
	require.EqualValues(t, 500, d[taskB].Positions[0].Offset)

	// One whose state was let go at that checkpoint stays without, and so does one that has run without checkpoints.
	for _, kind := range []HandleKind{HandleEmpty, HandleUnsaved} {
		s.in.Tasks[1].Inputs[0] = factsOf(t, position(taskB.Partition, 500), s.ref, &s.in, kind)
		require.Equal(t, StartEmpty, s.resolve()[taskB].Kind)
	}
}

func TestAStageThatIsGoneIsRefused(t *testing.T) {
	s := newStaged(t)
	for _, stages := range [][]StageFacts{nil, {{Name: "other", Parallelism: 1, MaxParallelism: 128}}} {
		s.in.Stages, s.in.DropStates = stages, false
		no := s.refused(ReasonStateDropped, fault.StateMismatch, "stage by-user", "totals/acc", "4 records in flight", "let it go with --allow-dropped-state")
		require.Equal(t, stageName, no.Refusals[0].Task.Source)
		s.in.DropStates = true
		d := s.resolve()
		require.Equal(t, []DroppedStage{{Stage: stageName, Root: s.ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}, InFlight: 4}}, s.in.DroppedStages(d))
	}
	// One that has no state, but records on the way to it.
	s.in.DropStates = false
	loaded := s.in.Roots[s.ref]
	for i := range 2 {
		loaded.Root.Tasks[i].States, loaded.Root.Tasks[i].Runs = nil, nil
	}
	s.refused(ReasonInFlight, fault.StateMismatch, "4 records in flight")
	for i := range 2 {
		loaded.Root.Tasks[i].InFlight = nil
	}
	d := s.resolve()
	require.Empty(t, s.in.DroppedStages(d), "nothing is lost with it")
}

func TestStatesOfAStageAreCompared(t *testing.T) {
	s := newStaged(t)
	s.in.States[stageName] = []StateInfo{{Name: "totals/acc", KeyCodec: "string", Codec: "double"}, counts[1]}
	no := s.refused(ReasonCodecChanged, fault.StateMismatch, "double")
	require.Len(t, no.Refusals, 1, "once for the stage")
	s.in.States[stageName] = counts[1:]
	s.refused(ReasonStateDropped, fault.StateMismatch, "totals/acc")
	s.in.DropStates = true
	s.resolve()
}

func TestOtherKeyGroupsMoveStateButNotRecordsInFlight(t *testing.T) {
	s := newStaged(t)
	s.in.Stages[0].MaxParallelism = 64
	s.refused(ReasonInFlight, fault.StateMismatch, "4 records in flight", "128", "64")
	s.in.DropStates = true
	d := s.resolve()
	require.Equal(t, []DroppedStage{{Stage: stageName, Root: s.ref, Subtasks: 2, InFlight: 4}}, s.in.DroppedStages(d))
	require.Empty(t, d[subtask(0)].Sources[0].InFlight)
	s.in.DropStates = false
	for i := range 2 {
		s.in.Roots[s.ref].Root.Tasks[i].InFlight = nil
	}
	d = s.resolve()
	for i := range 2 {
		require.Len(t, d[subtask(i)].Sources, 2, "every key may be anywhere")
	}
}

func TestANameThatWasASourcesAndIsAnExchanges(t *testing.T) {
	s := newStaged(t)
	s.in.Stages = append(s.in.Stages, StageFacts{Name: "orders", Parallelism: 1, MaxParallelism: 1})
	root := s.in.Roots[s.ref].Root
	s.in.Tasks = s.in.Tasks[1:]
	require.True(t, s.resolve()[taskA].New)
	root.Task(taskA).States = counts
	s.refused(ReasonStateDropped, fault.StateMismatch, "source of this name")
}

func TestRecoverTakesOneCheckpointOfAllTasksAndStages(t *testing.T) {
	s := newStaged(t)
	require.NoError(t, s.r.MarkCommitted(ctx, s.ref))
	newer, _ := s.checkpoint(6, &s.ref, 2)
	require.NoError(t, s.r.MarkCommitted(ctx, newer))
	s.in.Tasks[0].Inputs[0].Found, s.in.Tasks[1].Inputs[0].Found = false, false
	s.in.Stages[0].Parallelism = 3
	listing, err := s.r.Survey(ctx)
	require.NoError(t, err)
	s.in.Listing, s.in.Stored = listing, listing
	refused := s.refused(ReasonOffsetsExpired, fault.HandleMismatch)
	d, rec, err := Recover(s.in, refused, listing)
	require.NoError(t, err)
	require.Len(t, rec.Tasks, 2)
	for id, got := range d {
		require.Equal(t, Recovered, got.Kind, id)
		require.Equal(t, newer, got.Root)
	}
	require.Len(t, d, 5)
	require.Len(t, d[subtask(1)].Sources, 2)

	// The newest of one task alone is not one of all: both go back further.
	lone := *s.root
	lone.Name, lone.Predecessor = nameOf(7, 1), &newer
	lone.Tasks = slices.Clone(s.root.Tasks[:3])
	ref, err := s.r.WriteRoot(ctx, &lone)
	require.NoError(t, err)
	require.NoError(t, s.r.MarkCommitted(ctx, ref))
	listing, err = s.r.Survey(ctx)
	require.NoError(t, err)
	d, _, err = Recover(s.in, refused, listing)
	require.NoError(t, err)
	require.Equal(t, newer, d[taskA].Root)
	s.in.Stages = nil
	_, _, err = Recover(s.in, refused, listing)
	require.Equal(t, ReasonStateDropped, RefusalOf(err).Refusals[0].Reason)
}

// TestCleanForgetsAParallelismThatIsOver: a subtask that there is no more does not keep the checkpoints that had it.
func TestCleanForgetsAParallelismThatIsOver(t *testing.T) {
	for _, gone := range []bool{false, true} {
		s := newStaged(t)
		require.NoError(t, s.r.MarkCommitted(ctx, s.ref))
		prev := s.ref
		for id := 6; id <= 9; id++ {
			ref, _ := s.checkpoint(id, &prev, []int{4, 4, 1, 0}[id-6])
			require.NoError(t, s.r.MarkCommitted(ctx, ref))
			if id < 8 {
				_, err := s.r.Merge(ctx, ref.Name, func() TaskEntry { r, err := s.r.ReadRoot(ctx, ref); require.NoError(t, err); return r.Tasks[1] }())
				require.NoError(t, err)
			}
			prev = ref
		}
		r := s.r
		r.retain = 2
		if gone { // another instance looks after what is left
			cfg := config(vfs.NewMem(), "j")
			cfg.Storage, cfg.NumRetained = s.r.st, 2
			var err error
			r, err = OpenRepository(ctx, cfg)
			require.NoError(t, err)
			_, err = r.CleanGone(ctx, GoneInput{Now: time.Now().Add(1000 * time.Hour), Live: func(context.Context) ([]string, error) { return []string{"j"}, nil },
				Committed: func(context.Context) ([]RootRef, error) { return []RootRef{prev}, nil }})
			require.NoError(t, err)
		} else {
			_, err := r.Clean(ctx, []RootRef{prev}, says(prev))
			require.NoError(t, err)
		}
		var roots []string
		for _, f := range listAll(t, r) {
			if strings.HasSuffix(f, rootSuffix) {
				roots = append(roots, f)
			}
		}
		require.Equal(t, []string{"shop/i-0/chk-8-0000000000000001.root", "shop/i-0/chk-9-0000000000000001.root"}, roots)
		require.NoError(t, r.VerifyAll(ctx, nil, func(v Verified) { require.Empty(t, v.Damage) }))
	}
}

func TestRootsOfStagesThatAreNotWholeAreRefused(t *testing.T) {
	s := newStaged(t)
	const lengthDiffers = "inline run of"
	for what, spoil := range map[string]func(*Root){
		"has parallelism 3 of 128, another of its stage": func(r *Root) { r.Tasks[1].Parallelism = 3 },
		"but 1 subtasks up to number 1":                  func(r *Root) { r.Tasks = r.Tasks[1:] },
		"but 2 subtasks up to number 2":                  func(r *Root) { r.Tasks[1].Task.Partition = 2 },
		"parallelism 2 of 1, 1 up to 32768":              func(r *Root) { r.Tasks[0].MaxParallelism, r.Tasks[1].MaxParallelism = 1, 1 },
		"parallelism 2 of 0":                             func(r *Root) { r.Tasks[0].MaxParallelism, r.Tasks[1].MaxParallelism = 0, 0 },
		"parallelism 2 of 32769":                         func(r *Root) { r.Tasks[0].MaxParallelism, r.Tasks[1].MaxParallelism = 32769, 32769 },
		"not one of records in flight":                   func(r *Root) { r.Tasks[0].InFlight = r.Tasks[0].Runs },
		"hole: run 1 of 1":                               func(r *Root) { r.Tasks[0].Runs = r.Tasks[0].InFlight },
		"runs in flight are too many":                    func(r *Root) { r.Tasks[0].InFlight = make([]RunRef, maxInFlight+1) },
		"reaches to checkpoint 5":                        func(r *Root) { r.Name.ID = 4 },
		lengthDiffers:                                    func(r *Root) { r.Tasks[0].Runs[0].Length++ },
		"is not the path of a run":                       func(r *Root) { r.Tasks[0].Runs[0].File = "shop/i-0/chk-5-0000000000000001.data" },
		"out of order or twice":                          func(r *Root) { r.Savepoints = []SavepointRef{{"a", "/x", Digest{1}}, {"a", "/x", Digest{1}}} },
		"savepoint \"\" at":                              func(r *Root) { r.Savepoints = []SavepointRef{{"", "/x", Digest{1}}} },
		"of the origin is out of order or twice":         func(r *Root) { r.Origin = []SavepointRef{{"a", "/x", Digest{1}}, {"b", "/y", Digest{1}}} },
		"of the origin, at \"\", is not valid":           func(r *Root) { r.Origin = []SavepointRef{{"a", "", Digest{1}}} },
		"savepoints of the origin, at most":              func(r *Root) { r.Origin = make([]SavepointRef, MaxOrigin+1) },
		"exchange(5) with 1 runs":                        func(r *Root) { r.Tasks[0].Exchange = exchangeKinds },
		"group-by with 0 runs":                           func(r *Root) { r.Tasks[0].InFlight, r.Tasks[0].Exchange = nil, GroupByExchange },
		"over a group-by, another of its stage over a":   func(r *Root) { r.Tasks[0].Exchange, r.Tasks[1].Exchange = RebalanceExchange, GroupByExchange },
		"or it is of a source":                           func(r *Root) { r.Tasks[2].InFlight, r.Tasks[2].Exchange = r.Tasks[0].InFlight, GroupByExchange },
		"savepoints, at most":                            func(r *Root) { r.Savepoints = make([]SavepointRef, maxSavepoints+1) },
	} {
		root := *s.root
		root.Name.Incarnation, root.Application, root.Instance = 99, "shop", "i-0"
		root.Tasks = slices.Clone(root.Tasks)
		for i := range root.Tasks {
			root.Tasks[i].Runs, root.Tasks[i].InFlight = slices.Clone(root.Tasks[i].Runs), slices.Clone(root.Tasks[i].InFlight)
		}
		spoil(&root)
		_, err := s.r.WriteRoot(ctx, &root)
		require.ErrorContains(t, err, what)
		if what == lengthDiffers {
			continue // only one of the two is written
		}
		_, err = decodeRoot(encodeRoot(root.sorted()))
		require.Error(t, err, "the reader says it too: %s", what)
	}
}
