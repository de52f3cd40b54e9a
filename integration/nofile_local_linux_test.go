package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// Whatever takes the place of the local copy's files and directories, or of old spilled state: the service goes on from the
// checkpoint, waits for nothing, and its output is exact. The lock and the id of the instance are refused in one line.
func TestTheServiceGoesOnWhateverItsLocalCopyIs(t *testing.T) {
	s := embeddedSite(t, 1)
	file := s.file(totals)
	s.orders(0, 500, 50)
	s.goesOn(file)
	kinds := map[string]vfstest.Kind{}
	for _, k := range vfstest.Kinds() {
		kinds[k.Name] = k
	}
	local := filepath.Join("local", s.app)
	for i, c := range []struct{ place, kind, says string }{
		{local + "/local-state/db/MANIFEST", "named pipe", "will be built anew"},
		{local + "/local-state/opening", "named pipe", "will be built anew"},
		{local + "/local-state/db", "device", "will be built anew"},
		{local + "/local-state/lock", "dangling link", "IS DISABLED"},
		{local, "named pipe", "IS DISABLED"},
	} {
		t.Run(c.place+": "+c.kind, func(t *testing.T) {
			name := filepath.Join(s.dir, c.place)
			require.NoError(t, os.RemoveAll(name))
			if !kinds[c.kind].Put(t, name) {
				return
			}
			s.orders(500+100*i, 100, 50)
			p := s.run(file)
			p.await("msg=processing")
			s.caughtUp(p)
			p.stop()
			require.Contains(t, p.stderr.String(), c.says)
			require.NoFileExists(t, name+"-gone")
			if c.says == "IS DISABLED" {
				require.NoError(t, os.RemoveAll(name))
			}
		})
	}
	for place, kind := range map[string]string{"lock": "dangling link", "instance-id": "named pipe"} {
		back, ok := kinds[kind].Replace(t, filepath.Join(s.dir, place))
		require.True(t, ok)
		s.untouched(func() {
			refused(t, s.run(file), 20, filepath.Join(s.dir, place)+" is "+kinds[kind].What+", not a file")
		})
		back()
	}
	s.goesOn(file)
	s.storeIsWhole()
}

// A marker that is no file stops nobody, like one that is damaged: it is named, and nothing is removed before it is gone.
func TestAMarkerThatIsNoFileStopsNobody(t *testing.T) {
	s := embeddedSite(t, 1)
	file := s.file(totals)
	s.orders(0, 500, 50)
	s.goesOn(file)
	for i, kind := range vfstest.Kinds() {
		if !slices.Contains([]string{"named pipe", "directory with files", "dangling link"}, kind.Name) {
			continue
		}
		t.Run(kind.Name, func(t *testing.T) {
			root := s.handles()[0].Root
			marker := strings.TrimSuffix(root.Path, ".root") + ".committed"
			name := filepath.Join(s.checkpoints(), marker)
			_, ok := kind.Replace(t, name)
			require.True(t, ok)
			s.orders(500+100*i, 100, 50)
			p := s.run(file)
			p.await("msg=processing")
			s.caughtUp(p)
			p.await("marker " + marker + ": it is " + kind.What + ", not a file")
			p.stop()
			require.FileExists(t, filepath.Join(s.checkpoints(), root.Path), "nothing is removed")
			info, err := os.Lstat(name)
			require.NoError(t, err)
			require.False(t, info.Mode().IsRegular())
			require.NoError(t, os.RemoveAll(name))
		})
	}
	s.goesOn(file)
	s.storeIsWhole()
}

