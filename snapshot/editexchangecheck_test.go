package snapshot

import (
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// check compares how the tasks start with what they must have. A recovery says which checkpoints it does not take.
func (x *exchangeEdits) check(in *ResolveInput, out map[element.TaskID]Decision, rec *Recovery) {
	dropped := in.DroppedStages(out)
	lost := func(stage string, ref RootRef, what string) {
		if rec != nil && slices.ContainsFunc(rec.Passed, func(i RootInfo) bool { return i.Ref == ref }) {
			return
		}
		require.True(x.t, in.DropStates, "%s: %s unasked, after\n%s", stage, what, x.story())
		require.True(x.t, slices.ContainsFunc(dropped, func(d DroppedStage) bool { return d.Stage == stage && d.Root == ref }),
			"%s of %s: %s, and nothing is said of it (%v), after\n%s", stage, ref.Name, what, dropped, x.story())
	}
	read := false // what the application stands at
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d, f := out[t.Task], &t.Inputs[0]
		at := inputOf(f)
		if h, err := ParseHandle(f.Metadata); f.Found && err == nil {
			read = read || h.Kind == HandleCheckpoint && h.Root == x.now
		}
		if d.Kind == Fresh {
			require.False(x.t, f.Found, "%s has an offset and begins anew, after\n%s", t.Task, x.story())
			if !in.DropStates {
				for _, info := range x.roots {
					require.False(x.t, in.holds(info.Root, t), "%s is in checkpoint %s and begins anew, after\n%s", t.Task, info.Ref.Name, x.story())
				}
			}
		} else if f.Found {
			require.Equal(x.t, x.offsets[at], d.Positions[0].Offset, "%s, after\n%s", t.Task, x.story())
		}
		for owner, ref := range x.own {
			if owner.editInput == at && (owner.source != t.Task.Source || d.Root != ref || d.Kind == StartEmpty || d.Kind == Fresh) {
				lost(owner.source, ref, "state of a source is let go")
			}
		}
	}
	for owner, ref := range x.own {
		if _, planned := x.sources[owner.source]; ref == x.now && !planned && read {
			lost(owner.source, ref, "state of a source that is gone is let go")
		}
	}
	x.checkStages(in, out, read, lost)
	if rec != nil && in.DropStates {
		x.leave(in, out)
	}
}

// leave notes the inputs that nothing reads and whose offsets lie before what a recovery has taken up of them.
func (x *exchangeEdits) leave(in *ResolveInput, out map[element.TaskID]Decision) {
	for _, s := range in.Stages {
		from, kept := x.restored(s, out)
		for at, folded := range x.held[from].folded[s.Name] {
			reads := slices.ContainsFunc(in.Tasks, func(t TaskFacts) bool { return inputOf(&t.Inputs[0]) == at })
			x.twice[at] = x.twice[at] || kept && !reads && x.offsets[at] < folded
		}
	}
}

func (x *exchangeEdits) checkStages(in *ResolveInput, out map[element.TaskID]Decision, read bool, lost func(string, RootRef, string)) {
	now := x.held[x.now]
	for _, s := range editStages {
		holds := len(now.folded[s]) > 0 || now.flying[s] > 0
		facts, planned := x.stages[s]
		from, kept := x.restored(facts, out)
		switch {
		case planned && from == x.now && kept:
			x.checkShares(facts, out)
		case planned && kept:
			require.False(x.t, read, "stage %s is restored from %s, the application stands at %s, after\n%s", s, from.Name, x.now.Name, x.story())
			x.checkShares(facts, out)
			fallthrough
		default:
			if holds {
				lost(s, x.now, "a stage is let go")
				require.False(x.t, planned && read, "stage %s is let go though the application goes on from %s, after\n%s", s, x.now.Name, x.story())
			}
		}
		for i := range in.Tasks {
			t := &in.Tasks[i]
			if d := out[t.Task]; kept && d.Kind != Fresh && !x.begun[inputOf(&t.Inputs[0])] && !x.twice[inputOf(&t.Inputs[0])] {
				require.LessOrEqual(x.t, x.held[from].folded[s][inputOf(&t.Inputs[0])], d.Positions[0].Offset, "%s is in stage %s, after\n%s", t.Task, s, x.story())
			}
		}
	}
}

// restored gives the root that a stage is restored from; kept is false when it starts empty.
func (x *exchangeEdits) restored(s StageFacts, out map[element.TaskID]Decision) (from RootRef, kept bool) {
	for i := range s.Parallelism {
		d, first := out[s.task(i)], out[s.task(0)]
		require.Equal(x.t, first.Kind, d.Kind, "%s, after\n%s", s.task(i), x.story())
		require.Equal(x.t, first.Root, d.Root, "%s, after\n%s", s.task(i), x.story())
		from, kept = d.Root, d.Kind == Restore || d.Kind == Recovered || d.Kind == Imported
	}
	return from, kept
}

// checkShares sees to it that every key, and every record in flight that is not let go, goes to one subtask.
func (x *exchangeEdits) checkShares(s StageFacts, out map[element.TaskID]Decision) {
	root := func() *Root {
		from, _ := x.restored(s, out)
		for _, info := range x.roots {
			if info.Ref == from {
				return info.Root
			}
		}
		for _, s := range x.saved {
			if s.root() == from {
				return s.Root
			}
		}
		return nil
	}()
	for _, old := range root.stage(s.Name) {
		lo, hi := element.GroupRange(int(old.Task.Partition), old.Parallelism, editGroups)
		for g := lo - 1; g < hi; g++ { // the first one stands for no key group
			keys, flying := 0, 0
			for i := range s.Parallelism {
				d := out[s.task(i)]
				k := slices.IndexFunc(d.Sources, func(e TaskEntry) bool { return e.Task == old.Task })
				if k < 0 {
					continue
				}
				if keep := d.KeepInFlight(&d.Sources[k]); keep == nil || keep(max(g, lo-1)) && g >= lo || g < lo && keep(-1) {
					flying++
				}
				if keep := d.KeepKeys(); g >= lo && (keep == nil || keep(0, editKeys[g])) {
					keys++
				}
			}
			require.Equal(x.t, 1, flying, "subtasks that get records of group %d of %s, after\n%s", g, old.Task, x.story())
			require.True(x.t, g < lo || keys == 1, "%d subtasks get group %d of %s, after\n%s", keys, g, old.Task, x.story())
		}
	}
}
