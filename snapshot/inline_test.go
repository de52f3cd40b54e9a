package snapshot

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

func openInline(t require.TestingT, m vfs.FS, threshold int) *Repository {
	cfg := config(m, "i-0")
	cfg.MemoryThreshold = threshold
	r, err := OpenRepository(ctx, cfg)
	require.NoError(t, err)
	return r
}

// countFS counts the operations that make something durable.
type countFS struct {
	vfs.FS
	files, dirs, writes int
}

type countFile struct {
	vfs.File
	c *countFS
}

func (c *countFS) Create(name string) (vfs.File, error) {
	f, err := c.FS.Create(name)
	return &countFile{f, c}, err
}
func (c *countFS) SyncDir(dir string) error           { c.dirs++; return c.FS.SyncDir(dir) }
func (f *countFile) Sync() error                      { f.c.files++; return f.File.Sync() }
func (f *countFile) Write(p []byte) (int, error)      { f.c.writes++; return f.File.Write(p) }
func (c *countFS) counted() (files, dirs, writes int) { return c.files, c.dirs, c.writes }

func TestASmallCheckpointIsOneFile(t *testing.T) {
	for _, c := range []struct{ threshold, files int }{{0, 2}, {400, 1}} {
		fs := &countFS{FS: vfs.NewMem()}
		r := openInline(t, fs, c.threshold)
		ref, root := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}, taskB: {"totals/acc|b": val("1")}})
		before := len(listAll(t, r))
		fs.files, fs.dirs = 0, 0
		ref, root = mustCheckpoint(t, r, 2, 1, &ref, root, map[element.TaskID]change{taskA: {"totals/acc|a": val("2")}, taskB: {"totals/acc|b": nil}})
		files, dirs, _ := fs.counted()
		require.Equal(t, []int{c.files, c.files}, []int{files, dirs}, "fsyncs of files and of the directory")
		require.Len(t, listAll(t, r), before+c.files)
		loaded, err := openInline(t, fs, 0).ReadRoot(ctx, ref)
		require.NoError(t, err)
		require.Equal(t, root.Tasks, loaded.Tasks)
		got, err := restoreModel(r, loaded.Tasks[0])
		require.NoError(t, err)
		require.Equal(t, "totals/acc|\"a\"=\"2\"\n", got.String())
		s := loaded.Sizes()
		require.EqualValues(t, 4, s.DeltaRuns)
		require.EqualValues(t, map[int]int64{2: 0, 1: 4}[c.files], s.InlineRuns)
	}
}

// TestTheThresholdDivides: a run of exactly the threshold lies in the root, one of a byte more in a file.
func TestTheThresholdDivides(t *testing.T) {
	m := vfs.NewMem()
	probe := openInline(t, m, MaxMemoryThreshold)
	d := delta(taskA, counts, 0, 1, change{"totals/acc|a": val(strings.Repeat("v", 1000)), "totals/acc|b": val("1")})
	refs, err := probe.Persist(ctx, nameOf(1, 1), []TaskDelta{d})
	require.NoError(t, err)
	size := int(refs[0].Run.Length)
	require.EqualValues(t, size, len(refs[0].Run.Inline))
	for extra, inline := range map[int]bool{-1: false, 200: true} {
		refs, err := openInline(t, vfs.NewMem(), size+extra).Persist(ctx, nameOf(1, 1), []TaskDelta{d})
		require.NoError(t, err)
		require.Equal(t, inline, refs[0].Run.IsInline(), extra)
		require.Equal(t, [2]any{probe.inline.total, refs[0].Run.Digest}, [2]any{int64(size), refs[0].Run.Digest}, "the same bytes in both places")
	}
	for _, n := range []int{-1, MaxMemoryThreshold + 1} {
		cfg := config(m, "i-0")
		cfg.MemoryThreshold = n
		_, err := OpenRepository(ctx, cfg)
		require.Equal(t, fault.BadFile, fault.CodeOf(err))
		require.ErrorContains(t, err, "state.backend.fs.memory-threshold is "+fmt.Sprint(n))
	}
	cfg := config(m, "i-0")
	cfg.WriteBufferSize = MaxWriteBufferSize + 1
	_, err = OpenRepository(ctx, cfg)
	require.ErrorContains(t, err, "state.backend.fs.write-buffer-size")
}

