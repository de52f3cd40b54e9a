package processor

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

const setAside = "it is set aside"

// stateOf is what the files say of a task.
func (l *line) stateOf(entry snapshot.TaskEntry) map[string]string {
	want := map[string]string{}
	_, err := l.repo.Restore(l.t.Context(), entry, nil, collect(entry, want))
	require.NoError(l.t, err)
	return want
}

// collect applies entries as a store does.
func collect(entry snapshot.TaskEntry, to map[string]string) func(snapshot.Entry) error {
	return func(e snapshot.Entry) error {
		k := entry.States[e.State].Name + "|" + string(e.Key)
		if delete(to, k); !e.Deleted {
			to[k] = string(e.Value)
		}
		return nil
	}
}

// restore does what an engine does at a start. Whenever the keeper says that the copy fits, the state is right and
// nothing was read but what is newer than the copy.
func (l *line) restore(task element.TaskID) (snapshot.Stats, bool) {
	l.t.Helper()
	return l.restoreAt(*l.root, l.entries[task])
}

func (l *line) restoreAt(root snapshot.RootRef, entry snapshot.TaskEntry) (snapshot.Stats, bool) {
	l.t.Helper()
	at, _ := l.local.Version(entry.Task)
	got := map[string]string{}
	stats, ok := l.keeper.Restore(l.t.Context(), root, entry, collect(entry, got))
	require.Equal(l.t, ok, stats.Local)
	if !ok {
		require.Zero(l.t, stats)
		return stats, false
	}
	require.Equal(l.t, l.stateOf(entry), got)
	var newer snapshot.Sizes
	for _, r := range entry.Runs {
		if r.To > at.ChainEnd {
			newer.Add(r)
		}
	}
	require.Equal(l.t, newer, stats.Sizes)
	require.Zero(l.t, stats.FullRuns, "a full run behind a copy has no deletions")
	return stats, true
}

// restarted stops the keeper as a kill would, or lets it write, and starts another process.
func (l *line) restarted(within time.Duration) {
	l.stop(within)
	l.inc++
	l.start()
}

func TestRestoreReadsNoFileWhenTheCopyStandsAtTheRoot(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1"), put(1, "x", "")}, task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.checkpoint(changes{task0: {del(0, "a"), put(0, "c", "2")}})
	l.restarted(time.Second)
	for _, task := range []element.TaskID{task0, task1} {
		stats, ok := l.restore(task)
		require.True(t, ok)
		require.Zero(t, stats.Bytes())
		require.Zero(t, stats.DeltaRuns)
	}
	stats, _ := l.restore(task0)
	require.EqualValues(t, 2, stats.LocalEntries)
	files := filepath.Join(l.dir, "chk", "app", "i")
	all, err := os.ReadDir(files)
	require.NoError(t, err)
	for _, f := range all { // really none: what is in them does not matter
		info, err := f.Info()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(files, f.Name()), make([]byte, info.Size()), 0o600))
	}
	got := map[string]string{}
	_, ok := l.keeper.Restore(t.Context(), *l.root, l.entries[task0], collect(l.entries[task0], got))
	require.True(t, ok)
	require.Equal(t, map[string]string{"a/total|c": "2", "b/last|x": ""}, got)
	require.NoError(t, os.RemoveAll(files))
	_, ok = l.keeper.Restore(t.Context(), *l.root, l.entries[task0], collect(l.entries[task0], got))
	require.False(t, ok, "the copy does not hide that they are gone")
	l.stop(0)
	require.Zero(t, l.log.count(setAside))
}