// other makes what lies in directories that of a user without rights, and gives what starts a process as that one. Where the
// tests are run by such a user it is that one.
func (s *site) other(file string) func(flags ...string) *process {
	s.t.Helper()
	binary := processorBinary(s.t)
	run := func(flags ...string) *process {
		return startProcess(s.t, binary, append([]string{"run", file}, flags...))
	}
	if os.Getuid() != 0 {
		return run
	}
	const nobody = 65534
	for _, dir := range []string{filepath.Dir(binary), filepath.Dir(file), filepath.Dir(filepath.Dir(file)), filepath.Dir(s.dir), filepath.Dir(filepath.Dir(s.dir))} {
		require.NoError(s.t, os.Chmod(dir, 0o755)) // what the tests have made is open to root alone
	}
	require.NoError(s.t, filepath.WalkDir(s.dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(p, nobody, nobody)
		}
		return err
	}))
	var closed error
	vfstest.Unprivileged(s.t, s.dir, func() { _, closed = os.Stat(binary) })
	if closed != nil {
		s.t.Skip("no process can be started as another user, since the way to the binary is not open to one:", closed)
	}
	return func(flags ...string) *process {
		attr := childAttr()
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		return startProcessWith(s.t, attr, binary, append([]string{"run", file}, flags...))
	}
}

// A service that may not read a file of its checkpoint does not start, names it and what to do, and changes nothing; with the
// right back it goes on. A file of the local copy that it may not read costs that.
func TestRefusedWithoutTheRightToRead(t *testing.T) {
	runsInFiles(t)
	s := embeddedSite(t, 1)
	file := s.file(totals, "data-dir:", "instance: {id: i1}\ndata-dir:")
	s.orders(0, 500, 50)
	s.goesOn(file)
	run := s.other(file)
	works := func(flags ...string) *process {
		p := run(flags...)
		p.await("msg=processing")
		s.caughtUp(p)
		p.stop()
		return p
	}
	s.orders(500, 500, 50)
	works()
	root := s.handles()[0].Root
	r, err := s.repository().ReadRoot(s.ctx, root)
	require.NoError(t, err)
	runs := r.Tasks[0].Runs
	for _, f := range []struct{ kind, name string }{
		{"root", root.Path}, {"run", runs[len(runs)-1].File}, {"store id", storeIDName(t, s)}, {"announcement", s.app + "/i1/instance"},
	} {
		t.Run(f.kind, func(t *testing.T) {
			name := filepath.Join(s.checkpoints(), f.name)
			require.NoError(t, os.Chmod(name, 0))
			names, offsets := s.storeNames(), s.committed()
			for _, flags := range [][]string{noCopy, append(slices.Clone(noCopy), "--recover-from-store")} {
				refused(t, run(flags...), 20, f.kind+" "+f.name+" cannot be read: permission denied; give the user who runs this (uid ", "not taken for damaged")
				if f.kind != "root" {
					break
				}
			}
			require.Equal(t, names, s.storeNames())
			require.Equal(t, offsets, s.committed())
			require.NoError(t, os.Chmod(name, 0o640))
		})
	}
	t.Run("marker", func(t *testing.T) { // which a start does not read
		marker := strings.TrimSuffix(root.Path, ".root") + ".committed"
		name := filepath.Join(s.checkpoints(), marker)
		require.NoError(t, os.Chmod(name, 0))
		s.orders(1000, 100, 50)
		p := run()
		p.await("marker " + marker + " cannot be read: permission denied")
		s.caughtUp(p)
		p.stop()
		require.FileExists(t, filepath.Join(s.checkpoints(), root.Path), "nothing is removed")
		require.NoError(t, os.Chmod(name, 0o640))
	})
	manifest := filepath.Join(s.dir, "local", s.app, "local-state", "db", "MANIFEST")
	require.NoError(t, os.Chmod(manifest, 0))
	require.Contains(t, works().stderr.String(), "will be built anew")
	lock := filepath.Join(s.dir, "local", s.app, "local-state", "lock")
	require.NoError(t, os.Chmod(lock, 0))
	require.Contains(t, works().stderr.String(), "IS DISABLED")
	require.NoError(t, os.Chmod(lock, 0o640))
	s.storeIsWhole()
}
