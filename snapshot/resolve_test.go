package snapshot

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// world is a group with one task per partition of orders, all at checkpoint 7, that resolves without refusal.
func world(t testing.TB) *ResolveInput {
	r := openRepo(t, vfs.NewMem(), "i-0")
	ref, root := mustCheckpoint(t, r, 7, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1"), "last/seen|a": val("x")}, taskB: {"totals/acc|b": val("1"), "last/seen|b": val("x")}})
	in := &ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: r.StoreID(), States: map[string][]StateInfo{"orders": counts}}
	for _, e := range root.Tasks {
		in.Tasks = append(in.Tasks, TaskFacts{Task: e.Task, Inputs: []InputFacts{factsOf(t, e.Positions[0], ref, in, HandleCheckpoint)}})
	}
	var err error
	in.Roots, err = r.LoadRoots(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	require.Len(t, in.Roots, 1)
	return in
}

func factsOf(t testing.TB, p element.Position, ref RootRef, in *ResolveInput, kind HandleKind) InputFacts {
	h := Handle{Kind: kind, Root: ref, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, ClusterID: in.ClusterID, TopicID: p.TopicID,
		PartitionCount: p.PartitionCount, StoreID: in.StoreID}
	if kind != HandleCheckpoint {
		h.Root = RootRef{Name: ref.Name}
	}
	text, err := h.Encode()
	require.NoError(t, err)
	return InputFacts{TopicPartition: p.TopicPartition, TopicID: p.TopicID, Partitions: p.PartitionCount, Found: true, Offset: p.Offset, Metadata: text}
}

func TestResolveRestores(t *testing.T) {
	in := world(t)
	got, err := Resolve(*in)
	require.NoError(t, err)
	require.Len(t, got, 2)
	for _, id := range []element.TaskID{taskA, taskB} {
		d := got[id]
		require.Equal(t, Restore, d.Kind)
		require.Equal(t, []element.Position{position(id.Partition, 700)}, d.Positions)
		require.Equal(t, nameOf(7, 1), d.Root.Name)
		require.Equal(t, id, d.Entry.Task)
		require.Len(t, d.Entry.Runs, 1)
	}
	require.EqualValues(t, 8, NextID(in.Tasks))
}

func TestResolveFreshAndEmpty(t *testing.T) {
	in := world(t)
	fresh := TaskFacts{Task: element.TaskID{Source: "orders", Partition: 2}, Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: "orders", Partition: 2}, TopicID: topicID, Partitions: 4}}}
	empty := TaskFacts{Task: element.TaskID{Source: "orders", Partition: 3}, Inputs: []InputFacts{factsOf(t, position(3, 42), RootRef{Name: nameOf(9, 4)}, in, HandleEmpty)}}
	in.Tasks = append(in.Tasks, fresh, empty)
	require.True(t, NeedsStored(in.Tasks))
	for ref, l := range in.Roots {
		in.Stored = []RootInfo{{Ref: ref, Root: l.Root}}
	}
	got, err := Resolve(*in)
	require.NoError(t, err)
	require.Equal(t, Decision{Kind: Fresh}, got[fresh.Task])
	require.Equal(t, Decision{Kind: StartEmpty, Positions: []element.Position{position(3, 42)}, Root: RootRef{Name: nameOf(9, 4)}}, got[empty.Task])
	require.EqualValues(t, 10, NextID(in.Tasks))
	require.EqualValues(t, 1, NextID([]TaskFacts{fresh}))
}

