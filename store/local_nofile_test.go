//go:build linux

package store

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/vfs/vfstest"
)

// soon fails when something does not come back.
func soon(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "it blocks")
	}
}

// lines are those of the log that tell of a disturbance.
func (f *localFixture) lines() []string {
	var out []string
	for line := range strings.Lines(f.log.String()) {
		if !strings.Contains(line, "level=INFO") {
			out = append(out, line)
		}
	}
	return out
}

// opensAnew wants the copy to be opened without waiting for anything, dropped with one line, and built anew.
func (f *localFixture) opensAnew() {
	f.t.Helper()
	f.log.reset()
	soon(f.t, f.open)
	require.False(f.t, f.local.Stats().Disabled, f.log.String())
	require.Len(f.t, f.lines(), 1, f.log.String())
	require.Contains(f.t, f.lines()[0], "built anew")
	require.False(f.t, f.begin(), "nothing of it is used")
	f.count.Put([]byte("k"), []byte(f.t.Name()))
	f.checkpoint()
	f.flush()
	f.requireEqual()
	soon(f.t, func() { require.NoError(f.t, f.local.Close()) })
}

// isDisabled wants the service to go without the copy, with one line that says why, and the copy to stay.
func (f *localFixture) isDisabled(says string) {
	f.t.Helper()
	f.log.reset()
	soon(f.t, f.open)
	require.True(f.t, f.local.Stats().Disabled)
	require.Len(f.t, f.lines(), 1, f.log.String())
	require.Contains(f.t, f.lines()[0], "IS DISABLED")
	require.Contains(f.t, f.lines()[0], says)
	require.NoError(f.t, f.local.Close())
}

// usedFixture has a copy that was closed.
func usedFixture(t *testing.T) *localFixture {
	f := newLocalFixture(t)
	f.begin()
	f.count.Put([]byte("k"), []byte("1"))
	f.checkpoint()
	require.NoError(t, f.local.Close())
	return f
}

// in is the same fixture in a part of the test.
func (f *localFixture) in(t *testing.T) *localFixture {
	f.t = t
	return f
}

// Whatever has the name of a file of the copy: it is never opened, waited for or followed. Within the lock it is damage, which
// drops the copy; the lock itself, and what is around it, stays, and the service goes on without a copy.
func TestWhatIsNoFileCostsTheCopyOnly(t *testing.T) {
	f := usedFixture(t)
	for i, kind := range vfstest.Kinds() {
		places := []string{openingMarker, "db"}
		if others := []string{"db/MANIFEST", "db/DISCARD", "db/probe", "db/000001.vlog", "db/00001.mem", "db/KEYREGISTRY", "db/LOCK", "db/000009.sst"}; kind.What == "a named pipe" {
			places = append(places, others...)
		} else { // all are treated alike
			places = append(places, others[i%len(others)])
		}
		for _, place := range places {
			if place == "db" && kind.Directory() {
				continue
			}
			t.Run(place+": "+kind.Name, func(t *testing.T) {
				f := f.in(t)
				name := filepath.Join(f.local.dir, place)
				require.NoError(t, os.RemoveAll(name))
				if !kind.Put(t, name) {
					return
				}
				to, linked := os.Readlink(name)
				f.opensAnew()
				require.NoFileExists(t, name+"-gone", "a link is not followed")
				if kind.Name == "link to the file elsewhere" {
					require.NoError(t, linked)
					b, err := os.ReadFile(to)
					require.NoError(t, err)
					require.Equal(t, "elsewhere", string(b))
				}
			})
		}
		t.Run("lock: "+kind.Name, func(t *testing.T) {
			f := f.in(t)
			back, ok := kind.Replace(t, filepath.Join(f.local.dir, localLock))
			if !ok {
				return
			}
			f.isDisabled("/" + localLock + " is " + kind.What + ", not a file")
			back()
		})
		for _, place := range []string{LocalDirName, ""} {
			if kind.Directory() {
				continue
			}
			t.Run("directory "+place+": "+kind.Name, func(t *testing.T) {
				f := f.in(t)
				dir := filepath.Join(f.cfg.Dir, place)
				require.NoError(t, os.Rename(dir, dir+"-aside"))
				if kind.Put(t, dir) {
					f.isDisabled(filepath.Base(dir) + " is " + kind.What)
					info, err := os.Lstat(dir)
					require.NoError(t, err, "it stays")
					require.NotEqual(t, fs.ModeDir, info.Mode().Type())
					require.NoError(t, os.Remove(dir))
				}
				require.NoError(t, os.Rename(dir+"-aside", dir))
			})
		}
		f = f.in(t)
		f.open()
		require.True(t, f.begin(), "nothing has happened to what was left out")
		require.NoError(t, f.local.Close())
	}
}

// A directory of the copy that is a link to one, on another disk say, is used.
func TestADirectoryOfTheCopyMayBeALink(t *testing.T) {
	f := usedFixture(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(f.local.dir, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, f.local.dir))
	f.open()
	require.False(t, f.local.Stats().Disabled)
	require.True(t, f.begin())
}

