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

// save takes a savepoint of where the application stands.
func (x *exchangeEdits) save() {
	root := *x.roots[len(x.roots)-1].Root
	n := byte(len(x.saved) + 1)
	s := &Savepoint{Ref: SavepointRef{ID: fmt.Sprint("s", n), Path: fmt.Sprint("/savepoints/s", n), Digest: Digest{0xff, n}}, Root: &root, Requests: []string{fmt.Sprint("r", n)}}
	x.saved = append(x.saved, s)
	x.held[s.root()] = x.held[x.now]
	x.say("savepoint %s of %s", s.Ref.ID, x.now.Name)
}

// asFork gives what a group that nobody has used knows.
func asFork(in ResolveInput) ResolveInput {
	in.Application, in.Roots, in.Stored, in.Listing, in.Unbound = "fork", nil, nil, nil, nil
	for i := range in.Tasks {
		f := &in.Tasks[i].Inputs[0]
		f.Found, f.Offset, f.Metadata = false, 0, ""
	}
	return in
}

// startFrom starts from a savepoint: a fork, which is looked at and forgotten, or the application itself, which goes back or on. It
// tries the flags as far as the messages name them. The start without --from is the way on where the savepoint has nothing of what is
// read.
func (x *exchangeEdits) startFrom(s *Savepoint, fork bool) {
	for source, i := range x.sources {
		if stateOf(source) && x.grew(i, s) {
			return // keys have moved, see startPositions of the engine
		}
	}
	var told []string
	again := false
	for _, drop := range []bool{false, true, false, true} {
		last := strings.Join(told, "")
		if drop && !strings.Contains(last, "--allow-dropped-state") {
			continue
		}
		if len(told) > 0 && !drop {
			if again = true; fork || !strings.Contains(last, "accept that outputs repeat") {
				break
			}
		}
		in := x.input(drop)
		if fork {
			in = asFork(in)
		}
		want := StartInput{From: []*Savepoint{s}, Sources: in.Sources, Again: again}
		for _, tp := range LeftIn(want.From, want.Sources) {
			if f, found := x.group[tp]; found && !fork {
				want.Left = append(want.Left, f)
			}
		}
		if !fork && (again || NeedsStored(in.Tasks)) {
			want.All = slices.Clone(x.roots)
		}
		start, err := ResolveFrom(in, want)
		if err != nil {
			if told = append(told, err.Error()); x.forgetsLeft(err.Error()) {
				x.startFrom(s, fork)
				return
			}
			continue
		}
		x.say("from %s, again %v, -n %v, fork %v", s.Ref.ID, again, drop, fork)
		x.checkFrom(&in, start, s)
		if len(start.Origin) == 0 {
			in.Stored = want.All
			x.check(&in, start.Decisions, nil)
		}
		if !fork {
			x.goOn(&in, start, s)
		}
		return
	}
	last := strings.Join(told, "\n")
	for _, way := range []string{"or this one without --from", "start without --from", "recover from the store explicitly"} {
		if strings.Contains(last, way) {
			return
		}
	}
	x.t.Fatalf("nothing leads on from %s, fork %v:\n%s\nafter:\n%s", s.Ref.ID, fork, last, x.story())
}

// forgetsLeft deletes the offsets of a topic that nothing reads, as a message says.
func (x *exchangeEdits) forgetsLeft(told string) bool {
	_, topic, named := strings.Cut(told, "give the topology its source back for this start, or delete the group's offsets of this topic (")
	if !named {
		return false
	}
	topic, _, _ = strings.Cut(topic, ")")
	x.mark()
	n := len(x.group)
	maps.DeleteFunc(x.group, func(tp element.TopicPartition, _ InputFacts) bool { return tp.Topic == topic })
	x.expired = true
	x.say("the offsets of %s are deleted", topic)
	return len(x.group) < n
}

// goOn commits a checkpoint of a start, unless that ends before. Then the next one is with the flag or without.
func (x *exchangeEdits) goOn(in *ResolveInput, start *Start, s *Savepoint) {
	forgets := slices.ContainsFunc(start.Moved, func(m MovedInput) bool { return m.Forgotten })
	if !forgets && x.ends(in, start.Decisions) {
		if len(start.Origin) > 0 && rapid.Bool().Draw(x.t, "again") {
			x.startFrom(s, false)
		}
		return
	}
	if len(start.Origin) > 0 {
		x.origin = start.Origin
	}
	x.commit(in, start.Decisions)
}

