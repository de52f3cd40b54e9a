package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
)

// StartInput is the wish to start from a savepoint, and what it depends on besides ResolveInput.
type StartInput struct {
	// From is the savepoint: the directories of all instances that took part in it.
	From []*Savepoint
	// Sources are all of the plan with the topics that they read.
	Sources map[string]string
	// Again: go back to the savepoint although the group has committed offsets.
	Again bool
	// All is Repository.List, needed when NeedsStored(Tasks), in place of ResolveInput.Stored, and with Again always, for the ids in it.
	All []RootInfo
	// Left is what the group has committed of LeftIn(From, Sources), for an application with exchanges.
	Left []InputFacts
}

// Start is how tasks start when a savepoint was asked for.
type Start struct {
	Decisions map[element.TaskID]Decision
	// Origin is the savepoint, set when a task starts from it.
	Origin []SavepointRef
	// Known lists the tasks that the savepoint holds and that do not start from it, since what the group has committed
	// comes from it already.
	Known []element.TaskID
	// Beyond is the highest committed checkpoint that such tasks have gone on to when the savepoint lies in the application's own
	// past: it was cut by it, and the group never began with it. 0: what they have comes from a start from the savepoint, or they
	// stand right at it.
	Beyond element.CheckpointID
	// Moved are the inputs whose committed offsets are given up.
	Moved []MovedInput
	// Dropped is what is let go with DropStates, but for single states that no step owns any more.
	Dropped []DroppedStage
	// LastID is the highest id in the committed handles and in All, whosever it is; new ones go above it. Offsets that are given up
	// may be of a tool, or old: below what the store has committed, new ones would look as if they went back.
	LastID element.CheckpointID
}

// MovedInput is an input whose committed offset gives way to that of the savepoint. Between the two, outputs repeat when To is
// below From; when it is above, nothing is made of the records between, but the savepoint's state has them.
type MovedInput struct {
	element.TopicPartition
	From, To  int64
	Forgotten bool // the savepoint does not hold it: it starts as if nobody had read it yet
}

// ResolveFrom decides how tasks start when a savepoint was asked for. It is pure.
//
// The wish may stand on the command line for ever, so it is granted once. A task that the savepoint holds
//
//   - starts as always when its committed offset comes from the savepoint: the root that it names says so (Root.Origin),
//     or, without Again, the savepoint was cut by this application and the group is at its checkpoint or behind it;
//   - is Imported when it has no committed offset, and with Again also when it has one that does not come from there;
//   - is refused otherwise: from the savepoint on, outputs would repeat.
//
// The first checkpoint after an import is what commits it; nothing is committed before. So a crash before that leaves a
// group without offsets, and perhaps a root that no offset names: it is known by its origin, and the import begins again
// at the same positions. A group without offsets for which a committed checkpoint is in the store has lost them: that is
// refused as ever, unless Again, or where a start without the savepoint would let go what the store has of the task (DropStates).
//
// A task that the savepoint does not hold starts as always, when its partition was added since; when it was there, a part of
// the savepoint was left out, and nothing starts from the others. Behind an exchange the state is one: there all tasks go back
// together, and one that the savepoint does not hold is forgotten and starts Fresh.
func ResolveFrom(in ResolveInput, want StartInput) (*Start, error) {
	r := &starting{in: in, want: want, origin: OriginOf(want.From), out: &Start{Decisions: map[element.TaskID]Decision{}, LastID: NextID(in.Tasks) - 1}}
	if err := r.plausible(); err != nil {
		return nil, err
	}
	for _, info := range want.All {
		r.out.LastID = max(r.out.LastID, info.Ref.Name.ID)
		if info.Root == nil || info.Committed || !SameOrigin(info.Root.Origin, r.origin) { // else one of an import whose commit did not come about
			r.in.Stored = append(r.in.Stored, info)
		}
	}
	for i := range in.Tasks {
		r.judge(&in.Tasks[i])
	}
	if len(in.Stages) > 0 {
		r.together()
		if err := r.replaced(); err != nil {
			return nil, err
		}
	}
	if len(r.refused) > 0 {
		slices.SortStableFunc(r.refused, func(a, b Refusal) int { return a.Task.Compare(b.Task) })
		return nil, fault.Stopf(r.refused[0].Reason.code(), "%w", &RefusedError{Refusals: r.refused})
	}
	return r.resolve()
}

