package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
)

// damaged is a store with two committed checkpoints and a merged run, to be damaged file by file.
type damaged struct {
	m     *vfs.Mem
	r     *Repository
	refs  []RootRef
	root  *Root
	files map[string][]byte
}

func newDamaged(t testing.TB) *damaged {
	d := &damaged{m: vfs.NewMem(), files: map[string][]byte{}}
	d.r = openRepo(t, d.m, "i-0")
	ref1, root1 := mustCheckpoint(t, d.r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1"), "last/seen|a": val("x")}, taskB: {"totals/acc|b": val("1")}})
	full, err := d.r.Merge(ctx, nameOf(1, 1), root1.Tasks[0])
	require.NoError(t, err)
	root1.Tasks[0].Runs = []RunRef{full}
	ref2, root2 := mustCheckpoint(t, d.r, 2, 1, &ref1, root1, map[element.TaskID]change{taskA: {"totals/acc|a": val("2")}, taskB: {"totals/acc|b": nil}})
	ref3, root3 := mustCheckpoint(t, d.r, 3, 1, &ref2, root2, map[element.TaskID]change{taskA: {"totals/acc|a": val("3")}, taskB: {"totals/acc|b": val("3")}})
	d.refs, d.root = []RootRef{ref1, ref2, ref3}, root3
	require.NoError(t, d.r.AnnounceFor(ctx, "cluster-1"))
	d.commit(t)
	return d
}

// newDamagedStages has a stage behind an exchange: runs and records in flight, inline and in a file.
func newDamagedStages(t testing.TB) *damaged {
	d := &damaged{m: vfs.NewMem(), files: map[string][]byte{}}
	d.r = openRepo(t, d.m, "i-0")
	ref2, root2 := mustCheckpoint(t, d.r, 2, 0xabc, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|alice": val("1")}, taskB: {"totals/acc|b": val("1")}})
	d.refs = []RootRef{ref2, goldenExchange(t, d.m, ref2, root2)}
	var err error
	d.root, err = d.r.ReadRoot(ctx, d.refs[1])
	require.NoError(t, err)
	d.commit(t)
	return d
}

// commit marks all roots and notes the files.
func (d *damaged) commit(t testing.TB) {
	for _, ref := range d.refs {
		require.NoError(t, d.r.MarkCommitted(ctx, ref))
	}
	for _, f := range listAll(t, d.r) {
		d.files[f] = readFile(t, d.m, f)
	}
}

// detect reads everything that a recovery and the tools read, with a new Repository.
func (d *damaged) detect() error {
	r, err := OpenRepository(ctx, config(d.m, "i-0"))
	if err != nil {
		return err
	}
	for _, ref := range d.refs {
		root, err := r.ReadRoot(ctx, ref)
		if err != nil {
			return err
		}
		for _, e := range root.Tasks {
			if _, err := r.Verify(ctx, e); err != nil {
				return err
			}
		}
	}
	infos, err := r.List(ctx)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if info.Err != nil {
			return info.Err
		}
	}
	_, damage, err := r.VerifyAnnouncements(ctx)
	if err == nil && len(damage) > 0 {
		err = damage[0]
	}
	r.cluster = "cluster-1"
	started := r.refuseOtherClusters(ctx)
	if err != nil && strings.Contains(err.Error(), "another checkpoint directory") {
		return errors.Join(started, err) // which is harmless at the start: the handles tell whose directory it is
	}
	if fmt.Sprint(started) != fmt.Sprint(err) {
		return fmt.Errorf("the tools say %v, the start says %v", err, started)
	}
	return err
}

// check damages one file, expects it to be noticed and named, nothing deleted or rewritten, and puts it back.
func (d *damaged) check(t *testing.T, file string, content []byte, what string, args ...any) {
	t.Helper()
	replaceFile(t, d.m, file, content)
	err := d.detect()
	if !requireCorrupt(err, file) {
		t.Fatalf("%s: "+what+": not detected or not named: %v", append([]any{file}, append(args, err)...)...)
	}
	replaceFile(t, d.m, file, d.files[file])
}

// requireCorrupt tells whether an error names a file, what kind it is and whose, and is classed as damage.
func requireCorrupt(err error, file string) bool {
	checkpoint, kind := ofFile(file)
	return isCorrupt(err, file, checkpoint, kind)
}

func isCorrupt(err error, file, checkpoint, kind string) bool {
	var c *CorruptError
	return errors.As(err, &c) && c.File == file && c.Checkpoint == checkpoint && c.Kind == kind &&
		fault.CodeOf(err) == fault.Corrupt && fault.RecoveryOf(err) == fault.Stop
}

// ofFile gives what an error has to say of a file: the checkpoint, or the directory of the savepoint, and the kind.
func ofFile(file string) (checkpoint, kind string) {
	dir, base, _ := strings.Cut(file, "/")
	p := parseFilePath(file)
	switch {
	case file == storeIDFile:
		return "", KindStoreID
	case base == savepointMeta:
		return dir, "savepoint"
	case base == savepointData:
		return dir, "run"
	case p.kind == rootFile:
		return p.name.String(), "root"
	case p.kind == markerFile:
		return p.name.String(), "marker"
	case p.kind == packFile, p.kind == fullFile:
		return p.name.String(), "run"
	}
	return "", KindAnnouncement
}

func TestDamageOfEveryFileIsDetected(t *testing.T) {
	t.Run("tasks of sources", func(t *testing.T) { damageEveryFile(t, newDamaged(t)) })
	t.Run("stages", func(t *testing.T) { damageEveryFile(t, newDamagedStages(t)) })
}

func damageEveryFile(t *testing.T, d *damaged) {
	require.NoError(t, d.detect())
	mutants := 0
	for file, good := range d.files {
		for i := range good {
			for bit := range 8 {
				if raceDetector && (i+bit)%11 != 0 {
					continue
				}
				b := append([]byte(nil), good...)
				b[i] ^= 1 << bit
				d.check(t, file, b, "byte %d bit %d", i, bit)
				mutants++
			}
			if !raceDetector || i%11 == 0 {
				d.check(t, file, good[:i], "cut at %d", i)
				mutants++
			}
		}
		d.check(t, file, append(append([]byte(nil), good...), 0), "a byte more")
		d.check(t, file, append(append([]byte(nil), good...), good...), "twice")
		d.check(t, file, make([]byte, len(good)), "zero page")
		mutants += 3
		for other, b := range d.files {
			if other != file {
				d.check(t, file, b, "content of %s", other)
				mutants++
			}
		}
		mutants += d.otherVersions(t, file)
	}
	require.NoError(t, d.detect())
	require.Len(t, listAll(t, d.r), len(d.files))
	t.Logf("%d mutants of %d files", mutants, len(d.files))
}

func TestSwappedAndStaleFilesAreDetected(t *testing.T) {
	d := newDamaged(t)
	other := newDamaged(t) // same content and names, another store
	for file, b := range other.files {
		if file != storeIDFile && string(b) != string(d.files[file]) { // runs hold nothing of the store: they are the same
			d.check(t, file, b, "file of another directory")
		}
	}
	replaceFile(t, d.m, storeIDFile, other.files[storeIDFile])
	err := d.detect()
	require.Equal(t, fault.Corrupt, fault.CodeOf(err))
	require.ErrorContains(t, err, "another checkpoint directory")
	replaceFile(t, d.m, storeIDFile, d.files[storeIDFile])

	packs := []string{"shop/i-0/chk-" + nameOf(2, 1).String() + ".data", "shop/i-0/chk-" + nameOf(3, 1).String() + ".data"}
	replaceFile(t, d.m, packs[0], d.files[packs[1]])
	replaceFile(t, d.m, packs[1], d.files[packs[0]])
	err = d.detect()
	require.True(t, requireCorrupt(err, packs[0]), "%v", err)
}

func TestMissingFilesAreNamed(t *testing.T) {
	d := newDamaged(t)
	for file := range d.files {
		if _, announced := announcedBy(file); parseFilePath(file).kind == markerFile || announced {
			continue // see TestAnAnnouncementThatIsMissingOrStaleIsHarmless
		}
		require.NoError(t, d.m.Remove(file))
		err := d.detect()
		require.True(t, requireCorrupt(err, file), "%s: %v", file, err)
		require.ErrorContains(t, err, "missing")
		replaceFile(t, d.m, file, d.files[file])
	}
}

func TestBrokenChainsAreRefused(t *testing.T) {
	d := newDamaged(t)
	e := *d.root.Task(taskB)
	require.Len(t, e.Runs, 3)
	a, b, c := e.Runs[0], e.Runs[1], e.Runs[2]
	for what, runs := range map[string][]RunRef{
		"hole":                 {a, c},
		"hole: run 1":          {b, c},
		"overlap":              {a, a},
		"overlap: run 3":       {a, b, b},
		"only the first may":   {a, d.root.Task(taskA).Runs[0]},
		"hole: run 1 of 1 (sh": {c},
	} {
		e.Runs = runs
		_, err := d.r.Verify(ctx, e)
		require.ErrorContains(t, err, what)
		require.Equal(t, fault.Corrupt, fault.CodeOf(err))
		_, err = d.r.Merge(ctx, nameOf(9, 9), e)
		require.ErrorContains(t, err, what)
		root := *d.root
		root.Name, root.Tasks = nameOf(9, 9), []TaskEntry{e}
		_, err = d.r.WriteRoot(ctx, &root)
		require.ErrorContains(t, err, what)
	}
	e.Runs = []RunRef{a, b, c}
	e.Task = taskA
	_, err := d.r.Verify(ctx, e)
	require.ErrorContains(t, err, "task orders-0")
	e.Task = taskB
	e.States = counts[1:]
	_, err = d.r.Verify(ctx, e)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	e.States = []StateInfo{{Name: "totals/acc", KeyCodec: "string", Codec: "double"}, counts[1]}
	_, err = d.r.Verify(ctx, e)
	require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
	require.ErrorContains(t, err, `"int64"`)
	require.ErrorContains(t, err, `"double"`)
}

// TestNoDamagedByteReachesTheCaller: entries are given out while the run is read, so each block is checked before.
func TestNoDamagedByteReachesTheCaller(t *testing.T) {
	d := newDamaged(t)
	for _, e := range d.root.Tasks {
		genuine := map[string]bool{}
		key := func(en Entry) string { return fmt.Sprintf("%d %q %q %t", en.State, en.Key, en.Value, en.Deleted) }
		_, err := d.r.Restore(ctx, e, nil, func(en Entry) error { genuine[key(en)] = true; return nil })
		require.NoError(t, err)
		for _, run := range e.Runs {
			for i := run.Offset; i < run.Offset+run.Length; i++ {
				b := append([]byte(nil), d.files[run.File]...)
				b[i] ^= 1 << (i % 8)
				replaceFile(t, d.m, run.File, b)
				_, err := d.r.Restore(ctx, e, nil, func(en Entry) error {
					require.True(t, genuine[key(en)], "byte %d: %s", i, key(en))
					return nil
				})
				require.True(t, requireCorrupt(err, run.File), "%v", err)
			}
			replaceFile(t, d.m, run.File, d.files[run.File])
		}
	}
}

// TestAnotherRootUnderTheRightNameIsRefused: it is whole in itself, but not the one that was committed.
func TestAnotherRootUnderTheRightNameIsRefused(t *testing.T) {
	d := newDamaged(t)
	ref := d.refs[2]
	root, err := decodeRoot(d.files[ref.Path])
	require.NoError(t, err)
	root.CreatedUnixMilli++
	replaceFile(t, d.m, ref.Path, encodeRoot(root))
	_, err = d.r.ReadRoot(ctx, ref)
	require.True(t, requireCorrupt(err, ref.Path), "%v", err)
	require.ErrorContains(t, err, "not the root that was committed")
	_, err = d.r.Clean(ctx, nil, says())
	require.True(t, requireCorrupt(err, ref.Path), "its marker tells: %v", err)
	infos, err := d.r.List(ctx)
	require.NoError(t, err)
	require.False(t, infos[0].Committed)
	require.ErrorContains(t, infos[0].Err, "marker")
}

func TestOneNumberHasOneEncoding(t *testing.T) {
	for _, b := range [][]byte{{0x80, 0x00}, {0xff, 0x80, 0x00}, {0x80}, {}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}} {
		c := &cursor{b: b}
		c.uvarint("x")
		require.Error(t, c.end(), "%x", b)
	}
	for _, v := range []uint64{0, 127, 128, 1<<64 - 1} {
		c := &cursor{b: binary.AppendUvarint(nil, v)}
		require.Equal(t, v, c.uvarint("x"))
		require.NoError(t, c.end())
	}
}

