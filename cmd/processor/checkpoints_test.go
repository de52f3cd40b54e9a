package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// checkpointStore is a directory with checkpoints 1 to 3 committed and 4 unconfirmed, of one task each. The chain of 3
// begins with a full run.
type checkpointStore struct {
	t    *testing.T
	dir  string
	repo *snapshot.Repository
	refs []snapshot.RootRef // by id, from 1 on
	full snapshot.RunRef
}

func checkpointName(id int) element.CheckpointName {
	return element.CheckpointName{ID: element.CheckpointID(id), Incarnation: 0xabc}
}

func newCheckpointStore(t *testing.T) *checkpointStore {
	s := &checkpointStore{t: t, dir: filepath.Join(t.TempDir(), "checkpoints"), refs: make([]snapshot.RootRef, 5)}
	var err error
	s.repo, err = snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: s.dir, Application: "shop", Instance: "i-1", NumRetained: 3, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.repo.Close()) })
	entry := snapshot.TaskEntry{Task: element.TaskID{Source: "orders"}, States: []snapshot.StateInfo{{Name: "totals/acc", KeyCodec: "bytes", Codec: "int64"}}}
	var pred *snapshot.RootRef
	for id := 1; id <= 4; id++ {
		entries := []snapshot.Entry{{Key: []byte("anna"), Value: []byte(fmt.Sprint("value-", id))}}
		runs, err := s.repo.Persist(t.Context(), checkpointName(id), []snapshot.TaskDelta{{Task: entry.Task, States: entry.States, From: entry.ChainEnd(), To: element.CheckpointID(id), Entries: slices.Values(entries), Len: 1}})
		require.NoError(t, err)
		entry.Runs = append(slices.Clone(entry.Runs), runs[0].Run)
		entry.Positions = []element.Position{{TopicPartition: element.TopicPartition{Topic: "orders"}, TopicID: element.TopicID{7}, PartitionCount: 1, Offset: int64(100 * id), LeaderEpoch: 2}}
		ref, err := s.repo.WriteRoot(t.Context(), &snapshot.Root{Name: checkpointName(id), Predecessor: pred, ClusterID: "cluster-1", CreatedUnixMilli: 1_700_000_000_000 + int64(id), Tasks: []snapshot.TaskEntry{entry}})
		require.NoError(t, err)
		if s.refs[id], pred = ref, &ref; id < 4 {
			require.NoError(t, s.repo.MarkCommitted(t.Context(), ref))
		}
		if id == 2 {
			s.full, err = s.repo.Merge(t.Context(), checkpointName(id), entry)
			require.NoError(t, err)
			entry.Runs = []snapshot.RunRef{s.full}
		}
	}
	require.NoError(t, s.repo.AnnounceFor(t.Context(), "cluster-1"))
	return s
}

func (s *checkpointStore) path(name string) string { return filepath.Join(s.dir, name) }

func (s *checkpointStore) beside(id int, suffix string) string {
	return strings.TrimSuffix(s.refs[id].Path, ".root") + suffix
}

// files are all files and directories with their content and time.
func (s *checkpointStore) files() map[string]string {
	out := map[string]string{}
	require.NoError(s.t, filepath.WalkDir(s.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var b []byte
		if !d.IsDir() {
			if b, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		out[p] = fmt.Sprintf("%v %v %x", info.ModTime(), info.Mode(), b)
		return nil
	}))
	return out
}

// look runs a command and wants that it changes nothing.
func (s *checkpointStore) look(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	before := s.files()
	code, stdout, stderr = cli(s.t, append([]string{"checkpoints"}, args...)...)
	require.Equal(s.t, before, s.files(), "it only looks")
	return code, stdout, stderr
}

