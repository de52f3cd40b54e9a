package snapshot

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

var update = flag.Bool("update", false, "write the golden files of the current format version anew")

// The committed files of a version are never changed. A directory is named after the version of its roots.
const (
	goldenV1 = "testdata/golden/v1"
	goldenV2 = "testdata/golden/v2"
	goldenV3 = "testdata/golden/v3"
)

// goldenFiles makes files of each kind from fixed input: everything in them is determined by it.
func goldenFiles(t testing.TB) map[string][]byte {
	m := vfs.NewMem()
	require.NoError(t, m.MkdirAll("shop/i-0"))
	replaceFile(t, m, storeIDFile, []byte(encodeStoreID("00112233445566778899aabbccddeeff")))
	r := openRepo(t, m, "i-0")
	ref1, root1 := mustCheckpoint(t, r, 1, 0xabc, nil, nil, map[element.TaskID]change{
		taskA: {"totals/acc|alice": val("\x00\x00\x00\x00\x00\x00\x00\x07"), "totals/acc|alina": val("\x00\x00\x00\x00\x00\x00\x00\x01"), "totals/acc|bob": nil, "last/seen|alice": val(`{"at":1}`)},
		taskB: {"totals/acc|": val(""), "totals/acc|ø": val("x")},
	})
	full, err := r.Merge(ctx, nameOf(1, 0xabc), root1.Tasks[0])
	require.NoError(t, err)
	root2 := &Root{Name: nameOf(2, 0xabc), Predecessor: &ref1, ClusterID: "MkU3OEVBNTcwNTJENDM2Qg", CreatedUnixMilli: 1700000001234, Tasks: slices.Clone(root1.Tasks)}
	root2.Tasks[0].Runs = []RunRef{full}
	ref2, err := r.WriteRoot(ctx, root2)
	require.NoError(t, err)
	require.NoError(t, r.MarkCommitted(ctx, ref2))
	ref3 := goldenExchange(t, m, ref2, root2)

	h := Handle{Kind: HandleCheckpoint, Root: ref3, Partition: 0, Offset: 100, LeaderEpoch: 2, ClusterID: root2.ClusterID, TopicID: topicID, PartitionCount: 4, StoreID: r.StoreID()}
	text, err := h.Encode()
	require.NoError(t, err)
	h.Kind, h.Root, h.LeaderEpoch = HandleEmpty, RootRef{}, -1
	empty, err := h.Encode()
	require.NoError(t, err)
	out := map[string][]byte{"handle-checkpoint.txt": []byte(text), "handle-empty.txt": []byte(empty)}
	for _, f := range listAll(t, r) {
		out[f] = readFile(t, m, f)
	}
	return out
}

// goldenExchange adds a checkpoint with a stage behind an exchange, of which one subtask is small and one is not.
func goldenExchange(t testing.TB, m vfs.FS, pred RootRef, before *Root) RootRef {
	cfg := config(m, "i-0")
	cfg.MemoryThreshold = 320
	r, err := OpenRepository(ctx, cfg)
	require.NoError(t, err)
	root := &Root{Name: nameOf(3, 0xabd), Predecessor: &pred, ClusterID: before.ClusterID, CreatedUnixMilli: 1700000002345, Tasks: slices.Clone(before.Tasks),
		Savepoints: []SavepointRef{{ID: "sp-1", Path: "/savepoints/savepoint-shop-sp-1-0000000000000abd", Digest: Digest{1, 2, 3}}},
		Origin:     []SavepointRef{{ID: "old-2", Path: "/savepoints/savepoint-old-9-0000000000000abb", Digest: Digest{7}}, {ID: "old-1", Path: "/savepoints/savepoint-old-9-0000000000000abe", Digest: Digest{4}}}}
	deltas := []TaskDelta{
		delta(taskA, counts, int(root.Tasks[0].ChainEnd()), 3, change{"totals/acc|alice": nil}),
		delta(taskB, counts, int(root.Tasks[1].ChainEnd()), 3, change{}),
		delta(subtask(0), counts, 0, 3, change{"totals/acc|carol": val("small")}),
		delta(subtask(1), counts, 0, 3, change{"totals/acc|dave": val(strings.Repeat("large", 80))}),
	}
	deltas[2].InFlight = inFlightOf(flying{7, "first"}, flying{-1, ""}, flying{7, "second"})
	deltas[3].Full = true
	deltas[3].InFlight = inFlightOf(flying{100, strings.Repeat("large", 80)})
	parts, err := r.Persist(ctx, root.Name, deltas)
	require.NoError(t, err)
	for i, d := range deltas {
		if i >= len(root.Tasks) {
			root.Tasks = append(root.Tasks, TaskEntry{Task: d.Task, States: d.States, Parallelism: 2, MaxParallelism: 128})
		}
		e := &root.Tasks[i]
		if e.Runs = d.Chain(e.Runs, parts[i].Run); !parts[i].InFlight.IsZero() {
			e.InFlight = []RunRef{parts[i].InFlight}
		}
	}
	ref, err := r.WriteRoot(ctx, root)
	require.NoError(t, err)
	require.NoError(t, r.MarkCommitted(ctx, ref))
	return ref
}

