package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// A service whose checkpoints are disabled has no state at the positions that it commits. From its first commit on the state
// of the checkpoint that was committed before is of no use: it is of other positions. So whoever disables them over state lets
// it go, and is asked whether that is meant. Where there is no state there is nothing to ask.

// HeldState is what a checkpoint that the group has committed holds of some tasks.
type HeldState struct {
	Root     RootRef
	Tasks    []element.TaskID // sorted; of sources, and behind exchanges
	States   []string         // sorted; none when only records are in flight, or Err is set
	InFlight int64            // records
	Err      error            // the root cannot be read, so that it may hold anything
	// Forgotten: the group has no committed offset of the tasks. They begin where their sources start.
	Forgotten bool
}

// HeldStates lists the state that the committed handles lead to, sorted by root. Roots that lie in another directory or are
// not loaded count as ones that may hold any.
func (in *ResolveInput) HeldStates() []HeldState {
	by := map[RootRef][]*TaskFacts{}
	elsewhere := map[RootRef]string{}
	for i := range in.Tasks {
		for k := range in.Tasks[i].Inputs {
			f := &in.Tasks[i].Inputs[k]
			h, err := ParseHandle(f.Metadata)
			if err != nil || !f.Found || h.Kind != HandleCheckpoint {
				continue
			}
			by[h.Root] = append(by[h.Root], &in.Tasks[i])
			if h.StoreID != in.StoreID {
				elsewhere[h.Root] = h.StoreID
			}
		}
	}
	var out []HeldState
	for ref, tasks := range by {
		held := HeldState{Root: ref}
		loaded := in.Roots[ref]
		switch {
		case elsewhere[ref] != "":
			held.Err = fmt.Errorf("it is in another checkpoint directory, with store id %s", elsewhere[ref])
		case loaded.Err != nil:
			held.Err = loaded.Err
		case loaded.Root == nil:
			held.Err = fmt.Errorf("it was not loaded")
		}
		for _, t := range tasks {
			if held.Err != nil {
				held.Tasks = append(held.Tasks, t.Task)
			} else if e := loaded.Root.reader(t.Inputs[0].TopicPartition); e != nil {
				held.add(e)
			}
		}
		for i := 0; held.Err == nil && i < len(loaded.Root.Tasks); i++ {
			if e := &loaded.Root.Tasks[i]; e.Parallelism > 0 {
				held.add(e)
			}
		}
		if len(held.Tasks) > 0 {
			slices.SortFunc(held.Tasks, element.TaskID.Compare)
			held.Tasks = slices.Compact(held.Tasks)
			slices.Sort(held.States)
			out = append(out, held)
		}
	}
	slices.SortFunc(out, func(a, b HeldState) int { return cmp.Compare(a.Root.Path, b.Root.Path) })
	return out
}

// add counts what the root has of a task, unless that is nothing.
func (h *HeldState) add(e *TaskEntry) {
	if len(e.Runs) == 0 && len(e.InFlight) == 0 {
		return
	}
	h.Tasks = append(h.Tasks, e.Task)
	h.addStates(e)
}

func (h *HeldState) addStates(e *TaskEntry) {
	h.InFlight += e.inFlight()
	for _, s := range e.States {
		if len(e.Runs) > 0 && !slices.Contains(h.States, s.Name) {
			h.States = append(h.States, s.Name)
		}
	}
}

// Forgotten lists what Stored has of tasks without a committed offset, by the newest root that holds each, sorted by root, and
// what it has of an application all of whose sources were replaced.
func (in *ResolveInput) Forgotten() (out []HeldState) {
	for i := range in.Tasks {
		t := &in.Tasks[i]
		if slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return f.Found }) {
			continue
		}
		info := in.stored(t)
		if info == nil {
			continue
		}
		k := slices.IndexFunc(out, func(h HeldState) bool { return h.Root == info.Ref })
		if k < 0 {
			k = len(out)
			out = append(out, HeldState{Root: info.Ref, Err: info.Err, Forgotten: true})
		}
		h := &out[k]
		if h.Tasks = append(h.Tasks, t.Task); info.Root != nil {
			h.addStates(info.Root.entryOf(t))
		}
	}
	if info := in.replaced(); info != nil {
		h := HeldState{Root: info.Ref, Forgotten: true}
		for i := range info.Root.Tasks {
			h.add(&info.Root.Tasks[i])
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b HeldState) int { return cmp.Compare(a.Root.Path, b.Root.Path) })
	for i := range out {
		slices.SortFunc(out[i].Tasks, element.TaskID.Compare)
		slices.Sort(out[i].States)
	}
	return out
}

// TaskNames lists the tasks, the first few by name.
func (h *HeldState) TaskNames() string {
	const most = 8
	var names []string
	for i, t := range h.Tasks {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(h.Tasks)-most))
			break
		}
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// RefuseHeld is the refusal to let state go unasked by a start without checkpoints, nil when there is none.
func RefuseHeld(held []HeldState) error {
	var refused []Refusal
	for i := range held {
		h := &held[i]
		what := "state of tasks " + h.TaskNames()
		switch {
		case h.Err != nil:
			what = fmt.Sprintf("what cannot be read here (%v) of tasks %s", h.Err, h.TaskNames())
		case len(h.States) > 0:
			what += " (" + strings.Join(h.States, ", ") + ")"
		}
		if h.InFlight > 0 {
			what += fmt.Sprintf(" and %d records in flight", h.InFlight)
		}
		no := refuse(ReasonCheckpointsDisabled, element.TopicPartition{}, "checkpointing.interval is disabled, and checkpoint %s (%s), which the group has committed, holds %s; "+
			"it would be lost for good: set an interval, or let it go with --allow-dropped-state: the tasks then begin without state at their committed offsets, also when checkpoints are on again",
			h.Root.Name, h.Root.Path, what)
		no.Task = h.Tasks[0]
		refused = append(refused, *no)
	}
	return refusal(refused)
}

// refuseUnsaved refuses the root of an application with exchanges for some of its tasks when others have gone on without
// checkpoints since: what those have sent the others is in no root. It takes a start without checkpoints that ended before
// all of its positions were committed.
func (in *ResolveInput) refuseUnsaved(refs []RootRef, out map[element.TaskID]Decision) *Refusal {
	if len(refs) == 0 || in.Repeats {
		return nil
	}
	var first *element.TaskID
	for id, d := range out {
		if d.Unsaved && (first == nil || id.Compare(*first) < 0) {
			first = &id
		}
	}
	if first == nil {
		return nil
	}
	no := refuse(ReasonMixedRoots, element.TopicPartition{}, "task %s has gone on with checkpoints disabled since checkpoint %s, others stand at checkpoint %s (%s): an application with exchanges is restored from one checkpoint of all its tasks; "+
		"let the state go with checkpointing.interval: disabled and --allow-dropped-state, until offsets are committed, or put the offsets of one checkpoint back, with their metadata",
		first, out[*first].Root.Name, refs[0].Name, refs[0].Path)
	no.Task = *first
	return no
}
