package snapshot

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

// TestChainsRestoreAndMergeLikeAMap drives random checkpoints of one task, with states registered in another order
// at every step, random merges, and compares every restore with a map.
func TestChainsRestoreAndMergeLikeAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := openRepo(t, vfs.NewMem(), "i-0")
		all := append(slices.Clone(counts), StateInfo{Name: "third", KeyCodec: "bytes", Codec: "bytes"})
		entry := TaskEntry{Task: taskA, States: all}
		want := model{}
		steps := rapid.IntRange(1, 8).Draw(rt, "steps")
		for id := 1; id <= steps; id++ {
			ch := drawChange(rt, all)
			states := rapid.Permutation(all).Draw(rt, "order")
			refs, err := r.Persist(ctx, nameOf(id, 1), []TaskDelta{delta(taskA, states, int(entry.ChainEnd()), id, ch)})
			require.NoError(rt, err)
			if len(ch) == 0 {
				require.True(rt, refs[0].Run.IsZero())
			} else {
				entry.Runs = append(entry.Runs, refs[0].Run)
			}
			want.apply(ch)
			if rapid.Bool().Draw(rt, "merge") {
				full, err := r.Merge(ctx, nameOf(id, 1), entry)
				require.NoError(rt, err)
				if len(entry.Runs) > 0 {
					require.True(rt, full.Full)
					require.EqualValues(rt, size(want), full.Entries)
					entry.Runs = []RunRef{full}
				}
			}
			got, err := restoreModel(r, entry)
			require.NoError(rt, err)
			require.Equal(rt, want.String(), got.String())
		}
	})
}

func size(m model) (n int) {
	for _, s := range m {
		n += len(s)
	}
	return n
}

func drawChange(rt *rapid.T, states []StateInfo) change {
	ch := change{}
	n := rapid.IntRange(0, 40).Draw(rt, "entries")
	for range n {
		key := rapid.OneOf(rapid.StringMatching(`[ab]{0,4}`), rapid.StringN(0, 20, 60)).Draw(rt, "key")
		k := rapid.SampledFrom(states).Draw(rt, "state").Name + "|" + key
		switch rapid.IntRange(0, 9).Draw(rt, "what") {
		case 0, 1, 2:
			ch[k] = nil
		case 3:
			ch[k] = val(strings.Repeat("v", rapid.IntRange(0, 3*blockSize).Draw(rt, "long")))
		default:
			ch[k] = val(rapid.StringN(0, 30, 90).Draw(rt, "value"))
		}
	}
	return ch
}

func TestPersistWritesOneFileForAllTasks(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	ops := map[vfs.OpKind]int{}
	m.SetFault(func(op vfs.Op) error { ops[op.Kind]++; return nil })
	refs, err := r.Persist(ctx, nameOf(1, 7), []TaskDelta{
		delta(taskA, counts, 0, 1, change{"totals/acc|a": val("1"), "last/seen|a": val("x")}),
		delta(element.TaskID{Source: "idle"}, counts, 0, 1, nil),
		delta(taskB, counts, 0, 1, change{"totals/acc|b": nil}),
	})
	require.NoError(t, err)
	require.Equal(t, 1, ops[vfs.OpSync], "one fsync")
	require.True(t, refs[1].Run.IsZero())
	require.Equal(t, "shop/i-0/chk-1-0000000000000007.data", refs[0].Run.File)
	require.Equal(t, refs[0].Run.File, refs[2].Run.File)
	require.Equal(t, refs[0].Run.Length, refs[2].Run.Offset)
	require.Equal(t, refs[0].Run.FileSize, refs[2].Run.Offset+refs[2].Run.Length)
	require.EqualValues(t, 2, refs[0].Run.Entries)
	got, err := restoreModel(r, TaskEntry{Task: taskA, States: counts, Runs: []RunRef{refs[0].Run}})
	require.NoError(t, err)
	require.Equal(t, "last/seen|\"a\"=\"x\"\ntotals/acc|\"a\"=\"1\"\n", got.String())
	st, err := r.Verify(ctx, TaskEntry{Task: taskB, States: counts, Runs: []RunRef{refs[2].Run}})
	require.NoError(t, err)
	require.Equal(t, Stats{Sizes: Sizes{DeltaRuns: 1, DeltaBytes: refs[2].Run.Length, DeltaEntries: 1}, Tombstones: 1}, st)
	require.Zero(t, m.OpenFiles())
}

func TestPersistRefusesWhatIsNotADelta(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	two := []Entry{{Key: []byte("b")}, {Key: []byte("a")}}
	for what, d := range map[string]TaskDelta{
		"not sorted":            {Task: taskA, States: counts, To: 1, Len: 2, Entries: slices.Values(two)},
		"a key comes twice":     {Task: taskA, States: counts, To: 1, Len: 2, Entries: slices.Values([]Entry{two[0], two[0]})},
		"sorted by state":       {Task: taskA, States: counts, To: 1, Len: 2, Entries: slices.Values([]Entry{{State: 1}, {State: 0}})},
		"entry of state 2":      {Task: taskA, States: counts, To: 1, Len: 1, Entries: slices.Values([]Entry{{State: 2}})},
		"3 were declared":       {Task: taskA, States: counts, To: 1, Len: 3, Entries: slices.Values(two[1:])},
		"no entries are declar": {Task: taskA, States: counts, To: 1, Entries: slices.Values(two)},
		"delta over (1, 1]":     {Task: taskA, States: counts, From: 1, To: 1, Len: 1, Entries: slices.Values(two[:1])},
		"without a source":      {Task: taskA, States: counts, To: 1, Len: 1},
		"not a valid task":      {Task: element.TaskID{Source: "../x"}, States: counts, To: 1, Len: 1, Entries: slices.Values(two[:1])},
		"named twice":           {Task: taskA, States: append(counts[:1:1], counts[0]), To: 1, Len: 1, Entries: slices.Values(two[:1])},
	} {
		_, err := r.Persist(ctx, nameOf(1, 1), []TaskDelta{d})
		require.ErrorContains(t, err, what)
	}
	require.Equal(t, []string{storeIDFile}, listAll(t, r), "nothing is left behind")
}

func TestAnErrorOfApplyEndsRestoreAsItIs(t *testing.T) {
	r := openRepo(t, vfs.NewMem(), "i-0")
	_, root := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}})
	_, err := r.Restore(ctx, root.Tasks[0], nil, func(Entry) error { return errFormat("mine") })
	require.Equal(t, errFormat("mine"), err)
}
