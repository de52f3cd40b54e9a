package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/internal/vfs"
	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// oddStore is a real directory with checkpoint 1 and, complete in itself, checkpoint 2 with records in flight, both committed.
type oddStore struct {
	t    *testing.T
	dir  string
	refs [3]RootRef
	task element.TaskID
	run  string // of checkpoint 2
}

func newOddStore(t *testing.T) *oddStore {
	s := &oddStore{t: t, dir: t.TempDir(), task: taskA}
	r, err := OpenRepository(ctx, Config{Dir: s.dir, Application: "shop", Instance: "i-0", NumRetained: 3, Logger: silent})
	require.NoError(t, err)
	defer r.Close()
	for id := 1; id <= 2; id++ {
		d := delta(taskA, counts, 0, id, change{"totals/acc|a": val(strings.Repeat("x", 100))})
		d.Full = true
		d.InFlight = inFlightOf(flying{-1, "a"}, flying{2, "b"})
		parts, err := r.Persist(ctx, nameOf(id, 1), []TaskDelta{d})
		require.NoError(t, err)
		root := &Root{Name: nameOf(id, 1), ClusterID: "cluster-1", CreatedUnixMilli: 1700000000000}
		if id == 2 {
			root.Predecessor = &s.refs[1]
		}
		root.Tasks = []TaskEntry{{Task: taskA, States: counts, Positions: []element.Position{position(0, int64(id)*100)}, Runs: []RunRef{parts[0].Run}, InFlight: []RunRef{parts[0].InFlight}}}
		s.refs[id], err = r.WriteRoot(ctx, root)
		require.NoError(t, err)
		require.NoError(t, r.MarkCommitted(ctx, s.refs[id]))
		s.run = parts[0].Run.File
	}
	require.NoError(t, r.AnnounceFor(ctx, "cluster-1"))
	return s
}

func (s *oddStore) path(name string) string { return filepath.Join(s.dir, name) }

func (s *oddStore) beside(suffix string) string {
	return strings.TrimSuffix(s.refs[2].Path, rootSuffix) + suffix
}

// names are all names below the directory, with what they are.
func (s *oddStore) names() map[string]fs.FileMode {
	out := map[string]fs.FileMode{}
	require.NoError(s.t, filepath.WalkDir(s.dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && p != s.dir {
			out[p] = d.Type()
		}
		return err
	}))
	return out
}

// start opens the directory as a service does, and restores the newest checkpoint.
func (s *oddStore) start() error {
	r, err := OpenRepository(ctx, Config{Dir: s.dir, Application: "shop", Instance: "i-0", NumRetained: 3, Logger: silent})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.AnnounceFor(ctx, "cluster-1"); err != nil {
		return err
	}
	roots, err := r.LoadRoots(ctx, []RootRef{s.refs[2]})
	if err != nil {
		return err
	}
	l := roots[s.refs[2]]
	if l.Err != nil {
		return l.Err
	}
	if _, err := r.CommittedAfter(ctx, 1); err != nil {
		return err
	}
	e := *l.Root.Task(s.task)
	if err := r.Present(ctx, e); err != nil {
		return err
	}
	if _, err := restoreModel(r, e); err != nil {
		return err
	}
	_, err = r.RestoreInFlight(ctx, e, nil, func(int, []byte) error { return nil })
	return err
}