// TestTheLargerOfBufferAndThresholdIsTheWriteBuffer counts the writes of a file that is written in small pieces.
func TestTheLargerOfBufferAndThresholdIsTheWriteBuffer(t *testing.T) {
	for _, c := range []struct{ buffer, threshold, writes int }{{0, 0, 16}, {16 << 10, 0, 4}, {16 << 10, 32 << 10, 2}, {64 << 10, 32 << 10, 1}} {
		fs := &countFS{FS: vfs.NewMem()}
		cfg := config(fs, "i-0")
		cfg.WriteBufferSize, cfg.MemoryThreshold = c.buffer, c.threshold
		r, err := OpenRepository(ctx, cfg)
		require.NoError(t, err)
		fs.writes = 0
		_, err = r.st.Put(ctx, "shop/i-0/x", func(w io.Writer) error {
			for range 64 << 10 / 64 {
				if _, err := w.Write(make([]byte, 64)); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, c.writes, fs.writes, c)
	}
}

// TestInlineRunsOfAChainAreBounded: every root carries them along, so that what exceeds the threshold goes into a file until
// the chain is merged.
func TestInlineRunsOfAChainAreBounded(t *testing.T) {
	const threshold = 1000
	m := vfs.NewMem()
	r := openInline(t, m, threshold)
	var ref *RootRef
	var root *Root
	want, files := model{}, 0
	for id := 1; id <= 40; id++ {
		ch := change{fmt.Sprintf("totals/acc|%d", id%3): val(strings.Repeat("v", 50+id))}
		next, made := mustCheckpoint(t, r, id, 1, ref, root, map[element.TaskID]change{taskA: ch})
		ref, root = &next, made
		want.apply(ch)
		e := &root.Tasks[0]
		require.LessOrEqual(t, e.InlineBytes(), int64(threshold))
		if !e.Runs[len(e.Runs)-1].IsInline() {
			files++
		}
		if len(e.Runs) > 8 {
			full, err := r.Merge(ctx, next.Name, *e)
			require.NoError(t, err)
			require.True(t, full.IsInline(), "three keys are small")
			e.Runs = []RunRef{full}
		}
		got, err := restoreModel(r, *e)
		require.NoError(t, err)
		require.Equal(t, want.String(), got.String())
	}
	require.Positive(t, files)
	require.Less(t, files, 35)
	r = openInline(t, m, 0)
	loaded, err := r.ReadRoot(ctx, *ref)
	require.NoError(t, err)
	full, err := r.Merge(ctx, nameOf(40, 2), loaded.Tasks[0])
	require.NoError(t, err)
	require.False(t, full.IsInline(), "off")
}

// TestInlineRunsOfARootAreBounded: many tasks together.
func TestInlineRunsOfARootAreBounded(t *testing.T) {
	r := openInline(t, vfs.NewMem(), MaxMemoryThreshold)
	changes := map[element.TaskID]change{}
	for i := range 8 {
		changes[element.TaskID{Source: "orders", Partition: int32(i)}] = change{"totals/acc|a": val(strings.Repeat("v", 900<<10))}
	}
	_, root := mustCheckpoint(t, r, 1, 1, nil, nil, changes)
	inline := 0
	for _, e := range root.Tasks {
		if e.Runs[0].IsInline() {
			inline++
		}
	}
	require.Equal(t, 4, inline, "of 4 MiB")
}

// TestARootWithInlineRunsGoesAndTheyStay: the root that an inline run was written for is removed while later ones have it.
func TestARootWithInlineRunsGoesAndTheyStay(t *testing.T) {
	m := vfs.NewMem()
	cfg := config(m, "i-0")
	cfg.MemoryThreshold, cfg.NumRetained = 4096, 1
	r, err := OpenRepository(ctx, cfg)
	require.NoError(t, err)
	var ref *RootRef
	var root *Root
	for id := 1; id <= 5; id++ {
		next, made := mustCheckpoint(t, r, id, 1, ref, root, map[element.TaskID]change{taskA: {fmt.Sprintf("totals/acc|%d", id): val("x")}})
		require.NoError(t, r.MarkCommitted(ctx, next))
		ref, root = &next, made
		_, err = r.Clean(ctx, []RootRef{next}, says(next))
		require.NoError(t, err)
	}
	require.Equal(t, []string{storeIDFile, strings.TrimSuffix(ref.Path, rootSuffix) + markerSuffix, ref.Path}, listAll(t, r))
	got, err := restoreModel(r, root.Tasks[0])
	require.NoError(t, err)
	require.Len(t, got["totals/acc"], 5)
	require.NoError(t, r.Present(ctx, root.Tasks[0]))
	chain, err := r.OpenChain(ctx, root.Tasks[0], 3)
	require.NoError(t, err)
	defer chain.Close()
	require.Len(t, chain.Runs(), 2)
	n := 0
	require.NoError(t, chain.Read(ctx, 0, func(Entry) error { n++; return nil }))
	require.Equal(t, 1, n)
}

// TestOneRunMixesAnyPlaces: whatever lies where, the tasks restore what they had.
func TestRunsLieAnywhere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := vfs.NewMem()
		tasks := []element.TaskID{taskA, taskB, {Source: "orders", Partition: 2}}
		want := map[element.TaskID]model{}
		var ref *RootRef
		root := &Root{}
		for id := 1; id <= rapid.IntRange(1, 8).Draw(rt, "checkpoints"); id++ {
			r := openInline(rt, m, rapid.SampledFrom([]int{0, 150, 400, 2000, 40_000}).Draw(rt, "threshold"))
			name := nameOf(id, id)
			next := &Root{Name: name, Predecessor: ref, Tasks: slices.Clone(root.Tasks)}
			var deltas []TaskDelta
			for _, task := range tasks {
				if next.Task(task) == nil {
					next.Tasks = append(next.Tasks, TaskEntry{Task: task, States: counts})
					want[task] = model{}
				}
				ch := change{}
				for k, n := range rapid.MapOfN(rapid.StringMatching(`[a-e]`), rapid.IntRange(-1, 3), 0, 4).Draw(rt, "change") {
					if ch["totals/acc|"+k] = nil; n >= 0 {
						ch["totals/acc|"+k] = val(strings.Repeat("v", []int{1, 100, 1000, 50_000}[n]))
					}
				}
				d := delta(task, counts, int(next.Task(task).ChainEnd()), id, ch)
				want[task].apply(ch)
				if rapid.IntRange(0, 3).Draw(rt, "full") == 0 {
					all := change{}
					for s, keys := range want[task] {
						for k, v := range keys {
							all[s+"|"+k] = val(v)
						}
					}
					d = delta(task, counts, 0, id, all)
					d.Full = true
				}
				if rapid.Bool().Draw(rt, "in flight") {
					d.InFlight = inFlightOf(flying{id, "x"}, flying{-1, strings.Repeat("y", rapid.IntRange(0, 3000).Draw(rt, "size"))})
				}
				deltas = append(deltas, d)
			}
			parts, err := r.Persist(ctx, name, deltas)
			require.NoError(rt, err)
			for i, d := range deltas {
				e := next.Task(d.Task)
				e.Runs, e.InFlight = d.Chain(e.Runs, parts[i].Run), nil
				if !parts[i].InFlight.IsZero() {
					e.InFlight = []RunRef{parts[i].InFlight}
				}
			}
			written, err := r.WriteRoot(ctx, next)
			require.NoError(rt, err)
			ref = &written
			root, err = r.ReadRoot(ctx, written)
			require.NoError(rt, err)
			for i, d := range deltas {
				got, err := restoreModel(r, root.Tasks[i])
				require.NoError(rt, err)
				require.Equal(rt, want[d.Task].String(), got.String())
				require.Len(rt, restoreFlying(rt, r, root.Tasks[i], nil), map[bool]int{true: 2, false: 0}[d.InFlight != nil])
			}
			if rapid.IntRange(0, 2).Draw(rt, "merge") == 0 {
				full, err := r.Merge(ctx, name, root.Tasks[0])
				require.NoError(rt, err)
				if !full.IsZero() {
					root.Tasks[0].Runs = []RunRef{full}
				}
				got, err := restoreModel(r, root.Tasks[0])
				require.NoError(rt, err)
				require.Equal(rt, want[tasks[0]].String(), got.String())
			}
			require.NoError(rt, r.VerifyAll(ctx, nil, func(v Verified) { require.Empty(rt, v.Damage) }))
		}
	})
}