func TestResolveRefusals(t *testing.T) {
	handle := func(in *ResolveInput, change func(h *Handle)) {
		f := &in.Tasks[1].Inputs[0]
		h, err := ParseHandle(f.Metadata)
		require.NoError(t, err)
		change(&h)
		f.Metadata, err = h.Encode()
		require.NoError(t, err)
	}
	editRoot := func(in *ResolveInput, change func(e *TaskEntry)) {
		for ref, l := range in.Roots {
			root := *l.Root
			root.Tasks = append([]TaskEntry(nil), root.Tasks...)
			change(&root.Tasks[1])
			in.Roots[ref] = LoadedRoot{Root: &root}
		}
	}
	facts := func(in *ResolveInput) *InputFacts { return &in.Tasks[1].Inputs[0] }
	for _, c := range []struct {
		name   string
		reason Reason
		code   fault.Code
		says   []string
		change func(in *ResolveInput)
	}{
		{"plain consumer in the group", ReasonForeignOffset, fault.HandleMismatch, []string{"offset 700 of orders/1 in group shop", "was not written by a checkpoint"}, func(in *ResolveInput) { facts(in).Metadata = "" }},
		{"another program's metadata", ReasonForeignOffset, fault.HandleMismatch, []string{"not a millweir handle"}, func(in *ResolveInput) { facts(in).Metadata = "AgAAAYk" }},
		{"damaged handle", ReasonDamagedHandle, fault.HandleMismatch, []string{"checksum"}, func(in *ResolveInput) {
			facts(in).Metadata = strings.Replace(facts(in).Metadata, "mw1:Ag", "mw1:AA", 1)
		}},
		{"newer handle", ReasonNewerHandle, fault.HandleMismatch, []string{"newer version"}, func(in *ResolveInput) { facts(in).Metadata = "mw4:abc" }},
		{"reset tool kept the metadata", ReasonOffsetMoved, fault.HandleMismatch, []string{"offset 650", "stands at 700"}, func(in *ResolveInput) { facts(in).Offset = 650 }},
		{"handle of another partition", ReasonOffsetMoved, fault.HandleMismatch, []string{"partition 0"}, func(in *ResolveInput) { facts(in).Metadata = in.Tasks[0].Inputs[0].Metadata }},
		{"mirrored", ReasonOtherCluster, fault.HandleMismatch, []string{`"cluster-1"`, `"cluster-2"`}, func(in *ResolveInput) { in.ClusterID = "cluster-2" }},
		{"other directory", ReasonOtherStore, fault.HandleMismatch, []string{"state.checkpoints.dir", "from a backup", "reset the application", "another application name"}, func(in *ResolveInput) { in.StoreID = "ff" }},
		{"topic created again", ReasonTopicRecreated, fault.HandleMismatch, []string{"deleted and created again"}, func(in *ResolveInput) { facts(in).TopicID[0]++ }},
		{"partitions added", ReasonPartitionCount, fault.StateMismatch, []string{"had 4 partitions, now it has 8"}, func(in *ResolveInput) { facts(in).Partitions = 8 }},
		{"other application", ReasonOtherGroup, fault.HandleMismatch, []string{"another application"}, func(in *ResolveInput) {
			handle(in, func(h *Handle) { h.Root.Path = strings.Replace(h.Root.Path, "shop/", "mall/", 1) })
		}},
		{"root missing", ReasonRootUnusable, fault.Corrupt, []string{"the file is missing", "nothing was overwritten"}, func(in *ResolveInput) {
			for ref := range in.Roots {
				in.Roots[ref] = LoadedRoot{Err: corrupt(ref.Name.String(), ref.Path, "root", errors.Join(vfsNotExist()))}
			}
		}},
		{"root of another cluster", ReasonOtherCluster, fault.HandleMismatch, []string{`is of cluster "cluster-2", this is "cluster-1"`}, func(in *ResolveInput) {
			for ref, loaded := range in.Roots {
				root := *loaded.Root
				root.ClusterID = "cluster-2"
				in.Roots[ref] = LoadedRoot{Root: &root}
			}
		}},
		{"root not loaded", ReasonRootUnusable, fault.Corrupt, []string{"not loaded"}, func(in *ResolveInput) { in.Roots = nil }},
		{"task not in root", ReasonTaskMissing, fault.Corrupt, []string{"does not hold it"}, func(in *ResolveInput) { editRoot(in, func(e *TaskEntry) { e.Task.Partition = 3 }) }},
		{"position differs", ReasonPositionDiffers, fault.Corrupt, []string{"offset 699", "700"}, func(in *ResolveInput) {
			editRoot(in, func(e *TaskEntry) {
				p := e.Positions[0]
				p.Offset--
				e.Positions = []element.Position{p}
			})
		}},
		{"input missing in root", ReasonPositionDiffers, fault.Corrupt, []string{"covers 0 inputs"}, func(in *ResolveInput) { editRoot(in, func(e *TaskEntry) { e.Positions = nil }) }},
		{"TestC36 codec changed", ReasonCodecChanged, fault.StateMismatch, []string{"totals/acc", `"int64"`, `"json"`}, func(in *ResolveInput) {
			in.States = map[string][]StateInfo{"orders": {{Name: "totals/acc", KeyCodec: "string", Codec: "json"}, counts[1]}}
		}},
		{"TestC36 step removed", ReasonStateDropped, fault.StateMismatch, []string{"last/seen"}, func(in *ResolveInput) { in.States = map[string][]StateInfo{"orders": counts[:1]} }},
		{"offsets expired", ReasonOffsetsExpired, fault.HandleMismatch, []string{"expired", "checkpoint 7-0000000000000001"}, func(in *ResolveInput) {
			in.Tasks[1].Inputs[0] = InputFacts{TopicPartition: facts(in).TopicPartition, TopicID: topicID, Partitions: 4}
			for ref := range in.Roots {
				in.Stored = []RootInfo{{Ref: ref, Root: in.Roots[ref].Root}}
			}
		}},
		{"one input has no offset", ReasonInputsDisagree, fault.HandleMismatch, []string{"other/1"}, func(in *ResolveInput) {
			in.Tasks[1].Inputs = append(in.Tasks[1].Inputs, InputFacts{TopicPartition: element.TopicPartition{Topic: "other", Partition: 1}})
		}},
		{"inputs at different checkpoints", ReasonInputsDisagree, fault.HandleMismatch, []string{"not committed together"}, func(in *ResolveInput) {
			p := position(1, 5)
			p.Topic = "other"
			in.Tasks[1].Inputs = append(in.Tasks[1].Inputs, factsOf(t, p, RootRef{Name: nameOf(3, 3)}, in, HandleEmpty))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := world(t)
			c.change(in)
			got, err := Resolve(*in)
			require.Nil(t, got)
			ref := RefusalOf(err)
			require.NotNil(t, ref, "%v", err)
			require.True(t, ref.Has(c.reason), "%v", ref.Refusals)
			require.Equal(t, c.code, fault.CodeOf(err))
			require.Equal(t, fault.Stop, fault.RecoveryOf(err))
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
			require.NotContains(t, err.Error(), "\n", "one line")
		})
	}
}

