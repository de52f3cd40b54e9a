package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millweir/millweir/element"
)

// StageFacts is a stage behind an exchange, as it is planned now.
type StageFacts struct {
	Name        string
	Parallelism int // subtasks, 1 up to MaxParallelism
	// MaxParallelism is the number of key groups.
	MaxParallelism int
	// Exchange is the kind of the exchange; UnknownExchange: records in flight are taken whatever they came over.
	Exchange ExchangeKind
}

// StageDecision tells a subtask what of its sources is its own.
type StageDecision struct {
	StageFacts
	Subtask int
}

// KeepKeys gives the filter of keys for Repository.Restore of a source: those whose key groups are the subtask's. nil when
// everything in it is, because it is the same subtask.
func (d *Decision) KeepKeys() func(state int, key []byte) bool {
	if d.Stage == nil || d.same() {
		return nil
	}
	s := d.Stage
	from, to := element.GroupRange(s.Subtask, s.Parallelism, s.MaxParallelism)
	return func(_ int, key []byte) bool {
		g := element.KeyGroup(key, s.MaxParallelism)
		return g >= from && g < to
	}
}

// KeepInFlight gives the filter of key groups for Repository.RestoreInFlight of a source. Each old subtask's records
// without a key group go to one new subtask, all of them.
func (d *Decision) KeepInFlight(source *TaskEntry) func(group int) bool {
	if d.Stage == nil || d.same() {
		return nil
	}
	s := d.Stage
	from, to := element.GroupRange(s.Subtask, s.Parallelism, s.MaxParallelism)
	heir := s.heir(source)
	return func(group int) bool {
		if group < 0 {
			return heir == s.Subtask
		}
		return group >= from && group < to
	}
}

// same reports that the subtask goes on as the one that it was.
func (d *Decision) same() bool { return d.Entry.Parallelism > 0 }

// heir is the subtask that gets what of an old one has no key group: one that gets key groups of it.
func (s *StageFacts) heir(old *TaskEntry) int {
	i := int(old.Task.Partition)
	if s.MaxParallelism != old.MaxParallelism {
		return i * s.Parallelism / old.Parallelism
	}
	first, _ := element.GroupRange(i, old.Parallelism, old.MaxParallelism)
	return element.SubtaskOf(first, s.Parallelism, s.MaxParallelism)
}

// DroppedStage is a stage of which something is let go, that of a source or of an exchange.
type DroppedStage struct {
	Stage    string
	Root     RootRef
	Subtasks int      // in the root; of a source the tasks that are in it
	States   []string // none when the stage stays and only its records go
	InFlight int64    // records on the way to it
}

// DroppedStages gives the stages that a resolution with DropStates lets go, sorted by root and name.
func (in *ResolveInput) DroppedStages(decisions map[element.TaskID]Decision) []DroppedStage {
	var out []DroppedStage
	for _, ref := range restoredRoots(decisions) {
		root := in.Roots[ref].Root
		if i := slices.IndexFunc(in.Listing, func(info RootInfo) bool { return info.Ref == ref }); root == nil && i >= 0 {
			root = in.Listing[i].Root // recovered
		}
		if root != nil {
			gone := in.gone(ref, root)
			out = append(out, gone...)
			out = append(out, renamed(decisions, ref, root, gone)...)
			out = append(out, in.scattered(ref, root)...)
		}
	}
	for _, d := range in.leftBehind(decisions) {
		if !slices.ContainsFunc(out, func(o DroppedStage) bool { return o.Stage == d.Stage && o.Root == d.Root }) {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b DroppedStage) int {
		return cmp.Or(strings.Compare(a.Root.Path, b.Root.Path), strings.Compare(a.Stage, b.Stage))
	})
	return out
}

// scattered lists the stages whose records in flight cannot go where the exchange now leads: it has other key groups, or is
// of another kind.
func (in *ResolveInput) scattered(ref RootRef, root *Root) []DroppedStage {
	var out []DroppedStage
	for _, s := range in.Stages {
		d := DroppedStage{Stage: s.Name, Root: ref}
		for _, e := range root.stage(s.Name) {
			if e.Parallelism > 0 && (e.MaxParallelism != s.MaxParallelism || s.strays(&e)) {
				d.Subtasks = e.Parallelism
				d.InFlight += e.inFlight()
			}
		}
		if d.InFlight > 0 {
			out = append(out, d)
		}
	}
	return out
}