func TestRestoreReadsOnlyWhatIsNewerThanTheCopy(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1"), put(1, "x", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	l.keeper = nil
	l.checkpoint(changes{task0: {del(0, "a"), put(0, "c", "2")}})
	l.checkpoint(changes{task1: {put(0, "b", "2")}})
	l.checkpoint(changes{task0: {put(0, "c", "3"), del(1, "never")}})
	l.start()
	stats, ok := l.restore(task0)
	require.True(t, ok)
	require.EqualValues(t, 2, stats.DeltaRuns)
	require.EqualValues(t, 4, stats.DeltaEntries)
	require.EqualValues(t, 2, stats.Tombstones)
	require.EqualValues(t, 2, stats.LocalEntries)
	_, ok = l.restore(task1)
	require.False(t, ok, "an empty copy spares nothing")
	require.Zero(t, l.log.count(setAside), "and is no misfit")
	l.announce()
	l.settled()
	l.stop(time.Second)
	require.Equal(t, 2, l.log.count(builtAnew), "both copies went on")
}

// What a merge took is lost to a copy that is behind it: the deletions are.
func TestRestoreDoesNotTakeACopyThatIsBehindAMerge(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1"), put(0, "b", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	l.keeper = nil
	l.checkpoint(changes{task0: {del(0, "a")}})
	l.merge(task0, 2)
	l.checkpoint(changes{task0: {put(0, "c", "1")}})
	l.start()
	_, ok := l.restore(task0)
	require.False(t, ok)
	require.Equal(t, 1, l.log.count(setAside))
	_, ok = l.restore(task0)
	require.False(t, ok)
	require.Equal(t, 1, l.log.count(setAside), "said once")
	l.announce()
	l.settled()
	require.Equal(t, 3, l.log.count(builtAnew))
	l.restarted(time.Second)
	_, ok = l.restore(task0)
	require.True(t, ok, "a copy that stands at a full run")
	l.stop(0)
}

// A process may be killed at any time: what is on disk must not lie inside a merged run for long.
func TestCopyIsWrittenSoonAfterAMerge(t *testing.T) {
	l := newLine(t)
	l.pace.flush, l.disks = time.Hour, l.disks[:1]
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	l.start()
	l.announce()
	require.Eventually(t, func() bool { return l.log.count(builtAnew) == 2 }, 5*time.Second, time.Millisecond)
	l.settled()
	for range 3 {
		l.checkpoint(changes{task0: {put(0, "a", "2")}, task1: {put(0, "b", "2")}})
		l.merge(task0, 3)
		l.checkpoint(changes{task0: {put(0, "c", "3")}})
		was := l.local.Stats().Flushes
		require.Eventually(t, func() bool { return l.local.Stats().Flushes > was }, 5*time.Second, time.Millisecond)
		l.restarted(0)
		_, ok := l.restore(task0)
		require.True(t, ok)
		l.announce()
		l.settled()
	}
	l.stop(time.Second)
}

// The handle may be older than the copy: offsets were set back. And ids come twice when it goes on from there.
func TestRestoreDoesNotTakeACopyOfAnotherLine(t *testing.T) {
	testbed.Alongside(t)
	for name, fork := range map[string]int{"older": 0, "same ids": 1, "beyond": 3} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t)
			l.checkpoint(changes{task0: {put(0, "a", "1")}})
			entries, root, id := maps.Clone(l.entries), *l.root, l.id
			l.start()
			l.announce()
			l.checkpoint(changes{task0: {put(0, "a", "2"), put(0, "z", "2")}})
			l.settled()
			l.stop(time.Second)
			l.keeper, l.entries, l.root, l.id, l.inc = nil, entries, &root, id, 8
			for i := range fork {
				l.checkpoint(changes{task0: {put(0, "q", string(rune('0'+i)))}})
			}
			l.start()
			_, ok := l.restore(task0)
			require.False(t, ok)
			require.Equal(t, 1, l.log.count(setAside))
			l.announce()
			l.settled()
			l.restarted(time.Second)
			stats, ok := l.restore(task0)
			require.True(t, ok)
			require.Zero(t, stats.Bytes())
			l.stop(0)
		})
	}
}