// TestNoDamagedInlineByteReachesTheCaller: the checksums of a root would have to be forged for it, but a run in a root is
// verified as one in a file is.
func TestNoDamagedInlineByteReachesTheCaller(t *testing.T) {
	d := newDamagedStages(t)
	inline := 0
	for i := range d.root.Tasks {
		for _, runs := range [][]RunRef{d.root.Tasks[i].Runs, d.root.Tasks[i].InFlight} {
			for k := range runs {
				if !runs[k].IsInline() {
					continue
				}
				inline++
				good, e := runs[k].Inline, &d.root.Tasks[i]
				genuine := map[string]bool{}
				read := func() error {
					_, err := d.r.Restore(ctx, *e, nil, func(en Entry) error {
						if k := fmt.Sprintf("%d %q %q", en.State, en.Key, en.Value); len(genuine) == 0 || !genuine["all"] {
							genuine[k] = true
						} else {
							require.True(t, genuine[k], k)
						}
						return nil
					})
					if err == nil {
						_, err = d.r.RestoreInFlight(ctx, *e, nil, func(g int, b []byte) error {
							if k := fmt.Sprintf("flying %d %q", g, b); !genuine["all"] {
								genuine[k] = true
							} else {
								require.True(t, genuine[k], k)
							}
							return nil
						})
					}
					return err
				}
				require.NoError(t, read())
				genuine["all"] = true
				run := func(err error) bool { // a run, though the file is that of the root
					return isCorrupt(err, runs[k].File, parseFilePath(runs[k].File).name.String(), "run")
				}
				for _, v := range []byte{0, runVersion + 1} {
					b := []byte(good)
					reversion(b, v)
					runs[k].Inline = string(b)
					err := read()
					require.True(t, run(err), "version %d: %v", v, err)
					require.ErrorContains(t, err, formatVersion(int(v)))
				}
				for at := range good {
					b := []byte(good)
					b[at] ^= 1 << (at % 8)
					runs[k].Inline = string(b)
					require.True(t, run(read()), "byte %d", at)
					_, err := decodeRoot(encodeRoot(d.root))
					require.NoError(t, err, "it is a root all the same")
					if at > 0 {
						runs[k].Inline, runs[k].Length = good[:at], int64(at)
						require.True(t, run(read()), "cut at %d", at)
						runs[k].Length = int64(len(good))
					}
				}
				runs[k].Inline = good
			}
		}
	}
	require.Equal(t, 3, inline)
}

