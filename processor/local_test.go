package processor

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/testbed"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/store"
)

// logBuffer collects log lines from several goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.b.String(), what)
}

func (b *logBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

const builtAnew = "local copy of a task's state built anew"

// fast is a pace for tests.
var fast = localPace{every: 5 * time.Millisecond, gap: time.Millisecond, flush: 20 * time.Millisecond, retry: 5 * time.Millisecond}

// line is a line of committed checkpoints without a service: two tasks, whose chains are merged and cleaned as the engine
// does it, and a keeper that follows.
type line struct {
	t      testing.TB
	dir    string
	pace   localPace
	repo   *snapshot.Repository
	log    logBuffer
	local  *store.Locals
	disks  []string // for the copies
	keeper *keeper
	step   func() error // between two writes to the database

	inc     element.Incarnation
	id      element.CheckpointID
	root    *snapshot.RootRef
	entries map[element.TaskID]snapshot.TaskEntry
	merged  map[element.TaskID]element.CheckpointID
	full    element.TaskID // whose next checkpoint holds the whole state
}

// wholeWith gives the whole state of a task after changes.
func (l *line) wholeWith(task element.TaskID, es []snapshot.Entry) []snapshot.Entry {
	type at struct {
		state int
		key   string
	}
	all := map[at][]byte{}
	apply := func(e snapshot.Entry) error {
		if k := (at{e.State, string(e.Key)}); e.Deleted {
			delete(all, k)
		} else {
			all[k] = bytes.Clone(e.Value)
		}
		return nil
	}
	_, err := l.repo.Restore(l.t.Context(), l.entries[task], nil, apply)
	require.NoError(l.t, err)
	for _, e := range es {
		require.NoError(l.t, apply(e))
	}
	var out []snapshot.Entry
	for k, v := range all {
		out = append(out, snapshot.Entry{State: k.state, Key: []byte(k.key), Value: v})
	}
	slices.SortFunc(out, func(a, b snapshot.Entry) int {
		return cmp.Or(a.State-b.State, bytes.Compare(a.Key, b.Key))
	})
	return out
}

var lineStates = []snapshot.StateInfo{{Name: "a/total", KeyCodec: "bytes", Codec: "int64"}, {Name: "b/last", KeyCodec: "bytes", Codec: "json"}}

func newLine(t testing.TB) *line { return newLineInline(t, 0) }

// newLineInline has runs of up to a number of bytes in the roots.
func newLineInline(t testing.TB, threshold int) *line {
	l := &line{t: t, dir: t.TempDir(), pace: fast.withDefaults(), inc: 7, entries: map[element.TaskID]snapshot.TaskEntry{},
		merged: map[element.TaskID]element.CheckpointID{}}
	var err error
	l.repo, err = snapshot.OpenRepository(t.Context(), snapshot.Config{Dir: filepath.Join(l.dir, "chk"), Application: "app", Instance: "i", NumRetained: 3, MemoryThreshold: threshold, Logger: l.log.logger()})
	require.NoError(t, err)
	t.Cleanup(func() { l.repo.Close() })
	l.disks = []string{filepath.Join(l.dir, "local"), filepath.Join(l.dir, "local-2")}
	for p := range int32(2) {
		id := element.TaskID{Source: "in", Partition: p}
		l.entries[id] = snapshot.TaskEntry{Task: id, States: lineStates}
	}
	return l
}

func (l *line) start() {
	var err error
	l.local, err = store.OpenLocals(store.LocalConfig{Cluster: "c", Application: "app", MinInterval: l.pace.flush, Logger: l.log.logger(), Step: l.step}, l.disks...)
	require.NoError(l.t, err)
	l.keeper = startKeeper(l.local, l.repo, l.inc, l.log.logger(), l.pace)
}

func (l *line) stop(within time.Duration) { l.keeper.close(within) }

// checkpoint commits changes of some tasks, given as state|key=value or, for a deletion, state|key.
func (l *line) checkpoint(changes map[element.TaskID][]snapshot.Entry) {
	l.id++
	ctx, name := l.t.Context(), element.CheckpointName{ID: l.id, Incarnation: l.inc}
	var deltas []snapshot.TaskDelta
	for p := range int32(2) {
		id := element.TaskID{Source: "in", Partition: p}
		es := changes[id]
		slices.SortFunc(es, func(a, b snapshot.Entry) int {
			if a.State != b.State {
				return a.State - b.State
			}
			return bytes.Compare(a.Key, b.Key)
		})
		if l.full == id && len(es) > 0 { // what does not change with them is part of the same run
			es = l.wholeWith(id, es)
			deltas = append(deltas, snapshot.TaskDelta{Task: id, States: lineStates, To: l.id, Full: true, Entries: slices.Values(es), Len: len(es)})
			continue
		}
		deltas = append(deltas, snapshot.TaskDelta{Task: id, States: lineStates, From: l.entries[id].ChainEnd(), To: l.id, Entries: slices.Values(es), Len: len(es)})
	}
	refs, err := l.repo.Persist(ctx, name, deltas)
	require.NoError(l.t, err)
	root := &snapshot.Root{Name: name, Predecessor: l.root, ClusterID: "c"}
	for i, d := range deltas {
		e := l.entries[d.Task]
		e.Runs = d.Chain(e.Runs, refs[i].Run)
		l.entries[d.Task] = e
		root.Tasks = append(root.Tasks, e)
	}
	ref, err := l.repo.WriteRoot(ctx, root)
	require.NoError(l.t, err)
	require.NoError(l.t, l.repo.MarkCommitted(ctx, ref))
	l.root = &ref
	if l.keeper != nil {
		l.keeper.Committed(ref, root.Tasks)
	}
}

// merge replaces a chain's beginning from the next checkpoint on.
func (l *line) merge(task element.TaskID, n int) {
	e := l.entries[task]
	if n = min(n, len(e.Runs)); n == 0 || l.merged[task] == l.id {
		return
	}
	l.merged[task] = l.id // a full run's name has the checkpoint's
	head := e
	head.Runs = e.Runs[:n]
	full, err := l.repo.Merge(l.t.Context(), l.root.Name, head)
	require.NoError(l.t, err)
	e.Runs = append([]snapshot.RunRef{full}, e.Runs[n:]...)
	l.entries[task] = e
}

func (l *line) clean() {
	_, err := l.repo.Clean(l.t.Context(), []snapshot.RootRef{*l.root}, func(context.Context) ([]snapshot.RootRef, error) { return []snapshot.RootRef{*l.root}, nil })
	require.NoError(l.t, err)
}

func (l *line) all() (out []snapshot.TaskEntry) {
	for p := range int32(2) {
		out = append(out, l.entries[element.TaskID{Source: "in", Partition: p}])
	}
	return out
}

// announce is what the engine says after a restore.
func (l *line) announce() { l.keeper.Committed(*l.root, l.all()) }

// settled waits until the copy stands at the newest root and is written.
func (l *line) settled() {
	l.t.Helper()
	for _, e := range l.all() {
		require.Eventually(l.t, func() bool { v, ok := l.local.Version(e.Task); return ok && v == versionOf(*l.root, e) }, time.Minute, time.Millisecond)
	}
	require.NoError(l.t, l.local.Flush(l.t.Context()))
	requireCopies(l.t, l.local, l.repo, l.all())
}

// copies is a store.Local, or several.
type copies interface {
	Iterate(task element.TaskID, fn func(table store.TableInfo, key, value []byte) bool) error
}

func requireCopies(t testing.TB, local copies, repo *snapshot.Repository, entries []snapshot.TaskEntry) {
	t.Helper()
	for _, e := range entries {
		want, got := map[string]string{}, map[string]string{}
		_, err := repo.Restore(t.Context(), e, nil, func(en snapshot.Entry) error {
			k := e.States[en.State].Name + "|" + string(en.Key)
			if delete(want, k); !en.Deleted {
				want[k] = string(en.Value)
			}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, local.Iterate(e.Task, func(table store.TableInfo, k, v []byte) bool {
			got[table.Name+"|"+string(k)] = string(v)
			return true
		}))
		require.Equal(t, want, got, "task %s", e.Task)
	}
}

func put(state int, key, value string) snapshot.Entry {
	return snapshot.Entry{State: state, Key: []byte(key), Value: []byte(value)}
}

func del(state int, key string) snapshot.Entry {
	return snapshot.Entry{State: state, Key: []byte(key), Deleted: true}
}

func many(n int, value string) (out []snapshot.Entry) {
	for i := range n {
		out = append(out, put(0, fmt.Sprintf("key-%06d", i), value))
	}
	return out
}

var task0, task1 = element.TaskID{Source: "in"}, element.TaskID{Source: "in", Partition: 1}

type changes = map[element.TaskID][]snapshot.Entry

func TestKeeperFollowsByChangesAlone(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1"), put(1, "x", "1")}, task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	l.settled()
	require.Equal(t, 2, l.log.count(builtAnew))
	l.checkpoint(changes{task0: {del(0, "a")}})
	l.checkpoint(changes{}) // adds no run to any chain
	l.checkpoint(changes{task0: {put(0, "c", "4")}, task1: {put(1, "y", "")}})
	l.settled()
	l.merge(task0, 3)
	l.checkpoint(changes{task1: {del(1, "y")}})
	l.settled()
	l.stop(time.Second)
	l.start()
	l.announce()
	l.checkpoint(changes{task0: {put(0, "d", "6")}})
	l.settled()
	l.stop(time.Second)
	require.Equal(t, 2, l.log.count(builtAnew), "never again")
}

func TestKeeperReadsWhatAMergeHasTaken(t *testing.T) {
	l := newLine(t)
	l.pace.every = time.Hour
	l.start()
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	require.Eventually(t, func() bool { return len(l.keeper.tasks(func(*lane) bool { return true })) == 2 }, 10*time.Second, time.Millisecond)
	l.stop(time.Second) // builds the copy: it is small
	require.Equal(t, 2, l.log.count(builtAnew))

	l.start()
	l.announce()
	l.keeper.mu.Lock()
	for id, la := range l.keeper.lanes { // as if it had been asked for
		at, ok := l.local.Version(id)
		la.start(at, ok)
	}
	l.keeper.mu.Unlock()
	l.checkpoint(changes{task0: {put(0, "a", "2"), put(0, "b", "2")}})
	l.checkpoint(changes{task0: {del(0, "a")}})
	l.merge(task0, 3)
	l.checkpoint(changes{task0: {put(0, "c", "4")}})
	l.settled() // at once, though the next look is an hour away: the runs are merged, their files still there
	l.stop(time.Second)
	require.Equal(t, 2, l.log.count(builtAnew))
}

func TestKeeperBuildsAnewWhenFilesAreGone(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}, task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	l.keeper = nil
	l.checkpoint(changes{task0: {del(0, "a"), put(0, "c", "2")}})
	l.checkpoint(changes{task0: {put(0, "d", "3")}})
	l.merge(task0, 3)
	for range 4 {
		l.checkpoint(changes{})
		l.clean()
	}
	l.start()
	l.announce()
	l.settled()
	require.Equal(t, 3, l.log.count(builtAnew), "task 1 went on")
	// One that is named but not there: the next root helps.
	e := l.entries[task0]
	broken := e
	broken.Runs = append(slices.Clone(e.Runs), e.Runs[len(e.Runs)-1])
	last := &broken.Runs[len(broken.Runs)-1]
	last.From, last.To, last.Full, last.File = last.To, last.To+1, false, "app/i/chk-9999-0000000000000007.data"
	l.keeper.Committed(*l.root, []snapshot.TaskEntry{broken})
	require.Eventually(t, func() bool { return l.log.count("fell behind") > 0 }, 5*time.Second, time.Millisecond)
	l.checkpoint(changes{task0: {put(0, "e", "9")}})
	l.settled()
	l.stop(time.Second)
}

// A copy that takes long to be built is whole at the newest root all the same.
func TestKeeperTakesChangesWhileItBuilds(t *testing.T) {
	testbed.Alongside(t)
	l := newLine(t)
	const n = 3000
	l.pace.high = 6 << 10 // it waits for the writer again and again
	l.checkpoint(changes{task0: many(n, "old"), task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	require.Eventually(t, func() bool { return len(l.local.Tasks()) > 0 }, time.Minute, time.Millisecond)
	for i := range 60 {
		l.checkpoint(changes{task0: {put(0, fmt.Sprintf("key-%06d", i), "new"), del(0, fmt.Sprintf("key-%06d", n-1-i))}, task1: {put(0, "b", fmt.Sprint(i))}})
		if i%10 == 9 {
			l.merge(task0, 10)
			l.clean()
		}
		time.Sleep(2 * time.Millisecond)
	}
	l.settled()
	require.Equal(t, 2, l.log.count(builtAnew))
	l.stop(time.Second)
}

func TestKeeperDoesNotBeginLongWorkWhileClosing(t *testing.T) {
	l := newLine(t)
	l.pace.every, l.pace.high = time.Hour, 4<<10
	l.checkpoint(changes{task0: many(20_000, "v"), task1: {put(0, "b", "1")}})
	l.start()
	l.announce()
	began := time.Now()
	l.stop(5 * time.Second)
	require.Less(t, time.Since(began), 2*time.Second)
	require.Equal(t, 1, l.log.count(builtAnew))
	l.start()
	_, ok := l.local.Version(task0)
	require.False(t, ok)
	at, ok := l.local.Version(task1)
	require.True(t, ok)
	require.Equal(t, versionOf(*l.root, l.entries[task1]), at)
	l.stop(0) // told to hurry: nothing at all
}

func TestKeeperComesUpToTheLastRootWhileClosing(t *testing.T) {
	testbed.Alongside(t)
	l := newLine(t)
	l.checkpoint(changes{task0: many(10, "v")})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	l.pace.every, l.pace.gap, l.pace.flush, l.pace.high = time.Hour, time.Hour, time.Hour, 4<<10
	l.start()
	l.announce()
	for i := range 20 { // each more than may wait
		l.checkpoint(changes{task0: many(1000, fmt.Sprint(i))})
	}
	l.stop(time.Minute) // more than it takes: a copy that is not given the time stays behind, and may
	l.start()
	at, ok := l.local.Version(task0)
	require.True(t, ok)
	require.Equal(t, versionOf(*l.root, l.entries[task0]), at)
	requireCopies(t, l.local, l.repo, l.all()[:1])
	l.stop(0)
}

func TestClosingTheCopyStaysWithinTheShutdownTimeout(t *testing.T) {
	s := &service{cfg: Config{ShutdownTimeout: 30 * time.Second}}
	require.Equal(t, 5*time.Second, s.closeBudget(5*time.Second), "ended by itself")
	at := time.Now().Add(-28 * time.Second)
	s.stopped.Store(&at)
	require.InDelta(t, 2*time.Second, s.closeBudget(5*time.Second), float64(time.Second))
	at = at.Add(-5 * time.Second)
	require.Negative(t, s.closeBudget(5*time.Second))
}

// A return to an older checkpoint gives ids a second time.
func TestKeeperIsNotTakenInByIdsThatComeTwice(t *testing.T) {
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}, task1: {put(0, "b", "1")}})
	fork, id := l.entries, l.id
	l.entries = map[element.TaskID]snapshot.TaskEntry{task0: fork[task0], task1: fork[task1]}
	first := *l.root
	l.start()
	l.announce()
	l.checkpoint(changes{task0: {put(0, "a", "2"), put(0, "z", "2")}})
	l.settled()
	l.stop(time.Second)
	l.keeper, l.entries, l.id, l.root, l.inc = nil, fork, id, &first, 8
	l.checkpoint(changes{task0: {put(0, "q", "2")}})
	l.checkpoint(changes{task0: {put(0, "r", "3")}})
	l.start()
	l.announce()
	l.settled()
	l.stop(time.Second)
	require.Equal(t, 3, l.log.count(builtAnew))
}