// openGolden opens committed files and reads the root that their handle names.
func openGolden(t *testing.T, dir string) (*Repository, *Root) {
	r, err := OpenRepository(ctx, Config{Dir: dir, Application: "shop", Instance: "i-0", ReadOnly: true})
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	text, err := os.ReadFile(dir + "/handle-checkpoint.txt")
	require.NoError(t, err)
	h, err := ParseHandle(string(text))
	require.NoError(t, err)
	require.Equal(t, h.StoreID, r.StoreID())
	root, err := r.ReadRoot(ctx, h.Root)
	require.NoError(t, err)
	text, err = os.ReadFile(dir + "/handle-empty.txt")
	require.NoError(t, err)
	h, err = ParseHandle(string(text))
	require.NoError(t, err)
	require.Equal(t, HandleEmpty, h.Kind)
	require.EqualValues(t, 100, h.Offset)
	require.NoError(t, r.VerifyAll(ctx, nil, func(v Verified) { require.Empty(t, v.Damage) }))
	return r, root
}

// requireGoldenState checks what the tasks of the first two checkpoints hold.
func requireGoldenState(t *testing.T, r *Repository, root *Root) {
	got, err := restoreModel(r, *root.Task(taskA))
	require.NoError(t, err)
	require.Equal(t, "last/seen|\"alice\"=\"{\\\"at\\\":1}\"\ntotals/acc|\"alice\"=\"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\a\"\ntotals/acc|\"alina\"=\"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\"\n", got.String())
	got, err = restoreModel(r, *root.Task(taskB))
	require.NoError(t, err)
	require.Equal(t, "totals/acc|\"\"=\"\"\ntotals/acc|\"ø\"=\"x\"\n", got.String())
}

// TestGoldenFilesOfVersion1 reads what a program wrote whose roots had version 1.
func TestGoldenFilesOfVersion1(t *testing.T) {
	r, root := openGolden(t, goldenV1)
	require.EqualValues(t, 1700000001234, root.CreatedUnixMilli)
	requireGoldenState(t, r, root)
	require.Zero(t, root.Tasks[0].Parallelism)
	infos, err := r.List(ctx)
	require.NoError(t, err)
	require.Len(t, infos, 2)
	require.True(t, infos[0].Committed && infos[1].Committed, "by marker, and as its predecessor")
}

// TestWhatIsNotARootIsWrittenAsInVersion1 compares the files whose format has not changed since.
func TestWhatIsNotARootIsWrittenAsInVersion1(t *testing.T) {
	made, same := goldenFiles(t), 0
	for name, b := range made {
		k := parseFilePath(name).kind
		if have, err := os.ReadFile(filepath.Join(goldenV1, filepath.FromSlash(name))); err == nil && (k == packFile || k == fullFile || name == storeIDFile) {
			require.True(t, bytes.Equal(b, have), "%s is written differently than version 1 wrote it", name)
			same++
		}
	}
	require.Equal(t, 3, same)
}

// TestGoldenFilesOfVersion2 reads the committed files, and checks that today's writer still gives the same bytes.
// To write them after a deliberate change of the current version: go test ./snapshot -run Golden -update
func TestGoldenFilesOfVersion2(t *testing.T) {
	made := goldenFiles(t)
	if *update {
		require.NoError(t, os.RemoveAll(goldenV2))
		for name, b := range made {
			p := filepath.Join(goldenV2, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
			require.NoError(t, os.WriteFile(p, b, 0o644))
		}
	}
	for name, b := range made {
		have, err := os.ReadFile(filepath.Join(goldenV2, filepath.FromSlash(name)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, have), "%s is written differently than version 2 wrote it", name)
	}
	r, root := openGolden(t, goldenV2)
	require.EqualValues(t, 1700000002345, root.CreatedUnixMilli)
	require.Equal(t, "sp-1", root.Savepoints[0].ID)
	require.Equal(t, "old-1", root.Origin[0].ID)
	require.Equal(t, Digest{7}, root.Origin[1].Digest)
	got, err := restoreModel(r, *root.Task(taskA))
	require.NoError(t, err)
	require.Len(t, got["totals/acc"], 1, "alina is left")
	small, large := root.Task(subtask(0)), root.Task(subtask(1))
	require.True(t, small.Runs[0].IsInline() && small.InFlight[0].IsInline() && root.Task(taskA).Runs[1].IsInline())
	require.False(t, large.Runs[0].IsInline() || large.InFlight[0].IsInline())
	require.True(t, large.Runs[0].Full)
	got, err = restoreModel(r, *small)
	require.NoError(t, err)
	require.Equal(t, "totals/acc|\"carol\"=\"small\"\n", got.String())
	require.Equal(t, []flying{{7, "first"}, {-1, ""}, {7, "second"}}, restoreFlying(t, r, *small, nil))
	require.Equal(t, []flying{{100, strings.Repeat("large", 80)}}, restoreFlying(t, r, *large, nil))
	first := *root.Predecessor
	root, err = r.ReadRoot(ctx, first)
	require.NoError(t, err)
	requireGoldenState(t, r, root)
}
