package snapshot

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// The newest committed checkpoint of each partition says whether the number of partitions may be another one.
func TestStateBindsTheNumberOfPartitions(t *testing.T) {
	now := InputFacts{TopicPartition: element.TopicPartition{Topic: "a"}, TopicID: element.TopicID{'a'}, Partitions: 2}
	root := func(id int, state bool, change func(*element.Position)) RootInfo {
		h := newPast(t)
		p := reads{topic: "a", at: int64(id), state: state}
		ref := h.root(id, 0, p)
		e := h.in.Roots[ref].Root
		change(&e.Tasks[0].Positions[0])
		return RootInfo{Ref: ref, Root: e, Committed: true}
	}
	as := func(*element.Position) {}
	for name, c := range map[string]struct {
		binds bool
		infos []RootInfo
	}{
		"nothing":                   {false, nil},
		"no state":                  {false, []RootInfo{root(1, false, as)}},
		"state":                     {true, []RootInfo{root(1, true, as)}},
		"state that was let go":     {false, []RootInfo{root(1, true, as), root(2, false, as)}},
		"state by the number now":   {false, []RootInfo{root(1, true, func(p *element.Position) { p.PartitionCount = 2 })}},
		"state of another topic":    {false, []RootInfo{root(1, true, func(p *element.Position) { p.TopicID = element.TopicID{9} })}},
		"state of another instance": {true, []RootInfo{root(1, true, func(p *element.Position) { p.Partition = 1 }), root(2, false, as)}},
		"damaged, and all newer": {false, []RootInfo{{Ref: RootRef{Name: nameOf(1, 1)}, Committed: true},
			root(2, false, as), root(3, false, func(p *element.Position) { p.Partition = 1 })}},
		"damaged": {true, []RootInfo{root(1, false, as), {Ref: RootRef{Name: nameOf(2, 1)}, Committed: true}}},
	} {
		require.Equal(t, c.binds, StateBinds(c.infos, "cluster-1", now), name)
		for i := range c.infos {
			c.infos[i].Committed = false
		}
		require.Equal(t, strings.HasPrefix(name, "damaged"), StateBinds(c.infos, "cluster-1", now), "%s: not known to be committed", name)
	}
}

// A partition began by the number that its newest checkpoint has, and the topic by the least of them.
func TestCountInCheckpoints(t *testing.T) {
	root := func(id, partition int, count int32) RootInfo {
		h := newPast(t)
		ref := h.root(id, 0, reads{topic: "a", at: int64(id)})
		r := h.in.Roots[ref].Root
		p := &r.Tasks[0].Positions[0]
		p.Partition, p.PartitionCount = int32(partition), count
		return RootInfo{Ref: ref, Root: r}
	}
	topic := element.TopicID{'a'}
	damaged := RootInfo{Ref: RootRef{Name: nameOf(9, 1)}}
	require.EqualValues(t, 5, CountIn([]RootInfo{damaged}, "a", topic, 5))
	require.EqualValues(t, 2, CountIn([]RootInfo{damaged, root(1, 0, 2)}, "a", topic, 5))
	require.EqualValues(t, 3, CountIn([]RootInfo{root(1, 0, 2), root(2, 0, 3)}, "a", topic, 5), "it began anew")
	require.EqualValues(t, 2, CountIn([]RootInfo{root(1, 1, 2), root(2, 0, 3)}, "a", topic, 5))
	require.EqualValues(t, 5, CountIn([]RootInfo{root(1, 0, 2)}, "a", element.TopicID{9}, 5), "another topic of that name")
	require.EqualValues(t, 5, CountIn([]RootInfo{root(1, 0, 2)}, "b", topic, 5))
}

// A topic grew while what reads it had no state: no number of partitions binds a step that comes later, also where the tasks go back
// to a checkpoint of the store, or to a savepoint. Where there was state it does.
func TestAStepWithStateOverATopicThatGrewGoesBack(t *testing.T) {
	for _, state := range []bool{false, true} {
		h := newPast(t)
		a := reads{topic: "a", at: 7, state: state}
		ref := h.root(1, 2, a)
		h.fresh(a, false)
		h.in.States[a.task().Source] = counts
		h.in.Tasks[0].Inputs[0].Partitions = 2
		root := h.in.Roots[ref].Root
		h.in.Stored = []RootInfo{{Ref: ref, Root: root, Committed: true}}
		_, err := Resolve(h.in)
		recovered, _, err := Recover(h.in, RefusalOf(err), h.in.Stored)
		imported, from := ResolveSavepoints(h.in, []*Savepoint{{Root: root}}, map[string]string{a.task().Source: "a"})
		if state {
			require.Equal(t, ReasonPartitionCount, RefusalOf(err).Refusals[0].Reason, "%v", err)
			require.Equal(t, ReasonPartitionCount, RefusalOf(from).Refusals[0].Reason, "%v", from)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, from)
		for _, d := range []Decision{recovered[a.task()], imported[a.task()]} {
			require.EqualValues(t, 2, d.Positions[0].PartitionCount)
			require.EqualValues(t, 7, d.Positions[0].Offset)
		}
		require.Equal(t, recovered[a.task()].Positions, recovered[a.task()].Entry.Positions, "the root and the handle of the start say the same")
	}
}

// A recovery goes by the checkpoints that it takes: what was bound, or let go, in those that it passes over is lost with them.
func TestARecoveryIsBoundByWhatItTakes(t *testing.T) {
	for name, c := range map[string]struct {
		state bool // in the checkpoint that partition 0 goes back to
		newer bool // one that cannot be read at all is passed over, else one with a damaged run
	}{"bound later": {false, true}, "let go later": {true, false}} {
		h := newPast(t)
		h.in.Stages, h.in.States["x.a"] = nil, counts
		at := func(id, count int, p int32, state bool) RootInfo {
			ref := h.root(id, 0, reads{topic: "a", at: int64(id), state: state})
			e := &h.in.Roots[ref].Root.Tasks[0]
			e.Task.Partition, e.Positions[0].Partition, e.Positions[0].PartitionCount = p, p, int32(count)
			return RootInfo{Ref: ref, Root: h.in.Roots[ref].Root, Committed: true, Marked: true}
		}
		infos := []RootInfo{at(1, 1, 0, c.state), at(2, 2, 1, false), at(3, 2, 0, true)}
		damage := corrupt("3", infos[2].Ref.Path, "run", vfsNotExist())
		if infos[2].Err = damage; c.newer {
			infos[2].Root = nil
		}
		for p := range int32(2) {
			h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: element.TaskID{Source: "x.a", Partition: p}, Inputs: []InputFacts{{
				TopicPartition: element.TopicPartition{Topic: "a", Partition: p}, TopicID: element.TopicID{'a'}, Partitions: 2}}})
		}
		h.in.Roots, h.in.Stored, h.in.Listing = nil, infos, infos
		_, err := Resolve(h.in)
		out, _, err := Recover(h.in, RefusalOf(err), infos)
		if c.state {
			require.NotNil(t, RefusalOf(err), "%s: %v", name, out)
			require.True(t, RefusalOf(err).Has(ReasonPartitionCount), "%s: %v", name, err)
			continue
		}
		require.NoError(t, err, name)
		d := out[h.in.Tasks[0].Task]
		require.EqualValues(t, 1, d.Root.Name.ID)
		require.EqualValues(t, 2, d.Positions[0].PartitionCount)
		require.Equal(t, d.Positions, d.Entry.Positions)
	}
}
