//go:build unix

package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// noCopy leaves nothing to restore from but the checkpoint: no byte of it is passed over then.
var noCopy = []string{"--set", "state.backend.local-recovery=false"}

// runsInFiles has the processes of a test write files for runs that are so small that they would lie in the root.
func runsInFiles(t *testing.T) {
	t.Setenv("MILLWEIR_STATE_BACKEND_FS_MEMORY_THRESHOLD", "0")
}

// A local copy of the state does not hide that files of the checkpoint are gone or have another length. What is damaged within
// a file of the right length is found by whoever reads it: the tool, and a start that has no copy.
func TestDamageBesideALocalCopy(t *testing.T) {
	runsInFiles(t)
	s := embeddedSite(t, 1)
	file := worked(s)
	copied := s.run(file)
	s.caughtUp(copied)
	copied.stop() // which brings the copy up to date
	root := s.handles()[0].Root
	r, err := s.repository().ReadRoot(s.ctx, root)
	require.NoError(t, err)
	run := r.Tasks[0].Runs[0]
	path := filepath.Join(s.checkpoints(), run.File)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	put := func(b []byte) {
		require.NoError(t, os.RemoveAll(path))
		if b != nil {
			require.NoError(t, os.WriteFile(path, b, 0o644))
		}
	}
	for name, bad := range map[string][]byte{"missing": nil, "cut": good[:len(good)-1], "longer": append(append([]byte{}, good...), 0)} {
		t.Run(name, func(t *testing.T) {
			put(bad)
			s.untouched(func() { refused(t, s.run(file), 22, run.File) })
		})
	}
	bad := append([]byte{}, good...)
	bad[run.Offset+run.Length/2] ^= 1
	put(bad)
	s.untouched(func() { refused(t, s.checkpointsCommand("verify", file), 22, run.File) })
	s.untouched(func() { refused(t, s.run(file, noCopy...), 22, run.File) })
	put(good)
	s.goesOn(file)
	s.storeIsWhole()
}

// Damaged and missing files of the committed checkpoint are named, nothing is overwritten, and with the file put back all
// goes on as if nothing had been.
func TestRefusedDamage(t *testing.T) {
	runsInFiles(t)
	s := embeddedSite(t, 2)
	file := worked(s)
	root := s.handles()[0].Root
	r, err := s.repository().ReadRoot(s.ctx, root)
	require.NoError(t, err)
	runs := r.Tasks[0].Runs
	require.NotEmpty(t, runs)
	run := runs[len(runs)-1]

	flip := func(at int64) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 0x40; return b }
	}
	cut := func(by int) func([]byte) []byte {
		return func(b []byte) []byte { return b[:len(b)-by] }
	}
	gone := func([]byte) []byte { return nil }
	size := func(name string) int64 {
		info, err := os.Stat(filepath.Join(s.checkpoints(), name))
		require.NoError(t, err)
		return info.Size()
	}
	for _, c := range []struct {
		name, file string
		damage     func([]byte) []byte
	}{
		{"root: first byte", root.Path, flip(0)},
		{"root: a byte within", root.Path, flip(size(root.Path) / 2)},
		{"root: last byte", root.Path, flip(size(root.Path) - 1)},
		{"root: cut", root.Path, cut(7)},
		{"root: empty", root.Path, func([]byte) []byte { return []byte{} }},
		{"root: longer", root.Path, func(b []byte) []byte { return append(b, 0) }},
		{"root: missing", root.Path, gone},
		{"run: first byte", run.File, flip(run.Offset)},
		{"run: a byte within", run.File, flip(run.Offset + run.Length/2)},
		{"run: last byte", run.File, flip(run.Offset + run.Length - 1)},
		{"run: cut", run.File, cut(9)},
		{"run: missing", run.File, gone},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(s.checkpoints(), c.file)
			good, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.Remove(path))
			if bad := c.damage(append([]byte{}, good...)); bad != nil {
				require.NoError(t, os.WriteFile(path, bad, 0o644))
			}
			s.untouched(func() { refused(t, s.run(file, noCopy...), 22, c.file, root.Name.String()) })
			require.NoError(t, os.WriteFile(path, good, 0o644))
		})
	}
	s.goesOn(file)
	s.storeIsWhole()
}

// A damaged announcement of an instance is damage, not another cluster. It may be deleted.
func TestRefusedDamageOfAnAnnouncement(t *testing.T) {
	s := embeddedSite(t, 1)
	file := s.file(totals, "data-dir:", "instance: {id: i1}\ndata-dir:")
	p := s.run(file)
	s.orders(0, 200, 20)
	s.caughtUp(p)
	p.stop()
	name := s.app + "/i1/instance"
	path := filepath.Join(s.checkpoints(), name)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for what, bad := range map[string][]byte{"flipped": append([]byte{good[0] ^ 1}, good[1:]...), "cut": good[:len(good)-4], "of another cluster": []byte("i1\nelsewhere\n")} {
		t.Run(what, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, bad, 0o644))
			s.untouched(func() { refused(t, s.run(file), 22, "announcement "+name, "delete it") })
			s.untouched(func() { refused(t, s.checkpointsCommand("verify", file), 22, "announcement "+name) })
		})
	}
	require.NoError(t, os.Remove(path))
	s.goesOn(file)
	s.storeIsWhole()
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(good), string(again))
}
