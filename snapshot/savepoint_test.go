package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

func savepointHead(id int) SavepointHead {
	return SavepointHead{ID: "before-upgrade", Name: nameOf(id, 0xabc), Application: "my-shop", Instance: "i-0", ClusterID: "cluster-1", StoreID: "s", CreatedUnixMilli: 1700000000000}
}

func savepointTasks() []SavepointTask {
	return []SavepointTask{
		{Task: taskA, Positions: []element.Position{position(0, 100)}, States: counts, Entries: slices.Values(entriesOf(counts, change{"totals/acc|a": val("1"), "last/seen|a": val("x")}))},
		{Task: subtask(1), States: counts, Parallelism: 2, MaxParallelism: 128, Entries: slices.Values(entriesOf(counts, change{"totals/acc|c": val("3")}))},
		{Task: subtask(0), States: counts, Parallelism: 2, MaxParallelism: 128, InFlight: inFlightOf(flying{3, "r"}, flying{-1, "s"})},
		{Task: taskB, Positions: []element.Position{position(1, 7)}, States: counts},
	}
}

func writeSavepointTo(t testing.TB, dir string, id int, requests ...string) SavepointRef {
	t.Helper()
	head := savepointHead(id)
	head.Requests = requests
	ref, err := WriteSavepoint(ctx, SavepointConfig{Dir: dir}, head, savepointTasks())
	require.NoError(t, err)
	return ref
}

func TestASavepointStandsByItself(t *testing.T) {
	dir := t.TempDir()
	ref := writeSavepointTo(t, dir, 7)
	require.Equal(t, dir+"/savepoint-my-shop-7-0000000000000abc", ref.Path)
	require.Equal(t, "before-upgrade", ref.ID)

	moved := filepath.Join(t.TempDir(), filepath.Base(ref.Path)) // somewhere else, and what it was written beside is gone
	require.NoError(t, os.Rename(ref.Path, moved))
	for _, path := range []string{moved, "file://" + moved, moved + "/_metadata"} {
		s, err := OpenSavepoint(ctx, path)
		require.NoError(t, err)
		require.Equal(t, SavepointRef{ID: ref.ID, Path: moved, Digest: ref.Digest}, s.Ref)
		require.Len(t, s.Root.Tasks, 4)
		got, err := restoreSavepoint(s, taskA)
		require.NoError(t, err)
		require.Equal(t, "last/seen|\"a\"=\"x\"\ntotals/acc|\"a\"=\"1\"\n", got.String())
		got, err = restoreSavepoint(s, subtask(1))
		require.NoError(t, err)
		require.Equal(t, "totals/acc|\"c\"=\"3\"\n", got.String())
		got, err = restoreSavepoint(s, taskB)
		require.NoError(t, err)
		require.Empty(t, got)
		var flown []flying
		n, err := s.RestoreInFlight(ctx, *s.Root.Task(subtask(0)), nil, func(g int, b []byte) error { flown = append(flown, flying{g, string(b)}); return nil })
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
		require.Equal(t, []flying{{3, "r"}, {-1, "s"}}, flown)
		st, err := s.Verify(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 3, st.FullEntries)
		require.EqualValues(t, 2, st.InFlightRecords)
		require.NoError(t, s.Close())
	}
}

func restoreSavepoint(s *Savepoint, id element.TaskID) (model, error) {
	m := model{}
	e := *s.Root.Task(id)
	_, err := s.Restore(ctx, e, nil, func(en Entry) error {
		m.apply(change{e.States[en.State].Name + "|" + string(en.Key): val(string(en.Value))})
		return nil
	})
	return m, err
}

func TestASavepointWithoutStateHasNoData(t *testing.T) {
	dir := t.TempDir()
	ref, err := WriteSavepoint(ctx, SavepointConfig{Dir: "file://" + dir, WriteBufferSize: 1 << 20}, savepointHead(1), savepointTasks()[3:])
	require.NoError(t, err)
	entries, err := os.ReadDir(ref.Path)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	s, err := OpenSavepoint(ctx, ref.Path)
	require.NoError(t, err)
	_, err = s.Verify(ctx)
	require.NoError(t, err)
	require.Equal(t, position(1, 7), s.Root.Tasks[0].Positions[0])
}

