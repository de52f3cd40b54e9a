package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
)

// A state far above what may be uncommitted is taken in all the same.
func TestALargeSavepointIsImported(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"chained", "exchange, fewer"} {
		w := newWorld(t, 2)
		ref := w.cut(forks[kind].before(t), aligned, 200)
		begin := contents(t, ref.Path)
		f := w.fork("fork", 2)
		cfg := f.configOf("fork", ref.Path)
		cfg.UncommittedLimit = 1
		stop := f.startPlan(forks[kind].after(t), cfg, withFrom(f.ports()), nil)
		f.produce(100, 7)
		f.outputsFrom(begin)
		require.NoError(t, stop())
		f.exactFrom(begin)
	}
}

func TestAForkThatIsAtLeastOnce(t *testing.T) {
	w := newWorld(t, 2)
	ref := w.cut(countPlan(t), aligned, 200)
	begin := contents(t, ref.Path)
	f := w.fork("fork", 2)
	f.plain = true
	for range 2 {
		cfg := f.configOf("fork", ref.Path)
		cfg.AtLeastOnce = true
		stop := f.startPlan(countPlan(t), cfg, withFrom(f.ports()), nil)
		f.produce(100, 7)
		f.outputsFrom(begin)
		require.NoError(t, stop())
	}
	f.exactFrom(begin)
}

// The parts of several instances are one savepoint.
func TestAForkOfTwoInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.others = true
	a, b := w.member, w.join("i2")
	var refs []string
	var stops []func() error
	w.mu.Lock()
	a.lose(2, 3)
	b.gain(slices.Values([]int32{2, 3}))
	w.mu.Unlock()
	for _, m := range []*member{a, b} {
		stops = append(stops, m.startPlan(countPlan(t), m.config(), withFrom(m.ports()), nil))
	}
	dir := t.TempDir()
	for i, m := range []*member{a, b} { // not at one moment: each knows what its own partitions have
		w.produceUntil(func() bool { return w.done() > 200*(i+1) })
		ref, err := m.r.Savepoint(t.Context(), "the-same", dir)
		require.NoError(t, err)
		refs = append(refs, ref.Path)
	}
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	begin := contents(t, refs[0])
	maps.Copy(begin, contents(t, refs[1]))
	f := w.fork("fork", 4)
	for _, ref := range refs { // one alone would leave the others' partitions without state
		r, err := New(countPlan(t), f.configOf("fork", ref), withFrom(f.ports()), nil)
		require.NoError(t, err)
		err = r.Run(t.Context())
		require.Equal(t, fault.Usage, fault.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, "is not complete")
		require.Empty(t, f.commits)
	}
	cfg := f.configOf("fork", refs[1], refs[0])
	cfg.From.Claim = true
	var gone atomic.Pointer[[]string]
	lis := &Listener{Claimed: func(paths []string, err error) { require.NoError(t, err); gone.Store(&paths) }}
	stop := f.startPlan(countPlan(t), cfg, withFrom(f.ports()), lis)
	f.produce(100, 7)
	f.outputsFrom(begin)
	require.Eventually(t, func() bool { return gone.Load() != nil }, 10*time.Second, time.Millisecond)
	require.ElementsMatch(t, refs, *gone.Load())
	f.assign(4) // the next attempt does without
	f.produce(100, 7)
	f.outputsFrom(begin)
	require.NoError(t, stop())
	cfg.From.Paths = []string{refs[0], refs[1]} // and the next process
	stop = f.startPlan(countPlan(t), cfg, withFrom(f.ports()), lis)
	f.produce(100, 7)
	f.outputsFrom(begin)
	require.NoError(t, stop())
	f.exactFrom(begin)
}

