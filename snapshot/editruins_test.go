package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
)

// exchangeRuins is ruins of an application with exchanges.
type exchangeRuins struct {
	*exchangeEdits
	*ruins
	out map[string]int // sources that are taken out for a start
}

func newExchangeRuins(t *rapid.T) *exchangeRuins {
	x := newExchangeEdits(t)
	x.marks = true
	return &exchangeRuins{exchangeEdits: x, ruins: &ruins{edits: x.edits, harm: map[string]harm{}, plan: x.input}}
}

// operate takes cures until the service starts, and puts back what was taken out for that.
func (r *exchangeRuins) operate() {
	x := r.exchangeEdits
	for source, i := range x.sources {
		if stateOf(source) && x.topics[i].grown {
			x.t.Skip("a step with state over a topic that has just grown: another application name is the way")
		}
	}
	r.drop, r.recover, r.anew, r.moved, r.out = false, false, false, false, nil
	tried := map[string]bool{}
	for {
		in, out, rec, err := r.try()
		if err == nil {
			r.begin(in, out, rec)
			break
		}
		if RefusalOf(err).Has(ReasonPartitionCount) {
			x.t.Skip("a step with state over a topic that grew before it: another application name is the way")
		}
		x.say("refused: %v", err)
		cures := r.cures(err)
		if says := err.Error(); strings.Contains(says, "take what it does not hold out of the topology for this start") {
			cures["take out"] = func() { r.takeOut(says) }
		}
		if len(cures) == 0 && strings.Contains(err.Error(), "or reset the application") {
			x.t.Skip("a reset is all that is left")
		}
		// Some go together: which is the first does not matter.
		maps.DeleteFunc(cures, func(cure string, _ func()) bool { return tried[cure+err.Error()] })
		if len(cures) == 0 {
			x.t.Fatalf("nothing leads on:\n%s", x.story())
		}
		cure := rapid.SampledFrom(slices.Sorted(maps.Keys(cures))).Draw(x.t, "cure")
		tried[cure+err.Error()] = true
		cures[cure]()
		x.say("taken: %s", cure)
		if r.anew && len(x.roots) == 0 {
			x.now = RootRef{}
			clear(x.own)
		}
	}
	if r.out != nil {
		maps.Copy(x.sources, r.out)
		x.say("they are put back")
		r.operate()
	}
}

func (r *exchangeRuins) takeOut(told string) {
	x := r.exchangeEdits
	_, names, _ := strings.Cut(told, "for this start (")
	names, _, _ = strings.Cut(names, ")")
	r.out = map[string]int{}
	for source := range strings.SplitSeq(names, ", ") {
		r.out[source] = x.sources[source]
		delete(x.sources, source)
	}
	require.NotEmpty(x.t, x.sources, "%s, after\n%s", told, x.story())
}

// begin checks what a start begins with and commits it.
func (r *exchangeRuins) begin(in *ResolveInput, out map[element.TaskID]Decision, rec *Recovery) {
	x := r.exchangeEdits
	for i := range in.Tasks {
		t := &in.Tasks[i]
		switch d, f := out[t.Task], t.Inputs[0]; d.Kind {
		case Fresh:
			r.begunAnew(in, t)
		case Recovered:
			require.NotNil(x.t, rec, "%s goes back, after\n%s", t.Task, x.story())
		default:
			require.True(x.t, f.Found, "%s has no offset and does not begin anew, after\n%s", t.Task, x.story())
			require.Equal(x.t, f.Offset, d.Positions[0].Offset, "%s, after\n%s", t.Task, x.story())
		}
	}
	r.stagesBegin(in, out, rec)
	if rec != nil {
		in, out = r.repeat(in, out)
	}
	x.keeps = len(r.harm) > 0
	x.commit(in, out)
}