func TestCheckpointsListShowsNewestFirstWithWhatIsKnownOfEach(t *testing.T) {
	s := newCheckpointStore(t)
	code, stdout, stderr := s.look("list", "--dir", s.dir)
	require.Zero(t, code, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, lines, 5)
	require.Equal(t, []string{"NAME", "INSTANCE", "CREATED", "STATUS", "TASKS", "POSITIONS", "RUNS-DELTA", "RUNS-FULL", "GROUP"}, strings.Fields(lines[0]))
	for i, want := range [][]string{{"4-0000000000000abc", "unconfirmed", "orders/0:400"}, {"3-0000000000000abc", "committed", "orders/0:300"}, {"2-0000000000000abc", "committed"}, {"1-0000000000000abc", "committed"}} {
		for _, text := range append(want, "i-1", "2023-11-14T22:13:20Z") {
			require.Contains(t, lines[i+1], text)
		}
	}

	code, stdout, _ = s.look("list", "--dir", s.dir, "--output", "json")
	require.Zero(t, code)
	var doc struct {
		Application, Store_id string
		Checkpoints           []listed
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.Equal(t, "shop", doc.Application)
	require.Equal(t, s.repo.StoreID(), doc.Store_id)
	require.Len(t, doc.Checkpoints, 4)
	c := doc.Checkpoints[1]
	require.Equal(t, statusCommitted, c.Status)
	require.Equal(t, []position{{"orders", 0, 300}}, c.Positions)
	require.Equal(t, s.full.Length, c.FullBytes)
	require.Positive(t, c.DeltaBytes)
	require.Equal(t, "2-0000000000000abc", c.Predecessor)

	require.NoError(t, os.Remove(s.path(s.beside(3, ".committed"))))
	_, stdout, _ = s.look("list", "--dir", s.dir)
	require.Regexp(t, `3-0\S+ +i-1 +\S+ +unconfirmed`, stdout)
	require.NoError(t, os.Remove(s.path(s.beside(1, ".committed"))))
	_, stdout, _ = s.look("list", "--dir", s.dir)
	require.Regexp(t, `1-0\S+ +i-1 +\S+ +committed`, stdout, "2 is, and names it as predecessor")
	require.NoError(t, os.Truncate(s.path(s.refs[4].Path), 20))
	code, stdout, _ = s.look("list", "--dir", s.dir)
	require.Zero(t, code)
	require.Regexp(t, `4-0\S+ +i-1 +- +damaged`, stdout)
	require.Contains(t, stdout, "damaged: checkpoint 4-0000000000000abc: root "+s.refs[4].Path+": ")
}

func TestCheckpointsOfAServiceFile(t *testing.T) {
	s := newCheckpointStore(t)
	file := filepath.Join(t.TempDir(), "shop.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `application: shop
kafka: {brokers: "127.0.0.1:1"}
state: {checkpoints: {dir: %q}}
sources: {orders: {topic: orders, key: string, value: json}}
sinks: {out: {from: orders, topic: out, key: string, value: json}}
`, s.dir), 0o644))
	for _, args := range [][]string{{"list", file}, {"verify", file}, {"verify", "3", file}, {"verify", file, "--all"}, {"inspect", "3", file}, {"inspect", file, "3-0000000000000abc"}} {
		code, stdout, stderr := s.look(args...)
		require.Zero(t, code, "%v: %s", args, stderr)
		require.Contains(t, stdout, "3-0000000000000abc", args)
	}
	code, _, stderr := s.look("list", file, "--set", "state.checkpoints.dir="+s.dir+"/none")
	require.Equal(t, 20, code)
	require.Contains(t, stderr, s.dir+"/none")
	code, stdout, _ := s.look("list", file, "--application", "mall")
	require.Zero(t, code)
	require.Contains(t, stdout, "no checkpoint of mall in ")
	code, _, stderr = s.look("verify", file, "--application", "mall")
	require.Equal(t, 22, code, "what is to be verified is not there")
	require.Contains(t, stderr, "there is no checkpoint of mall in ")
}

func TestCheckpointsInspectShowsTasksRunsAndLineage(t *testing.T) {
	s := newCheckpointStore(t)
	code, stdout, stderr := s.look("inspect", "4", "--dir", s.dir)
	require.Zero(t, code, stderr)
	for _, text := range []string{
		"checkpoint 4-0000000000000abc: unconfirmed", "cluster id  cluster-1", "store id    " + s.repo.StoreID(),
		"follows     3-0000000000000abc (committed)", "            2-0000000000000abc (committed)",
		"task orders-0", "position    orders/0 at offset 400", "totals/acc: keys bytes, values int64",
		"(0, 2] full, 1 entries", s.full.File, "(2, 3] delta", "(3, 4] delta, 1 entries",
	} {
		require.Contains(t, stdout, text)
	}
	require.NoError(t, os.Remove(s.path(s.refs[1].Path)))
	require.NoError(t, os.Remove(s.path(s.beside(1, ".committed"))))
	code, stdout, _ = s.look("inspect", "3", "--dir", s.dir, "--output", "json")
	require.Zero(t, code)
	var c inspected
	require.NoError(t, json.Unmarshal([]byte(stdout), &c))
	require.Equal(t, "1-0000000000000abc", c.Lineage[1].Name)
	require.Equal(t, "not in the directory", c.Lineage[1].Status)
	require.EqualValues(t, 2, c.TaskList[0].Runs[0].To)
	require.True(t, c.TaskList[0].Runs[0].Full)
	require.Equal(t, inspState{"totals/acc", "bytes", "int64"}, c.TaskList[0].States[0])
	require.EqualValues(t, 300, c.TaskList[0].Positions[0].Offset)

	code, _, stderr = s.look("inspect", "9", "--dir", s.dir)
	require.Equal(t, 22, code)
	require.Contains(t, stderr, "checkpoint 9: there is no root of it")
}

func TestCheckpointsUsage(t *testing.T) {
	s := newCheckpointStore(t)
	for line, want := range map[string]string{
		"list":                             "which checkpoints? give the service's FILE.yaml, or --dir",
		"inspect --dir " + s.dir:           "inspect takes the NAME of one checkpoint, not 0",
		"inspect 1 2 --dir " + s.dir:       "inspect takes the NAME of one checkpoint, not 2",
		"list 1 --dir " + s.dir:            "list takes no names",
		"verify --all 1 --dir " + s.dir:    "either --all or names",
		"verify a.yaml b.yaml":             "one service file",
		"verfy":                            "there is no command checkpoints verfy",
		"list --output xml --dir " + s.dir: "text or json",
	} {
		code, stdout, stderr := s.look(strings.Fields(line)...)
		require.Equal(t, 2, code, "%s: %s", line, stderr)
		require.Contains(t, stderr, want)
		require.Empty(t, stdout)
	}
	other, err := snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: s.dir, Application: "mall", Instance: "i-1", NumRetained: 1})
	require.NoError(t, err)
	ref, err := other.WriteRoot(t.Context(), &snapshot.Root{Name: checkpointName(1), ClusterID: "c"})
	require.NoError(t, err)
	require.NoError(t, other.MarkCommitted(t.Context(), ref))
	code, _, stderr := s.look("list", "--dir", s.dir)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "holds checkpoints of mall, shop: choose one with --application")
}

func TestCheckpointsOfAnUnreadableDirectoryAreExitCode20(t *testing.T) {
	s := newCheckpointStore(t)
	file, empty := s.path("plain"), t.TempDir()
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for _, dir := range []string{file, s.path("none"), empty} {
		for _, what := range [][]string{{"list"}, {"verify"}, {"inspect", "1"}} {
			code, _, stderr := s.look(append(what, "--dir", dir)...)
			require.Equal(t, 20, code, stderr)
			require.Contains(t, stderr, dir)
			require.Equal(t, 1, strings.Count(stderr, "\n"))
		}
	}
	code, _, stderr := s.look("list", "--dir", empty, "--application", "shop")
	require.Equal(t, 20, code)
	require.Contains(t, stderr, "nothing was ever written to it")
}

func TestCheckpointsVerifyOfAWholeDirectory(t *testing.T) {
	s := newCheckpointStore(t)
	code, stdout, stderr := s.look("verify", "--dir", s.dir)
	require.Zero(t, code, stderr)
	require.True(t, strings.HasSuffix(stdout, "\n4 checkpoints whole\n"), stdout)
	code, stdout, _ = s.look("verify", "2", "3", "--dir", s.dir, "--output", "json")
	require.Zero(t, code)
	var doc struct {
		Whole       bool
		Checkpoints []verified
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &doc))
	require.True(t, doc.Whole)
	require.Len(t, doc.Checkpoints, 2)
}

// Every kind of file, damaged in every way, is found by verify, named with its checkpoint and kind, and left as it is.
func TestCheckpointsVerifyFindsEveryDamageOfEveryKindOfFile(t *testing.T) {
	s := newCheckpointStore(t)
	const id = "millweir-store-id"
	kinds := []struct{ name, file, swap, checkpoint, kind string }{
		{"data", s.beside(3, ".data"), s.beside(2, ".data"), "3-0000000000000abc", "run"},
		{"root", s.refs[3].Path, s.refs[2].Path, "3-0000000000000abc", "root"},
		{"marker", s.beside(3, ".committed"), s.beside(2, ".committed"), "3-0000000000000abc", "marker"},
		{"full", s.full.File, s.beside(1, ".data"), "2-0000000000000abc", "run"},
		{"store id", id, s.beside(3, ".committed"), "", "store id"},
		{"announcement", "shop/i-1/instance", s.beside(3, ".committed"), "", "announcement"},
	}
	for _, k := range kinds {
		good, err := os.ReadFile(s.path(k.file))
		require.NoError(t, err)
		swapped, err := os.ReadFile(s.path(k.swap))
		require.NoError(t, err)
		for _, d := range []struct {
			name string
			bad  []byte
		}{
			{"a flipped byte", flipped(good, len(good)/2)}, {"the first byte flipped", flipped(good, 0)}, {"the last byte flipped", flipped(good, len(good)-1)},
			{"cut", good[:len(good)-3]}, {"empty", []byte{}}, {"longer", append(slices.Clone(good), 0)},
			{"another file of that kind, from an older checkpoint", swapped}, {"zeros", make([]byte, len(good))},
			{"a version to come", newer(good)}, {"missing", nil},
		} {
			t.Run(k.name+": "+d.name, func(t *testing.T) {
				if k.name == "marker" && d.bad == nil {
					t.Skip("a marker that is missing is no damage: the checkpoint is unconfirmed until a later one names it")
				}
				if k.name == "announcement" && d.bad == nil {
					t.Skip("an announcement that is missing is no damage: the other files make the instance known")
				}
				require.NoError(t, os.Remove(s.path(k.file)))
				if d.bad != nil {
					require.NoError(t, os.WriteFile(s.path(k.file), d.bad, 0o644))
				}
				code, stdout, stderr := s.look("verify", "--dir", s.dir)
				require.Equal(t, 22, code, "%s%s", stdout, stderr)
				require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
				for _, text := range []string{k.checkpoint, k.file, k.kind} {
					require.Contains(t, stdout+stderr, text)
				}
				require.NotContains(t, stderr, "goroutine ")
				if k.name != "store id" {
					where := "checkpoint " + k.checkpoint + ": "
					if k.checkpoint == "" {
						where = ""
					}
					require.Contains(t, stdout, "damaged: "+where+k.kind+" "+k.file+": ")
					code, stdout, _ = s.look("list", "--dir", s.dir, "--output", "json")
					require.Zero(t, code)
					require.True(t, json.Valid([]byte(stdout)))
				}
				require.NoError(t, os.RemoveAll(s.path(k.file)))
				require.NoError(t, os.WriteFile(s.path(k.file), good, 0o640))
			})
		}
	}
	code, stdout, _ := s.look("verify", "--dir", s.dir)
	require.Zero(t, code, stdout)
	// The id of another directory: whole in itself, so all that lies here is not its own.
	other := newCheckpointStore(t)
	b, err := os.ReadFile(other.path(id))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.path(id), b, 0o640))
	code, stdout, stderr := s.look("verify", "--dir", s.dir)
	require.Equal(t, 22, code)
	require.Contains(t, stderr, "4 of 4 checkpoints damaged")
	require.Contains(t, stdout, "it was written to another checkpoint directory (store id")
}

func flipped(b []byte, at int) []byte {
	b = slices.Clone(b)
	b[at] ^= 0x20
	return b
}

// newer changes the version byte, which in all binary formats follows the four of the magic, or the text's "v1" or "v2".
func newer(b []byte) []byte {
	for v := byte('1'); v < '3'; v++ {
		if text := []byte{' ', 'v', v, ' '}; bytes.Contains(b, text) {
			return bytes.Replace(b, text, []byte{' ', 'v', v + 1, ' '}, 1)
		}
	}
	b = slices.Clone(b)
	b[4]++
	return b
}

// TestADirectoryMayBeAFileURL: also with one slash, which is no directory of that name.
func TestADirectoryMayBeAFileURL(t *testing.T) {
	s := newCheckpointStore(t)
	for _, url := range []string{"file://" + s.dir, "file:" + s.dir} {
		code, stdout, stderr := s.look("list", "--dir", url)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "4-0000000000000abc")
	}
	for _, url := range []string{"s3://bucket/x", "hdfs:/x", "file:x"} {
		for _, args := range [][]string{{"checkpoints", "list", "--dir", url}, {"savepoint", "list", "--dir", url}, {"run", "no.yaml", "--from", url}} {
			code, _, stderr := cli(t, args...)
			require.Equal(t, 2, code, "%s: %s", args, stderr)
			require.Contains(t, stderr, url)
			require.Contains(t, stderr, "file:///directory")
		}
	}
}

func TestInspectShowsStagesAndWhatLiesInTheRoot(t *testing.T) {
	subtask := func(i int) snapshot.TaskEntry {
		return snapshot.TaskEntry{Task: element.TaskID{Source: "by-user", Partition: int32(i)}, Parallelism: 2, MaxParallelism: 128}
	}
	a, b := subtask(0), subtask(1)
	a.Runs = []snapshot.RunRef{{File: "shop/i-1/chk-1-0000000000000abc.root", Inline: "bytes", Length: 5, To: 1, Entries: 1}}
	b.InFlight = []snapshot.RunRef{{File: "shop/i-1/chk-2-0000000000000abc.data", FileSize: 90, Offset: 10, Length: 80, From: 2, To: 2, Entries: 3}}
	info := snapshot.RootInfo{Instance: "i-1", Root: &snapshot.Root{Tasks: []snapshot.TaskEntry{a, b}, Savepoints: []snapshot.SavepointRef{{ID: "sp-1", Path: "/sp/1"}}}}
	c := inspect(info, nil, nil)
	var out strings.Builder
	printInspected(&out, c)
	for _, line := range []string{
		"savepoint   sp-1 at /sp/1",
		"subtask     one of 2, of 128 key groups",
		"run         (0, 1] delta, 1 entries, 5 bytes in the root",
		"in flight   3 records, 80 bytes at 10 of shop/i-1/chk-2-0000000000000abc.data",
	} {
		require.Contains(t, out.String(), "  "+line+"\n")
	}
	require.True(t, c.TaskList[0].Runs[0].Inline)
	require.EqualValues(t, 3, c.TaskList[1].InFlight[0].Entries)
}

// removing removes files when something is written to it.
type removing struct {
	bytes.Buffer
	files []string
}

func (r *removing) Write(p []byte) (int, error) {
	for _, f := range r.files {
		os.Remove(f)
	}
	return r.Buffer.Write(p)
}

func TestCheckpointsVerifyOfOneThatIsRemovedMeanwhile(t *testing.T) {
	s := newCheckpointStore(t)
	out, errs := &removing{files: []string{s.path(s.beside(2, ".committed")), s.path(s.refs[2].Path), s.path(s.beside(2, ".data"))}}, &bytes.Buffer{}
	code := execute(t.Context(), []string{"checkpoints", "verify", "2", "3", "--dir", s.dir}, out, errs)
	require.Equal(t, 43, code, "%s%s", out, errs)
	require.Contains(t, out.String(), "3-0000000000000abc")
	require.Contains(t, errs.String(), "1 of 2 checkpoints were removed before they were read")
}

// A name that is mistyped is not taken for the service file.
func TestAMistypedNameOfACheckpointIsCalledOne(t *testing.T) {
	s := newCheckpointStore(t)
	for _, command := range []string{"inspect", "verify", "list"} {
		for _, name := range []string{"7-zz", "4-0abc", "4-", "99999999999999999999"} {
			code, _, stderr := s.look(command, name, "--dir", s.dir)
			require.Equal(t, 2, code, "%s: %s", command, stderr)
			require.Contains(t, stderr, name+" is not the name of a checkpoint, such as 12 or 12-0123456789abcdef", command)
		}
	}
	code, _, stderr := s.look("inspect", "orders.yaml", "--dir", s.dir)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "inspect takes the NAME of one checkpoint, which orders.yaml is not")
	file := s.path("7-zz.yaml")
	require.NoError(t, os.WriteFile(file, []byte("application: ["), 0o600))
	t.Chdir(s.dir)
	code, _, stderr = cli(t, "checkpoints", "list", "7-zz.yaml")
	require.Equal(t, 3, code, "a file may have such a name: %s", stderr)
}
