package snapshot

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// scaled is an application with one exchange: the truth about its keyed state and what is on the way to its subtasks.
type scaled struct {
	rt    *rapid.T
	m     vfs.FS
	stage StageFacts

	id    int
	root  *Root
	ref   *RootRef
	state []model // by subtask
	chain []TaskEntry
	sent  int
	// starts counts the restores: it tells the subtasks of one time from those of another.
	starts int
	// flying is what is on the way to each subtask: "<sender> <number> <where it was sent>", with the group that it goes by.
	flying [][]flying
}

const stageName = "by-user"

func (s *scaled) groupOf(key string) int {
	return element.KeyGroup([]byte(key), s.stage.MaxParallelism)
}

func (s *scaled) ownerOf(key string) int {
	return element.SubtaskOf(s.groupOf(key), s.stage.Parallelism, s.stage.MaxParallelism)
}

// work changes keys and sends records. Those that were taken are not on the way any more.
func (s *scaled) work() (changes []change) {
	for i := range s.stage.Parallelism {
		changes = append(changes, change{})
		s.flying[i] = s.flying[i][rapid.IntRange(0, len(s.flying[i])).Draw(s.rt, "taken"):]
	}
	for range rapid.IntRange(0, 12).Draw(s.rt, "changes") {
		key := fmt.Sprint("user-", rapid.IntRange(0, 30).Draw(s.rt, "user"))
		at := "totals/acc|" + key
		changes[s.ownerOf(key)][at] = nil
		if rapid.IntRange(0, 3).Draw(s.rt, "set") > 0 {
			changes[s.ownerOf(key)][at] = val(fmt.Sprint(s.id, s.sent))
		}
	}
	for range rapid.IntRange(0, 12).Draw(s.rt, "sent") {
		key := fmt.Sprint("user-", rapid.IntRange(0, 30).Draw(s.rt, "user"))
		group, to := s.groupOf(key), s.ownerOf(key)
		if rapid.IntRange(0, 4).Draw(s.rt, "unkeyed") == 0 {
			group, to = -1, s.sent%s.stage.Parallelism
		}
		s.flying[to] = append(s.flying[to], flying{group, fmt.Sprint(rapid.IntRange(0, 2).Draw(s.rt, "sender"), " ", s.sent, " ", s.starts*10+to)})
		s.sent++
	}
	return changes
}

// checkpoint writes one of all subtasks. Those that were put together from several write their whole state.
func (s *scaled) checkpoint() {
	s.id++
	changes := s.work()
	r := openInline(s.rt, s.m, rapid.SampledFrom([]int{0, 300, 20 << 10}).Draw(s.rt, "threshold"))
	var deltas []TaskDelta
	for i := range s.stage.Parallelism {
		s.state[i].apply(changes[i])
		d := delta(subtask(i), counts, int(s.chain[i].ChainEnd()), s.id, changes[i])
		if len(s.chain[i].Runs) == 0 {
			all := change{}
			for key, v := range s.state[i]["totals/acc"] {
				all["totals/acc|"+key] = val(v)
			}
			d = delta(subtask(i), counts, 0, s.id, all)
			d.Full = true
		}
		d.InFlight = inFlightOf(s.flying[i]...)
		deltas = append(deltas, d)
	}
	parts, err := r.Persist(ctx, nameOf(s.id, 1), deltas)
	require.NoError(s.rt, err)
	root := &Root{Name: nameOf(s.id, 1), Predecessor: s.ref, ClusterID: "cluster-1",
		Tasks: []TaskEntry{{Task: taskA, Positions: []element.Position{position(0, int64(s.id))}}}}
	for i, d := range deltas {
		e := &s.chain[i]
		e.Runs, e.InFlight = d.Chain(e.Runs, parts[i].Run), nil
		if require.Equal(s.rt, len(s.flying[i]) == 0, parts[i].InFlight.IsZero()); len(s.flying[i]) > 0 {
			e.InFlight = []RunRef{parts[i].InFlight}
		}
		root.Tasks = append(root.Tasks, *e)
	}
	ref, err := r.WriteRoot(ctx, root)
	require.NoError(s.rt, err)
	s.root, s.ref = root, &ref
}

// restore starts over from the files, with another number of subtasks.
func (s *scaled) restore(parallelism, maxParallelism int) {
	s.starts++
	s.stage = StageFacts{Name: stageName, Parallelism: parallelism, MaxParallelism: maxParallelism}
	s.state, s.flying, s.chain = make([]model, parallelism), make([][]flying, parallelism), nil
	for i := range parallelism {
		s.state[i] = model{}
		s.chain = append(s.chain, TaskEntry{Task: subtask(i), States: counts, Parallelism: parallelism, MaxParallelism: maxParallelism})
	}
	if s.ref == nil {
		return
	}
	r := openInline(s.rt, s.m, 0)
	roots, err := r.LoadVerified(ctx, []RootRef{*s.ref})
	require.NoError(s.rt, err)
	in := resolveInput(r, roots, s.stage)
	in.Tasks = []TaskFacts{standsAt(s.rt, r, s.ref, taskA, int64(s.id))}
	decisions, err := Resolve(in)
	require.NoError(s.rt, err)
	require.Empty(s.rt, in.DroppedStages(decisions))
	for i := range parallelism {
		d := decisions[subtask(i)]
		require.Equal(s.rt, Restore, d.Kind)
		s.chain[i].Runs = d.Entry.Runs
		require.Equal(s.rt, d.Entry.Parallelism > 0, d.KeepKeys() == nil)
		for _, src := range d.Sources {
			_, err := r.Restore(ctx, src, d.KeepKeys(), func(e Entry) error {
				ch := change{src.States[e.State].Name + "|" + string(e.Key): nil}
				if !e.Deleted {
					ch[src.States[e.State].Name+"|"+string(e.Key)] = val(string(e.Value))
				}
				s.state[i].apply(ch)
				return nil
			})
			require.NoError(s.rt, err)
			s.flying[i] = append(s.flying[i], restoreFlying(s.rt, r, src, d.KeepInFlight(&src))...)
		}
	}
}