// stagesBegin sees to it that stages have what their inputs were read up to, and that none is let go or goes back unasked.
func (r *exchangeRuins) stagesBegin(in *ResolveInput, out map[element.TaskID]Decision, rec *Recovery) {
	x := r.exchangeEdits
	seen := slices.ContainsFunc(r.look(true), func(i RootInfo) bool { return i.Ref.Path == x.now.Path })
	now := x.held[x.now]
	for name, s := range x.stages {
		from, kept := x.restored(s, out)
		if kept {
			x.checkShares(s, out)
		}
		if holds := len(now.folded[name]) > 0 || now.flying[name] > 0; holds && seen && (!kept || from != x.now) && !r.drop {
			require.NotNil(x.t, rec, "stage %s does not begin where the application stands (%s), unasked, after\n%s", name, x.now.Name, x.story())
			require.True(x.t, slices.ContainsFunc(rec.Passed, func(i RootInfo) bool { return i.Ref.Path == x.now.Path }),
				"stage %s goes back behind %s, and nothing is said of it, after\n%s", name, x.now.Name, x.story())
		}
		for i := range in.Tasks {
			d, at := out[in.Tasks[i].Task], inputOf(&in.Tasks[i].Inputs[0])
			has := x.held[from].folded[name][at]
			switch {
			case !kept:
			case (d.Kind == Fresh || d.Kind == StartEmpty) && (r.drop || r.moved): // who operates it has said that it may
			case (d.Kind == Fresh || d.Kind == StartEmpty) && !r.told(in, &in.Tasks[i]): // the offset was lost, and with it each root that had the task
			case d.Kind == Fresh:
				require.Zero(x.t, has, "%s begins anew, and is in stage %s of %s, after\n%s", in.Tasks[i].Task, name, from.Name, x.story())
			case d.Kind == Restore, d.Kind == Recovered:
				require.Equal(x.t, from, d.Root, "%s and stage %s, after\n%s", in.Tasks[i].Task, name, x.story())
			case d.Kind == StartEmpty:
				require.LessOrEqual(x.t, has, d.Positions[0].Offset, "%s is in stage %s, after\n%s", in.Tasks[i].Task, name, x.story())
			}
		}
	}
}

// told reports that something is left which tells, or may tell, that a task has been read.
func (r *exchangeRuins) told(in *ResolveInput, t *TaskFacts) bool {
	seen := r.look(false)
	return slices.ContainsFunc(r.exchangeEdits.roots, func(info RootInfo) bool {
		return in.holds(info.Root, t) && slices.ContainsFunc(seen, func(s RootInfo) bool { return s.Ref.Path == info.Ref.Path })
	})
}

// repeat writes the root of a recovery and commits it. The process may end right behind that.
func (r *exchangeRuins) repeat(in *ResolveInput, out map[element.TaskID]Decision) (*ResolveInput, map[element.TaskID]Decision) {
	x := r.exchangeEdits
	x.lastID++
	root := &Root{Name: nameOf(x.lastID, 1), Application: "shop", ClusterID: "cluster-1", StoreID: "store-1"}
	ref := RootRef{Name: root.Name, Path: fmt.Sprintf("shop/i-0/chk-%s.root", root.Name), Digest: Digest{byte(x.lastID), byte(x.lastID >> 8)}}
	var from RootRef
	for _, d := range out {
		if d.Kind != Recovered {
			continue
		}
		from = d.Root
		entries := []TaskEntry{d.Entry}
		if d.Stage != nil && d.Entry.Parallelism == 0 {
			entries = d.Sources
		}
		for _, e := range entries {
			if root.Task(e.Task) == nil {
				root.Tasks = append(root.Tasks, e)
				slices.SortFunc(root.Tasks, func(a, b TaskEntry) int { return a.Task.Compare(b.Task) })
			}
		}
	}
	for _, t := range in.Tasks {
		f := t.Inputs[0]
		switch d := out[t.Task]; d.Kind {
		case Recovered:
			r.committed(HandleCheckpoint, ref, d.Positions[0])
		case Fresh:
			r.committed(HandleEmpty, RootRef{Name: nameOf(x.lastID, 1)}, element.Position{TopicPartition: f.TopicPartition, TopicID: f.TopicID, PartitionCount: f.Partitions, LeaderEpoch: -1})
		}
	}
	x.roots = append(x.roots, RootInfo{Ref: ref, Root: root, Committed: true, Marked: true})
	x.held[ref], x.now = x.held[from], ref
	x.say("goes back to %s by %s", from.Name, ref.Name)
	if !rapid.Bool().Draw(x.t, "ends early") {
		return in, out
	}
	x.say("and ends before its first checkpoint")
	r.recover = false
	in, out, rec, err := r.try()
	require.NoError(x.t, err, "after\n%s", x.story())
	require.Nil(x.t, rec)
	r.stagesBegin(in, out, nil)
	return in, out
}

// Whatever is changed, damaged and lost of an application with exchanges, each cure that a refusal names leads on, and nothing begins
// anew or goes back unasked.
func TestEveryDamageOfAnExchangeHasAWayOn(t *testing.T) {
	for range 3 {
		rapid.Check(t, func(t *rapid.T) {
			r := newExchangeRuins(t)
			r.operate()
			for range rapid.IntRange(1, 6).Draw(t, "starts") {
				for range rapid.IntRange(0, 2).Draw(t, "edits") {
					r.change()
				}
				for range rapid.IntRange(0, 2).Draw(t, "harms") {
					r.spoil()
				}
				r.operate()
			}
		})
	}
}