// The task was unchanged in the newest checkpoints, so that the copy and an older root hold the same.
func TestRestoreTakesACopyThatEndsWithTheSameRun(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	root, entry := *l.root, l.entries[task0]
	l.start()
	l.announce()
	l.checkpoint(changes{task1: {put(0, "b", "1")}})
	l.checkpoint(changes{task1: {put(0, "b", "2")}})
	l.settled()
	l.restarted(time.Second)
	stats, ok := l.restoreAt(root, entry)
	require.True(t, ok)
	require.Zero(t, stats.Bytes())
	l.stop(0)
}

func TestRestoreKnowsTheStatesByName(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1"), put(1, "x", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.restarted(time.Second)
	entry := l.entries[task0]
	entry.States = []snapshot.StateInfo{lineStates[1], {Name: "c/new", Codec: "json"}, lineStates[0]}
	_, ok := l.restoreAt(*l.root, entry)
	require.True(t, ok)
	entry.States = []snapshot.StateInfo{lineStates[0], {Name: lineStates[1].Name, KeyCodec: "bytes", Codec: "other"}}
	_, ok = l.keeper.Restore(t.Context(), *l.root, entry, func(snapshot.Entry) error { return nil })
	require.False(t, ok)
	require.Equal(t, 1, l.log.count("is not one of the checkpoint"))
	l.stop(0)
}

// Entries of another partition under a task's own name, and at a version that says so.
func TestRestoreDoesNotTakeACopyOfAnotherTask(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}, task1: {put(0, "b", "1")}})
	l.start()
	require.NoError(t, l.local.Reset(t.Context(), task1, versionOf(*l.root, l.entries[task0]), tablesOf(lineStates), func(yield func(store.Entry, error) bool) {
		yield(store.Entry{Key: []byte("a"), Value: []byte("1")}, nil)
	}))
	_, ok := l.restore(task1)
	require.False(t, ok)
	require.Equal(t, 1, l.log.count(setAside))
	l.announce()
	l.settled()
	l.stop(time.Second)
}

// A fault that is not the copy's leaves it alone: the engine meets it when it reads the files.
func TestRestoreThatFailsElsewhereKeepsTheCopy(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	l.keeper = nil
	l.checkpoint(changes{task0: {put(0, "b", "2")}})
	l.start()
	broken := errors.New("broken")
	_, ok := l.keeper.Restore(t.Context(), *l.root, l.entries[task0], func(snapshot.Entry) error { return broken })
	require.False(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	_, ok = l.keeper.Restore(ctx, *l.root, l.entries[task0], func(snapshot.Entry) error { cancel(); return ctx.Err() })
	require.False(t, ok)
	missing := l.entries[task0]
	missing.Runs = slices.Clone(missing.Runs)
	missing.Runs[1].File = "app/i/chk-9999-0000000000000007.data"
	_, ok = l.keeper.Restore(t.Context(), *l.root, missing, func(snapshot.Entry) error { return nil })
	require.False(t, ok)
	require.Zero(t, l.log.count(setAside))
	_, ok = l.restore(task0)
	require.True(t, ok)
	l.stop(0)
}

func TestRestoreOfATaskWithoutACopy(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	l.start()
	_, ok := l.restore(task0)
	require.False(t, ok)
	l.stop(0)
	_, ok = l.restore(task0)
	require.False(t, ok, "closed")
	require.Zero(t, l.log.count(setAside))
}

// While the service runs a restore may meet the writer, the reader, and tasks that come and go.
func TestRestoreBesideTheKeepersWork(t *testing.T) {
	testbed.Alongside(t)
	l := newLine(t)
	l.pace.every = time.Millisecond
	l.checkpoint(changes{task0: many(2000, "0"), task1: many(2000, "0")})
	l.start()
	l.announce()
	l.settled()
	local := 0
	for i := range 60 {
		l.checkpoint(changes{task0: many(50+i, strings.Repeat("v", i)), task1: {del(0, string(many(60, "")[i].Key))}})
		if i%15 == 7 {
			l.merge(task0, 3)
		}
		if i%20 == 13 {
			l.keeper.Left(task1)
		}
		for _, task := range []element.TaskID{task0, task1} {
			got := map[string]string{}
			if _, ok := l.keeper.Restore(t.Context(), *l.root, l.entries[task], collect(l.entries[task], got)); ok {
				require.Equal(t, l.stateOf(l.entries[task]), got)
				local++
			}
		}
	}
	require.Positive(t, local)
	require.Zero(t, l.log.count("is damaged"))
	l.settled()
	l.stop(time.Second)
}

func TestLeftTasksCopyIsSetAside(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}, task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.keeper.Left(task0)
	l.keeper.Left(task0)
	require.Equal(t, 1, l.log.count("has left this instance"))
	_, ok := l.local.Version(task0)
	require.False(t, ok)
	_, ok = l.restore(task0)
	require.False(t, ok)
	l.restarted(time.Second)
	require.Equal(t, []element.TaskID{task1}, l.local.Tasks())
	_, ok = l.restore(task1)
	require.True(t, ok)
	l.announce() // it comes back
	l.settled()
	require.Equal(t, 3, l.log.count(builtAnew))
	l.stop(time.Second)
}

