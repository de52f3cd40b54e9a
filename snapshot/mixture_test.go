package snapshot

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// pastRoots is an application with an exchange whose topics come and go: roots and handles, without files.
type pastRoots struct {
	t  *testing.T
	in ResolveInput
}

func newPast(t *testing.T) *pastRoots {
	return &pastRoots{t, ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: "store-1", States: map[string][]StateInfo{}, Roots: map[RootRef]LoadedRoot{}, Stages: []StageFacts{byUser}}}
}

// reads is what a checkpoint has of a topic.
type reads struct {
	topic string
	at    int64
	state bool
}

func (p reads) position() element.Position {
	return element.Position{TopicPartition: element.TopicPartition{Topic: p.topic}, TopicID: element.TopicID{p.topic[0]}, PartitionCount: 1, Offset: p.at}
}

func (p reads) task() element.TaskID { return element.TaskID{Source: "x." + p.topic} }

// root is a checkpoint with a stage of its own, of a number of subtasks.
func (h *pastRoots) root(id, subtasks int, topics ...reads) RootRef {
	root := &Root{Name: nameOf(id, 1), ClusterID: "cluster-1"}
	for i := range subtasks {
		root.Tasks = append(root.Tasks, TaskEntry{Task: subtask(i), Parallelism: subtasks, MaxParallelism: 128})
	}
	for _, p := range topics {
		e := TaskEntry{Task: p.task(), Positions: []element.Position{p.position()}}
		if p.state {
			e.States, e.Runs = counts, []RunRef{{To: root.Name.ID, Full: true, Entries: 1}}
			h.in.States[e.Task.Source] = counts
		}
		root.Tasks = append(root.Tasks, e)
	}
	ref := RootRef{Name: root.Name, Path: fmt.Sprintf("shop/i-0/chk-%s.root", root.Name), Digest: Digest{byte(id)}}
	h.in.Roots[ref] = LoadedRoot{Root: root}
	return ref
}

// stands adds a task that stands at a root.
func (h *pastRoots) stands(ref RootRef, p reads) {
	h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: p.task(), Inputs: []InputFacts{factsOf(h.t, p.position(), ref, &h.in, HandleCheckpoint)}})
}

func (h *pastRoots) refused(reason Reason, words ...string) {
	h.t.Helper()
	_, err := Resolve(h.in)
	no := RefusalOf(err)
	require.NotNil(h.t, no, "%v", err)
	require.Equal(h.t, reason, no.Refusals[0].Reason, "%v", err)
	require.Equal(h.t, fault.HandleMismatch, fault.CodeOf(err))
	for _, w := range words {
		require.ErrorContains(h.t, err, w)
	}
}

// tookOut is a past of two topics, of which b was taken out after its checkpoint 1.
func tookOut(t *testing.T, b reads) (h *pastRoots, left, current RootRef) {
	h = newPast(t)
	left, current = h.root(1, 2, reads{topic: "a", at: 10}, b), h.root(21, 2, reads{topic: "a", at: 210})
	h.stands(current, reads{topic: "a", at: 210})
	h.stands(left, b)
	return h, left, current
}

func TestATopicThatComesBackGoesOnAtItsOffset(t *testing.T) {
	for _, repeats := range []bool{false, true} {
		b := reads{topic: "b", at: 7}
		h, left, current := tookOut(t, b)
		h.in.Repeats = repeats
		d, err := Resolve(h.in)
		require.NoError(t, err)
		require.Equal(t, Decision{Kind: StartEmpty, Positions: []element.Position{b.position()}, Root: RootRef{Name: left.Name}, Left: left}, d[b.task()])
		require.Equal(t, current, d[element.TaskID{Source: "x.a"}].Root)
		for i := range 2 {
			require.Equal(t, current, d[subtask(i)].Root, "all stages are those of the newest")
		}
		require.Empty(t, h.in.DroppedStages(d))
	}
}