// starting is a resolution.
type starting struct {
	in     ResolveInput
	want   StartInput
	origin []SavepointRef
	out    *Start

	begin   []TaskFacts // without an offset: from the savepoint, or as it says
	back    []TaskFacts // with one that is given up
	over    []TaskFacts // of begin, with what the store has of them let go
	usual   []TaskFacts
	refused []Refusal
}

// plausible refuses directories that are no parts of one savepoint, and a savepoint of something else altogether: it has no
// source of the plan, and none that read what one of the plan reads under another name.
func (r *starting) plausible() error {
	if err := SameRequest(r.want.From...); err != nil {
		return err
	}
	for _, s := range r.want.From {
		for i := range s.Root.Tasks {
			e := &s.Root.Tasks[i]
			_, named := r.want.Sources[e.Task.Source]
			if e.Parallelism == 0 && (named || e.readBy(r.want.Sources)) {
				return nil
			}
		}
	}
	return fault.Stopf(fault.StateMismatch, "savepoint %s holds none of the sources of this topology (%s), and nothing of what they read: it is of another one, which reads %s; start that one from it, or this one without --from",
		r.origin[0].Path, strings.Join(slices.Sorted(maps.Keys(r.want.Sources)), ", "), r.read())
}

// holder finds the directory that holds a task. When there are several, ResolveSavepoints refuses them.
func (r *starting) holder(t *TaskFacts) (*Savepoint, *TaskEntry) {
	if held := t.heldBy(r.want.From); len(held) > 0 {
		return held[0].savepoint, held[0].entry
	}
	return nil, nil
}

// holds reports that a task is in the savepoint, and not let go as one that reads something else now.
func (r *starting) holds(t *TaskFacts) bool {
	s, entry := r.holder(t)
	return s != nil && !r.in.letsGo(t, s, entry)
}

// replaced refuses a savepoint of an application with exchanges that has nothing of what is read: no offset would lead to the stages.
func (r *starting) replaced() error {
	if !r.in.DropStates || len(r.out.Known) > 0 || slices.ContainsFunc(r.in.Tasks, func(t TaskFacts) bool { return r.holds(&t) }) {
		return nil
	}
	return fault.Stopf(fault.StateMismatch, "savepoint %s has nothing of what the topology reads now; give the topology one of its sources back with its topic (%s), beside the others, until a checkpoint is complete, or start without --from",
		r.origin[0].Path, r.read())
}

// read lists, for an error, the sources that a savepoint has read, each with its topic.
func (r *starting) read() string {
	var sources []string
	for _, s := range r.want.From {
		for i := range s.Root.Tasks {
			e := &s.Root.Tasks[i]
			if e.Parallelism != 0 {
				continue
			}
			for _, p := range e.Positions {
				if one := fmt.Sprintf("source %s from %s", e.Task.Source, p.Topic); !slices.Contains(sources, one) {
					sources = append(sources, one)
				}
			}
		}
	}
	return strings.Join(sources, ", ")
}

