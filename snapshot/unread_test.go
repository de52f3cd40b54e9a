package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// An application with exchanges moves as a whole: a newer root of it that reads the topic has all partitions that were read.
func TestAnOldDamagedRootDoesNotHoldWhatWasAddedSince(t *testing.T) {
	added := func(h *pastRoots) *InputFacts {
		f := InputFacts{TopicPartition: element.TopicPartition{Topic: "a", Partition: 1}, TopicID: element.TopicID{'a'}, Partitions: 2}
		h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: element.TaskID{Source: "x.a", Partition: 1}, Inputs: []InputFacts{f}})
		return &h.in.Tasks[len(h.in.Tasks)-1].Inputs[0]
	}
	old := RootInfo{Ref: RootRef{Name: nameOf(3, 1), Path: "shop/i-0/chk-" + nameOf(3, 1).String() + ".root"}, Err: vfsNotExist(), Marked: true}
	for name, c := range map[string]struct {
		stages int
		id     int // of the newer root
		topic  byte
		fresh  bool
	}{
		"newer":                  {1, 7, 'a', true},
		"older":                  {1, 2, 'a', false},
		"without exchanges":      {0, 7, 'a', false},
		"of another of its name": {1, 7, 'z', false},
	} {
		h := newPast(t)
		ref := h.root(c.id, c.stages, reads{topic: "a", at: 5})
		h.stands(ref, reads{topic: "a", at: 5})
		f := added(h)
		f.TopicID = element.TopicID{c.topic}
		h.in.Stored, h.in.Listing = []RootInfo{old}, []RootInfo{old}
		d, err := Resolve(h.in)
		if !c.fresh {
			require.True(t, RefusalOf(err).Has(ReasonUnreadable), "%s: %v", name, err)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, Fresh, d[element.TaskID{Source: "x.a", Partition: 1}].Kind)

		// Nor is its start position older than what the root might say.
		p := element.Position{TopicPartition: f.TopicPartition, TopicID: f.TopicID, PartitionCount: 2}
		*f = factsOf(t, p, RootRef{}, &h.in, HandleEmpty)
		f.Partitions = 2
		d, err = Resolve(h.in)
		require.NoError(t, err, name)
		require.Equal(t, StartEmpty, d[element.TaskID{Source: "x.a", Partition: 1}].Kind)
	}
}

// The ids of an application with exchanges are of one history, whichever instance has it: a newer committed root that cannot be read
// is one that the offsets went back behind, or by which all sources were replaced, in whatever directory it lies.
func TestANewerDamagedRootOfAnotherInstance(t *testing.T) {
	for name, c := range map[string]struct {
		stages  int
		refused bool
	}{"with exchanges": {1, true}, "without": {0, false}} {
		h := newPast(t)
		ref := h.root(5, c.stages, reads{topic: "a", at: 5})
		h.stands(ref, reads{topic: "a", at: 5})
		h.in.Listing = []RootInfo{{Ref: RootRef{Name: nameOf(7, 2), Path: "shop/i-1/chk-" + nameOf(7, 2).String() + ".root"}, Err: vfsNotExist(), Marked: true, Committed: true}}
		_, err := Resolve(h.in)
		if !c.refused {
			require.NoError(t, err, name)
			continue
		}
		require.NotNil(t, RefusalOf(err), name)
		require.True(t, RefusalOf(err).Has(ReasonRootUnusable), "%s: %v", name, err)
		require.ErrorContains(t, err, "move the file and its marker away (shop/i-1/", name)
	}
}

// A root that is lost is told by its marker, and counts where ids are of one history.
func TestALostRootAboveWhereTheApplicationStands(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "a")
	last, _ := commits(t, r, 1, 5, 7, nil, nil, taskA)
	require.NoError(t, m.Remove(last.Path))
	lost, err := r.CommittedAfter(ctx, 6)
	require.NoError(t, err)
	require.Len(t, lost, 1)
	for stages, refused := range []bool{false, true} {
		h := newPast(t)
		h.stands(h.root(5, stages, reads{topic: "a", at: 5}), reads{topic: "a", at: 5})
		h.in.Listing = lost
		_, err = Resolve(h.in)
		require.Equal(t, refused, RefusalOf(err) != nil && RefusalOf(err).Has(ReasonRootUnusable), "%v", err)
	}
}