// verify gives all damage, by checkpoint.
func (s *oddStore) verify() (map[element.CheckpointID][]error, error) {
	r, err := OpenRepository(ctx, Config{Dir: s.dir, Application: "shop", ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out := map[element.CheckpointID][]error{}
	if err := r.VerifyAll(ctx, nil, func(v Verified) { out[v.Ref.Name.ID] = v.Damage }); err != nil {
		return nil, err
	}
	_, out[0], err = r.VerifyAnnouncements(ctx)
	return out, err
}

// survey gives the newest checkpoint that a recovery takes, and how many are listed.
func (s *oddStore) survey() (taken element.CheckpointID, listed int, err error) {
	r, err := OpenRepository(ctx, Config{Dir: s.dir, Application: "shop", ReadOnly: true})
	if err != nil {
		return 0, 0, err
	}
	defer r.Close()
	if _, err := r.LoadVerified(ctx, []RootRef{s.refs[2]}); err != nil {
		return 0, 0, err
	}
	infos, err := r.Survey(ctx)
	for i := range infos {
		if infos[i].usable() {
			taken = max(taken, infos[i].Ref.Name.ID)
		}
	}
	return taken, len(infos), err
}

// Whatever has the name of a checkpoint file in place of a file: it is damage of that file, named with what it is; the start
// refuses, the tools go on to the next, a recovery takes the next whole one; nothing blocks and nothing is changed.
func TestWhatIsNoFileIsDamageOfThatFile(t *testing.T) {
	s := newOddStore(t)
	require.NoError(t, s.start())
	for _, f := range []struct {
		kind, name string
		at         element.CheckpointID // whose damage it is; 0: of no checkpoint
		starts     bool                 // a marker stops nobody
		taken      element.CheckpointID // by a recovery; 0: none
	}{
		{"root", s.refs[2].Path, 2, false, 1},
		{"run", s.run, 2, false, 1},
		{"marker", s.beside(markerSuffix), 2, true, 1},
		{KindStoreID, storeIDFile, 0, false, 0},
		{KindAnnouncement, "shop/i-0/instance", 0, false, 2},
	} {
		for _, kind := range vfstest.Kinds() {
			t.Run(f.kind+": "+kind.Name, func(t *testing.T) {
				back, ok := kind.Replace(t, s.path(f.name))
				if !ok {
					return
				}
				defer back()
				before := s.names()
				is := func(err error) {
					t.Helper()
					var bad *CorruptError
					require.ErrorAs(t, err, &bad)
					require.Equal(t, []string{f.kind, f.name, "it is " + kind.What + ", not a file"}, []string{bad.Kind, bad.File, bad.Reason})
					if f.at > 0 {
						require.Equal(t, s.refs[f.at].Name.String(), bad.Checkpoint)
					}
					require.Equal(t, fault.Corrupt, fault.CodeOf(err))
					require.Equal(t, fault.Stop, fault.RecoveryOf(err))
				}
				var started, verified, surveyed error
				var damage map[element.CheckpointID][]error
				var taken element.CheckpointID
				var listed int
				done := make(chan struct{})
				go func() {
					defer close(done)
					started = s.start()
					damage, verified = s.verify()
					taken, listed, surveyed = s.survey()
				}()
				select {
				case <-done:
				case <-time.After(10 * time.Second):
					require.Fail(t, "it blocks")
				}
				if f.starts {
					require.NoError(t, started)
				} else {
					is(started)
				}
				require.Equal(t, f.taken, taken)
				if f.kind == KindStoreID {
					is(verified)
					is(surveyed)
				} else {
					require.NoError(t, verified)
					require.NoError(t, surveyed)
					require.Equal(t, 2, listed, "none is taken for absent")
					require.Len(t, damage, 3, "and none is left out")
					require.NotEmpty(t, damage[f.at])
				}
				for id, errs := range damage {
					for _, err := range errs {
						require.Equal(t, f.at, id)
						is(err)
					}
				}
				require.Equal(t, before, s.names())
			})
		}
	}
	require.NoError(t, s.start())
}

// The same of the two files of a savepoint.
func TestWhatIsNoFileIsDamageOfASavepoint(t *testing.T) {
	dir := t.TempDir()
	ref := writeSavepointTo(t, dir, 7)
	other := writeSavepointTo(t, dir, 8)
	for _, name := range []string{savepointMeta, savepointData} {
		for _, kind := range vfstest.Kinds() {
			t.Run(name+": "+kind.Name, func(t *testing.T) {
				back, ok := kind.Replace(t, filepath.Join(ref.Path, name))
				if !ok {
					return
				}
				defer back()
				s, err := OpenSavepoint(ctx, ref.Path)
				if name == savepointData {
					require.NoError(t, err)
					_, err = s.Verify(ctx)
					require.NoError(t, s.Close())
				}
				var bad *CorruptError
				require.ErrorAs(t, err, &bad)
				require.Equal(t, []string{filepath.Base(ref.Path), filepath.Base(ref.Path) + "/" + name, "it is " + kind.What + ", not a file"}, []string{bad.Checkpoint, bad.File, bad.Reason})
				require.Equal(t, fault.Corrupt, fault.CodeOf(err))
				list, err := ListSavepoints(ctx, dir)
				require.NoError(t, err)
				require.Len(t, list, 2)
				require.Equal(t, other.Path, list[0].Ref.Path)
				require.NoError(t, list[0].Err)
				require.Equal(t, name == savepointMeta, list[1].Err != nil)
				require.ErrorContains(t, DisposeSavepoint(ctx, ref.Path), "it holds "+name)
			})
		}
	}
}

// A root that is no file is listed; nothing deletes it, nor what lies in a directory of its name.
func TestWhatIsNoFileIsNeverDeleted(t *testing.T) {
	s := newOddStore(t)
	require.NoError(t, os.Remove(s.path(s.beside(dataSuffix))))
	require.NoError(t, os.Mkdir(s.path(s.beside(dataSuffix)), 0o755))
	require.NoError(t, os.Remove(s.path(s.refs[2].Path)))
	require.NoError(t, os.Symlink(s.path(s.refs[1].Path), s.path(s.refs[2].Path)))
	before := s.names()
	r, err := OpenRepository(ctx, Config{Dir: s.dir, Application: "shop", Instance: "i-0", NumRetained: 1, Logger: silent})
	require.NoError(t, err)
	defer r.Close()
	_, err = r.Clean(ctx, nil, says())
	require.True(t, requireCorrupt(err, s.refs[2].Path), "%v", err)
	require.ErrorContains(t, err, "nothing is deleted")
	require.Equal(t, before, s.names())
	h, err := HoldingsOf(ctx, r.st, "shop")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{s.refs[2].Path, s.beside(dataSuffix)}, h.Foreign)
	require.Equal(t, []string{s.refs[2].Path}, h.InTheWay)
	require.NoError(t, h.Remove(ctx, r.st))
	for _, name := range h.Foreign {
		_, err := os.Lstat(s.path(name))
		require.NoError(t, err)
	}
}

// A directory on the way that is a link out of the store, or nowhere, is told as that; within the store it is followed.
func TestADirectoryThatIsALink(t *testing.T) {
	for _, name := range []string{"shop", "shop/i-0"} {
		for to, says := range map[string]string{"in": "", "out": "which leads out of the directory or nowhere", "nowhere": "which leads out of the directory or nowhere"} {
			t.Run(name+": "+to, func(t *testing.T) {
				s := newOddStore(t)
				away := map[string]string{"in": s.path("moved"), "out": filepath.Join(t.TempDir(), "moved"), "nowhere": s.path("moved")}[to]
				require.NoError(t, os.Rename(s.path(name), away))
				target := away
				if to == "in" {
					target = strings.Repeat("../", strings.Count(name, "/")) + "moved"
				} else if to == "nowhere" {
					target = "gone"
				}
				require.NoError(t, os.Symlink(target, s.path(name)))
				serr := s.start()
				r, err := OpenRepository(ctx, Config{Dir: s.dir, Application: "shop", ReadOnly: true})
				require.NoError(t, err)
				defer r.Close()
				infos, err := r.List(ctx)
				if to == "in" {
					require.NoError(t, serr)
					require.NoError(t, err)
					require.Len(t, infos, 2)
					return
				}
				for _, err := range []error{serr, err} {
					require.ErrorContains(t, err, name+" is a symbolic link to "+target+", "+says)
					require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
					require.Equal(t, fault.Stop, fault.RecoveryOf(err))
				}
			})
		}
	}
}

// A file that the medium cannot give is damage where it gives others, and an error of the directory where it gives none. One
// that the rights do not allow to be read is neither damaged nor passed over.
func TestAFileThatCannotBeReadIsNamed(t *testing.T) {
	m := vfs.NewMem()
	r := openRepo(t, m, "i-0")
	one, root := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}})
	two, root := mustCheckpoint(t, r, 2, 1, &one, root, map[element.TaskID]change{taskA: {"totals/acc|a": val("2")}})
	for _, ref := range []RootRef{one, two} {
		require.NoError(t, r.MarkCommitted(ctx, ref))
	}
	marker := strings.TrimSuffix(two.Path, rootSuffix) + markerSuffix
	for kind, name := range map[string]string{"root": two.Path, "run": root.Tasks[0].Runs[1].File, "marker": marker} {
		for _, cause := range []error{syscall.EIO, syscall.EUCLEAN, syscall.EBADMSG, syscall.EACCES} {
			for _, op := range []vfs.OpKind{vfs.OpOpen, vfs.OpRead} {
				if op == vfs.OpRead && errors.Is(cause, syscall.EACCES) {
					continue
				}
				t.Run(kind+": "+cause.Error()+" at "+op.String(), func(t *testing.T) {
					m.SetFault(func(o vfs.Op) error {
						if o.Kind == op && o.Name == name {
							return cause
						}
						return nil
					})
					defer m.SetFault(nil)
					verdict := map[element.CheckpointID]error{}
					require.NoError(t, r.VerifyAll(ctx, nil, func(v Verified) { verdict[v.Ref.Name.ID] = errors.Join(v.Damage...) }))
					require.Len(t, verdict, 2)
					require.NoError(t, verdict[1])
					err := verdict[2]
					require.ErrorContains(t, err, "checkpoint "+two.Name.String()+": "+kind+" "+name)
					require.ErrorContains(t, err, "cannot be read: "+cause.Error())
					infos, serr := r.Survey(ctx)
					if errors.Is(cause, syscall.EACCES) {
						require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
						require.Equal(t, fault.Stop, fault.RecoveryOf(err))
						require.False(t, isDamage(err))
						require.ErrorIs(t, serr, syscall.EACCES, "a recovery does not pass it over")
						require.ErrorContains(t, serr, name)
						_, err := r.LoadRoots(ctx, []RootRef{two})
						if err == nil {
							_, err = r.CommittedAfter(ctx, 1)
						}
						if err == nil {
							_, err = restoreModel(r, root.Tasks[0])
						}
						if kind != "marker" { // which a start does not read
							require.ErrorContains(t, err, kind+" "+name+" cannot be read")
							require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
							require.Equal(t, fault.Stop, fault.RecoveryOf(err))
						}
						return
					}
					require.Equal(t, fault.Corrupt, fault.CodeOf(err))
					require.NoError(t, serr)
					require.Error(t, infos[0].Err)
					require.True(t, infos[1].usable())
				})
			}
		}
	}
	// Everything fails: the directory is told of, and another attempt may cure it.
	m.SetFault(func(o vfs.Op) error {
		if o.Kind == vfs.OpOpen {
			return syscall.EIO
		}
		return nil
	})
	_, err := r.ReadRoot(ctx, two)
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	require.Equal(t, fault.Restart, fault.RecoveryOf(err))
}