func TestKeeperWritesNothingWhenIdle(t *testing.T) {
	testbed.Alongside(t)
	l := newLine(t)
	l.checkpoint(changes{task0: {put(0, "a", "1")}})
	l.start()
	l.announce()
	l.settled()
	was := l.local.Stats()
	l.announce() // a new attempt
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, was, l.local.Stats())
	l.stop(time.Second)
}

// Random lives: checkpoints, merges, cleaning, stops of every kind. At the end the copy is what a restore gives.
func TestKeeperRandomLives(t *testing.T) {
	testbed.Alongside(t)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("REPLAY_SEED"); s != "" {
		_, err := fmt.Sscan(s, &seed)
		require.NoError(t, err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("REPLAY_SEED=%d go test ./processor -run TestKeeperRandomLives", seed)
		}
	}()
	rng := rand.New(rand.NewPCG(seed, 1))
	l := newLine(t)
	l.checkpoint(changes{})
	l.start()
	l.announce()
	for range 200 {
		task := []element.TaskID{task0, task1}[rng.IntN(2)]
		switch rng.IntN(20) {
		case 0:
			l.merge(task, 1+rng.IntN(20))
		case 1:
			l.clean()
		case 2:
			l.stop([]time.Duration{0, time.Millisecond, time.Second}[rng.IntN(3)])
			l.start()
			l.announce()
		case 3:
			time.Sleep(10 * time.Millisecond)
		default:
			es := map[string]snapshot.Entry{}
			for range rng.IntN(50) {
				key, state := fmt.Sprint(rng.IntN(100)), rng.IntN(2)
				if es[fmt.Sprint(state, key)] = put(state, key, strings.Repeat("v", rng.IntN(30))); rng.IntN(3) == 0 {
					es[fmt.Sprint(state, key)] = del(state, key)
				}
			}
			var list []snapshot.Entry
			for _, e := range es {
				list = append(list, e)
			}
			l.checkpoint(changes{task: list})
		}
	}
	l.settled()
	l.stop(time.Second)
}