func TestStateOfATopicThatComesBackGoesOnRequestOnly(t *testing.T) {
	b := reads{topic: "b", at: 7, state: true}
	h, left, _ := tookOut(t, b)
	h.refused(ReasonMixedRoots, "x.b-0 has state at checkpoint 1-", "gone on without it to checkpoint 21-", "--allow-dropped-state")
	h.in.DropStates = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, StartEmpty, d[b.task()].Kind)
	require.Equal(t, []DroppedStage{{Stage: "x.b", Root: left, Subtasks: 1, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
}

// What the application was before it had an exchange leads to no stage.
func TestATopicComesBackFromBeforeTheExchange(t *testing.T) {
	b := reads{topic: "b", at: 7}
	h := newPast(t)
	left, other, current := h.root(900, 0, b), h.root(901, 0, reads{topic: "c", at: 3}), h.root(21, 2, reads{topic: "a", at: 210})
	h.stands(current, reads{topic: "a", at: 210})
	h.stands(left, b)
	h.stands(other, reads{topic: "c", at: 3})
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, left, d[b.task()].Left)
	require.Equal(t, other, d[element.TaskID{Source: "x.c"}].Left)
	require.Equal(t, current, d[subtask(0)].Root)
}

// One after the other was taken out, and both are back.
func TestTopicsComeBackFromSeveralCheckpoints(t *testing.T) {
	h := newPast(t)
	first := h.root(1, 2, reads{topic: "a", at: 10}, reads{topic: "b", at: 7})
	second := h.root(5, 1, reads{topic: "a", at: 50}, reads{topic: "c", at: 2})
	current := h.root(21, 2, reads{topic: "c", at: 9})
	h.stands(second, reads{topic: "a", at: 50})
	h.stands(first, reads{topic: "b", at: 7})
	h.stands(current, reads{topic: "c", at: 9})
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, second, d[element.TaskID{Source: "x.a"}].Left)
	require.Equal(t, first, d[element.TaskID{Source: "x.b"}].Left)
	require.Equal(t, current, d[subtask(1)].Root)
}

func TestWhatLooksLikeATopicThatComesBack(t *testing.T) {
	b := reads{topic: "b", at: 7}
	for what, spoil := range map[string]func(h *pastRoots, left, current *Root){
		"the newer checkpoint has it": func(_ *pastRoots, _, current *Root) {
			current.Tasks = append(current.Tasks, TaskEntry{Task: b.task(), Positions: []element.Position{reads{topic: "b", at: 9}.position()}})
		},
		"it has another partition of its topic": func(_ *pastRoots, _, current *Root) {
			p := b.position()
			p.Partition = 1
			current.Tasks = append(current.Tasks, TaskEntry{Task: element.TaskID{Source: "x.b", Partition: 1}, Positions: []element.Position{p}})
		},
		"one between them has it": func(h *pastRoots, _, _ *Root) {
			c := reads{topic: "c", at: 4}
			h.stands(h.root(5, 2, c, reads{topic: "a", at: 20}, reads{topic: "b", at: 8}), c)
		},
	} {
		t.Run(what, func(t *testing.T) {
			h, left, current := tookOut(t, b)
			h.full(left)
			spoil(h, h.in.Roots[left].Root, h.in.Roots[current].Root)
			h.refused(ReasonMixedRoots, left.Path, current.Path)
			h.in.DropStates = true
			h.refused(ReasonMixedRoots)
		})
	}
}

