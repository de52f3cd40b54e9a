package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// spread makes a Spill with several directories.
func spread(t *testing.T, dirs ...string) (*Spill, *bytes.Buffer) {
	var log bytes.Buffer
	p, err := OpenSpill(SpillConfig{Dirs: dirs, Limit: 1, MinFreeBytes: 1000, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	p.least = 512
	p.freeAt = func(string) (int64, bool) { return 1 << 40, true }
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p, &log
}

// ownDir gives the directory that a Spill has made, "" when it has none.
func ownDir(p *Spill) string {
	for _, r := range p.roots {
		if r.own != "" {
			return r.own
		}
	}
	return ""
}

// taskStore makes a store of a task with keys that have been spilled.
func taskStore(t *testing.T, p *Spill, partition int32, keys [][]byte) (*Store, *Table) {
	s, tb := newTable(t, Config{Spill: p, Task: element.TaskID{Source: "in", Partition: partition}})
	t.Cleanup(s.Close)
	spillAgain(t, s, tb, keys)
	return s, tb
}

// spillAgain changes the keys and has them spilled.
func spillAgain(t *testing.T, s *Store, tb *Table, keys [][]byte) {
	for _, k := range keys {
		increment(tb, k)
	}
	id := s.lastID + 1
	s.Freeze(id)
	s.Commit(id)
	evictAll(t, s)
}

// root gives the directory of a store's newest file.
func root(s *Store) string {
	files := s.spill.log.files
	return filepath.Dir(filepath.Dir(filepath.Dir(files[len(files)-1].f.Name())))
}

// The tasks take turns with the directories, as their local copies do. What a directory that cannot be used would have goes
// to the next one.
func TestSpilledStateIsSpreadOverTheDirectories(t *testing.T) {
	keys := numberedKeys(50)
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	at := func(p *Spill) (out []string) {
		for i := range int32(6) {
			s, _ := taskStore(t, p, i, keys)
			out = append(out, root(s))
		}
		return out
	}
	p, _ := spread(t, dirs...)
	all := at(p)
	require.ElementsMatch(t, dirs, all[:3])
	require.Equal(t, all[:3], all[3:])
	var copies Locals
	for _, dir := range dirs {
		copies.all = append(copies.all, &Local{dir: dir})
	}
	for i, dir := range all {
		require.Equal(t, dir, copies.of(element.TaskID{Source: "in", Partition: int32(i)}).dir, "a task's disk is that of its copy")
	}

	next := map[string]string{all[0]: all[1], all[1]: all[2], all[2]: all[0]}
	broken := all[1]
	require.NoError(t, os.RemoveAll(filepath.Join(broken, SpillDirName)))
	require.NoError(t, os.WriteFile(filepath.Join(broken, SpillDirName), nil, 0o600))
	p, log := spread(t, dirs...)
	for i, dir := range at(p) {
		want := all[i]
		if want == broken {
			want = next[broken]
		}
		require.Equal(t, want, dir)
	}
	require.Equal(t, 2, strings.Count(log.String(), "level=WARN"), "at the start, and when it was wanted: %s", log)
	require.NoError(t, os.Remove(filepath.Join(broken, SpillDirName)))
}

// A directory that fills up, or cannot be written to any more, costs nothing while there is another one: what is in it stays
// readable, what follows goes to the next one, with one warning.
func TestSpilledStateGoesToTheNextDirectory(t *testing.T) {
	for name, hurt := range map[string]func(p *Spill, s *Store, dir string){
		"full": func(p *Spill, _ *Store, dir string) {
			p.freeAt = func(d string) (int64, bool) {
				if strings.HasPrefix(d, dir) {
					return 999, true
				}
				return 1000, true
			}
		},
		"write fails": func(_ *Spill, s *Store, _ string) {
			tail := s.spill.log.files[len(s.spill.log.files)-1]
			real := tail.f
			tail.f, _ = os.Open(real.Name()) // cannot be written
			real.Close()
			s.spill.pool.least = 1 << 20 // so that it is the one to be written to
		},
	} {
		t.Run(name, func(t *testing.T) {
			dirs := []string{t.TempDir(), t.TempDir()}
			p, log := spread(t, dirs...)
			keys := numberedKeys(2000)
			s, tb := taskStore(t, p, 0, keys[:1000])
			first := root(s)
			hurt(p, s, first)
			spillAgain(t, s, tb, keys[500:])
			require.NotEqual(t, first, root(s))
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			require.Contains(t, log.String(), first)
			spillAgain(t, s, tb, keys[1500:])
			require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
			f := s.FreezeFull(s.lastID + 1)
			require.Len(t, copied(f.Full()), len(keys))
			require.NoError(t, f.Err())
			s.Commit(s.lastID)
			for i, k := range keys {
				require.EqualValues(t, []int{2, 3, 2, 3}[i/500], increment(tb, k), fmt.Sprint(i))
			}
			require.Zero(t, p.Stats().Failures)
			require.False(t, p.paused())
			audit(t, s)
			s.Close()
			require.Zero(t, p.Stats().DiskBytes)
			for _, dir := range dirs {
				left, err := filepath.Glob(filepath.Join(dir, SpillDirName, "process-*", "0*"))
				require.NoError(t, err)
				require.Empty(t, left)
			}
		})
	}
}
