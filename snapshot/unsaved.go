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
	h.InFlight += e.inFlight()
	for _, s := range e.States {
		if len(e.Runs) > 0 && !slices.Contains(h.States, s.Name) {
			h.States = append(h.States, s.Name)
		}
	}
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

// reader gives the entry of the source task that a partition is an input of, nil when there is none.
func (r *Root) reader(tp element.TopicPartition) *TaskEntry {
	i := slices.IndexFunc(r.Tasks, func(e TaskEntry) bool {
		return e.Parallelism == 0 && slices.ContainsFunc(e.Positions, func(p element.Position) bool { return p.TopicPartition == tp })
	})
	if i < 0 {
		return nil
	}
	return &r.Tasks[i]
}

// checkRenamed refuses to go on with an input whose state is another source's.
func (in *ResolveInput) checkRenamed(t *TaskFacts, ref RootRef, old *TaskEntry) *Refusal {
	if len(old.States) == 0 || in.DropStates {
		return nil
	}
	var names []string
	for _, s := range old.States {
		names = append(names, s.Name)
	}
	topic, hint := t.Inputs[0].Topic, ""
	if a, b := old.Task.Source, t.Task.Source; a == b+"."+topic || b == a+"."+topic {
		hint = " (topics and pattern make a source <name>.<topic> of each topic, topic makes <name>)"
	}
	return refuse(ReasonStateDropped, element.TopicPartition{}, "task %s: checkpoint %s holds state that belongs to source %s, which read %s: %s; the topology reads it as source %s now%s: "+
		"rename the source back, let the state go with --allow-dropped-state, or start under another application name",
		t.Task, ref.Name, old.Task.Source, topic, strings.Join(names, ", "), t.Task.Source, hint)
}

// renamed lists the sources of a root whose inputs other sources of the plan have now, but for those that are listed already.
func renamed(decisions map[element.TaskID]Decision, ref RootRef, root *Root, listed []DroppedStage) []DroppedStage {
	by := map[string]*DroppedStage{}
	for _, d := range decisions {
		if d.Renamed == "" || d.Root != ref || slices.ContainsFunc(listed, func(l DroppedStage) bool { return l.Stage == d.Renamed }) {
			continue
		}
		old := root.reader(d.Positions[0].TopicPartition)
		if old == nil || len(old.States) == 0 {
			continue
		}
		s := by[d.Renamed]
		if s == nil {
			s = &DroppedStage{Stage: d.Renamed, Root: ref}
			by[d.Renamed] = s
		}
		s.Subtasks++
		for _, state := range old.States {
			if !slices.Contains(s.States, state.Name) {
				s.States = append(s.States, state.Name)
			}
		}
	}
	var out []DroppedStage
	for _, s := range by {
		out = append(out, *s)
	}
	return out
}