// What the stages had is not in the newer checkpoint, which did not go on from the older one: it is let go on request only.
func TestATopicComesBackToStagesThatHaveNothingOfIt(t *testing.T) {
	b := reads{topic: "b", at: 7}
	for what, spoil := range map[string]func(left, current *Root){
		"all sources were replaced": func(left, _ *Root) { left.Tasks = slices.Delete(left.Tasks, 2, 3) },
		"it stands before the older one": func(left, _ *Root) {
			left.Tasks[2].Positions = []element.Position{reads{topic: "a", at: 211}.position()}
		},
		"it went back to a savepoint": func(_, current *Root) { current.Origin = []SavepointRef{{"s", "/s", Digest{7}}} },
	} {
		t.Run(what, func(t *testing.T) {
			h, left, current := tookOut(t, b)
			h.full(left)
			spoil(h.in.Roots[left].Root, h.in.Roots[current].Root)
			h.refused(ReasonMixedRoots, left.Path, current.Path, "take its topic out again", "--allow-dropped-state", "another application name")
			h.in.DropStates = true
			d, err := Resolve(h.in)
			require.NoError(t, err)
			require.Equal(t, StartEmpty, d[b.task()].Kind)
			require.Equal(t, []element.Position{b.position()}, d[b.task()].Positions)
			require.Equal(t, current, d[subtask(0)].Root)
			require.Equal(t, []DroppedStage{{Stage: byUser.Name, Root: left, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
		})
	}
}

// All sources were replaced where the stages have nothing, so nothing of the topic can be missing in them when it comes back.
func TestATopicComesBackAfterAllSourcesWereReplaced(t *testing.T) {
	b := reads{topic: "b", at: 7}
	h, left, current := tookOut(t, b)
	root := h.in.Roots[left].Root
	root.Tasks = slices.Delete(root.Tasks, 2, 3) // a is new
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, Decision{Kind: StartEmpty, Positions: []element.Position{b.position()}, Root: RootRef{Name: left.Name}, Left: left}, d[b.task()])
	require.Equal(t, current, d[subtask(0)].Root)

	root.Tasks[0].InFlight = []RunRef{{To: 1, Entries: 1}}
	h.refused(ReasonMixedRoots, left.Path, current.Path)
}

// Where records may repeat, one of two partitions may have been committed before the topic was taken out, and the other not.
func TestPartsOfATopicThatComesBackAreLevelled(t *testing.T) {
	b, other := reads{topic: "b", at: 7}, reads{topic: "c", at: 3}
	h, left, current := tookOut(t, b)
	between := h.root(2, 2, reads{topic: "a", at: 11}, reads{topic: "b", at: 8}, other)
	h.stands(between, other)
	h.refused(ReasonMixedRoots)
	h.in.Repeats = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, between, d[b.task()].Left, "not %s", left)
	require.EqualValues(t, 8, d[b.task()].Positions[0].Offset)
	require.EqualValues(t, 3, d[other.task()].Positions[0].Offset)
	require.Equal(t, current, d[subtask(0)].Root)
}

func TestATopicThatComesBackWithoutOffset(t *testing.T) {
	b := reads{topic: "b", at: 7, state: true}
	h, left, _ := tookOut(t, b)
	f := &h.in.Tasks[1].Inputs[0]
	f.Found, f.Offset, f.Metadata = false, 0, ""
	h.in.Stored = []RootInfo{{Ref: left, Root: h.in.Roots[left].Root, Committed: true}}
	h.refused(ReasonOffsetsExpired, "gone on without it", "put them and their metadata back", "--allow-dropped-state")
	h.in.DropStates = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, Fresh, d[b.task()].Kind)
	require.Equal(t, []DroppedStage{{Stage: "x.b", Root: left, Subtasks: 1, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
}

func TestATopicThatComesBackToADamagedCheckpoint(t *testing.T) {
	b := reads{topic: "b", at: 7}
	h, left, _ := tookOut(t, b)
	h.in.Roots[left] = LoadedRoot{Err: vfsNotExist()}
	_, err := Resolve(h.in)
	require.True(t, RefusalOf(err).Has(ReasonRootUnusable), "%v", err)
	require.ErrorContains(t, err, "delete the group's offsets of this topic")
	f := &h.in.Tasks[1].Inputs[0]
	f.Found, f.Offset, f.Metadata = false, 0, ""
	h.in.Stored, h.in.DropStates = []RootInfo{{Ref: left, Err: vfsNotExist()}}, true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, Fresh, d[b.task()].Kind)
	require.Empty(t, h.in.DroppedStages(d))
}

// With the topic its offsets go; if they are there all the same, they have to go first.
func TestATopicThatComesBackWasCreatedAnew(t *testing.T) {
	b := reads{topic: "b", at: 7}
	h, left, _ := tookOut(t, b)
	f := &h.in.Tasks[1].Inputs[0]
	f.TopicID = element.TopicID{9}
	h.refused(ReasonTopicRecreated, "deleted and created again", "delete the group's offsets of this topic", "--allow-dropped-state")
	f.Found, f.Offset, f.Metadata = false, 0, ""
	h.in.Stored = []RootInfo{{Ref: left, Root: h.in.Roots[left].Root, Committed: true}}
	h.refused(ReasonTopicRecreated, "deleted and created again", "--allow-dropped-state")
	h.in.DropStates = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, Fresh, d[b.task()].Kind)
}

// So is one that was not out; what the stages have stays.
func TestATopicThatWasCreatedAnewBeginsAnewOnRequest(t *testing.T) {
	a, b := reads{topic: "a", at: 10}, reads{topic: "b", at: 7, state: true}
	for _, stages := range [][]StageFacts{{byUser}, nil} {
		h := newPast(t)
		ref := h.root(1, 2*len(stages), a, b)
		h.in.Stages = stages
		h.stands(ref, a)
		h.stands(ref, b)
		f := &h.in.Tasks[1].Inputs[0]
		f.TopicID, f.Found, f.Offset, f.Metadata = element.TopicID{9}, false, 0, ""
		h.in.Stored = []RootInfo{{Ref: ref, Root: h.in.Roots[ref].Root, Committed: true}}
		h.refused(ReasonTopicRecreated, "task x.b-0", "deleted and created again; begin it where its source starts with --allow-dropped-state")
		h.in.DropStates = true
		d, err := Resolve(h.in)
		require.NoError(t, err)
		require.Equal(t, Fresh, d[b.task()].Kind)
		require.Equal(t, Restore, d[a.task()].Kind)
		require.Equal(t, []DroppedStage{{Stage: "x.b", Root: ref, Subtasks: 1, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
	}
}

// The only topic was created anew: no offset leads to what the stages have, and the refusal says that it goes with the flag.
func TestTheOnlyTopicWasCreatedAnew(t *testing.T) {
	a := reads{topic: "a", at: 10}
	h := newPast(t)
	h.in.Stored = []RootInfo{h.full(h.root(12, 2, a))}
	h.in.Roots = nil // no handle names it
	h.fresh(a, false)
	h.in.Tasks[0].Inputs[0].TopicID = element.TopicID{9}
	h.refused(ReasonTopicRecreated, "task x.a-0", "with --allow-dropped-state, which lets the state behind the exchanges go as well, since no offset leads to it any more")
	h.in.DropStates = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, Fresh, d[a.task()].Kind)
	require.NotEmpty(t, h.in.DroppedStages(d), "the log tells what goes")
}

// A recovery does not go back behind what was read of a topic that was taken out since.
func TestARecoveryDoesNotLeaveAnAbsentTopicBehind(t *testing.T) {
	a := reads{topic: "a", at: 5}
	h := newPast(t)
	from, left := h.root(1, 2, a, reads{topic: "b", at: 3}), h.root(2, 2, reads{topic: "a", at: 10}, reads{topic: "b", at: 7})
	h.stands(h.root(21, 2, reads{topic: "a", at: 210}), reads{topic: "a", at: 210})
	info := func(ref RootRef) RootInfo { return RootInfo{Ref: ref, Root: h.in.Roots[ref].Root, Committed: true} }
	listing := []RootInfo{info(from), {Ref: left, Root: h.in.Roots[left].Root, Committed: true, Err: vfsNotExist()}}
	f := &h.in.Tasks[0].Inputs[0]
	f.Found, f.Offset, f.Metadata = false, 0, ""
	h.in.Stored, h.in.Listing = listing, listing
	_, err := Resolve(h.in)
	refused := RefusalOf(err)
	_, _, err = Recover(h.in, refused, listing)
	require.ErrorContains(t, err, "offset 3 of b/0, which the topology does not read any more")
	require.ErrorContains(t, err, "give the topology its source back for this start")
	h.in.DropStates = true
	_, _, err = Recover(h.in, refused, listing)
	require.NoError(t, err)

	h.in.DropStates = false
	b := reads{topic: "b", at: 7}
	h.stands(left, b)
	f = &h.in.Tasks[1].Inputs[0]
	f.Found, f.Offset, f.Metadata = false, 0, ""
	_, err = Resolve(h.in)
	d, _, err := Recover(h.in, RefusalOf(err), listing)
	require.NoError(t, err)
	require.EqualValues(t, 3, d[b.task()].Positions[0].Offset)
	require.EqualValues(t, 5, d[a.task()].Positions[0].Offset)
}

// The offset of a topic that was taken out lies before what the checkpoint has of it, since an earlier recovery went back further.
func TestARecoveryDoesNotTakeUpMoreOfAnAbsentTopicThanItsOffset(t *testing.T) {
	for at, would := range map[int64]string{1: "chk-2-0000000000000001.root) has gone back to 1: should it come back, what lies between would be in the state twice", 3: "", 7: "has read up to 7: should it come back, what lies between would be missing"} {
		a := reads{topic: "a", at: 5}
		h := newPast(t)
		info := func(ref RootRef) RootInfo {
			return RootInfo{Ref: ref, Root: h.in.Roots[ref].Root, Committed: true}
		}
		listing := []RootInfo{info(h.root(1, 2, a, reads{topic: "b", at: 3})), info(h.root(2, 2, reads{topic: "b", at: at}))}
		h.fresh(a, false)
		h.in.Stored, h.in.Listing = listing, listing
		_, err := Resolve(h.in)
		refused := RefusalOf(err)
		_, _, err = Recover(h.in, refused, listing)
		if would == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "offset 3 of b/0, which the topology does not read any more")
		require.ErrorContains(t, err, would)
		h.in.DropStates = true
		_, _, err = Recover(h.in, refused, listing)
		require.NoError(t, err)
	}
}

// Keyed state began over topics that had grown, and its first checkpoint was committed in part.
func TestPartsOfAFirstCheckpointOverAGrownTopicAreLevelled(t *testing.T) {
	h := newPast(t)
	a, b := reads{topic: "a", at: 11, state: true}, reads{topic: "b", at: 8, state: true}
	old := h.root(21, 2, reads{topic: "a", at: 10}, reads{topic: "b", at: 7})
	began := h.root(22, 2, a, b)
	h.stands(began, a)
	h.stands(old, reads{topic: "b", at: 7})
	grown := a.position()
	grown.PartitionCount = 3
	h.in.Tasks[0].Inputs[0] = factsOf(t, grown, began, &h.in, HandleCheckpoint)
	h.in.Tasks[1].Inputs[0].Partitions = 3
	for i := range h.in.Roots[began].Root.Tasks {
		for k := range h.in.Roots[began].Root.Tasks[i].Positions {
			h.in.Roots[began].Root.Tasks[i].Positions[k].PartitionCount = 3
		}
	}
	h.in.Repeats, h.in.Unbound = true, map[string]bool{"a": true, "b": true}
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, began, d[b.task()].Root)
	require.EqualValues(t, 8, d[b.task()].Positions[0].Offset)
	require.EqualValues(t, 3, d[b.task()].Positions[0].PartitionCount)
}
