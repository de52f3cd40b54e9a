package snapshot

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// history is a store with committed checkpoints 5, 6 and 7 of both tasks and an unconfirmed 8.
type history struct {
	m    *vfs.Mem
	r    *Repository
	refs map[int]RootRef
	in   *ResolveInput // of a group that stands at 7
}

func newHistory(t testing.TB) *history {
	h := &history{m: vfs.NewMem(), refs: map[int]RootRef{}}
	h.r = openRepo(t, h.m, "i-0")
	var prev *RootRef
	var root *Root
	for id := 5; id <= 8; id++ {
		var ref RootRef
		v := fmt.Sprint(id)
		ref, root = mustCheckpoint(t, h.r, id, 1, prev, root, map[element.TaskID]change{taskA: {"totals/acc|a": val(v)}, taskB: {"totals/acc|b": val(v)}})
		h.refs[id], prev = ref, &ref
		if id < 8 {
			require.NoError(t, h.r.MarkCommitted(ctx, ref))
		}
	}
	h.in = &ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: h.r.StoreID(), States: map[string][]StateInfo{"orders": counts}}
	h.at(t, 7)
	return h
}

// at sets the group's offsets to outputs of inputs a checkpoint.
func (h *history) at(t testing.TB, id int) {
	h.in.Tasks = nil
	for p := range int32(2) {
		task := element.TaskID{Source: "orders", Partition: p}
		h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: task, Inputs: []InputFacts{factsOf(t, position(p, int64(id)*100), h.refs[id], h.in, HandleCheckpoint)}})
	}
}

func (h *history) facts(p int) *InputFacts { return &h.in.Tasks[p].Inputs[0] }

func (h *history) expire(partitions ...int) {
	for _, p := range partitions {
		f := h.facts(p)
		*f = InputFacts{TopicPartition: f.TopicPartition, TopicID: topicID, Partitions: 4}
	}
}

func (h *history) damage(t testing.TB, path string) {
	b := readFile(t, h.m, path)
	b[len(b)/2] ^= 1
	replaceFile(t, h.m, path, b)
}

func (h *history) data(id int) string {
	return strings.TrimSuffix(h.refs[id].Path, rootSuffix) + dataSuffix
}

