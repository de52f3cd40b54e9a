//go:build unix

package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/verify"
	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// storeNames are all names in the checkpoint directory with what they are; nothing is opened.
func (s *site) storeNames() map[string]fs.FileMode {
	s.t.Helper()
	out := map[string]fs.FileMode{}
	require.NoError(s.t, filepath.WalkDir(s.checkpoints(), func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			out[p] = d.Type()
		}
		return err
	}))
	return out
}

// Whatever has the name of a file of the committed checkpoint: the service does not start, does not hang, says which file it is,
// what is there and which commands list the damage and go the way back, and changes nothing.
func TestRefusedWhatIsNoFile(t *testing.T) {
	runsInFiles(t)
	s := embeddedSite(t, 1)
	file := s.file(totals, "data-dir:", "instance: {id: i1}\ndata-dir:")
	s.orders(0, 1000, 50)
	s.goesOn(file)
	s.orders(1000, 500, 50)
	root := s.handles()[0].Root
	r, err := s.repository().ReadRoot(s.ctx, root)
	require.NoError(t, err)
	run := r.Tasks[0].Runs[len(r.Tasks[0].Runs)-1].File
	id, announced := storeIDName(t, s), s.app+"/i1/instance"
	back := []string{"checkpoint " + root.Name.String() + ": ", "`processor checkpoints ", "`processor run " + file + " " + strings.Join(noCopy, " ") + " --recover-from-store`"}
	for _, kind := range vfstest.Kinds() {
		for _, f := range []struct {
			kind, name string
			says       []string
		}{
			{"root", root.Path, back},
			{"run", run, back},
			{"store id", id, nil},
			{"announcement", announced, []string{"or delete it"}},
		} {
			t.Run(f.kind+": "+kind.Name, func(t *testing.T) {
				back, ok := kind.Replace(t, filepath.Join(s.checkpoints(), f.name))
				if !ok {
					return
				}
				defer back()
				names, offsets := s.storeNames(), s.committed()
				refused(t, s.run(file, noCopy...), 22, append(slices.Clone(f.says), f.kind+" "+f.name+": it is "+kind.What+", not a file", "nothing was overwritten")...)
				require.Equal(t, names, s.storeNames())
				require.Equal(t, offsets, s.committed())
			})
		}
	}
	s.goesOn(file)
	s.storeIsWhole()
}

// A recovery leaves a checkpoint out of which a file is none, and takes the newest whole one.
func TestARecoveryGoesBackBehindWhatIsNoFile(t *testing.T) {
	runsInFiles(t)
	s := embeddedSite(t, 1)
	whole := append([]string{"--set", "state.backend.incremental=false"}, noCopy...)
	file := s.file(totals)
	s.orders(0, 1000, 50)
	s.goesOn(file, whole...)
	n := 1000
	for _, kind := range vfstest.Kinds() {
		what := []string{"run", "root"}[n/100%2]
		t.Run(what+": "+kind.Name, func(t *testing.T) {
			s.orders(n, 100, 50)
			n += 100
			p := s.run(file, whole...)
			p.await("msg=processing")
			s.caughtUp(p)
			p.stop()
			root := s.handles()[0].Root
			r, err := s.repository().ReadRoot(s.ctx, root)
			require.NoError(t, err)
			require.NotNil(t, r.Predecessor)
			name := map[string]string{"root": root.Path, "run": r.Tasks[0].Runs[0].File}[what]
			path := filepath.Join(s.checkpoints(), name)
			_, ok := kind.Replace(t, path)
			if !ok {
				return
			}
			p = s.run(file, append(whole, "--recover-from-store")...)
			p.await("msg=processing")
			require.Contains(t, p.stderr.String(), "RECOVERING FROM THE STORE")
			require.Contains(t, p.stderr.String(), "checkpoint="+r.Predecessor.Name.String())
			require.Contains(t, p.stderr.String(), name+": it is "+kind.What+", not a file")
			s.caughtUp(p)
			p.stop()
			info, err := os.Lstat(path)
			require.NoError(t, err, "nothing was deleted")
			require.False(t, info.Mode().IsRegular())
			require.NoError(t, os.RemoveAll(path))
			_ = os.Remove(filepath.Join(s.checkpoints(), strings.TrimSuffix(root.Path, ".root")+".committed"))
			_ = os.Remove(filepath.Join(s.checkpoints(), root.Path))
		})
	}
	rep := s.verify(verify.Config{})
	require.Zero(t, rep.Missing, "%s", rep.String())
	require.Zero(t, rep.Wrong, "%s", rep.String())
}