func TestDamageOfASavepointIsDetected(t *testing.T) {
	m := vfs.NewMem()
	st := NewLocal(m, "/sp")
	_, err := WriteSavepoint(ctx, SavepointConfig{Storage: st}, savepointHead(7), savepointTasks())
	require.NoError(t, err)
	const dir = "savepoint-my-shop-7-0000000000000abc"
	detect := func() error {
		s, err := readSavepoint(ctx, st, dir)
		if err == nil {
			_, err = s.Verify(ctx)
		}
		return err
	}
	require.NoError(t, detect())
	s, err := readSavepoint(ctx, st, dir)
	require.NoError(t, err)
	runs := runsIn(func(RunRef) bool { return true }, s.Root)
	for _, name := range []string{savepointMeta, savepointData} {
		file := dir + "/" + name
		good := readFile(t, m, file)
		check := func(b []byte, what string, at int) {
			replaceFile(t, m, file, b)
			require.True(t, requireCorrupt(detect(), file), "%s: %s %d: %v", file, what, at, detect())
		}
		for i := range good {
			for bit := range 8 {
				b := slices.Clone(good)
				b[i] ^= 1 << bit
				check(b, "bit of byte", i)
			}
			check(good[:i], "cut at", i)
		}
		check(append(slices.Clone(good), 0), "a byte more", 0)
		for _, l := range inOtherVersions(good, runs) {
			check(l.content, "version", l.version)
			require.ErrorContains(t, detect(), formatVersion(l.version))
		}
		require.NoError(t, m.Remove(file))
		require.True(t, requireCorrupt(detect(), file))
		replaceFile(t, m, file, good)
	}
	require.NoError(t, detect())
	require.NoError(t, m.MkdirAll("savepoint-my-shop-8-0000000000000abc"))
	replaceFile(t, m, "savepoint-my-shop-8-0000000000000abc/_metadata", readFile(t, m, dir+"/_metadata"))
	_, err = readSavepoint(ctx, st, "savepoint-my-shop-8-0000000000000abc")
	require.ErrorContains(t, err, "it holds savepoint 7")
}

// The data of another savepoint, and of an older one of the same name, is not taken for that of this one.
func TestSwappedAndStaleDataOfSavepointsIsDetected(t *testing.T) {
	m := vfs.NewMem()
	st := NewLocal(m, "/sp")
	write := func(st Storage, id int, value string) string {
		tasks := savepointTasks()
		tasks[1].Entries = slices.Values(entriesOf(counts, change{"totals/acc|c": val(value)}))
		ref, err := WriteSavepoint(ctx, SavepointConfig{Storage: st}, savepointHead(id), tasks)
		require.NoError(t, err)
		return filepath.Base(ref.Path)
	}
	verify := func(dir string) error {
		s, err := readSavepoint(ctx, st, dir)
		require.NoError(t, err)
		_, err = s.Verify(ctx)
		return err
	}
	first, second := write(st, 7, "3"), write(st, 8, "3")
	old := vfs.NewMem()
	require.Equal(t, first, write(NewLocal(old, "/sp"), 7, "2"))
	data := func(dir string) string { return dir + "/" + savepointData }
	good := map[string][]byte{first: readFile(t, m, data(first)), second: readFile(t, m, data(second))}
	stale := readFile(t, old, data(first))
	require.Len(t, stale, len(good[first]))
	for what, put := range map[string]map[string][]byte{
		"swapped":             {first: good[second], second: good[first]},
		"that of the other":   {first: good[second]},
		"that of a later one": {second: good[first]},
		"stale":               {first: stale},
	} {
		for dir, b := range put {
			replaceFile(t, m, data(dir), b)
		}
		for dir := range good {
			err := verify(dir)
			if put[dir] == nil {
				require.NoError(t, err, what)
				continue
			}
			require.True(t, requireCorrupt(err, data(dir)), "%s: %s: %v", what, dir, err)
		}
		for dir, b := range good {
			replaceFile(t, m, data(dir), b)
		}
	}
}