// A copy that is being built when its task leaves must not come up afterwards.
func TestLeftWhileTheCopyIsBuilt(t *testing.T) {
	l := newLine(t)
	l.pace.high = 16 << 10
	l.checkpoint(changes{task0: many(20_000, "v")})
	l.start()
	l.announce()
	require.Eventually(t, func() bool { return slices.Contains(l.local.Tasks(), task0) }, 5*time.Second, time.Millisecond)
	l.keeper.Left(task0)
	l.keeper.Left(task1)
	l.stop(10 * time.Second)
	l.start()
	require.NotContains(t, l.local.Tasks(), task0)
	l.stop(0)
}

// Tasks that other instances have taken while the process was down leave nothing behind for ever.
func TestCopiesOfTasksThatDoNotComeGo(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}, task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	l.pace.spare = 50 * time.Millisecond
	l.start()
	require.Len(t, l.local.Tasks(), 2)
	l.keeper.Committed(*l.root, l.all()[:1])
	require.Eventually(t, func() bool { return len(l.local.Tasks()) == 1 }, 5*time.Second, time.Millisecond)
	_, ok := l.restore(task0)
	require.True(t, ok)
	l.restarted(time.Second)
	require.Equal(t, []element.TaskID{task0}, l.local.Tasks())
	l.stop(0)
}

// A full run that another process has made says nothing of what it was made from.
func TestKeeperTrustsOnlyItsOwnMerges(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.checkpoint(changes{task0: {put(0, "b", "1")}})
	l.settled()
	built := l.log.count(builtAnew)
	l.merge(task0, 2)
	l.checkpoint(changes{})
	l.settled()
	require.Equal(t, built, l.log.count(builtAnew), "its own")
	l.checkpoint(changes{task0: {put(0, "c", "1")}})
	l.settled()
	require.Equal(t, built, l.log.count(builtAnew))
	l.inc++ // another instance has it for a while, and this one is not told
	k := l.keeper
	l.keeper = nil
	l.merge(task0, 2)
	l.checkpoint(changes{})
	l.keeper = k
	l.announce()
	l.settled()
	require.Equal(t, built+1, l.log.count(builtAnew))
	l.stop(time.Second)
}

// The keeper waits for a disk that does not answer.
func TestAReadThatDoesNotComeBackDoesNotHoldUpTheStop(t *testing.T) {
	l := newLine(t)
	l.pace.leave = 50 * time.Millisecond
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.keeper.mu.Lock() // what stands for the read: it gets no further
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.stop(50 * time.Millisecond)
	}()
	select {
	case <-stopped:
	case <-time.After(3 * time.Second):
		require.Fail(t, "closing the copy does not end")
	}
	l.keeper.mu.Unlock()
	<-l.keeper.done
}