// resolve goes the way of a start that may recover.
func (h *history) resolve(t testing.TB) (map[element.TaskID]Decision, *Recovery, error) {
	in := *h.in
	var err error
	in.Roots, err = h.r.LoadVerified(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	listing, err := h.r.List(ctx)
	require.NoError(t, err)
	in.Listing, in.Stored = listing, listing
	got, err := Resolve(in)
	if err == nil {
		return got, nil, nil
	}
	listing, err2 := h.r.Survey(ctx)
	require.NoError(t, err2)
	return Recover(in, RefusalOf(err), listing)
}

func TestRecoverTakesTheNewestCommittedWholeCheckpoint(t *testing.T) {
	for _, c := range []struct {
		name    string
		reason  Reason
		taken   int
		passed  []int
		repeats string // of task A
		change  func(t *testing.T, h *history)
	}{
		{"offsets expired", ReasonOffsetsExpired, 7, []int{8}, "orders/0: outputs of inputs 700 to 799 if an unconfirmed checkpoint was committed", func(t *testing.T, h *history) { h.expire(0, 1) }},
		{"offsets expired, nothing newer", ReasonOffsetsExpired, 7, nil, "nothing: no later checkpoint is known", func(t *testing.T, h *history) {
			h.expire(0, 1)
			require.NoError(t, h.m.Remove(h.refs[8].Path))
		}},
		{"offsets expired, newest root damaged", ReasonOffsetsExpired, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 799 if an unconfirmed checkpoint was committed, and whatever a newer checkpoint that cannot be read committed", func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.damage(t, h.refs[7].Path)
		}},
		{"offsets expired, newest data damaged", ReasonOffsetsExpired, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 699 repeat, and outputs of inputs 700 to 799 if an unconfirmed checkpoint was committed", func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.damage(t, h.data(7))
		}},
		{"offsets expired, newest root gone", ReasonOffsetsExpired, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 799 if an unconfirmed checkpoint was committed, and whatever a newer checkpoint that cannot be read committed", func(t *testing.T, h *history) {
			h.expire(0, 1)
			require.NoError(t, h.m.Remove(h.refs[7].Path))
		}},
		{"handles damaged", ReasonDamagedHandle, 7, []int{8}, "nothing: no later checkpoint is known", func(t *testing.T, h *history) {
			for p := range 2 {
				h.facts(p).Metadata = h.facts(p).Metadata[:90]
			}
		}},
		{"handles damaged at 8", ReasonDamagedHandle, 7, []int{8}, "orders/0: outputs of inputs 700 to 799 repeat", func(t *testing.T, h *history) {
			h.at(t, 8)
			for p := range 2 {
				h.facts(p).Metadata = h.facts(p).Metadata[:90]
			}
		}},
		{"the handles' root is gone", ReasonRootUnusable, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 699 repeat", func(t *testing.T, h *history) {
			require.NoError(t, h.m.Remove(h.refs[7].Path))
		}},
		{"the handles' root is damaged", ReasonRootUnusable, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 699 repeat", func(t *testing.T, h *history) { h.damage(t, h.refs[7].Path) }},
		{"the handles' data is damaged", ReasonRootUnusable, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 699 repeat", func(t *testing.T, h *history) { h.damage(t, h.data(7)) }},
		{"an offset is lost, and a handle damaged", ReasonDamagedHandle, 7, []int{8}, "nothing: no later checkpoint is known", func(t *testing.T, h *history) {
			h.expire(1)
			h.facts(0).Metadata = "mw1:x"
		}},
		{"an offset is lost, and the handles' root damaged", ReasonRootUnusable, 6, []int{8, 7}, "orders/0: outputs of inputs 600 to 699 repeat", func(t *testing.T, h *history) {
			h.expire(1)
			h.damage(t, h.refs[7].Path)
		}},
		{"the offsets went back", ReasonStaleHandle, 7, nil, "nothing: no later checkpoint is known", func(t *testing.T, h *history) {
			h.at(t, 5)
			require.NoError(t, h.m.Remove(h.refs[8].Path))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHistory(t)
			c.change(t, h)
			got, rec, err := h.resolve(t)
			require.NoError(t, err)
			require.Len(t, got, 2)
			for _, id := range []element.TaskID{taskA, taskB} {
				d := got[id]
				require.Equal(t, Recovered, d.Kind)
				require.Equal(t, h.refs[c.taken], d.Root)
				require.Equal(t, []element.Position{position(id.Partition, int64(c.taken)*100)}, d.Positions)
				m, err := restoreModel(h.r, d.Entry)
				require.NoError(t, err)
				require.Contains(t, m.String(), fmt.Sprintf("=%q", fmt.Sprint(c.taken)))
			}
			require.Equal(t, c.reason, rec.Reason)
			require.NotEmpty(t, rec.Cause)
			require.GreaterOrEqual(t, int(rec.LastID), 7, "new checkpoints get ids above all that lie there")
			require.Len(t, rec.Tasks, 2)
			require.Equal(t, taskA, rec.Tasks[0].Task)
			require.Equal(t, c.repeats, rec.Tasks[0].Repeats())
			var passed []int
			for _, p := range rec.Passed {
				passed = append(passed, int(p.Ref.Name.ID))
			}
			require.Equal(t, c.passed, passed)
		})
	}
}

func TestRecoverRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   fault.Code
		says   []string
		change func(t *testing.T, h *history)
	}{
		{"while another task has a valid handle", fault.HandleMismatch, []string{"the store is not asked", "orders/0 has a valid handle", "delete all offsets of group shop"}, func(t *testing.T, h *history) { h.expire(1) }},
		{"with a damaged handle beside a valid one", fault.HandleMismatch, []string{"cannot be read", "orders/1 has a valid handle"}, func(t *testing.T, h *history) { h.facts(0).Metadata = "mw1:x" }},
		{"offsets of another tool", fault.HandleMismatch, []string{"was not written by a checkpoint", "it cannot cure this (foreign-offset)"}, func(t *testing.T, h *history) {
			h.facts(0).Metadata, h.facts(1).Metadata = "", ""
		}},
		{"another directory", fault.HandleMismatch, []string{"it cannot cure this (other-store)"}, func(t *testing.T, h *history) { h.in.StoreID = "ff" }},
		{"only an unconfirmed checkpoint", fault.HandleMismatch, []string{"no committed checkpoint of it that is whole (8-0000000000000001 is unconfirmed)"}, func(t *testing.T, h *history) {
			h.expire(0, 1)
			for id := 5; id <= 7; id++ {
				require.NoError(t, h.m.Remove(h.refs[id].Path))
				require.NoError(t, h.m.Remove(strings.TrimSuffix(h.refs[id].Path, rootSuffix)+markerSuffix))
			}
		}},
		{"everything damaged", fault.Corrupt, []string{"no committed checkpoint of it that is whole", "7-0000000000000001 is damaged"}, func(t *testing.T, h *history) {
			for id := 5; id <= 7; id++ {
				h.damage(t, h.refs[id].Path)
			}
		}},
		{"a task that only a damaged root might hold", fault.HandleMismatch, []string{"task orders-3: the store has no committed checkpoint of it"}, func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: element.TaskID{Source: "orders", Partition: 3}, Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: "orders", Partition: 3}, TopicID: topicID, Partitions: 4}}})
			h.damage(t, h.refs[5].Path)
		}},
		{"a topic that was made anew", fault.HandleMismatch, []string{"it was deleted and created again"}, func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.facts(0).TopicID[0]++
		}},
		{"partitions were added", fault.StateMismatch, []string{"had 4 partitions, now it has 8"}, func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.facts(0).Partitions = 8
		}},
		{"another cluster", fault.HandleMismatch, []string{`is of cluster "cluster-1", this is "cluster-2"`}, func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.in.ClusterID = "cluster-2"
		}},
		{"a state with another codec", fault.StateMismatch, []string{"undo the change"}, func(t *testing.T, h *history) {
			h.expire(0, 1)
			h.in.States = map[string][]StateInfo{"orders": {{Name: "totals/acc", KeyCodec: "string", Codec: "json"}, counts[1]}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHistory(t)
			c.change(t, h)
			before := listAll(t, h.r)
			got, rec, err := h.resolve(t)
			require.Nil(t, got)
			require.Nil(t, rec)
			require.Equal(t, c.code, fault.CodeOf(err), "%v", err)
			require.Equal(t, fault.Stop, fault.RecoveryOf(err))
			require.NotNil(t, RefusalOf(err))
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
			require.NotContains(t, err.Error(), "\n")
			require.Equal(t, before, listAll(t, h.r))
		})
	}
}