func TestTheWholeStateLeavesTombstonesOutAndBeginsAtNothing(t *testing.T) {
	r := openInline(t, vfs.NewMem(), 0)
	for i, ch := range []change{{"totals/acc|a": nil, "totals/acc|b": val("1")}, {"totals/acc|a": nil}} {
		d := delta(taskA, counts, 0, 1, ch)
		d.Full = true
		parts, err := r.Persist(ctx, nameOf(1, 1+i), []TaskDelta{d})
		require.NoError(t, err)
		require.EqualValues(t, 1-i, parts[0].Run.Entries)
		n := 0
		_, err = r.Restore(ctx, TaskEntry{Task: taskA, States: counts, Runs: d.Chain(nil, parts[0].Run)}, nil, func(e Entry) error { n++; require.False(t, e.Deleted); return nil })
		require.NoError(t, err)
		require.Equal(t, 1-i, n)
	}
	d := delta(taskA, counts, 3, 4, change{"totals/acc|a": val("1")})
	d.Full = true
	_, err := r.Persist(ctx, nameOf(4, 1), []TaskDelta{d})
	require.ErrorContains(t, err, "begin at 3")
	d.From = 0
	parts, err := r.Persist(ctx, nameOf(4, 1), []TaskDelta{d})
	require.NoError(t, err)
	before := []RunRef{{File: "shop/i-0/chk-1-0000000000000001.data"}}
	require.Equal(t, []RunRef{parts[0].Run}, d.Chain(before, parts[0].Run))
	require.Empty(t, d.Chain(before, RunRef{}), "nothing is left")
	d.Full = false
	require.Equal(t, before, d.Chain(before, RunRef{}))
}

