package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// A start may end when its start positions are committed and before it has a checkpoint: that of a partition that begins anew, with an
// id as high as any in the store where that knows what is let go for it, and, of tasks that go back to the store, those of a root that
// says what the one says that they go back to. The next start finds these.

// ends draws whether a start comes no further than its start positions, and commits them then.
func (e *edits) ends(in *ResolveInput, out map[element.TaskID]Decision) (repeats *RootInfo, ends bool) {
	if len(e.roots) == 0 || rapid.IntRange(0, 4).Draw(e.t, "ends") > 0 {
		return nil, false
	}
	var letGo element.CheckpointName
	known := *in
	if known.Stored = e.roots; len(known.Forgotten()) > 0 {
		letGo = nameOf(e.lastID, 1)
	}
	if repeats = e.repeat(in, out); repeats != nil {
		letGo = repeats.Ref.Name
	}
	if in.DropStates && in.LetsAllGo(out) {
		letGo.Incarnation = 0
	}
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d, f := out[t.Task], &t.Inputs[0]
		h := Handle{Kind: HandleEmpty, Root: RootRef{Name: letGo}, Partition: f.Partition, LeaderEpoch: -1, ClusterID: "cluster-1", TopicID: f.TopicID, PartitionCount: f.Partitions, StoreID: "store-1"}
		switch d.Kind {
		case Fresh:
		case Recovered:
			h.Kind, h.Root, h.Offset, h.PartitionCount = HandleCheckpoint, repeats.Ref, d.Positions[0].Offset, d.Positions[0].PartitionCount
		default:
			continue
		}
		text, err := h.Encode()
		require.NoError(e.t, err)
		e.group[f.TopicPartition] = InputFacts{TopicPartition: f.TopicPartition, Found: true, Offset: h.Offset, Metadata: text}
	}
	e.say("ends before its first checkpoint%s", map[bool]string{true: ", with -n"}[in.DropStates])
	return repeats, true
}

// repeat writes the root of tasks that go back to the store, nil when there are none.
func (e *edits) repeat(in *ResolveInput, out map[element.TaskID]Decision) *RootInfo {
	if !slices.ContainsFunc(slices.Collect(maps.Values(out)), func(d Decision) bool { return d.Kind == Recovered }) {
		return nil
	}
	var tasks []TaskEntry
	for id, d := range out {
		entries := d.Sources
		switch {
		case d.Kind == StartEmpty && d.Stage != nil:
			entries = []TaskEntry{{Task: id, Parallelism: d.Stage.Parallelism, MaxParallelism: d.Stage.MaxParallelism}}
		case d.Kind != Recovered:
			entries = nil
		case d.Stage == nil:
			entries = []TaskEntry{d.Entry}
		}
		for _, entry := range entries {
			if !slices.ContainsFunc(tasks, func(o TaskEntry) bool { return o.Task == entry.Task }) {
				tasks = append(tasks, entry)
			}
		}
	}
	slices.SortFunc(tasks, func(a, b TaskEntry) int { return a.Task.Compare(b.Task) })
	e.lastID++
	root := &Root{Name: nameOf(e.lastID, 1), Application: "shop", ClusterID: "cluster-1", StoreID: in.StoreID, Tasks: tasks}
	ref := RootRef{Name: root.Name, Path: fmt.Sprintf("shop/i-0/chk-%s.root", root.Name), Digest: Digest{byte(e.lastID), byte(e.lastID >> 8)}}
	e.roots = append(e.roots, RootInfo{Ref: ref, Root: root, Committed: true, Marked: true})
	e.say("the start goes back to the store: %s", ref.Name)
	return &e.roots[len(e.roots)-1]
}

// ends is that of an application with exchanges: it stands at the root that was written, if there is one.
func (x *exchangeEdits) ends(in *ResolveInput, out map[element.TaskID]Decision) bool {
	origin, all := x.origin, in.DropStates && in.LetsAllGo(out)
	repeats, ends := x.edits.ends(in, out)
	if !ends {
		return false
	}
	for i := range in.Tasks {
		switch d, at := out[in.Tasks[i].Task], inputOf(&in.Tasks[i].Inputs[0]); d.Kind {
		case Fresh:
			x.offsets[at], x.begun[at] = 0, true
			maps.DeleteFunc(x.own, func(o editOwner, _ RootRef) bool { return o.editInput == at })
		case Recovered:
			x.offsets[at] = d.Positions[0].Offset
		}
	}
	if all {
		x.now = RootRef{}
	}
	if repeats == nil {
		return true
	}
	root, held := repeats.Root, stageContents{map[string]map[editInput]int64{}, map[string]int64{}}
	root.Origin = origin
	for _, s := range in.Stages {
		from, kept := x.restored(s, out)
		if folded, has := x.held[from].folded[s.Name]; kept && has {
			held.folded[s.Name] = maps.Clone(folded)
		}
		for _, e := range root.stage(s.Name) {
			if len(e.InFlight) > 0 {
				held.flying[s.Name]++
			}
		}
	}
	for _, e := range root.Tasks {
		if e.Parallelism == 0 && len(e.States) > 0 {
			x.own[editOwner{e.Task.Source, editInput{e.Positions[0].TopicID, e.Positions[0].Partition}}] = repeats.Ref
		}
	}
	x.letGo(repeats.Ref, root)
	x.held[repeats.Ref], x.now = held, repeats.Ref
	return true
}

// letGo forgets the states of sources that a root which is committed does not go on with.
func (x *exchangeEdits) letGo(ref RootRef, root *Root) {
	for owner, at := range x.own {
		if _, planned := x.sources[owner.source]; at != ref && (at == x.now && !planned || root.readsInput(owner.editInput)) {
			delete(x.own, owner)
		}
	}
}

// forgetsBegun deletes the offsets of a topic of which a message says that, where they are start positions.
func (x *exchangeEdits) forgetsBegun(told string) bool {
	_, topic, named := strings.Cut(told, "to begin the task where its source starts, delete the group's offsets of this topic (")
	topic, _, _ = strings.Cut(topic, ")")
	n := len(x.group)
	maps.DeleteFunc(x.group, func(tp element.TopicPartition, f InputFacts) bool {
		return named && tp.Topic == topic && startPosition(f)
	})
	x.say("the start positions in %s are deleted", topic)
	return len(x.group) < n
}

// startPosition reports that a committed offset is one.
func startPosition(f InputFacts) bool {
	h, err := ParseHandle(f.Metadata)
	return err == nil && h.Kind == HandleEmpty
}