func TestSavepointsAreListed(t *testing.T) {
	dir := t.TempDir()
	writeSavepointTo(t, dir, 7)
	writeSavepointTo(t, dir, 12)
	_, err := WriteSavepoint(ctx, SavepointConfig{Dir: dir}, savepointHead(7), savepointTasks())
	require.ErrorIs(t, err, fs.ErrExist, "never replaced")
	require.NoError(t, os.MkdirAll(dir+"/savepoint-my-shop-9-0000000000000abc", 0o755))
	require.NoError(t, os.WriteFile(dir+"/savepoint-my-shop-9-0000000000000abc/state.data", []byte("half"), 0o644))
	require.NoError(t, os.MkdirAll(dir+"/savepoint-other", 0o755))
	require.NoError(t, os.WriteFile(dir+"/savepoint-other/_metadata", nil, 0o644))
	require.NoError(t, os.MkdirAll(dir+"/savepoint-my-shop-8-0000000000000abc", 0o755))
	require.NoError(t, os.WriteFile(dir+"/savepoint-my-shop-8-0000000000000abc/0123456789abcdef.tmp", []byte("begun"), 0o644))
	list, err := ListSavepoints(ctx, dir)
	require.NoError(t, err)
	require.Len(t, list, 4)
	for i, id := range []int{12, 9, 8, 7} {
		require.Equal(t, nameOf(id, 0xabc), list[i].Name)
		require.Equal(t, "my-shop", list[i].Application)
		require.Equal(t, id == 9 || id == 8, list[i].Err != nil)
	}
	for i, bytes := range map[int]int{1: 4, 2: 5} {
		require.ErrorContains(t, list[i].Err, "never finished")
		require.EqualValues(t, bytes, list[i].Bytes, "what it takes of the disk, also of a kill while its state was written")
		require.NoError(t, DisposeSavepoint(ctx, list[i].Ref.Path))
	}
	require.Equal(t, "before-upgrade", list[0].Ref.ID)
	for _, bad := range []string{"", "s3://x/y", "file://x"} {
		_, err := ListSavepoints(ctx, bad)
		require.Equal(t, fault.BadFile, fault.CodeOf(err), bad)
	}
}

// One that was disposed of, or is called by a wrong path, is not taken for one that was never finished.
func TestASavepointThatIsNotThereIsCalledSo(t *testing.T) {
	dir := t.TempDir()
	ref := writeSavepointTo(t, dir, 7)
	require.NoError(t, DisposeSavepoint(ctx, ref.Path))
	_, err := OpenSavepoint(ctx, ref.Path)
	require.ErrorContains(t, err, "savepoint "+ref.Path+": it is not there")
	require.NotContains(t, err.Error(), "never finished")
	require.Equal(t, fault.Corrupt, fault.CodeOf(err))
	require.ErrorIs(t, err, ErrUnfinished, "to whoever claimed it there is no difference")
	_, err = OpenSavepoint(ctx, dir+"/below/savepoint-my-shop-7-0000000000000abc")
	require.ErrorContains(t, err, "savepoint directory "+dir+"/below")
}

func TestASavepointThatFailsLeavesNothing(t *testing.T) {
	dir, mine := t.TempDir(), errors.New("mine")
	for what, spoil := range map[string]func(*SavepointTask){
		"mine":                 func(s *SavepointTask) { s.Err = func() error { return mine } },
		"tombstone":            func(s *SavepointTask) { s.Entries = slices.Values(entriesOf(counts, change{"totals/acc|a": nil})) },
		"not a valid task":     func(s *SavepointTask) { s.Task.Source = "" },
		"another of its stage": func(s *SavepointTask) { s.Parallelism, s.MaxParallelism = 2, 128 },
	} {
		tasks := savepointTasks()
		spoil(&tasks[0])
		_, err := WriteSavepoint(ctx, SavepointConfig{Dir: dir}, savepointHead(7), tasks)
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, "savepoint before-upgrade: ")
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, what)
	}
	writeSavepointTo(t, dir, 7)
}