// judge sorts one task.
func (r *starting) judge(t *TaskFacts) {
	s, entry := r.holder(t)
	if !slices.ContainsFunc(t.Inputs, func(f InputFacts) bool { return f.Found }) {
		switch {
		case r.want.Again, r.in.stored(t) == nil:
			r.begin = append(r.begin, *t)
		case r.startsOver(t, s, entry):
			r.begin, r.over = append(r.begin, *t), append(r.over, *t)
		default:
			r.usual = append(r.usual, *t)
		}
		return
	}
	switch {
	case s == nil:
		r.usual = append(r.usual, *t)
	case r.comesFrom(t, s, entry):
		r.out.Known = append(r.out.Known, t.Task)
		r.usual = append(r.usual, *t)
	case r.want.Again:
		r.back = append(r.back, *t)
	case r.in.letsGo(t, s, entry): // it may have got its start position already
		r.usual = append(r.usual, *t)
	default:
		f := &t.Inputs[0]
		stands := "where it reads something else"
		if at := entry.at(f.TopicPartition); at != nil {
			stands = fmt.Sprintf("offset %d", at.Offset)
		}
		cure := ""
		if h, err := ParseHandle(f.Metadata); err == nil && h.Kind == HandleEmpty && r.in.elsewhere(t, s, entry) {
			cure = "; it has begun to read something else than at the savepoint, and goes on there with --allow-dropped-state, without what the savepoint has of its source"
		}
		no := refuse(ReasonOtherLineage, f.TopicPartition, "task %s: group %s stands at offset %d of %s, which does not come from savepoint %s (%s, of %s, checkpoint %s, %s): start it under another application name, accept that outputs repeat, or reset the application first%s",
			t.Task, r.in.Application, f.Offset, f.TopicPartition, s.Ref.ID, s.Ref.Path, s.Root.Application, s.Root.Name, stands, cure)
		no.Task = t.Task
		r.refused = append(r.refused, *no)
	}
}

// comesFrom reports that a committed offset comes from the savepoint. It does also when that cannot be said, because the root
// cannot be read: the start as always refuses that, and a damaged checkpoint must not become a silent return to a savepoint.
func (r *starting) comesFrom(t *TaskFacts, s *Savepoint, entry *TaskEntry) bool {
	h, err := ParseHandle(t.Inputs[0].Metadata)
	if err != nil || h.Kind != HandleCheckpoint {
		return false
	}
	switch loaded := r.in.Roots[h.Root]; {
	case loaded.Root == nil:
		return true
	case SameOrigin(loaded.Root.Origin, r.origin):
		return true
	case r.want.Again:
		return false
	}
	at := entry.at(t.Inputs[0].TopicPartition)
	past := at != nil && s.Root.Application == r.in.Application && s.Root.StoreID == r.in.StoreID && h.StoreID == r.in.StoreID &&
		h.Root.Name.ID >= s.Root.Name.ID && h.Offset >= at.Offset
	if past && h.Root.Name.ID > s.Root.Name.ID {
		r.out.Beyond = max(r.out.Beyond, h.Root.Name.ID)
	}
	return past
}

// startsOver reports that a task which would begin where its source starts, with what the store has of it let go, is in the
// savepoint as what it reads now. Then that is where it begins.
func (r *starting) startsOver(t *TaskFacts, s *Savepoint, entry *TaskEntry) bool {
	if !r.in.DropStates || s == nil || !r.in.own(t, s.Root, entry) {
		return false
	}
	d, no := r.in.resolveUnknown(t)
	return no == nil && d.Kind == Fresh
}

// together has all tasks go back when one does: the state behind an exchange is one, and it is the savepoint's or that of the
// committed root. When some come from the savepoint already, those without an offset have lost it: the start as always says so.
func (r *starting) together() {
	held := slices.ContainsFunc(r.begin, func(t TaskFacts) bool { return r.holds(&t) })
	switch {
	case len(r.out.Known) > 0 && len(r.back) > 0:
		r.mixed(&r.back[0], r.out.Known[0].String(), "start without --from to go on where the group stands, or reset the application first")
	case len(r.out.Known) > 0 || !held && len(r.back) == 0 && len(r.usual) > 0:
		r.usual, r.begin = append(r.usual, r.begin...), nil
	case r.want.Again:
		r.back, r.usual = append(r.back, r.usual...), nil
	default: // what has no state yet may stay: the start position of a partition that the savepoint does not hold
		for i := range r.usual {
			if h := handlesOf(r.usual[i : i+1]); len(h) > 0 && h[0].Kind == HandleCheckpoint {
				r.mixed(&r.usual[i], r.begin[0].Task.String(), "accept that outputs repeat, so that all tasks go back to the savepoint, or reset the application first")
			}
		}
	}
}