func vfsNotExist() error {
	_, err := vfs.NewMem().Open("gone")
	return err
}

func TestResolveAllowsWhatIsHarmless(t *testing.T) {
	in := world(t)
	in.States["orders"] = append([]StateInfo{{Name: "new", KeyCodec: "string", Codec: "json"}}, counts...)
	got, err := Resolve(*in)
	require.NoError(t, err, "a new state starts empty")
	require.Equal(t, Restore, got[taskA].Kind)

	in = world(t)
	in.States, in.DropStates = map[string][]StateInfo{}, true
	in.Tasks[0].Inputs[0].Partitions, in.Tasks[1].Inputs[0].Partitions = 8, 8
	_, err = Resolve(*in)
	require.NoError(t, err, "a stateless source may get partitions")

	in = world(t)
	in.Tasks[0].Inputs[0].Offset++
	in.Tasks[1].Inputs[0].Metadata = ""
	_, err = Resolve(*in)
	require.Len(t, RefusalOf(err).Refusals, 2)
	require.ErrorContains(t, err, "stands at 700")
	require.ErrorContains(t, err, "; and committed offset 700 of orders/1 in group shop was not written by a checkpoint", "each reason has its line")

	in = world(t)
	in.Tasks[0].Inputs[0].Metadata, in.Tasks[1].Inputs[0].Metadata = "", ""
	_, err = Resolve(*in)
	require.ErrorContains(t, err, "(and 1 more)")
}

// TestResolveNeverRestoresAfterAChange changes one fact at random: it is either refused or changes nothing.
func TestResolveNeverRestoresAfterAChange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := world(t)
		good, err := Resolve(*in)
		require.NoError(rt, err)
		f := &in.Tasks[0].Inputs[0]
		b := []byte(f.Metadata)
		switch rapid.IntRange(0, 3).Draw(rt, "what") {
		case 0:
			b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "by"))
		case 1:
			b = b[:rapid.IntRange(0, len(b)-1).Draw(rt, "cut")]
		case 2:
			f.Offset += int64(rapid.IntRange(1, 1000).Draw(rt, "moved"))
		case 3:
			f.TopicID[rapid.IntRange(0, 15).Draw(rt, "id")] ^= 1
		}
		f.Metadata = string(b)
		got, err := Resolve(*in)
		require.Nil(rt, got, fmt.Sprint(good))
		require.NotNil(rt, RefusalOf(err))
	})
}

