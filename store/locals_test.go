package store

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
)

// disks are directories for local copies, and what was logged of them.
type disks struct {
	t    *testing.T
	dirs []string
	log  lockedBuffer
}

func newDisks(t *testing.T, n int) *disks {
	d := &disks{t: t}
	for i := range n {
		d.dirs = append(d.dirs, filepath.Join(t.TempDir(), fmt.Sprint("disk-", i)))
	}
	return d
}

func (d *disks) open(dirs ...string) *Locals {
	d.t.Helper()
	ls, err := OpenLocals(LocalConfig{Cluster: "c", Application: "app", MinInterval: time.Hour, MinFreeBytes: -1, Logger: slog.New(slog.NewTextHandler(&d.log, nil))}, dirs...)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { ls.Close() })
	return ls
}

// fill gives each task a copy of one entry, which is its name.
func (d *disks) fill(ls *Locals, tasks ...element.TaskID) {
	d.t.Helper()
	for _, task := range tasks {
		one := func(yield func(Entry, error) bool) { yield(Entry{Key: []byte("k"), Value: []byte(task.String())}, nil) }
		require.NoError(d.t, ls.Reset(d.t.Context(), task, version(1), []TableInfo{{Name: "count"}}, one))
	}
	require.NoError(d.t, ls.Flush(d.t.Context()))
}

// where gives the directory that the copy of each task lies in, read and compared.
func (d *disks) where(ls *Locals) map[element.TaskID]string {
	d.t.Helper()
	out := map[element.TaskID]string{}
	for _, task := range ls.Tasks() {
		at, ok := ls.Version(task)
		if !ok {
			continue
		}
		require.Equal(d.t, version(1), at)
		require.NoError(d.t, ls.Iterate(task, func(_ TableInfo, _, value []byte) bool {
			require.Equal(d.t, task.String(), string(value))
			return true
		}))
		for _, l := range ls.all {
			if _, ok := l.Version(task); ok {
				require.Empty(d.t, out[task], "%s is in two directories", task)
				out[task] = filepath.Base(l.cfg.Dir)
			}
		}
	}
	return out
}

func tasksOf(source string, n int32) (out []element.TaskID) {
	for p := range n {
		out = append(out, element.TaskID{Source: source, Partition: p})
	}
	return out
}

func counts(where map[element.TaskID]string) map[string]int {
	n := map[string]int{}
	for _, dir := range where {
		n[dir]++
	}
	return n
}

func TestLocalCopiesAreSpreadOverTheDirectories(t *testing.T) {
	d := newDisks(t, 3)
	ls := d.open(d.dirs...)
	d.fill(ls, tasksOf("orders", 6)...)
	before := d.where(ls)
	require.Equal(t, map[string]int{"disk-0": 2, "disk-1": 2, "disk-2": 2}, counts(before))
	require.NoError(t, ls.Close())

	ls = d.open(d.dirs...)
	require.Equal(t, before, d.where(ls), "each is found where it was")
	ls.Remove(tasksOf("orders", 1)[0])
	require.Len(t, ls.Tasks(), 5)
	require.NoError(t, ls.Close())

	// Another list: what lies where its task belongs is kept, the others are dropped and may be made anew.
	ls = d.open(d.dirs[:2]...)
	kept := d.where(ls)
	require.NotEmpty(t, kept)
	for task, dir := range kept {
		require.Equal(t, before[task], dir)
		require.Equal(t, ls.of(task).cfg.Dir, filepath.Join(filepath.Dir(ls.of(task).cfg.Dir), dir))
	}
	d.fill(ls, tasksOf("orders", 6)...)
	require.Equal(t, map[string]int{"disk-0": 3, "disk-1": 3}, counts(d.where(ls)))
	require.NoError(t, ls.Close())
	_, err := OpenLocals(LocalConfig{})
	require.ErrorContains(t, err, "no directory")
}

func TestADirectoryThatCannotBeUsedIsLeftOut(t *testing.T) {
	d := newDisks(t, 3)
	require.NoError(t, os.WriteFile(d.dirs[0], nil, 0o600)) // no directory
	ls := d.open(d.dirs...)
	require.False(t, ls.Stats().Disabled)
	require.Contains(t, d.log.String(), "level=WARN")
	require.Contains(t, d.log.String(), "disk-0")
	require.NotContains(t, d.log.String(), "level=ERROR")
	d.fill(ls, tasksOf("orders", 6)...)
	require.Equal(t, map[string]int{"disk-1": 4, "disk-2": 2}, counts(d.where(ls)))
	require.NoError(t, ls.Close())
}

// A disk that fills up while it is in use costs the copies on it, which are made anew on the others.
func TestADirectoryThatFillsUpIsLeftOut(t *testing.T) {
	d := newDisks(t, 2)
	ls := d.open(d.dirs...)
	tasks := tasksOf("orders", 4)
	d.fill(ls, tasks...)
	full := ls.of(tasks[0])
	full.disable(errNoSpace)
	require.False(t, ls.Stats().Disabled)
	require.Len(t, d.where(ls), 2, "those on the other disk")
	require.Contains(t, d.log.String(), "IS LEFT OUT")
	d.fill(ls, tasks...)
	require.Len(t, d.where(ls), 4)
	require.Len(t, counts(d.where(ls)), 1)
	require.NotContains(t, d.log.String(), "IS DISABLED")

	ls.of(tasks[0]).disable(errNoSpace)
	require.True(t, ls.Stats().Disabled)
	require.Contains(t, d.log.String(), "THE LOCAL COPY OF THE STATE IS DISABLED")
	require.ErrorIs(t, ls.Flush(t.Context()), errNoSpace)
	_, ok := ls.Version(tasks[0])
	require.False(t, ok)
}