// The only checkpoint of a task is gone. Who deletes the offsets of all, to go back with the others, would begin this one anew: with its
// offset goes what is known of it.
func TestNobodyIsToldToDeleteTheOffsetsOfATaskThatHasNoWayBack(t *testing.T) {
	h := newHistory(t)
	id := element.TaskID{Source: "orders", Partition: 2}
	ref, root := mustCheckpoint(t, h.r, 9, 2, nil, nil, map[element.TaskID]change{id: {"totals/acc|c": val("9")}})
	h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: id, Inputs: []InputFacts{factsOf(t, root.Task(id).Positions[0], ref, h.in, HandleCheckpoint)}})
	require.NoError(t, h.m.Remove(ref.Path))
	_, _, err := h.resolve(t)
	require.NotNil(t, RefusalOf(err))
	for _, s := range []string{ref.Path, "the store is not asked: orders/0 has a valid handle", "task orders-2: the store has no committed checkpoint of it that is whole"} {
		require.ErrorContains(t, err, s)
	}
	require.NotContains(t, err.Error(), "delete all offsets")
}

func TestValidHandlesNeedNoRecovery(t *testing.T) {
	h := newHistory(t)
	got, rec, err := h.resolve(t)
	require.NoError(t, err)
	require.Nil(t, rec)
	require.Equal(t, Restore, got[taskA].Kind)
	require.Equal(t, h.refs[7], got[taskA].Root)
}

func TestATaskThatNobodyKnowsStartsFreshInARecovery(t *testing.T) {
	h := newHistory(t)
	h.expire(0, 1)
	id := element.TaskID{Source: "orders", Partition: 3}
	h.in.Tasks = append(h.in.Tasks, TaskFacts{Task: id, Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: "orders", Partition: 3}, TopicID: topicID, Partitions: 4}}})
	got, rec, err := h.resolve(t)
	require.NoError(t, err)
	require.Equal(t, Decision{Kind: Fresh}, got[id])
	require.Len(t, rec.Tasks, 2)
}

func TestOffsetsThatWentBackAreRefused(t *testing.T) {
	h := newHistory(t)
	h.at(t, 6)
	in := *h.in
	var err error
	in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	_, err = Resolve(in)
	require.NoError(t, err, "without a listing it cannot be seen")
	in.Listing, err = h.r.CommittedAfter(ctx, OldestID(in.Tasks))
	require.NoError(t, err)
	require.Len(t, in.Listing, 1)
	_, err = Resolve(in)
	ref := RefusalOf(err)
	require.NotNil(t, ref)
	require.True(t, ref.Has(ReasonStaleHandle))
	require.True(t, ref.Recoverable())
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	for _, s := range []string{"that of checkpoint 6-0000000000000001", "checkpoint 7-0000000000000001", h.refs[7].Path, "outputs would repeat"} {
		require.ErrorContains(t, err, s)
	}
	// The handle may be ahead of the markers: the process died between commit and marker.
	h.at(t, 8)
	in = *h.in
	in.Roots, err = h.r.LoadRoots(ctx, NamedRoots(in.Tasks))
	require.NoError(t, err)
	in.Listing, err = h.r.List(ctx)
	require.NoError(t, err)
	_, err = Resolve(in)
	require.NoError(t, err)
}