// restoredRoots lists the roots that decisions restore from, sorted by path.
func restoredRoots(decisions map[element.TaskID]Decision) []RootRef {
	var out []RootRef
	for _, d := range decisions {
		if (d.Kind == Restore || d.Kind == Recovered) && !slices.Contains(out, d.Root) {
			out = append(out, d.Root)
		}
	}
	slices.SortFunc(out, func(a, b RootRef) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// gone lists the stages that a root holds something of and the plan does not have: of exchanges, and of sources when these are
// known. That one has an exchange's name now is a matter of checkStage.
func (in *ResolveInput) gone(ref RootRef, root *Root) []DroppedStage {
	return root.stagesWhere(ref, func(e *TaskEntry) bool {
		planned := slices.ContainsFunc(in.Stages, func(s StageFacts) bool { return s.Name == e.Task.Source })
		if e.Parallelism == 0 {
			planned = planned || in.Sources == nil || e.planned(in.Sources)
		}
		return !planned && (len(e.States) > 0 || len(e.InFlight) > 0)
	})
}

// stagesWhere sums up, by stage, what a root has of some tasks.
func (r *Root) stagesWhere(ref RootRef, is func(*TaskEntry) bool) []DroppedStage {
	var out []DroppedStage
	for i := range r.Tasks {
		e := &r.Tasks[i]
		if !is(e) {
			continue
		}
		n := len(out)
		if n == 0 || out[n-1].Stage != e.Task.Source {
			out = append(out, DroppedStage{Stage: e.Task.Source, Root: ref, Subtasks: e.Parallelism})
			n++
		}
		d := &out[n-1]
		if e.Parallelism == 0 {
			d.Subtasks++
		}
		d.add(e)
	}
	return out
}

// reasonFor says why a start that is not to let it go is refused, and what would go.
func (d *DroppedStage) reasonFor() (reason Reason, what string) {
	records := fmt.Sprintf("%d records in flight", d.InFlight)
	switch state := "state " + strings.Join(d.States, ", "); {
	case len(d.States) == 0:
		return ReasonInFlight, records
	case d.InFlight > 0:
		return ReasonStateDropped, state + " and " + records
	default:
		return ReasonStateDropped, state
	}
}

// add counts in what the root has of a task.
func (d *DroppedStage) add(e *TaskEntry) {
	for _, s := range e.States {
		if !slices.Contains(d.States, s.Name) {
			d.States = append(d.States, s.Name)
		}
	}
	d.InFlight += e.inFlight()
}

// inFlight counts the records on the way to the task.
func (e *TaskEntry) inFlight() int64 {
	var n int64
	for i := range e.InFlight {
		n += e.InFlight[i].Entries
	}
	return n
}

// resolveStages adds the decisions on the subtasks of exchanges to those on the tasks, or refuses.
func (in *ResolveInput) resolveStages(kind DecisionKind, out map[element.TaskID]Decision) []Refusal {
	refs := restoredRoots(out)
	if refused := in.refuseGone(refs); len(refused) > 0 || len(in.Stages) == 0 {
		return refused
	}
	if refused := in.refuseMixture(refs, out); len(refused) > 0 {
		return refused
	}
	if len(refs) == 0 {
		in.startStages(out)
		return nil
	}
	return in.stagesFrom(refs[0], in.Roots[refs[0]].Root, kind, out)
}

// startStages has all stages start without anything.
func (in *ResolveInput) startStages(out map[element.TaskID]Decision) {
	for _, s := range in.Stages {
		for i := range s.Parallelism {
			out[s.task(i)] = Decision{Kind: StartEmpty, Stage: &StageDecision{StageFacts: s, Subtask: i}}
		}
	}
}

func (s *StageFacts) task(i int) element.TaskID {
	return element.TaskID{Source: s.Name, Partition: int32(i)}
}

// refuseGone refuses roots that hold something of a stage that the plan does not have.
func (in *ResolveInput) refuseGone(refs []RootRef) []Refusal {
	var out []Refusal
	if in.DropStates {
		return nil
	}
	for _, ref := range refs {
		for _, d := range in.gone(ref, in.Roots[ref].Root) {
			reason, what := d.reasonFor()
			instead := "the topology has no such exchange; restore the exchange or its name"
			if in.Roots[ref].Root.stage(d.Stage)[0].Parallelism == 0 {
				instead = insteadOf(d.Stage, in.Sources)
			}
			no := refuse(reason, element.TopicPartition{}, "stage %s: checkpoint %s holds %s of it, and %s, "+
				"let it go with --allow-dropped-state, or start under another application name", d.Stage, ref.Name, what, instead)
			no.Task = element.TaskID{Source: d.Stage}
			out = append(out, *no)
		}
	}
	return out
}

// stagesFrom decides on the subtasks of all stages by one root.
func (in *ResolveInput) stagesFrom(ref RootRef, root *Root, kind DecisionKind, out map[element.TaskID]Decision) []Refusal {
	var refused []Refusal
	for _, s := range in.Stages {
		old := root.stage(s.Name)
		if no := in.checkStage(&s, ref, old); no != nil {
			no.Task = s.task(0)
			refused = append(refused, *no)
			continue
		}
		if len(old) > 0 && old[0].Parallelism == 0 {
			old = nil // the name was a source's, whose state goes
		}
		for i := range s.Parallelism {
			out[s.task(i)] = s.decide(i, ref, old, kind)
		}
	}
	slices.SortStableFunc(refused, func(a, b Refusal) int { return cmp.Compare(a.Task.Source, b.Task.Source) })
	return refused
}

// hasStages reports whether the root holds subtasks of exchanges.
func (r *Root) hasStages() bool {
	return slices.ContainsFunc(r.Tasks, func(e TaskEntry) bool { return e.Parallelism > 0 })
}

// stage gives the entries of a stage, in order.
func (r *Root) stage(name string) []TaskEntry {
	from := slices.IndexFunc(r.Tasks, func(e TaskEntry) bool { return e.Task.Source == name })
	if from < 0 {
		return nil
	}
	to := from
	for to < len(r.Tasks) && r.Tasks[to].Task.Source == name {
		to++
	}
	return r.Tasks[from:to]
}

// checkStage checks that the topology can take up what a root has of a stage. Where nothing is in flight, the kind of the
// exchange is no matter: state is kept by key group behind any kind that keyed state may stand behind.
func (in *ResolveInput) checkStage(s *StageFacts, ref RootRef, old []TaskEntry) *Refusal {
	var moving, stray int64
	over := UnknownExchange
	for i := range old {
		e := &old[i]
		if e.Parallelism == 0 {
			if len(e.States) > 0 && !in.DropStates {
				return refuse(ReasonStateDropped, element.TopicPartition{}, "stage %s: checkpoint %s holds state of a source of this name, which is now an exchange; "+
					"give the exchange another name, or let it go with --allow-dropped-state", s.Name, ref.Name)
			}
			continue
		}
		if no := in.checkStates(&TaskFacts{Task: e.Task}, ref, e); no != nil {
			return no
		}
		if e.MaxParallelism != s.MaxParallelism {
			moving += e.inFlight()
		}
		if s.strays(e) {
			stray += e.inFlight()
			over = cmp.Or(over, e.Exchange)
		}
	}
	if stray > 0 && !in.DropStates {
		return refuse(ReasonInFlight, element.TopicPartition{}, "stage %s: checkpoint %s holds %d records in flight over %s of this name, which is now a %s and leads them elsewhere; "+
			"go back to what it was and stop gracefully, so that nothing is in flight, and change it then, or let them go with --allow-dropped-state", s.Name, ref.Name, stray, over.other(), s.Exchange)
	}
	if moving > 0 && !in.DropStates {
		return refuse(ReasonInFlight, element.TopicPartition{}, "stage %s: checkpoint %s holds %d records in flight by %d key groups, the stage now has %d: they cannot be moved; "+
			"go back to the old maximum and take an aligned checkpoint first", s.Name, ref.Name, moving, old[0].MaxParallelism, s.MaxParallelism)
	}
	return nil
}

// decide gives the decision on one subtask, by the old subtasks of its stage.
func (s *StageFacts) decide(i int, ref RootRef, old []TaskEntry, kind DecisionKind) Decision {
	d := Decision{Kind: kind, Root: ref, Stage: &StageDecision{StageFacts: *s, Subtask: i}}
	if len(old) == 0 {
		d.Kind, d.New, d.Root = StartEmpty, true, RootRef{Name: ref.Name}
		return d
	}
	take := func(e TaskEntry) {
		if e.MaxParallelism != s.MaxParallelism || s.strays(&e) {
			e.InFlight, e.Exchange = nil, UnknownExchange // let go
		}
		d.Sources = append(d.Sources, e)
	}
	if old[0].MaxParallelism != s.MaxParallelism { // every key may be anywhere
		for k := range old {
			take(old[k])
		}
		return d
	}
	if old[0].Parallelism == s.Parallelism {
		d.Entry = old[i]
		take(old[i])
		return d
	}
	from, to := element.GroupRange(i, s.Parallelism, s.MaxParallelism)
	for k := range old {
		lo, hi := element.GroupRange(k, old[k].Parallelism, old[k].MaxParallelism)
		if lo < to && from < hi {
			take(old[k])
		}
	}
	return d
}