// TestRunsOfOneKindAreNotTakenForTheOther: of state and of records in flight, of this and of another task.
func TestRunsOfOneKindAreNotTakenForTheOther(t *testing.T) {
	d := newDamagedStages(t)
	small, large := *d.root.Task(subtask(0)), *d.root.Task(subtask(1))
	none := func(int, []byte) error { t.Fatal("given out"); return nil }
	for what, e := range map[string]TaskEntry{
		"state":   {Task: small.Task, States: small.States, InFlight: small.Runs},
		"another": {Task: small.Task, States: small.States, InFlight: large.InFlight},
		"forged":  {Task: small.Task, States: small.States, InFlight: []RunRef{func() RunRef { r := small.Runs[0]; r.From = r.To; return r }()}},
	} {
		_, err := d.r.RestoreInFlight(ctx, e, nil, none)
		require.True(t, errors.As(err, new(*CorruptError)), "%s: %v", what, err)
		require.Equal(t, fault.Corrupt, fault.CodeOf(err))
	}
	e := small
	e.Runs = small.InFlight
	_, err := d.r.Restore(ctx, e, nil, func(Entry) error { t.Fatal("given out"); return nil })
	require.True(t, errors.As(err, new(*CorruptError)), "%v", err)
	e.Runs = []RunRef{small.InFlight[0]}
	e.Runs[0].From = 0
	_, err = d.r.Restore(ctx, e, nil, func(Entry) error { t.Fatal("given out"); return nil })
	require.True(t, errors.As(err, new(*CorruptError)), "%v", err)
	e = small
	e.MaxParallelism = 8
	_, err = d.r.RestoreInFlight(ctx, e, nil, func(int, []byte) error { return nil })
	require.NoError(t, err)
	e.MaxParallelism = 7 // group 7 is none of these
	_, err = d.r.RestoreInFlight(ctx, e, nil, func(int, []byte) error { return nil })
	require.Error(t, err)
}

func TestInFlightErrorsAreTheCallers(t *testing.T) {
	d := newDamagedStages(t)
	e := *d.root.Task(subtask(0))
	mine := errors.New("mine")
	_, err := d.r.RestoreInFlight(ctx, e, nil, func(int, []byte) error { return mine })
	require.Equal(t, mine, err)
	bad := delta(subtask(0), counts, 0, 9, change{})
	bad.InFlight = func(add func(int, []byte) error) error {
		require.NoError(t, add(1, nil))
		return mine
	}
	_, err = d.r.Persist(ctx, nameOf(9, 9), []TaskDelta{bad})
	require.ErrorIs(t, err, mine)
	for _, group := range []int{-2, maxGroups} {
		bad.InFlight = inFlightOf(flying{group, "x"})
		_, err = d.r.Persist(ctx, nameOf(9, 9), []TaskDelta{bad})
		require.ErrorContains(t, err, "key group")
	}
	bad.InFlight = inFlightOf()
	parts, err := d.r.Persist(ctx, nameOf(9, 9), []TaskDelta{bad})
	require.NoError(t, err)
	require.Zero(t, parts[0])
}