// grew reports that a topic has partitions that neither the group nor a savepoint knows.
func (x *exchangeEdits) grew(topic int, s *Savepoint) bool {
	n := int32(0)
	for _, e := range s.Root.Tasks {
		if e.readsFrom(x.name(topic)) && e.Positions[0].TopicID == x.topics[topic].id {
			n++
		}
	}
	return x.topics[topic].grown || n > 0 && n < x.topics[topic].partitions
}

// checkFrom compares how the tasks start with what the savepoint has, where they start from it.
func (x *exchangeEdits) checkFrom(in *ResolveInput, start *Start, s *Savepoint) {
	if len(start.Origin) == 0 {
		require.Empty(x.t, start.Moved, "after\n%s", x.story())
		return
	}
	lost := func(stage, what string) {
		require.True(x.t, in.DropStates, "%s: %s unasked, after\n%s", stage, what, x.story())
		require.True(x.t, slices.ContainsFunc(start.Dropped, func(d DroppedStage) bool { return d.Stage == stage && d.Root == s.root() }),
			"%s: %s, and nothing is said of it (%v), after\n%s", stage, what, start.Dropped, x.story())
	}
	taken := map[element.TaskID]bool{} // whose state is taken up
	for i := range in.Tasks {
		t := &in.Tasks[i]
		d, f, e := start.Decisions[t.Task], &t.Inputs[0], s.Root.entryOf(t)
		holds := in.holds(s.Root, t)
		switch {
		case d.Kind == Imported:
			require.True(x.t, holds, "%s, after\n%s", t.Task, x.story())
			require.Equal(x.t, e.Positions[0].Offset, d.Positions[0].Offset, "%s, after\n%s", t.Task, x.story())
			taken[t.Task] = len(d.Sources) == 1 && d.Sources[0].Task == t.Task
		case d.Kind == Fresh:
			require.False(x.t, holds, "%s is in the savepoint and begins anew, after\n%s", t.Task, x.story())
			require.True(x.t, !f.Found || slices.ContainsFunc(start.Moved, func(m MovedInput) bool { return m.TopicPartition == f.TopicPartition && m.Forgotten }),
				"%s is forgotten, and nothing is said of it, after\n%s", t.Task, x.story())
		case d.Kind == StartEmpty && x.begun[inputOf(f)] && !holds:
		default:
			x.t.Fatalf("%s is %s beside tasks that are of the savepoint, after\n%s", t.Task, d.Kind, x.story())
		}
	}
	for _, e := range s.Root.Tasks {
		if e.Parallelism == 0 && len(e.States) > 0 && !taken[e.Task] {
			lost(e.Task.Source, "state of a source is let go")
		}
	}
	for _, name := range editStages {
		held, facts := x.held[s.root()], x.stages[name]
		switch from, kept := x.restored(facts, start.Decisions); {
		case facts.Name != "" && kept:
			require.Equal(x.t, s.root(), from, "stage %s, after\n%s", name, x.story())
			x.checkShares(facts, start.Decisions)
		case len(held.folded[name]) > 0 || held.flying[name] > 0:
			lost(name, "a stage is let go")
			require.Empty(x.t, facts.Name, "stage %s is let go, after\n%s", name, x.story())
		}
	}
}

// From a savepoint of any moment of the past a start goes on with what the savepoint has, or a flag that the messages name lets it,
// whatever was changed since.
func TestEveryChangeSinceASavepointHasAWayOn(t *testing.T) {
	for range 10 {
		rapid.Check(t, func(t *rapid.T) {
			x := newExchangeEdits(t)
			x.start()
			x.save()
			for range rapid.IntRange(1, 6).Draw(t, "starts") {
				for range rapid.IntRange(0, 3).Draw(t, "edits") {
					x.change()
				}
				s := rapid.SampledFrom(x.saved).Draw(t, "savepoint")
				x.startFrom(s, true)
				if rapid.Bool().Draw(t, "from") {
					x.startFrom(s, false)
				} else {
					x.start()
				}
				if x.roots[len(x.roots)-1].Ref == x.now && rapid.Bool().Draw(t, "save") {
					x.save()
				}
			}
		})
	}
}