func TestOnlySavepointsAreDisposedOf(t *testing.T) {
	dir := t.TempDir()
	ref := writeSavepointTo(t, dir, 7)
	other := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(other, 0o755))
	link := filepath.Join(dir, "savepoint-my-shop-8-0000000000000abc")
	require.NoError(t, os.Symlink(ref.Path, link))
	foreign := filepath.Join(dir, "savepoint-my-shop-9-0000000000000abc")
	require.NoError(t, os.Mkdir(foreign, 0o755))
	require.NoError(t, os.WriteFile(foreign+"/_metadata", []byte("something else"), 0o644))
	for path, why := range map[string]string{other: "is named savepoint-", dir: "is named savepoint-", link: "no directory", foreign: "does not begin with",
		filepath.Join(dir, "savepoint-my-shop-1-0000000000000abc"): "no such file"} {
		err := DisposeSavepoint(ctx, path)
		require.ErrorContains(t, err, why)
		require.Equal(t, fault.Usage, fault.CodeOf(err))
	}
	note := ref.Path + "/notes.txt"
	require.NoError(t, os.WriteFile(note, nil, 0o644))
	require.ErrorContains(t, DisposeSavepoint(ctx, ref.Path), "it holds notes.txt")
	_, err := OpenSavepoint(ctx, ref.Path)
	require.NoError(t, err, "nothing is deleted")
	require.NoError(t, os.Remove(note))
	require.NoError(t, os.WriteFile(ref.Path+"/_metadata", []byte(savepointMagic+"damaged"), 0o644))
	require.NoError(t, os.WriteFile(ref.Path+"/0123456789abcdef.tmp", nil, 0o644))
	require.NoError(t, DisposeSavepoint(ctx, ref.Path), "a damaged one may go")
	require.NoDirExists(t, ref.Path)
	require.NoError(t, os.Remove(link))
	ref = writeSavepointTo(t, dir, 8)
	require.NoError(t, DisposeSavepoint(ctx, "file://"+ref.Path))
	require.NoDirExists(t, ref.Path)
	require.DirExists(t, foreign)
}

// TestASavepointIsWholeOrNotFinished cuts the power before each single file operation.
func TestASavepointIsWholeOrNotFinished(t *testing.T) {
	for n := 0; ; n++ {
		finished := false
		for _, keep := range []float64{0, 0.5, 1} {
			m := vfs.NewMem()
			m.CrashAt(n)
			_, err := WriteSavepoint(ctx, SavepointConfig{Storage: NewLocal(m, "/sp")}, savepointHead(7), savepointTasks())
			finished = err == nil
			m.Crash(keep, uint64(n))
			st := NewLocal(m, "/sp")
			list, err := listSavepoints(ctx, st)
			require.NoError(t, err)
			require.LessOrEqual(t, len(list), 1)
			require.True(t, !finished || len(list) == 1 && list[0].Err == nil, "operation %d: it was said to be durable", n)
			for _, info := range list {
				if info.Err != nil {
					require.ErrorContains(t, info.Err, "never finished", "operation %d", n)
					continue
				}
				s, err := readSavepoint(ctx, st, filepath.Base(info.Ref.Path))
				require.NoError(t, err)
				_, err = s.Verify(ctx)
				require.NoError(t, err, "operation %d", n)
			}
		}
		if finished {
			require.Greater(t, n, 8)
			return
		}
	}
}