func TestStoredAndList(t *testing.T) {
	m := vfs.NewMem()
	a, b := openRepo(t, m, "a"), openRepo(t, m, "b")
	stored, err := a.List(ctx)
	require.NoError(t, err)
	require.Empty(t, stored)
	refA, rootA := mustCheckpoint(t, a, 3, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}, taskB: {}})
	refA4, _ := mustCheckpoint(t, a, 4, 1, &refA, rootA, map[element.TaskID]change{taskA: {}})
	refB, _ := mustCheckpoint(t, b, 5, 2, nil, nil, map[element.TaskID]change{taskB: {}})
	require.NoError(t, a.MarkCommitted(ctx, refA4))
	require.NoError(t, a.MarkCommitted(ctx, refA4), "twice is harmless")
	require.Error(t, a.MarkCommitted(ctx, refB), "another instance's")
	stored, err = b.List(ctx)
	require.NoError(t, err)
	infos, err := a.List(ctx)
	require.NoError(t, err)
	require.Equal(t, infos, stored)
	for p, want := range []RootRef{refA4, refB} {
		in, task := ResolveInput{Stored: stored}, element.TaskID{Source: "any", Partition: int32(p)}
		require.Equal(t, want, in.stored(&TaskFacts{Task: task, Inputs: []InputFacts{{TopicPartition: position(int32(p), 0).TopicPartition}}}).Ref, "the newest that holds it")
	}
	require.Len(t, infos, 3)
	require.Equal(t, "a", infos[0].Instance)
	require.True(t, infos[0].Committed, "marker")
	require.True(t, infos[1].Committed, "predecessor of a committed one")
	require.False(t, infos[2].Committed, "not known")
	require.EqualValues(t, 1, infos[1].Root.Sizes().DeltaEntries)

	b2 := readFile(t, m, refB.Path)
	b2[40]++
	replaceFile(t, m, refB.Path, b2)
	stored, err = a.List(ctx)
	require.NoError(t, err)
	refusesUnread(t, stored, refB.Path)
}

// refusesUnread makes sure that a task which nothing is known of does not begin beside a root that cannot be read.
func refusesUnread(t *testing.T, stored []RootInfo, path string) {
	facts := InputFacts{TopicPartition: element.TopicPartition{Topic: "new"}, TopicID: element.TopicID{9}, Partitions: 1}
	_, err := Resolve(ResolveInput{Application: "shop", ClusterID: "cluster-1", Stored: stored, Tasks: []TaskFacts{{Task: element.TaskID{Source: "new"}, Inputs: []InputFacts{facts}}}})
	require.True(t, RefusalOf(err).Has(ReasonUnreadable), "%v", err)
	require.Equal(t, fault.Corrupt, fault.CodeOf(err))
	require.True(t, requireCorrupt(err, path), "%v", err)
	require.ErrorContains(t, err, "move the file and its marker away ("+path+")")
}

// A tool puts back the offset of one partition with its handle. The newest checkpoint has no marker, as after a kill right behind
// its commit, but the handle of the other partition says that it was committed.
func TestAHandleThatWentBackIsKnownFromThoseOfOthers(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	changes := map[element.TaskID]change{taskA: {"totals/acc|a": val("1"), "last/seen|a": val("x")}, taskB: {"totals/acc|b": val("1"), "last/seen|b": val("x")}}
	old, root := mustCheckpoint(t, r, 7, 1, nil, nil, changes)
	ref, newer := mustCheckpoint(t, r, 8, 1, &old, root, changes)
	in := &ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: r.StoreID(), States: map[string][]StateInfo{"orders": counts}}
	facts := func(root *Root, ref RootRef, id element.TaskID) TaskFacts {
		return TaskFacts{Task: id, Inputs: []InputFacts{factsOf(t, root.Task(id).Positions[0], ref, in, HandleCheckpoint)}}
	}
	var err error
	in.Tasks = []TaskFacts{facts(newer, ref, taskA), facts(newer, ref, taskB)}
	in.Roots, err = r.LoadRoots(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	_, err = Resolve(*in)
	require.NoError(t, err)

	in.Tasks[1] = facts(root, old, taskB)
	in.Roots, err = r.LoadRoots(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	_, err = Resolve(*in)
	require.True(t, RefusalOf(err).Has(ReasonStaleHandle), "%v", err)
	require.ErrorContains(t, err, taskB.String())
	in.Repeats = true // there the offsets of one checkpoint may be committed in part
	_, err = Resolve(*in)
	require.NoError(t, err)
}
