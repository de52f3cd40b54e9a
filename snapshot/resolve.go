package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// InputFacts is what is known of one input partition of a task.
type InputFacts struct {
	element.TopicPartition
	TopicID    element.TopicID // the topic's now
	Partitions int32           // the topic's now

	// The group's committed offset, read stable; Found false when there is none.
	Found    bool
	Offset   int64
	Metadata string
}

// TaskFacts is a task to start.
type TaskFacts struct {
	Task   element.TaskID
	Inputs []InputFacts
}

// ResolveInput is all that the resolution depends on.
type ResolveInput struct {
	Application string // also the consumer group
	ClusterID   string
	StoreID     string
	Tasks       []TaskFacts
	// Stages are those of exchanges that the plan has. Their tasks have no inputs of their own: they start from the root
	// that the handles of all tasks name, together with them. So Tasks must be all tasks of the application.
	Stages []StageFacts
	// Sources are all of the plan with the topics that they read, whoever owns their partitions. nil: state of a source that the
	// plan does not have is not noticed, since it may be that of an instance with another plan.
	Sources map[string]string
	// States are those that the topology declares, by stage. A stage without any is stateless.
	States map[string][]StateInfo
	// Roots holds what NamedRoots(Tasks) asks for; see Repository.LoadRoots.
	Roots map[RootRef]LoadedRoot
	// Stored is Repository.List, to notice tasks that have been here and have no committed offset. It is needed only
	// when NeedsStored(Tasks). A damaged root in it may hold any task.
	Stored []RootInfo
	// Listing is Repository.CommittedAfter(OldestID(Tasks)), or List, to notice committed offsets that went back behind a commit that is known from its
	// marker. Not set: that is not checked.
	// With Stages it also has UnmarkedAfter(StandsAt(Tasks)), Confirmed by what Doubtful asks for.
	Listing []RootInfo
	// Repeats: at-least-once. The offsets of one checkpoint may be committed in part, because nothing ties the requests for
	// very many partitions together; so handles may name two checkpoints. See level.
	Repeats bool
	// Unbound are topics that grew before the sources over them had keyed state: what handles say of the number of partitions
	// binds none. See StateBinds.
	Unbound map[string]bool
	// DropStates lets state go that is in a checkpoint and in no step of the topology.
	DropStates bool
}

// DecisionKind says how a task starts.
type DecisionKind int

// The kinds.
const (
	// Fresh: neither the group nor the store knows the task. Its start position is to be resolved and committed.
	Fresh DecisionKind = iota + 1
	// StartEmpty: the task starts with empty state at committed positions.
	StartEmpty
	// Restore: the task's state is restored from Entry, then it starts at Positions.
	Restore
	// Recovered is Restore on the store's word alone; see Recover. Positions and Root are to be committed first.
	Recovered
	// Imported: the state is read from a savepoint; see ResolveSavepoints. Positions are to be committed first.
	Imported
)

// String names the kind as logs print it.
func (k DecisionKind) String() string {
	switch k {
	case Fresh:
		return "fresh"
	case StartEmpty:
		return "empty"
	case Restore:
		return "restore"
	case Recovered:
		return "recovered"
	case Imported:
		return "imported"
	}
	return fmt.Sprintf("decision(%d)", int(k))
}

// Decision is how one task starts.
type Decision struct {
	Kind      DecisionKind
	Positions []element.Position // next offsets, sorted; empty for Fresh
	Root      RootRef            // for Restore and Recovered the root; for StartEmpty only Name is set
	Entry     TaskEntry          // for Restore and Recovered; zero otherwise
	// Unsaved: the task has run without checkpoints up to Positions. What state it had there is not known any more.
	Unsaved bool
	// Renamed is the source that the root has the task's input by, when it is another one. The task goes on at its positions
	// with nothing of that one's state, which is let go if there is any. Entry has no states and no runs.
	Renamed string
	// Left is set for a task that was absent from the application, to the root that had it; see takeBack.
	Left RootRef
	// apart: what the stages had at Left is let go, too.
	apart bool
	// New: the root does not know the stage, which starts empty.
	New bool
	// Stage is set for a subtask of an exchange's stage; see Sources.
	Stage *StageDecision
	// Sources are, for a subtask that is restored, the entries of the old subtasks to read, in their order: itself alone
	// when the parallelism is what it was, and Entry is that one too. Otherwise Entry is zero, each of them is read through
	// KeepKeys, and the task's first run must be full (TaskDelta.Full).
	Sources []TaskEntry
	// Behind is a committed checkpoint of the task that is newer than the one that its offset names, if not 0: see checkStale.
	// New ids go above it.
	Behind element.CheckpointID
}