func TestATwinIsTheOneThatWasWritten(t *testing.T) {
	ref := writeSavepointTo(t, t.TempDir(), 7)
	s, err := OpenTwin(ctx, ref)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, DisposeSavepoint(ctx, ref.Path))
	_, err = OpenTwin(ctx, ref)
	require.Error(t, err)
	head := savepointHead(7)
	head.CreatedUnixMilli++
	_, err = WriteSavepoint(ctx, SavepointConfig{Dir: filepath.Dir(ref.Path)}, head, savepointTasks())
	require.NoError(t, err)
	_, err = OpenTwin(ctx, ref)
	require.True(t, requireCorrupt(err, filepath.Base(ref.Path)+"/_metadata"), "%v", err)
}

// TestSavepointNames: an application's name may hold what separates the parts.
func TestSavepointNames(t *testing.T) {
	for name, app := range map[string]string{"savepoint-a-b-12-0000000000000001": "a-b", "savepoint-a-1-0000000000000001": "a"} {
		got, cp, ok := parseSavepointName(name)
		require.True(t, ok)
		require.Equal(t, app, got)
		require.True(t, strings.HasSuffix(name, "-"+cp))
	}
	for _, name := range []string{"", "savepoint-", "savepoint-a", "savepoint-a-1", "savepoint-1-0000000000000001", "savepoint-a-01-0000000000000001", "x-a-1-0000000000000001", "savepoint-a b-1-0000000000000001"} {
		_, _, ok := parseSavepointName(name)
		require.False(t, ok, name)
	}
}

// TestGoldenSavepointOfVersion1 reads a committed savepoint, and checks that today's writer still gives the same bytes.
// To write it after a deliberate change of the current version: go test ./snapshot -run Golden -update
func TestGoldenSavepointOfVersion1(t *testing.T) {
	goldenAt(t, writeSavepointTo(t, t.TempDir(), 7), "testdata/golden/savepoint-v1")
}

// Version 2 says what requests it serves, and is the same otherwise.
func TestGoldenSavepointOfVersion2(t *testing.T) {
	s := goldenAt(t, writeSavepointTo(t, t.TempDir(), 7, "r-2", "r-1"), "testdata/golden/savepoint-v2")
	require.Equal(t, []string{"r-1", "r-2"}, s.Requests)
}

func goldenAt(t *testing.T, made SavepointRef, at string) *Savepoint {
	dir := filepath.Join(at, filepath.Base(made.Path))
	for _, name := range []string{savepointMeta, savepointData} {
		b, err := os.ReadFile(filepath.Join(made.Path, name))
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
		}
		have, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, have, b, "%s is written differently than it was", name)
	}
	s, err := OpenSavepoint(ctx, dir)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Verify(ctx)
	require.NoError(t, err)
	require.Equal(t, savepointHead(7).Name, s.Root.Name)
	got, err := restoreSavepoint(s, subtask(1))
	require.NoError(t, err)
	require.Equal(t, "totals/acc|\"c\"=\"3\"\n", got.String())
	return s
}

// FuzzSavepoint: metadata as it is, and with a checksum that holds.
func FuzzSavepoint(f *testing.F) {
	ref := writeSavepointTo(f, f.TempDir(), 7)
	b, err := os.ReadFile(filepath.Join(ref.Path, savepointMeta))
	require.NoError(f, err)
	f.Add(b)
	f.Add(b[len(savepointMagic)+1 : len(b)-4])
	ref = writeSavepointTo(f, f.TempDir(), 7, "r-1", "r-2")
	b, err = os.ReadFile(filepath.Join(ref.Path, savepointMeta))
	require.NoError(f, err)
	f.Add(b)
	f.Add(b[len(savepointMagic)+1 : len(b)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, in := range [][]byte{b, seal(append([]byte(savepointMagic+"\x01"), b...)), seal(append([]byte(savepointMagic+"\x02"), b...))} {
			var ids savepointIDs
			var r *Root
			var err error
			bounded(t, len(in), func() { ids, r, err = decodeSavepoint(in) })
			if err == nil {
				require.Equal(t, in, encodeSavepoint(ids, r), "one savepoint has one encoding")
			}
		}
	})
}
