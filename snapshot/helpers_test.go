package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

var (
	ctx     = context.Background()
	silent  = slog.New(slog.NewTextHandler(io.Discard, nil))
	taskA   = element.TaskID{Source: "orders", Partition: 0}
	taskB   = element.TaskID{Source: "orders", Partition: 1}
	topicID = element.TopicID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	counts  = []StateInfo{{Name: "totals/acc", KeyCodec: "string", Codec: "int64"}, {Name: "last/seen", KeyCodec: "string", Codec: "json"}}
)

func nameOf(id, inc int) element.CheckpointName {
	return element.CheckpointName{ID: element.CheckpointID(id), Incarnation: element.Incarnation(inc)}
}

func config(m vfs.FS, instance string) Config {
	return Config{Storage: NewLocal(m, "/mem"), Application: "shop", Instance: instance, NumRetained: 3, Logger: silent}
}

func openRepo(t testing.TB, m vfs.FS, instance string) *Repository {
	t.Helper()
	r, err := OpenRepository(ctx, config(m, instance))
	require.NoError(t, err)
	return r
}

// model is the state of a task: state name -> key -> value.
type model map[string]map[string]string

// change is a delta as a test writes it: "state|key" -> value, nil = tombstone.
type change map[string]*string

func val(s string) *string { return &s }

func entriesOf(states []StateInfo, ch change) []Entry {
	var out []Entry
	for sk, v := range ch {
		state, key, _ := strings.Cut(sk, "|")
		e := Entry{State: slices.IndexFunc(states, func(s StateInfo) bool { return s.Name == state }), Key: []byte(key), Deleted: v == nil}
		if v != nil {
			e.Value = []byte(*v)
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int {
		if a.State != b.State {
			return a.State - b.State
		}
		return bytes.Compare(a.Key, b.Key)
	})
	return out
}

func delta(task element.TaskID, states []StateInfo, from, to int, ch change) TaskDelta {
	es := entriesOf(states, ch)
	return TaskDelta{Task: task, States: states, From: element.CheckpointID(from), To: element.CheckpointID(to),
		Entries: slices.Values(es), Len: len(es)}
}

func (m model) apply(ch change) {
	for sk, v := range ch {
		state, key, _ := strings.Cut(sk, "|")
		if v == nil {
			delete(m[state], key)
			continue
		}
		if m[state] == nil {
			m[state] = map[string]string{}
		}
		m[state][key] = *v
	}
}

func (m model) String() string {
	var b strings.Builder
	for _, s := range slices.Sorted(maps.Keys(m)) {
		for _, k := range slices.Sorted(maps.Keys(m[s])) {
			fmt.Fprintf(&b, "%s|%q=%q\n", s, k, m[s][k])
		}
	}
	return b.String()
}

func restoreModel(r *Repository, e TaskEntry) (model, error) {
	m := model{}
	_, err := r.Restore(ctx, e, nil, func(en Entry) error {
		sk := e.States[en.State].Name + "|" + string(en.Key)
		if en.Deleted {
			m.apply(change{sk: nil})
		} else {
			m.apply(change{sk: val(string(en.Value))})
		}
		return nil
	})
	return m, err
}

func position(partition int32, offset int64) element.Position {
	return element.Position{TopicPartition: element.TopicPartition{Topic: "orders", Partition: partition}, TopicID: topicID,
		PartitionCount: 4, Offset: offset, LeaderEpoch: 2}
}

// checkpoint persists one delta per task and writes the root that follows prev.
func checkpoint(r *Repository, name element.CheckpointName, prev *RootRef, prevRoot *Root, changes map[element.TaskID]change) (RootRef, *Root, error) {
	root := &Root{Name: name, Predecessor: prev, ClusterID: "cluster-1", CreatedUnixMilli: 1700000000000}
	var deltas []TaskDelta
	tasks := slices.SortedFunc(maps.Keys(changes), element.TaskID.Compare)
	for _, id := range tasks {
		e := TaskEntry{Task: id, States: counts, Positions: []element.Position{position(id.Partition, int64(name.ID)*100)}}
		if prevRoot != nil {
			if old := prevRoot.Task(id); old != nil {
				e.Runs = slices.Clone(old.Runs)
			}
		}
		root.Tasks = append(root.Tasks, e)
		deltas = append(deltas, delta(id, counts, int(e.ChainEnd()), int(name.ID), changes[id]))
	}
	refs, err := r.Persist(ctx, name, deltas)
	if err != nil {
		return RootRef{}, nil, err
	}
	for i, ref := range refs {
		root.Tasks[i].Runs = deltas[i].Chain(root.Tasks[i].Runs, ref.Run)
	}
	ref, err := r.WriteRoot(ctx, root)
	return ref, root, err
}

func mustCheckpoint(t testing.TB, r *Repository, id, inc int, prev *RootRef, prevRoot *Root, changes map[element.TaskID]change) (RootRef, *Root) {
	t.Helper()
	ref, root, err := checkpoint(r, nameOf(id, inc), prev, prevRoot, changes)
	require.NoError(t, err)
	return ref, root
}

func readFile(t testing.TB, m vfs.FS, name string) []byte {
	t.Helper()
	f, err := m.Open(name)
	require.NoError(t, err)
	defer f.Close()
	n, err := f.Size()
	require.NoError(t, err)
	b := make([]byte, n)
	_, err = f.ReadAt(b, 0)
	if !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	return b
}

func replaceFile(t testing.TB, m vfs.FS, name string, content []byte) {
	t.Helper()
	if err := m.Remove(name); err != nil {
		require.ErrorContains(t, err, "not exist")
	}
	f, err := m.Create(name)
	require.NoError(t, err)
	_, err = f.Write(content)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func listAll(t testing.TB, r *Repository) []string {
	t.Helper()
	files, err := r.st.List(ctx, "")
	require.NoError(t, err)
	var out []string
	for _, f := range files {
		out = append(out, f.Name)
	}
	return out
}

// writeDelta writes one run.
func writeDelta(w *runWriter, name element.CheckpointName, d *TaskDelta) (RunRef, error) {
	if err := w.begin(runHeader{Name: name, Task: d.Task, From: d.From, To: d.To, Full: d.Full, States: d.States}); err != nil {
		return RunRef{}, err
	}
	var e Entry
	for e = range d.Entries {
		if err := w.add(&e); err != nil {
			return RunRef{}, err
		}
	}
	return w.finish()
}

// says is a group whose committed handles name these roots.
func says(refs ...RootRef) GroupRoots {
	return func(context.Context) ([]RootRef, error) { return refs, nil }
}