// NamedRoots gives the roots that the committed handles name, each once, sorted by path. Handles that cannot be read
// are passed over: Resolve refuses them.
func NamedRoots(tasks []TaskFacts) []RootRef {
	var out []RootRef
	for _, h := range handlesOf(tasks) {
		if h.Kind == HandleCheckpoint && !slices.Contains(out, h.Root) {
			out = append(out, h.Root)
		}
	}
	slices.SortFunc(out, func(a, b RootRef) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// NextID is the id of the next checkpoint: one above every id in the committed handles, at least 1. A process that
// already took checkpoints takes the larger of this and one above its own last, for names are never used twice.
func NextID(tasks []TaskFacts) element.CheckpointID {
	var top element.CheckpointID
	for _, h := range handlesOf(tasks) {
		top = max(top, h.Root.Name.ID)
	}
	return top + 1
}

// OldestID is the lowest id in the committed handles, 0 when one is empty or there is none: the id of an empty one need not be
// that of a checkpoint which the application has gone on from.
func OldestID(tasks []TaskFacts) element.CheckpointID {
	handles := handlesOf(tasks)
	if len(handles) == 0 {
		return 0
	}
	low := handles[0].Root.Name.ID
	for _, h := range handles {
		if h.Kind == HandleEmpty {
			return 0
		}
		low = min(low, h.Root.Name.ID)
	}
	return low
}

// NeedsStored reports whether a task has no committed offset, so that Resolve asks whether the store knows it.
func NeedsStored(tasks []TaskFacts) bool {
	for i := range tasks {
		for j := range tasks[i].Inputs {
			if !tasks[i].Inputs[j].Found {
				return true
			}
		}
	}
	return false
}

func handlesOf(tasks []TaskFacts) []Handle {
	var out []Handle
	for i := range tasks {
		for j := range tasks[i].Inputs {
			if in := &tasks[i].Inputs[j]; in.Found {
				if h, err := ParseHandle(in.Metadata); err == nil {
					out = append(out, h)
				}
			}
		}
	}
	return out
}

// Resolve decides for every task how it starts. It is pure. When any task is refused there are no decisions and the
// error is a fault of class Stop around a RefusedError that lists all of them.
func Resolve(in ResolveInput) (map[element.TaskID]Decision, error) {
	out := make(map[element.TaskID]Decision, len(in.Tasks))
	var refused []Refusal
	for i := range in.Tasks {
		d, ref := in.resolveTask(&in.Tasks[i])
		if ref != nil {
			ref.Task = in.Tasks[i].Task
			refused = append(refused, *ref)
			continue
		}
		out[in.Tasks[i].Task] = d
	}
	if len(refused) == 0 && in.Repeats {
		refused = in.level(out)
	}
	if len(refused) == 0 {
		refused = in.takeBack(out)
	}
	if len(refused) == 0 {
		refused = in.refuseReplaced()
	}
	if len(refused) == 0 {
		refused = in.resolveStages(Restore, out)
	}
	if err := refusal(refused); err != nil {
		return nil, err
	}
	in.rebind(out)
	return out, nil
}

// refusal gives the error of tasks that are refused, nil when there is none.
func refusal(refused []Refusal) error {
	if len(refused) == 0 {
		return nil
	}
	slices.SortStableFunc(refused, func(a, b Refusal) int { return a.Task.Compare(b.Task) })
	return fault.Stopf(refused[0].Reason.code(), "%w", &RefusedError{Refusals: refused})
}

func refuse(reason Reason, tp element.TopicPartition, format string, args ...any) *Refusal {
	err := fmt.Errorf(format, args...)
	return &Refusal{Reason: reason, Partition: tp, Message: err.Error(), Err: errors.Unwrap(err)}
}

func (in *ResolveInput) resolveTask(t *TaskFacts) (Decision, *Refusal) {
	inputs := slices.Clone(t.Inputs)
	slices.SortFunc(inputs, func(a, b InputFacts) int { return a.Compare(b.TopicPartition) })
	found := 0
	for i := range inputs {
		if inputs[i].Found {
			found++
		}
	}
	if found == 0 {
		return in.resolveUnknown(t)
	}
	var first Handle
	positions := make([]element.Position, 0, len(inputs))
	for i := range inputs {
		f := &inputs[i]
		if !f.Found {
			return Decision{}, refuse(ReasonInputsDisagree, f.TopicPartition, "task %s: %s has no committed offset in group %s while other inputs of the task have; "+
				"restore the missing offset or delete all of the task's offsets", t.Task, f, in.Application)
		}
		h, ref := in.checkHandle(t, f)
		if ref != nil {
			return Decision{}, ref
		}
		if i == 0 {
			first = h
		} else if h.Kind != first.Kind || h.Root != first.Root {
			return Decision{}, refuse(ReasonInputsDisagree, f.TopicPartition, "task %s: %s stands at %s checkpoint %s, %s at %s checkpoint %s; they were not committed together",
				t.Task, inputs[0], first.Kind, first.Root.Name, f, h.Kind, h.Root.Name)
		}
		positions = append(positions, element.Position{
			TopicPartition: f.TopicPartition, TopicID: h.TopicID, PartitionCount: h.PartitionCount, Offset: h.Offset, LeaderEpoch: h.LeaderEpoch,
		})
	}
	behind, ref := in.checkStale(t, first)
	if ref != nil {
		return Decision{}, ref
	}
	d := Decision{Kind: StartEmpty, Positions: positions, Root: first.Root, Unsaved: first.Kind == HandleUnsaved}
	if first.Kind == HandleCheckpoint {
		d, ref = in.resolveRestore(t, first.Root, positions)
	}
	d.Behind = behind
	return d, ref
}

// checkStale refuses a handle when a newer checkpoint of the task is known to have been committed: the group's offsets went back,
// by a tool or because the brokers lost commits. A marker says so, which is written only after the commit, or, in a transaction,
// the handle of another task: all are committed at once.
//
// Where records may repeat, a delayed copy of a commit may have set the group back to the checkpoint right before the newest
// one. That is taken up, and the newest one given up: it is behind. What lies between the two was given up so before.
func (in *ResolveInput) checkStale(t *TaskFacts, h Handle) (behind element.CheckpointID, no *Refusal) {
	var newer []*RootInfo
	for _, i := range newestFirst(in.Listing) {
		info := &in.Listing[i]
		if info.Marked && info.Ref.Name.ID > h.Root.Name.ID && info.mayHold(in, t, h) && (info.Root != nil || !in.surpassed(t, info)) {
			newer = append(newer, info)
		}
	}
	cure := "put the newer offsets and their metadata back"
	if len(newer) == 0 && !in.Repeats && (len(in.Stages) == 0 || h.Kind == HandleEmpty) { // else see refuseMixture
		newer = in.namedAfter(t, h)
		cure += inPart
	}
	switch {
	case len(newer) == 0:
		return 0, nil
	case in.Repeats && in.nextAfter(t, h, newer):
		return newer[0].Ref.Name.ID, nil
	}
	info := newer[0]
	if i := slices.IndexFunc(newer, func(info *RootInfo) bool { return info.Root != nil }); i >= 0 {
		info = newer[i]
	} else if info.Err != nil { // it was committed, the task may be in it or not: it is the damage that has to be cured
		return 0, refuse(ReasonRootUnusable, element.TopicPartition{}, "task %s: the committed offset is that of checkpoint %s, and one that was committed after it, which may hold the task, cannot be read: %w; nothing was overwritten: put the file back from a backup%s",
			t.Task, h.Root.Name, info.Err, in.moveAway(info, "where the offset is the newest of "+t.Inputs[0].String()))
	}
	return 0, refuse(ReasonStaleHandle, element.TopicPartition{}, "task %s: the committed offset is that of checkpoint %s, but checkpoint %s (%s) was committed after it; "+
		"the offsets went back, and from there outputs would repeat: %s", t.Task, h.Root.Name, info.Ref.Name, info.Ref.Path, cure)
}

// inPart is a cure where handles name several roots and records may not repeat.
const inPart = "; after a run at-least-once, whose commits may come in part, start once more in that mode, until a checkpoint is complete"

// namedAfter gives the newest root that holds a task, is newer than its handle and is named by the handle of another one; none, or one.
func (in *ResolveInput) namedAfter(t *TaskFacts, h Handle) (newest []*RootInfo) {
	for ref, loaded := range in.Roots {
		info := &RootInfo{Ref: ref, Root: loaded.Root}
		if info.Root == nil || ref.Name.ID <= h.Root.Name.ID || !info.mayHold(in, t, h) {
			continue
		}
		if len(newest) == 0 || compareNames(ref.Name, newest[0].Ref.Name) > 0 {
			newest = []*RootInfo{info}
		}
	}
	return newest
}

// mayHold reports whether a checkpoint that is newer than a task's handle holds the task, and not one of that name in
// another cluster or of another topic. One that cannot be read counts only where it lies beside the one that the handle names: ids of another instance's other tasks may be far above, and a
// damaged file of theirs must not keep this task from starting. Where the task stands with an application with exchanges all ids are
// of one history, wherever the files lie, and a marker above it whose root is gone is one of a root that is lost: cleaners remove only
// what has a newer one.
func (i *RootInfo) mayHold(in *ResolveInput, t *TaskFacts, h Handle) bool {
	if i.Root != nil {
		return in.holds(i.Root, t)
	}
	if ref, root := in.current(); root != nil && ref == h.Root && len(in.Stages) > 0 {
		return true
	}
	if i.alone {
		return false
	}
	return h.Kind != HandleCheckpoint || parseFilePath(i.Ref.Path).dir == parseFilePath(h.Root.Path).dir
}

// OtherStoreCure is what can be done where offsets are of another checkpoint directory.
const OtherStoreCure = "set state.checkpoints.dir to the directory that all instances share, or put that one back from a backup; where it is lost, reset the application, or start under another application name"

// String lets messages name an input.
func (f InputFacts) String() string { return f.TopicPartition.String() }

// checkHandle verifies that a handle was written by this application for exactly this committed offset.
func (in *ResolveInput) checkHandle(t *TaskFacts, f *InputFacts) (Handle, *Refusal) {
	no := func(reason Reason, format string, args ...any) (Handle, *Refusal) {
		head := fmt.Sprintf("committed offset %d of %s in group %s ", f.Offset, f.TopicPartition, in.Application)
		return Handle{}, refuse(reason, f.TopicPartition, head+format, args...)
	}
	h, err := ParseHandle(f.Metadata)
	switch {
	case errors.Is(err, ErrHandleForeign):
		return no(ReasonForeignOffset, "was not written by a checkpoint (%w): a consumer or a tool uses this group; stop it, and delete the group's offsets or choose another application name; where the service has checkpoints, the next start says how to recover from them", err)
	case errors.Is(err, ErrHandleNewer):
		return no(ReasonNewerHandle, "was written by a newer version (%w): run that version", err)
	case err != nil:
		return no(ReasonDamagedHandle, "carries a checkpoint handle that cannot be read (%w): put the offset and its metadata back from a backup of the group, or recover from the store explicitly", err)
	case h.ClusterID != in.ClusterID:
		return no(ReasonOtherCluster, "belongs to cluster %q, this is cluster %q: the offsets were mirrored; use another application name here", h.ClusterID, in.ClusterID)
	case h.StoreID != in.StoreID && h.Kind == HandleCheckpoint: // others lead to no file
		return no(ReasonOtherStore, "belongs to a checkpoint directory with store id %s, the configured one has %s: "+OtherStoreCure, h.StoreID, in.StoreID)
	case h.TopicID != f.TopicID:
		return no(ReasonTopicRecreated, "belongs to topic id %s, the topic now has %s: it was deleted and created again; delete the group's offsets of this topic, and "+beginsAnew, h.TopicID, f.TopicID)
	case h.Partition != f.Partition:
		return no(ReasonOffsetMoved, "carries the handle of partition %d: another tool copied it; restore the original offsets", h.Partition)
	case h.Offset != f.Offset:
		return no(ReasonOffsetMoved, "does not match its checkpoint, which stands at %d: another tool moved it; set it back to %d or reset the application", h.Offset, h.Offset)
	case h.PartitionCount != f.Partitions && len(in.States[t.Task.Source]) > 0 && !in.Unbound[f.Topic]:
		return no(ReasonPartitionCount, "was taken when topic %s had %d partitions, now it has %d: "+KeysMoved,
			f.Topic, h.PartitionCount, f.Partitions)
	case h.Kind == HandleCheckpoint && !strings.HasPrefix(h.Root.Path, in.Application+"/"):
		return no(ReasonOtherGroup, "names checkpoint %s of another application (%s): the offsets were copied; delete them to start anew", h.Root.Name, h.Root.Path)
	}
	return h, nil
}

// resolveRestore checks that the root holds the task as the handles say and that the topology can read its state.
func (in *ResolveInput) resolveRestore(t *TaskFacts, ref RootRef, positions []element.Position) (Decision, *Refusal) {
	none := element.TopicPartition{}
	loaded, ok := in.Roots[ref]
	switch {
	case !ok:
		return Decision{}, refuse(ReasonRootUnusable, none, "task %s: checkpoint %s (%s) was not loaded", t.Task, ref.Name, ref.Path)
	case loaded.Err != nil:
		cure := ""
		if in.absent(t) {
			cure = ", or delete the group's offsets of this topic (" + t.Inputs[0].Topic + "), which the application has gone on without, and " + beginsAnew
		}
		return Decision{}, refuse(ReasonRootUnusable, t.Inputs[0].TopicPartition, "task %s cannot be restored: %w; put the file back from a backup, nothing was overwritten%s", t.Task, loaded.Err, cure)
	}
	entry := loaded.Root.entryOf(t)
	switch {
	case entry == nil:
		return Decision{}, refuse(ReasonTaskMissing, none, "task %s: checkpoint %s (%s) does not hold it, though the committed offset says so", t.Task, ref.Name, ref.Path)
	case loaded.Root.ClusterID != in.ClusterID:
		return Decision{}, refuse(ReasonOtherCluster, none, "task %s: checkpoint %s (%s) is of cluster %q, this is %q", t.Task, ref.Name, ref.Path, loaded.Root.ClusterID, in.ClusterID)
	case len(entry.Positions) != len(positions):
		return Decision{}, refuse(ReasonPositionDiffers, none, "task %s: checkpoint %s (%s) covers %d inputs, the task has %d", t.Task, ref.Name, ref.Path, len(entry.Positions), len(positions))
	}
	for i, p := range entry.Positions {
		w := positions[i]
		if p.TopicPartition != w.TopicPartition || p.Offset != w.Offset || p.TopicID != w.TopicID || p.PartitionCount != w.PartitionCount {
			return Decision{}, refuse(ReasonPositionDiffers, w.TopicPartition, "task %s: checkpoint %s (%s) stands at offset %d of %s, the committed offset is %d of %s",
				t.Task, ref.Name, ref.Path, p.Offset, p.TopicPartition, w.Offset, w.TopicPartition)
		}
	}
	return t.takeUp(Restore, ref, entry), in.checkEntry(t, ref, entry)
}

// checkStates compares the states of a checkpoint with those of the topology. A state that is only in the topology
// is new and starts empty.
func (in *ResolveInput) checkStates(t *TaskFacts, ref RootRef, entry *TaskEntry) *Refusal {
	declared := in.States[t.Task.Source]
	var dropped []string
	for _, s := range entry.States {
		i := slices.IndexFunc(declared, func(d StateInfo) bool { return d.Name == s.Name })
		switch {
		case i < 0:
			dropped = append(dropped, s.Name)
		case declared[i] != s:
			return refuse(ReasonCodecChanged, element.TopicPartition{}, "task %s: state %s in checkpoint %s has key codec %q and codec %q, the topology now uses %q and %q; "+
				"undo the change of type, or start under another application name", t.Task, s.Name, ref.Name, s.KeyCodec, s.Codec, declared[i].KeyCodec, declared[i].Codec)
		}
	}
	if len(dropped) > 0 && !in.DropStates {
		return refuse(ReasonStateDropped, element.TopicPartition{}, "task %s: checkpoint %s holds state that no step of the topology owns: %s; "+
			"restore the step or its name, let it go with --allow-dropped-state, or start under another application name", t.Task, ref.Name, strings.Join(dropped, ", "))
	}
	return nil
}
