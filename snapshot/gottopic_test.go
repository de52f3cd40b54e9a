package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// A source keeps its name, gets another topic with fewer partitions, and that one grows: what the tasks of the added partitions
// were called before says nothing of them. What has read the topic counts, under any name, in any instance's checkpoint.
func TestWhatIsStoredOfATaskWhoseSourceHasGotAnotherTopic(t *testing.T) {
	root := func(id int, source, topic string, from, to int32) RootInfo {
		r := &Root{Name: nameOf(id, 1), ClusterID: "here"}
		for p := from; p < to; p++ {
			r.Tasks = append(r.Tasks, TaskEntry{Task: element.TaskID{Source: source, Partition: p},
				Positions: []element.Position{{TopicPartition: element.TopicPartition{Topic: topic, Partition: p}, TopicID: element.TopicID{topic[0]}}}})
		}
		return RootInfo{Ref: RootRef{Name: r.Name}, Root: r, Committed: true}
	}
	task := func(p int32) *TaskFacts {
		return &TaskFacts{Task: element.TaskID{Source: "in", Partition: p}, Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: "b", Partition: p}, TopicID: element.TopicID{'b'}}}}
	}
	before, since := root(10, "in", "a", 0, 4), root(20, "in", "b", 0, 2)
	foreign := root(20, "in", "b", 0, 2)
	foreign.Root.ClusterID = "elsewhere"
	recreated := root(12, "in", "b", 2, 3)
	recreated.Root.Tasks[0].Positions[0].TopicID = element.TopicID{'B'}
	stateful := root(10, "in", "a", 0, 4)
	for i := range stateful.Root.Tasks {
		stateful.Root.Tasks[i].Runs = []RunRef{{To: 10, Full: true, Entries: 1}}
	}
	damaged := RootInfo{Ref: RootRef{Name: nameOf(15, 1)}, Err: vfsNotExist()}
	for what, c := range map[string]struct {
		stored []RootInfo
		want   *RootInfo
	}{
		"it has got it since":                  {[]RootInfo{before, since}, nil},
		"it had it before":                     {[]RootInfo{root(5, "in", "b", 0, 2), before}, nil},
		"another source has it":                {[]RootInfo{before, root(20, "other", "b", 0, 2)}, nil},
		"elsewhere":                            {[]RootInfo{before, foreign}, &before},
		"another instance has had it":          {[]RootInfo{root(11, "in", "b", 2, 3), before, since}, ptr(root(11, "in", "b", 2, 3))},
		"under another name":                   {[]RootInfo{root(9, "old", "b", 2, 3), before, since}, ptr(root(9, "old", "b", 2, 3))},
		"of the topic before it was made anew": {[]RootInfo{before, recreated, since}, nil},
		"with state":                           {[]RootInfo{stateful, since}, &stateful},
		"nobody has read it":                   {[]RootInfo{before}, &before},
		"in one that cannot be read":           {[]RootInfo{before, damaged, since}, &damaged},
	} {
		in := &ResolveInput{ClusterID: "here", Stored: c.stored}
		got := in.stored(task(2))
		if c.want == nil {
			require.Nil(t, got, what)
			continue
		}
		require.NotNil(t, got, what)
		require.Equal(t, c.want.Ref, got.Ref, what)
		require.Equal(t, since.Ref, (&ResolveInput{ClusterID: "here", Stored: []RootInfo{before, since}}).stored(task(1)).Ref)
	}
}

func ptr[T any](v T) *T { return &v }