// Many checkpoints are persisted before the first of their roots is written: what they are given counts until it is in a root.
func TestInlineRunsOfCheckpointsInFlightAreBounded(t *testing.T) {
	const last, behind = 24, 10
	r := openInline(t, vfs.NewMem(), MaxMemoryThreshold)
	wide := strings.Repeat("v", 300<<10)
	var chains [last + 1][5][]RunRef
	var newest *RootRef
	write := func(n int) {
		root := &Root{Name: nameOf(n, 1), Predecessor: newest, ClusterID: "cluster-1", CreatedUnixMilli: 1700000000000}
		var inline int64
		for p := range chains[n] {
			e := TaskEntry{Task: element.TaskID{Source: "orders", Partition: int32(p)}, States: counts, Positions: []element.Position{position(int32(p), int64(n))}, Runs: chains[n][p]}
			require.LessOrEqual(t, e.InlineBytes(), int64(MaxMemoryThreshold), "root %d", n)
			inline += e.InlineBytes()
			root.Tasks = append(root.Tasks, e)
		}
		require.LessOrEqual(t, inline, int64(maxInline), "root %d", n)
		ref, err := r.WriteRoot(ctx, root)
		require.NoError(t, err)
		newest = &ref
	}
	for n := 1; n <= last; n++ {
		var deltas []TaskDelta
		for p := range chains[n] {
			deltas = append(deltas, delta(element.TaskID{Source: "orders", Partition: int32(p)}, counts, n-1, n, change{"totals/acc|a": val(wide)}))
		}
		out, err := r.Persist(ctx, nameOf(n, 1), deltas)
		require.NoError(t, err)
		for p := range deltas {
			chains[n][p] = deltas[p].Chain(chains[n-1][p], out[p].Run)
		}
		if n > behind {
			write(n - behind)
		}
	}
	for n := last - behind + 1; n <= last; n++ {
		write(n)
	}
}
