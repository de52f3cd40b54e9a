package snapshot

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/vfs"
)

var update = flag.Bool("update", false, "write the golden files of the current format version anew")

const golden = "testdata/golden/v1"

// goldenFiles makes one file of each kind from fixed input: everything in them is determined by it.
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

	h := Handle{Kind: HandleCheckpoint, Root: ref2, Partition: 0, Offset: 100, LeaderEpoch: 2, ClusterID: root2.ClusterID, TopicID: topicID, PartitionCount: 4, StoreID: r.StoreID()}
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

// TestGoldenFilesOfVersion1 reads the committed files, and checks that today's writer still gives the same bytes.
// To write them after a deliberate change of the current version: go test ./snapshot -run Golden -update
func TestGoldenFilesOfVersion1(t *testing.T) {
	made := goldenFiles(t)
	if *update {
		require.NoError(t, os.RemoveAll(golden))
		for name, b := range made {
			p := filepath.Join(golden, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
			require.NoError(t, os.WriteFile(p, b, 0o644))
		}
	}
	for name, b := range made {
		have, err := os.ReadFile(filepath.Join(golden, filepath.FromSlash(name)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, have), "%s is written differently than version 1 wrote it", name)
	}

	r, err := OpenRepository(ctx, Config{Dir: golden, Application: "shop", Instance: "i-0", ReadOnly: true})
	require.NoError(t, err)
	defer r.Close()
	text, err := os.ReadFile(golden + "/handle-checkpoint.txt")
	require.NoError(t, err)
	h, err := ParseHandle(string(text))
	require.NoError(t, err)
	require.Equal(t, h.StoreID, r.StoreID())
	root, err := r.ReadRoot(ctx, h.Root)
	require.NoError(t, err)
	require.EqualValues(t, 1700000001234, root.CreatedUnixMilli)
	got, err := restoreModel(r, *root.Task(taskA))
	require.NoError(t, err)
	require.Equal(t, "last/seen|\"alice\"=\"{\\\"at\\\":1}\"\ntotals/acc|\"alice\"=\"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\a\"\ntotals/acc|\"alina\"=\"\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01\"\n", got.String())
	got, err = restoreModel(r, *root.Task(taskB))
	require.NoError(t, err)
	require.Equal(t, "totals/acc|\"\"=\"\"\ntotals/acc|\"ø\"=\"x\"\n", got.String())
	infos, err := r.List(ctx)
	require.NoError(t, err)
	require.Len(t, infos, 2)
	require.True(t, infos[0].Committed && infos[1].Committed, "by marker, and as its predecessor")
	text, err = os.ReadFile(golden + "/handle-empty.txt")
	require.NoError(t, err)
	h, err = ParseHandle(string(text))
	require.NoError(t, err)
	require.Equal(t, HandleEmpty, h.Kind)
	require.EqualValues(t, 100, h.Offset)
}