// What takes the place of the marker or the probe under a process that works is not waited for either.
func TestWhatIsNoFileDoesNotHoldUpTheStop(t *testing.T) {
	for _, place := range []string{openingMarker, "db/probe"} {
		for _, kind := range vfstest.Kinds() {
			t.Run(place+": "+kind.Name, func(t *testing.T) {
				f := newLocalFixture(t)
				f.begin()
				f.count.Put([]byte("k"), []byte("1"))
				f.checkpoint()
				if !kind.Put(t, filepath.Join(f.local.dir, place)) {
					return
				}
				if place == openingMarker {
					f.local.unsafe.Store(true) // it is closed by its marker alone
				}
				f.closesSoon()
			})
		}
	}
}

// What may not be read drops the copy, where it may be removed. The rights are those of a thread that the test takes them from.
func TestALackOfRightsCostsTheCopyOnly(t *testing.T) {
	for place, says := range map[string]string{
		openingMarker: "", "db/MANIFEST": "", "db/DISCARD": "", "db/000001.vlog": "",
		localLock: "lock: permission denied", "db": "permission denied", ".": "lock: permission denied",
	} {
		t.Run(place, func(t *testing.T) {
			f := usedFixture(t)
			require.NoError(t, os.Chmod(filepath.Dir(f.cfg.Dir), 0o755)) // Badger goes by the whole path
			var closed error
			vfstest.Unprivileged(t, f.cfg.Dir, func() { _, closed = os.Stat(f.cfg.Dir) })
			if closed != nil {
				t.Skip("the way to the test's directory is not open to everybody:", closed)
			}
			name := filepath.Join(f.local.dir, place)
			if place == openingMarker {
				require.NoError(t, os.WriteFile(name, nil, 0o600))
			}
			info, err := os.Stat(name)
			require.NoError(t, err)
			var old *Local
			vfstest.Unprivileged(t, f.cfg.Dir, func() {
				require.NoError(t, os.Chmod(name, 0))
				f.log.reset()
				old, err = OpenLocal(f.cfg)
			})
			require.NoError(t, err)
			require.Equal(t, says != "", old.Stats().Disabled, f.log.String())
			require.Len(t, f.lines(), 1, f.log.String())
			require.Contains(t, f.lines()[0], says)
			require.NotContains(t, f.lines()[0], `\n`)
			require.NoError(t, old.Close())
			if says != "" {
				require.NoError(t, os.Chmod(name, info.Mode()))
				f.open()
				require.True(t, f.begin(), "it is as it was")
			}
		})
	}
}

// What processes left of spilled state that have ended goes, whatever has the name of their locks or directories; nothing of it
// is waited for, no link is followed, and state is spilled as ever.
func TestOldSpillsAreRemovedWhateverTheirLocksAre(t *testing.T) {
	for _, kind := range vfstest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), SpillDirName)
			old := filepath.Join(dir, spillOwnPrefix+"1")
			require.NoError(t, os.MkdirAll(old, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(old, "00000001.state"), []byte("x"), 0o600))
			if !kind.Put(t, filepath.Join(old, spillLockName)) || !kind.Put(t, filepath.Join(dir, spillLockName)) {
				return
			}
			if !kind.Directory() {
				kind.Put(t, filepath.Join(dir, spillOwnPrefix+"2"))
			}
			log := &lockedBuffer{}
			soon(t, func() {
				p, err := OpenSpill(SpillConfig{Dirs: []string{filepath.Dir(dir)}, Limit: 1, MinFreeBytes: -1, Logger: slog.New(slog.NewTextHandler(log, nil))})
				require.NoError(t, err)
				left, err := filepath.Glob(filepath.Join(dir, spillOwnPrefix+"*"))
				require.NoError(t, err)
				require.Empty(t, left)
				s, _ := counted(t, p, numberedKeys(100))
				require.DirExists(t, ownDir(p))
				s.Close()
				require.NoError(t, p.Close())
			})
			require.NotContains(t, log.String(), "level=WARN")
			require.NoFileExists(t, filepath.Join(old, spillLockName)+"-gone")
		})
		if kind.Directory() {
			continue
		}
		t.Run("all of it: "+kind.Name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), SpillDirName)
			if !kind.Put(t, dir) {
				return
			}
			log := &lockedBuffer{}
			soon(t, func() {
				p, err := OpenSpill(SpillConfig{Dirs: []string{filepath.Dir(dir)}, Limit: 1, MinFreeBytes: -1, Logger: slog.New(slog.NewTextHandler(log, nil))})
				require.NoError(t, err)
				_, _, err = p.create(0, "state", 0)
				require.ErrorContains(t, err, SpillDirName+" is "+kind.What)
				require.NoError(t, p.Close())
			})
		})
	}
}

// The lock of old spilled state that may not be opened is nobody's.
func TestOldSpillsAreRemovedWhateverTheRightsOfTheirLocks(t *testing.T) {
	t.Chdir(t.TempDir())
	old := filepath.Join(SpillDirName, spillOwnPrefix+"1")
	require.NoError(t, os.MkdirAll(old, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(old, spillLockName), nil, 0o600))
	log := &lockedBuffer{}
	vfstest.Unprivileged(t, ".", func() {
		require.NoError(t, os.Chmod(filepath.Join(old, spillLockName), 0))
		RemoveOldSpills(slog.New(slog.NewTextHandler(log, nil)), ".")
	})
	require.NoDirExists(t, old)
	require.Empty(t, log.String())
}