// drain takes a checkpoint with nothing on the way, as an aligned one is.
func (s *scaled) drain() {
	s.checkpoint()
	for i := range s.flying {
		s.flying[i] = nil
	}
	root := *s.root
	root.Name, root.Predecessor, root.Tasks = nameOf(s.id+1, 1), s.ref, slices.Clone(root.Tasks)
	for i := range root.Tasks {
		root.Tasks[i].InFlight = nil
	}
	s.id++
	root.Tasks[0].Positions = []element.Position{position(0, int64(s.id))}
	ref, err := openInline(s.rt, s.m, 0).WriteRoot(ctx, &root)
	require.NoError(s.rt, err)
	s.root, s.ref = &root, &ref
}

// whole is everything that the subtasks have: the state, each key once, and the records by sender in their order.
func (s *scaled) whole() string {
	var out bytes.Buffer
	all := model{"totals/acc": {}}
	bySender := map[byte][]string{}
	records := 0
	for i := range s.stage.Parallelism {
		for key, v := range s.state[i]["totals/acc"] {
			require.NotContains(s.rt, all["totals/acc"], key, "two subtasks have it")
			require.Equal(s.rt, i, s.ownerOf(key), "it is another subtask's")
			all["totals/acc"][key] = v
		}
		last := map[string]int{}
		for _, f := range s.flying[i] {
			var sender, n, to int
			_, err := fmt.Sscan(f.data, &sender, &n, &to)
			require.NoError(s.rt, err)
			channel := fmt.Sprint(sender, " ", f.group)
			if f.group < 0 {
				channel = fmt.Sprint(sender, " to ", to) // there is no order among those sent to several
			}
			require.Greater(s.rt, n+1, last[channel], "overtaken: %s", f.data)
			last[channel] = n + 1
			if f.group >= 0 {
				require.Equal(s.rt, i, element.SubtaskOf(f.group, s.stage.Parallelism, s.stage.MaxParallelism))
			}
			bySender[f.data[0]] = append(bySender[f.data[0]], f.data)
			records++
		}
	}
	for _, sender := range []byte("012") {
		slices.Sort(bySender[sender])
		require.Len(s.rt, slices.Compact(slices.Clone(bySender[sender])), len(bySender[sender]), "each record once")
		fmt.Fprintln(&out, bySender[sender])
	}
	fmt.Fprintln(&out, records)
	return all.String() + out.String()
}

// TestStateAndRecordsInFlightMoveToAnyParallelism goes through files from 1 to 2, 4, 3 and on to others: all subtasks
// together have what they had, keys lie with their owners, and no record is lost, doubled or overtaken.
func TestStateAndRecordsInFlightMoveToAnyParallelism(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &scaled{rt: rt, m: vfs.NewMem()}
		groups := rapid.SampledFrom([]int{5, 7, 128}).Draw(rt, "groups")
		way := []int{1, 2, 4, 3, 3}
		way = append(way, rapid.SliceOfN(rapid.IntRange(1, 5), 0, 3).Draw(rt, "way")...)
		for i, p := range way {
			if i > 0 && rapid.IntRange(0, 5).Draw(rt, "other groups") == 0 {
				s.drain()
				groups = rapid.SampledFrom([]int{5, 8, 128}).Draw(rt, "groups")
			}
			before := s.whole()
			if s.restore(p, groups); i > 0 { // what there was before the first checkpoint is in no file
				require.Equal(rt, before, s.whole())
			}
			for range rapid.IntRange(1, 3).Draw(rt, "checkpoints") {
				s.checkpoint()
			}
		}
	})
}

// resolveInput is what a start knows beside the handles.
func resolveInput(r *Repository, roots map[RootRef]LoadedRoot, stages ...StageFacts) ResolveInput {
	in := ResolveInput{Application: "shop", ClusterID: "cluster-1", StoreID: r.StoreID(), States: map[string][]StateInfo{}, Roots: roots, Stages: stages}
	for _, s := range stages {
		in.States[s.Name] = counts
	}
	return in
}

// standsAt is a task that stands at a root, at an empty start when ref is nil.
func standsAt(t require.TestingT, r *Repository, ref *RootRef, task element.TaskID, offset int64) TaskFacts {
	h := Handle{Kind: HandleEmpty, Partition: task.Partition, Offset: offset, LeaderEpoch: 2, ClusterID: "cluster-1", TopicID: topicID, PartitionCount: 4, StoreID: r.StoreID()}
	if ref != nil {
		h.Kind, h.Root = HandleCheckpoint, *ref
	}
	text, err := h.Encode()
	require.NoError(t, err)
	return TaskFacts{Task: task, Inputs: []InputFacts{{TopicPartition: element.TopicPartition{Topic: "orders", Partition: task.Partition}, TopicID: topicID,
		Partitions: 4, Found: true, Offset: offset, Metadata: text}}}
}