// mixed refuses a task that does not come from the savepoint beside another one that does.
func (r *starting) mixed(t *TaskFacts, other, cure string) {
	no := refuse(ReasonMixedRoots, t.Inputs[0].TopicPartition, "task %s does not come from savepoint %s and task %s does: an application with exchanges is restored from one checkpoint of all its tasks; %s",
		t.Task, r.origin[0].Path, other, cure)
	no.Task = t.Task
	r.refused = append(r.refused, *no)
}

// resolve decides on the tasks as they are sorted.
func (r *starting) resolve() (*Start, error) {
	usual, take := r.in, r.in
	usual.Tasks, take.Tasks = r.usual, slices.Clone(r.begin)
	for i := range r.back {
		t := r.back[i]
		r.move(&t)
		t.Inputs = slices.Clone(t.Inputs)
		for k := range t.Inputs {
			f := &t.Inputs[k]
			f.Found, f.Offset, f.Metadata = false, 0, ""
		}
		take.Tasks = append(take.Tasks, t)
	}
	if len(take.Tasks) > 0 {
		usual.Stages = nil // they come with the savepoint
		decisions, err := ResolveSavepoints(take, r.want.From, r.want.Sources)
		if err != nil {
			return nil, err
		}
		r.add(decisions)
		if take.DropStates {
			r.out.Dropped = append(r.out.Dropped, DroppedOf(take, r.want.From, r.want.Sources, decisions)...)
			r.out.Dropped = append(r.out.Dropped, r.droppedOver()...)
		}
	}
	if len(usual.Tasks) > 0 {
		decisions, err := Resolve(usual)
		if err != nil {
			return nil, err
		}
		r.add(decisions)
		if usual.DropStates {
			r.out.Dropped = append(r.out.Dropped, usual.DroppedStages(decisions)...)
		}
	}
	if err := refusal(r.refuseLeft()); err != nil {
		return nil, err
	}
	return r.out, nil
}

// droppedOver lists what the store has of the tasks that start over.
func (r *starting) droppedOver() []DroppedStage {
	in, fresh := r.in, map[element.TaskID]Decision{}
	in.Tasks, in.Stages = r.over, nil
	for i := range r.over {
		fresh[r.over[i].Task] = Decision{Kind: Fresh}
	}
	return in.leftBehind(fresh)
}

func (r *starting) add(decisions map[element.TaskID]Decision) {
	for id, d := range decisions {
		if r.out.Decisions[id] = d; d.Kind == Imported {
			r.out.Origin = r.origin
		}
	}
}

// move notes what becomes of a committed offset.
func (r *starting) move(t *TaskFacts) {
	_, entry := r.holder(t)
	for i := range t.Inputs {
		f := &t.Inputs[i]
		m := MovedInput{TopicPartition: f.TopicPartition, From: f.Offset, Forgotten: !r.holds(t)}
		if !m.Forgotten {
			at := entry.at(f.TopicPartition)
			if at == nil {
				continue // ResolveSavepoints refuses it
			}
			m.To = at.Offset
		}
		r.out.Moved = append(r.out.Moved, m)
	}
}

// String says it in one line.
func (m MovedInput) String() string {
	switch {
	case m.Forgotten:
		return fmt.Sprintf("%s: offset %d is forgotten, the savepoint does not hold it", m.TopicPartition, m.From)
	case m.To < m.From:
		return fmt.Sprintf("%s: back from %d to %d, the outputs of %d offsets repeat", m.TopicPartition, m.From, m.To, m.From-m.To)
	case m.To > m.From:
		return fmt.Sprintf("%s: on from %d to %d, the outputs of %d offsets are left out", m.TopicPartition, m.From, m.To, m.To-m.From)
	}
	return fmt.Sprintf("%s: stays at %d", m.TopicPartition, m.To)
}