// brokenFS has names whose inodes are broken: neither looked at nor opened, but in the directory.
type brokenFS struct {
	vfs.FS
	broken map[string]bool
}

func (b *brokenFS) err(name string) error {
	if b.broken[name] {
		return &fs.PathError{Op: "lstat", Path: name, Err: syscall.EUCLEAN}
	}
	return nil
}

func (b *brokenFS) Open(name string) (vfs.File, error) {
	if err := b.err(name); err != nil {
		return nil, err
	}
	return b.FS.Open(name)
}

func (b *brokenFS) ReadDir(dir string) ([]vfs.Entry, error) {
	if err := b.err(dir); err != nil {
		return nil, err
	}
	list, err := b.FS.ReadDir(dir)
	for i := range list {
		if err := b.err(filepath.ToSlash(filepath.Join(dir, list[i].Name))); err != nil {
			list[i] = vfs.Entry{Name: list[i].Name, What: "of an unknown kind", Err: err}
		}
	}
	return list, err
}

// A broken inode is damage of its file; that of an instance's directory, in which any checkpoint may lie, is an error of all.
func TestABrokenInodeIsNotAbsence(t *testing.T) {
	m := &brokenFS{FS: vfs.NewMem(), broken: map[string]bool{}}
	r := openRepo(t, m, "i-0")
	ref, root := mustCheckpoint(t, r, 1, 1, nil, nil, map[element.TaskID]change{taskA: {"totals/acc|a": val("1")}})
	require.NoError(t, r.MarkCommitted(ctx, ref))
	run := root.Tasks[0].Runs[0].File
	marker := strings.TrimSuffix(ref.Path, rootSuffix) + markerSuffix
	for kind, name := range map[string]string{"root": ref.Path, "run": run, "marker": marker} {
		m.broken = map[string]bool{name: true, "shop/i-0/foreign": true}
		var damage []error
		require.NoError(t, r.VerifyAll(ctx, nil, func(v Verified) { damage = append(damage, v.Damage...) }))
		require.NotEmpty(t, damage, kind)
		for _, err := range damage {
			require.True(t, requireCorrupt(err, name), "%v", err)
			require.ErrorContains(t, err, "it cannot be read: "+syscall.EUCLEAN.Error())
		}
	}
	m.broken = map[string]bool{ref.Path: true, marker: true, run: true}
	infos, err := r.List(ctx)
	require.NoError(t, err)
	refusesUnread(t, infos, ref.Path)
	m.broken = map[string]bool{"shop/i-0": true}
	_, err = r.List(ctx)
	require.ErrorIs(t, err, syscall.EUCLEAN)
	require.Equal(t, fault.CheckpointDir, fault.CodeOf(err))
	m.broken = nil
	require.NoError(t, r.VerifyAll(ctx, nil, func(v Verified) { require.Empty(t, v.Damage) }))
}

// The directory of an instance that is gone may be a link to one elsewhere in the store. Removing that would succeed whatever
// lies behind it.
func TestALinkedDirectoryIsNotRetired(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "shop", "elsewhere"), 0o755))
	file := filepath.Join(dir, "shop", "i-0", "file")
	require.NoError(t, os.Symlink("elsewhere", filepath.Dir(file)))
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o644))
	l, err := OpenLocal(dir)
	require.NoError(t, err)
	defer l.Close()
	for _, left := range []bool{true, false} { // with and without something in it
		gone, err := l.Retire(ctx, "shop/i-0/", time.Now())
		require.NoError(t, err)
		require.False(t, gone)
		if left {
			require.FileExists(t, file)
			require.NoError(t, os.Remove(file))
		}
	}
}