// A savepoint of one's own that was ignored may be deleted while the service runs.
func TestAnIgnoredSavepointMayGo(t *testing.T) {
	w := newWorld(t, 2)
	ref := w.cut(countPlan(t), aligned, 100)
	var attempts atomic.Int64
	stop := w.startPlan(countPlan(t), w.configOf(app, ref.Path), withFrom(w.ports()), &Listener{AttemptStarted: func(AttemptInfo) { attempts.Add(1) }})
	require.Eventually(t, func() bool { return attempts.Load() == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, snapshot.DisposeSavepoint(t.Context(), ref.Path))
	w.assign(2)
	require.Eventually(t, func() bool { return attempts.Load() > 1 }, 10*time.Second, time.Millisecond)
	w.produce(100, 7)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

// asSavepoint makes a savepoint of the committed root of all tasks, with what is in flight there.
func (w *world) asSavepoint() (path string, inflight int) {
	h, err := snapshot.ParseHandle(w.committed[tp(0)].Metadata)
	require.NoError(w.t, err)
	roots, err := w.repo.LoadRoots(w.t.Context(), []snapshot.RootRef{h.Root})
	require.NoError(w.t, err)
	root := roots[h.Root].Root
	require.NotNil(w.t, root)
	var tasks []snapshot.SavepointTask
	for _, e := range root.Tasks {
		var all []snapshot.Entry
		_, err := w.repo.Restore(w.t.Context(), e, nil, func(e snapshot.Entry) error {
			e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value)
			i, found := slices.BinarySearchFunc(all, e, func(a, b snapshot.Entry) int {
				return cmp.Or(cmp.Compare(a.State, b.State), bytes.Compare(a.Key, b.Key))
			})
			if found {
				all[i] = e
			} else {
				all = slices.Insert(all, i, e)
			}
			return nil
		})
		require.NoError(w.t, err)
		st := snapshot.SavepointTask{Task: e.Task, Positions: e.Positions, States: e.States, Parallelism: e.Parallelism, MaxParallelism: e.MaxParallelism, Entries: slices.Values(all)}
		if len(e.InFlight) > 0 {
			st.InFlight = func(add func(group int, data []byte) error) error {
				_, err := w.repo.RestoreInFlight(w.t.Context(), e, nil, add)
				return err
			}
			inflight += int(e.InFlight[0].Entries)
		}
		tasks = append(tasks, st)
	}
	ref, err := snapshot.WriteSavepoint(w.t.Context(), snapshot.SavepointConfig{Dir: w.t.TempDir()}, snapshot.SavepointHead{
		ID: "flying", Name: root.Name, Application: app, Instance: "i1", ClusterID: "c1", StoreID: root.StoreID}, tasks)
	require.NoError(w.t, err)
	return ref.Path, inflight
}

// moves are the changes of the parallelism that a fork makes, besides none.
var moves = [][2]int{{1, 2}, {2, 3}, {2, 4}, {4, 3}, {4, 1}}

// What was in flight at the savepoint is made by the fork, once, also with another parallelism.
func TestRecordsInFlightOfASavepoint(t *testing.T) {
	t.Parallel()
	for _, move := range moves {
		t.Run(fmt.Sprintf("%d to %d", move[0], move[1]), func(t *testing.T) {
			w := newWorld(t, 2)
			w.produce(2000, 17)
			cfg := w.config()
			cfg.Unaligned, cfg.ChannelRecords, cfg.ShutdownTimeout = true, 64, 1
			kill := w.startPlan(slowPlan(t, move[0], 100*time.Microsecond), cfg, w.ports(), nil)
			require.Eventually(t, func() bool { return w.done() > 300 }, 10*time.Second, time.Millisecond)
			require.NoError(t, kill())
			path, inflight := w.asSavepoint()
			require.Positive(t, inflight)
			begin := contents(t, path)
			f := w.fork("fork", 2)
			for range 2 {
				stop := f.startPlan(slowPlan(t, move[1], 0), f.configOf("fork", path), withFrom(f.ports()), nil)
				f.produce(50, 17)
				f.outputsFrom(begin)
				require.NoError(t, stop())
			}
			f.exactFrom(begin)
			t.Logf("%d records were in flight", inflight)
		})
	}
}

// pendingTimers has timers that come due after some time in a savepoint, and gives how often each has fired by then, and the number
// of those that have not.
func pendingTimers(t *testing.T, parallelism int, after time.Duration) (w *world, path string, base time.Time, begin map[string]int64, pending int) {
	t.Helper()
	w = newWorld(t, 3)
	base = time.Now().Add(after)
	stop := w.startPlan(timerPlan(t, parallelism, base), w.config(), withFrom(w.ports()), nil)
	w.produce(200, 11)
	w.caughtUp()
	ref, err := w.r.Savepoint(t.Context(), "", t.TempDir())
	require.NoError(t, err)
	require.NoError(t, stop())
	begin = map[string]int64{}
	pending = w.total()
	s, err := snapshot.OpenSavepoint(t.Context(), ref.Path)
	require.NoError(t, err)
	defer s.Close()
	for _, e := range s.Root.Tasks {
		_, err := s.Restore(t.Context(), e, nil, func(en snapshot.Entry) error {
			if !strings.HasSuffix(e.States[en.State].Name, "fired") {
				return nil
			}
			n, err := serde.Int64().Decode(en.Value)
			begin[string(en.Key)] = n
			pending -= int(n)
			return err
		})
		require.NoError(t, err)
	}
	return w, ref.Path, base, begin, pending
}

// Timers that are pending at the savepoint fire in the fork, once, also with another parallelism.
func TestTimersOfASavepoint(t *testing.T) {
	t.Parallel()
	for _, move := range moves {
		t.Run(fmt.Sprintf("%d to %d", move[0], move[1]), func(t *testing.T) {
			t.Parallel()
			w, path, base, begin, pending := pendingTimers(t, move[0], 400*time.Millisecond)
			for wait := time.Second; pending == 0; wait *= 2 { // a slow machine: they had fired before
				w, path, base, begin, pending = pendingTimers(t, move[0], wait)
			}
			f := w.fork("fork", 3)
			for range 2 {
				stop := f.startPlan(timerPlan(t, move[1], base), f.configOf("fork", path), withFrom(f.ports()), nil)
				f.produce(50, 11)
				f.outputsFrom(begin)
				require.NoError(t, stop())
			}
			f.exactFrom(begin)
			t.Logf("%d timers were pending", pending)
		})
	}
}

// A savepoint has no records in flight, and neither has the checkpoint of a graceful stop: their barriers are aligned also where
// others overtake. What lies ahead of them in full channels is in the state.
func TestSavepointsAndStopsAreAligned(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unaligned", "timeout"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.produce(3000, 17)
			cfg := w.config()
			modes[name](&cfg)
			cfg.ChannelRecords = 64
			stop := w.startPlan(slowPlan(t, 2, 200*time.Microsecond), cfg, withFrom(w.ports()), nil)
			require.Eventually(t, func() bool { return w.done() > 50 }, 10*time.Second, time.Millisecond)
			ref, err := w.r.Savepoint(t.Context(), "", t.TempDir())
			require.NoError(t, err)
			require.NoError(t, stop())
			require.Less(t, w.done(), w.total(), "it was stopped in the middle")
			w.mu.Lock()
			text := w.committed[tp(0)].Metadata
			w.mu.Unlock()
			h, err := snapshot.ParseHandle(text)
			require.NoError(t, err)
			root, err := w.repo.ReadRoot(t.Context(), h.Root)
			require.NoError(t, err)
			for _, e := range root.Tasks {
				require.Empty(t, e.InFlight, "task %s", e.Task)
			}
			begin := contents(t, ref.Path)
			f := w.fork("fork", 2)
			stop = f.startPlan(slowPlan(t, 3, 0), f.configOf("fork", ref.Path), withFrom(f.ports()), nil)
			f.outputsFrom(begin)
			require.NoError(t, stop())
			f.exactFrom(begin)
		})
	}
}
