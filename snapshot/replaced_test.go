package snapshot

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// fresh adds a task that nobody has read yet, or, by a handle without state, not further than its start.
func (h *pastRoots) fresh(p reads, begun bool) {
	f := InputFacts{TopicPartition: p.position().TopicPartition, TopicID: p.position().TopicID, Partitions: 1}
	if begun {
		f = factsOf(h.t, p.position(), RootRef{Name: nameOf(0, 1)}, &h.in, HandleEmpty)
	}
	h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: p.task(), Inputs: []InputFacts{f}})
}

// full gives the subtasks of a root state.
func (h *pastRoots) full(ref RootRef) RootInfo {
	root := h.in.Roots[ref].Root
	for i := range root.Tasks {
		if e := &root.Tasks[i]; e.Parallelism > 0 {
			e.States, e.Runs = counts, []RunRef{{To: root.Name.ID, Full: true, Entries: 1}}
		}
	}
	h.in.States[byUser.Name] = counts
	return RootInfo{Ref: ref, Root: root, Committed: true, Marked: true}
}

func TestSourcesThatAreAllReplaced(t *testing.T) {
	for _, begun := range []bool{false, true} {
		h := newPast(t)
		before, current := h.full(h.root(20, 2, reads{topic: "a", at: 200})), h.full(h.root(21, 2, reads{topic: "a", at: 210}))
		h.in.Roots = nil // no handle names them
		h.fresh(reads{topic: "c"}, begun)
		if h.in.Listing = []RootInfo{before, current}; !begun {
			h.in.Stored = h.in.Listing
		}
		_, err := Resolve(h.in)
		require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
		for _, words := range []string{"stage " + byUser.Name + ": checkpoint 21-", "holds state totals/acc, last/seen of it", "sources back (x.a)", "--allow-dropped-state", "another application name"} {
			require.ErrorContains(t, err, words)
		}
		h.in.DropStates = true
		d, err := Resolve(h.in)
		require.NoError(t, err)
		require.Equal(t, StartEmpty, d[subtask(1)].Kind)
		require.Equal(t, []DroppedStage{{Stage: byUser.Name, Root: current.Ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
		require.Equal(t, current.Ref, h.in.Forgotten()[0].Root)
	}
}

// One that was out comes back in place of all others: its own checkpoint is an old one.
func TestATopicThatComesBackInPlaceOfTheOthers(t *testing.T) {
	b := reads{topic: "b", at: 7}
	h := newPast(t)
	left := h.root(1, 2, reads{topic: "a", at: 10}, b)
	current := h.full(h.root(21, 2, reads{topic: "a", at: 210}))
	delete(h.in.Roots, current.Ref)
	h.full(left)
	h.stands(left, b)
	h.in.Listing = []RootInfo{current}
	_, err := Resolve(h.in)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "checkpoint 21-")
	h.in.DropStates = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, left, d[b.task()].Root)
}

// What is not to be noticed: nothing is held, nothing is known to be committed, it is another cluster's, a source stayed, or the
// application has gone on without it.
func TestWhatLooksLikeSourcesThatAreAllReplaced(t *testing.T) {
	a, c := reads{topic: "a", at: 210}, reads{topic: "c"}
	for name, change := range map[string]func(h *pastRoots, info *RootInfo){
		"nothing held": func(_ *pastRoots, info *RootInfo) {
			for i := range info.Root.Tasks {
				info.Root.Tasks[i].Runs = nil
			}
		},
		"not committed":   func(_ *pastRoots, info *RootInfo) { info.Committed = false },
		"another cluster": func(_ *pastRoots, info *RootInfo) { info.Root.ClusterID = "cluster-2" },
		"one stayed":      func(h *pastRoots, info *RootInfo) { h.stands(info.Ref, a) },
		"gone on": func(h *pastRoots, _ *RootInfo) {
			h.stands(h.root(22, 2, reads{topic: "d", at: 1}), reads{topic: "d", at: 1})
		},
		"no exchange": func(h *pastRoots, _ *RootInfo) { h.in.Stages = nil },
	} {
		h := newPast(t)
		info := h.full(h.root(21, 2, a))
		h.fresh(c, false)
		change(h, &info)
		h.in.Stored = []RootInfo{info}
		d, err := Resolve(h.in)
		require.NoError(t, err, name)
		require.Equal(t, Fresh, d[element.TaskID{Source: "x.c"}].Kind, name)
	}
}

// The sources keep their names, and read other topics.
func TestSourcesThatAreAllReplacedUnderTheirNames(t *testing.T) {
	a, c := reads{topic: "a", at: 210}, reads{topic: "c"}
	h := newPast(t)
	current := h.full(h.root(21, 2, a))
	h.in.Roots, h.in.Stored, h.in.Sources = nil, []RootInfo{current}, map[string]string{"x.a": "c"}
	h.fresh(c, false)
	h.in.Tasks[0].Task = a.task()
	_, err := Resolve(h.in)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "stage "+byUser.Name+": checkpoint 21-")
	require.ErrorContains(t, err, "--allow-dropped-state")
	h.in.DropStates = true
	d, err := Resolve(h.in)
	require.NoError(t, err)
	require.Equal(t, Fresh, d[a.task()].Kind)
	require.Equal(t, StartEmpty, d[subtask(1)].Kind)
	require.Equal(t, []DroppedStage{{Stage: byUser.Name, Root: current.Ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
}

// One of several keeps its name, and reads another topic, with an exchange and without.
func TestASourceThatReadsAnotherTopicUnderItsName(t *testing.T) {
	a, b, c := reads{topic: "a", at: 10}, reads{topic: "b", at: 7, state: true}, reads{topic: "c"}
	for _, stages := range [][]StageFacts{{byUser}, nil} {
		h := newPast(t)
		ref := h.root(1, 2*len(stages), a, b)
		h.in.Stages, h.in.Sources = stages, map[string]string{"x.a": "a", "x.b": "c"}
		h.stands(ref, a)
		h.fresh(c, false)
		h.in.Tasks[1].Task = b.task()
		h.in.Stored = []RootInfo{{Ref: ref, Root: h.in.Roots[ref].Root, Committed: true}}
		_, err := Resolve(h.in)
		require.Equal(t, ReasonOtherInputs, RefusalOf(err).Refusals[0].Reason, "%v", err)
		require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
		require.ErrorContains(t, err, "task x.b-0: group shop has no committed offset of c, and checkpoint 1-")
		require.ErrorContains(t, err, "holds a task of this name that read b")
		require.ErrorContains(t, err, "--allow-dropped-state")
		h.in.DropStates = true
		d, err := Resolve(h.in)
		require.NoError(t, err)
		require.Equal(t, Fresh, d[b.task()].Kind)
		require.Equal(t, Restore, d[a.task()].Kind)
		require.Equal(t, []DroppedStage{{Stage: "x.b", Root: ref, Subtasks: 1, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d), "once")

		// What has read the topic under another name stood somewhere, and one that cannot be read may have.
		for what, other := range map[string]RootInfo{
			"another name": {Ref: h.root(0, 0, c), Committed: true},
			"made anew":    {Ref: h.root(0, 0, c), Committed: true},
			"damaged":      {Ref: RootRef{Name: nameOf(3, 1)}, Err: vfsNotExist()},
		} {
			if other.Err == nil {
				other.Root = h.in.Roots[other.Ref].Root
			}
			if what == "made anew" { // another one had its name when a source read it
				root := *other.Root
				root.Tasks = slices.Clone(root.Tasks)
				for i := range root.Tasks {
					root.Tasks[i].Positions = slices.Clone(root.Tasks[i].Positions)
					for j := range root.Tasks[i].Positions {
						root.Tasks[i].Positions[j].TopicID = element.TopicID{0xff}
					}
				}
				other.Root = &root
			}
			h.in.Stored = append(h.in.Stored[:1], other)
			_, err = Resolve(h.in)
			if len(stages) > 0 || what == "made anew" { // the application has gone on without it, or has never read it
				require.NoError(t, err, what)
				continue
			}
			reason := ReasonOffsetsExpired
			if what == "damaged" {
				reason = ReasonUnreadable
			}
			require.True(t, RefusalOf(err).Has(reason), "%s: %v", what, err)
		}
	}
}

// All sources were replaced, and the offsets of what is read again are gone: a recovery finds it in an older checkpoint, and does not
// let go unasked what the stages have had since.
func TestARecoveryDoesNotGoBehindSourcesThatWereAllReplaced(t *testing.T) {
	h := newPast(t)
	old, current := h.full(h.root(20, 2, reads{topic: "c", at: 7})), h.full(h.root(21, 2, reads{topic: "a", at: 210}))
	h.in.Roots = nil
	h.fresh(reads{topic: "c"}, false)
	h.in.Stored = []RootInfo{old, current}
	_, err := Resolve(h.in)
	_, _, err = Recover(h.in, RefusalOf(err), h.in.Stored)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "stage "+byUser.Name+": checkpoint 21-")
	require.ErrorContains(t, err, "--allow-dropped-state")
	h.in.DropStates = true
	_, err = Resolve(h.in)
	d, _, err := Recover(h.in, RefusalOf(err), h.in.Stored)
	require.NoError(t, err)
	require.Equal(t, old.Ref, d[subtask(1)].Root)
	require.Equal(t, []DroppedStage{{Stage: byUser.Name, Root: current.Ref, Subtasks: 2, States: []string{"totals/acc", "last/seen"}}}, h.in.DroppedStages(d))
}

// What is read was never in one checkpoint together: the message says what is to wait.
func TestARecoveryOfWhatWasNeverTogether(t *testing.T) {
	h := newPast(t)
	old, current := h.root(20, 2, reads{topic: "b", at: 7}), h.root(21, 2, reads{topic: "a", at: 210})
	h.in.Stored = []RootInfo{{Ref: old, Root: h.in.Roots[old].Root, Committed: true}, {Ref: current, Root: h.in.Roots[current].Root, Committed: true}}
	h.in.Roots = map[RootRef]LoadedRoot{}
	h.fresh(reads{topic: "a"}, false)
	h.fresh(reads{topic: "b"}, false)
	_, err := Resolve(h.in)
	_, _, err = Recover(h.in, RefusalOf(err), h.in.Stored)
	require.ErrorContains(t, err, "checkpoint 21-")
	require.ErrorContains(t, err, "take what it does not hold out of the topology for this start (x.b)")
}

// One source got another topic with the flag, and the process ended before its first checkpoint: the id of the start position is as high
// as any in the store. Then the sources that stood at the checkpoint are taken out.
func TestAStartPositionDoesNotStandWhereTheOthersDid(t *testing.T) {
	a, b, now := reads{topic: "a", at: 210}, reads{topic: "b", at: 7}, reads{topic: "c"}
	for _, c := range []struct {
		kind            HandleKind
		id, incarnation int
		refused         bool
	}{
		{HandleEmpty, 20, 9, true}, {HandleEmpty, 21, 9, true}, {HandleEmpty, 22, 9, true},
		{HandleEmpty, 20, 0, true}, {HandleEmpty, 21, 0, false}, // all was let go
		{HandleUnsaved, 20, 9, true}, {HandleUnsaved, 21, 9, false}, // it has run without checkpoints since
	} {
		h := newPast(t)
		current := h.full(h.root(21, 2, a, b))
		h.in.Roots, h.in.Sources = nil, map[string]string{"x.b": "c"}
		h.in.Tasks = []TaskFacts{{Task: b.task(), Inputs: []InputFacts{factsOf(t, now.position(), RootRef{Name: nameOf(c.id, c.incarnation)}, &h.in, c.kind)}}}
		if c.kind == HandleEmpty {
			require.Zero(t, OldestID(h.in.Tasks), "the checkpoint is looked at")
		}
		h.in.Listing = []RootInfo{current}
		_, err := Resolve(h.in)
		require.Equal(t, c.refused, err != nil, "%v: %v", c, err)
		if !c.refused {
			continue
		}
		require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "stage "+byUser.Name+": checkpoint 21-")
		h.in.DropStates = true
		d, err := Resolve(h.in)
		require.NoError(t, err)
		require.True(t, h.in.LetsAllGo(d))
		require.Equal(t, StartEmpty, d[subtask(0)].Kind)
		require.Equal(t, current.Ref, h.in.DroppedStages(d)[0].Root)
	}
}

// A root that nothing is known of is asked after only where it would be what all sources were replaced by others behind.
func TestRootsOfWhichOnlyTheOffsetsTell(t *testing.T) {
	a, b, c := reads{topic: "a", at: 210}, reads{topic: "b", at: 7}, reads{topic: "c"}
	for what, f := range map[string]func(h *pastRoots, info *RootInfo) []RootInfo{
		"replaced": nil,
		"one stayed": func(h *pastRoots, info *RootInfo) []RootInfo {
			h.stands(h.root(20, 2, a), reads{topic: "a", at: 200})
			return nil
		},
		"gone on": func(h *pastRoots, info *RootInfo) []RootInfo {
			h.stands(h.root(22, 2, reads{topic: "d", at: 1}), reads{topic: "d", at: 1})
			return nil
		},
		"a newer one is known": func(h *pastRoots, info *RootInfo) []RootInfo {
			return []RootInfo{h.full(h.root(23, 2, reads{topic: "e", at: 1}))}
		},
	} {
		h := newPast(t)
		info := h.full(h.root(21, 2, a, b))
		info.Committed, info.Marked = false, false
		h.fresh(c, true)
		h.in.Listing = []RootInfo{info}
		if f != nil {
			h.in.Listing = append(h.in.Listing, f(h, &info)...)
			require.Empty(t, h.in.Doubtful(), what)
			continue
		}
		require.Equal(t, []element.TopicPartition{a.position().TopicPartition, b.position().TopicPartition}, h.in.Doubtful())
		_, err := Resolve(h.in)
		require.NoError(t, err)
		Confirm(h.in.Listing, []RootRef{info.Ref})
		_, err = Resolve(h.in)
		require.Equal(t, fault.StateMismatch, fault.CodeOf(err), "%v", err)
	}
}
