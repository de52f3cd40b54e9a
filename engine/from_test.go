package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// withFrom adds what opens savepoints to start from.
func withFrom(p Ports) Ports {
	var opened atomic.Int64
	p = withSavepoints(p, &opened)
	p.OpenFrom = func(ctx context.Context, path string) (Savepoint, snapshot.SavepointRef, error) {
		if _, err := os.Stat(path); err != nil {
			return nil, snapshot.SavepointRef{}, err
		}
		s, err := snapshot.OpenSavepoint(ctx, path)
		if err != nil {
			return nil, snapshot.SavepointRef{}, err
		}
		return openSavepoint{s}, s.Ref, nil
	}
	return p
}

// fork is a world with the same input and another application, which nobody has run yet.
func (w *world) fork(name string, partitions int) *world {
	f := newWorld(w.t, partitions)
	for i := range min(partitions, len(w.logs)) {
		f.logs[i] = slices.Clone(w.logs[i])
	}
	f.member.fork(name)
	return f
}

// fork opens the member's checkpoints under another name.
func (m *member) fork(name string) {
	repo, err := snapshot.OpenRepository(m.w.t.Context(), snapshot.Config{Dir: m.w.dir, Application: name, Instance: m.name, NumRetained: 2, Logger: slog.Default()})
	require.NoError(m.w.t, err)
	m.w.t.Cleanup(func() { require.NoError(m.w.t, repo.Close()) })
	m.repo = repo
}

func (m *member) configOf(application string, from ...string) Config {
	cfg := m.config()
	cfg.Application, cfg.From.Paths = application, from
	return cfg
}

// cut takes a savepoint of a world that has processed n records, and then some more.
func (w *world) cut(plan *topology.Plan, set func(*Config), n int) snapshot.SavepointRef {
	cfg := w.config()
	set(&cfg)
	r, err := New(plan, cfg, withFrom(w.ports()), nil)
	require.NoError(w.t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() >= n })
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	ref, err := r.Savepoint(ctx, "", w.t.TempDir())
	require.NoError(w.t, err)
	w.produce(n, 7) // behind it, however much there was before
	w.produceUntil(func() bool { return w.done() >= 2*n })
	w.outputs()
	require.NoError(w.t, stop())
	return ref
}

// exactFrom is exact for an application whose counts begin with those of a savepoint.
func (w *world) exactFrom(begin map[string]int64) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[string]int64{}
	for _, log := range w.logs {
		for _, r := range log {
			want[string(r.Key)]++
		}
	}
	got := maps.Clone(begin)
	for i, r := range w.output {
		n, err := serde.Int64().Decode(r.Value)
		require.NoError(w.t, err)
		require.Equal(w.t, got[string(r.Key)]+1, n, "output %d of key %s after commits %v", i, r.Key, w.commits)
		got[string(r.Key)] = n
	}
	require.Equal(w.t, want, got)
}

// outputsFrom waits until there is an output for every input that a savepoint does not have.
func (w *world) outputsFrom(begin map[string]int64) {
	w.t.Helper()
	has := 0
	for _, n := range begin {
		has += int(n)
	}
	require.Eventually(w.t, func() bool { return w.done() >= w.total()-has }, 15*time.Second, time.Millisecond)
}

var forks = map[string]struct {
	before, after func(*testing.T) *topology.Plan
}{
	"chained":                {countPlan, countPlan},
	"exchange, same":         {exchange(2), exchange(2)},
	"exchange, 1 to 2":       {exchange(1), exchange(2)},
	"exchange, more":         {exchange(2), exchange(3)},
	"exchange, 2 to 4":       {exchange(2), exchange(4)},
	"exchange, fewer":        {exchange(4), exchange(1)},
	"exchange, 4 to 3":       {exchange(4), exchange(3)},
	"two exchanges, changed": {func(t *testing.T) *topology.Plan { return twoHopPlan(t, 1, 3) }, func(t *testing.T) *topology.Plan { return twoHopPlan(t, 2, 2) }},
}

func exchange(parallelism int) func(*testing.T) *topology.Plan {
	return func(t *testing.T) *topology.Plan { return exchangePlan(t, parallelism) }
}

func aligned(*Config) {}

// A fork goes on from the savepoint, over kills, commits no start position, and leaves the savepoint as it is.
func TestAForkGoesOnFromTheSavepoint(t *testing.T) {
	t.Parallel()
	for name, c := range forks {
		for mode, set := range modes {
			t.Run(name+"/"+mode, func(t *testing.T) {
				w := newWorld(t, 3)
				ref := w.cut(c.before(t), set, 300)
				begin := contents(t, ref.Path)
				f := w.fork("fork", 3)
				var from atomic.Pointer[FromInfo]
				lis := &Listener{StartedFrom: func(i FromInfo) { from.Store(&i) }}
				cfg := f.configOf("fork", ref.Path)
				set(&cfg)
				var delta atomic.Bool
				f.wrap = func(c Checkpoints) Checkpoints {
					return rootWatch{c, func(root *snapshot.Root) {
						for _, e := range root.Tasks {
							if len(e.Runs) > 0 && !e.Runs[0].Full {
								delta.Store(true)
							}
						}
					}}
				}
				stop := f.startPlan(c.after(t), cfg, withFrom(f.ports()), lis)
				f.produce(200, 7)
				f.outputsFrom(begin)
				require.NoError(t, stop())
				require.Zero(t, from.Load().Ignored)
				require.False(t, delta.Load(), "the first checkpoint has the whole state")
				f.wrap = nil
				require.Positive(t, from.Load().Imported)
				require.Equal(t, ref.Digest, from.Load().Origin[0].Digest)
				require.NotContains(t, f.commits, element.CheckpointID(0), "no start position is committed")
				for range 2 { // the wish stays on the command line
					stop = f.startPlan(c.after(t), cfg, withFrom(f.ports()), lis)
					f.produce(100, 7)
					f.outputsFrom(begin)
					require.NoError(t, stop())
					require.Equal(t, 3, from.Load().Ignored)
					require.Zero(t, from.Load().Imported)
				}
				stop = f.startPlan(c.after(t), f.configOf("fork"), f.ports(), lis) // or goes
				f.produce(100, 7)
				f.outputsFrom(begin)
				require.NoError(t, stop())
				f.exactFrom(begin)
				require.Equal(t, begin, contents(t, ref.Path))
			})
		}
	}
}

// failingRoot fails to write roots, or to say so after it has.
type failingRoot struct {
	Checkpoints
	after bool
}

var errSpoiled = errors.New("planted")

func (r failingRoot) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	if r.after {
		if _, err := r.Checkpoints.WriteRoot(ctx, root); err != nil {
			return snapshot.RootRef{}, err
		}
	}
	return snapshot.RootRef{}, errSpoiled
}

// Before the first commit everything begins again: in the process and in the next one, whatever lies in the store.
func TestACrashBeforeTheFirstCommitOfAnImport(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"chained", "exchange, more"} {
		for what, spoil := range map[string]func(f *world){
			"no root": func(f *world) { f.wrap = func(c Checkpoints) Checkpoints { return failingRoot{c, false} } },
			"a root":  func(f *world) { f.wrap = func(c Checkpoints) Checkpoints { return failingRoot{c, true} } },
			"no commit": func(f *world) {
				f.onCommit = func(c checkpoint.Commit) (bool, error) {
					return c.Name.ID == 0, map[bool]error{false: errSpoiled}[c.Name.ID == 0]
				}
			},
		} {
			t.Run(kind+"/"+what, func(t *testing.T) {
				w := newWorld(t, 3)
				ref := w.cut(forks[kind].before(t), aligned, 200)
				begin := contents(t, ref.Path)
				f := w.fork("fork", 4) // one that the savepoint does not know
				spoil(f)
				cfg := f.configOf("fork", ref.Path)
				var fails atomic.Int64
				lis := &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
					if errors.Is(err, errSpoiled) {
						fails.Add(1)
					}
				}}
				if kind == "chained" { // its keys would have moved
					f.logs = f.logs[:3]
					f.assign(3)
				}
				stop := f.startPlan(forks[kind].after(t), cfg, withFrom(f.ports()), lis)
				require.Eventually(t, func() bool { return fails.Load() >= 3 }, 10*time.Second, time.Millisecond)
				require.NoError(t, stop())
				require.Zero(t, f.done())
				left, err := f.repo.List(t.Context())
				require.NoError(t, err)
				require.LessOrEqual(t, len(left), 1, "each start removes what the one before left")
				f.wrap, f.onCommit = nil, nil
				stop = f.startPlan(forks[kind].after(t), cfg, withFrom(f.ports()), lis)
				f.produce(200, 7)
				f.outputsFrom(begin)
				require.NoError(t, stop())
				f.exactFrom(begin)
			})
		}
	}
}

// An application that is ahead of the savepoint is not taken back, until that is accepted, and then once.
func TestGoingBackToASavepoint(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"chained", "exchange, fewer"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 3)
			ref := w.cut(forks[kind].before(t), aligned, 200)
			begin := contents(t, ref.Path)
			f := w.fork("other", 3) // it has nothing to do with the savepoint
			stop := f.startPlan(forks[kind].after(t), f.configOf("other"), f.ports(), nil)
			f.outputs()
			require.NoError(t, stop())
			cfg := f.configOf("other", ref.Path)
			r, err := New(forks[kind].after(t), cfg, withFrom(f.ports()), nil)
			require.NoError(t, err)
			err = r.Run(t.Context())
			require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
			require.True(t, snapshot.RefusalOf(err).Has(snapshot.ReasonOtherLineage), "%v", err)

			cfg.From.AcceptDuplicates = true
			f.output = nil
			var from atomic.Pointer[FromInfo]
			for range 3 {
				stop = f.startPlan(forks[kind].after(t), cfg, withFrom(f.ports()), &Listener{StartedFrom: func(i FromInfo) { from.Store(&i) }})
				f.produce(100, 7)
				f.outputsFrom(begin)
				require.NoError(t, stop())
			}
			require.Equal(t, 3, from.Load().Ignored, "it was granted once")
			f.exactFrom(begin)
		})
	}
}

// Offsets that are gone are no fresh group: that takes a word, too, and new checkpoints are above those in the store.
func TestGoingBackToASavepointWithoutOffsets(t *testing.T) {
	w := newWorld(t, 2)
	ref := w.cut(countPlan(t), aligned, 200)
	begin := contents(t, ref.Path)
	w.committed, w.output, w.commits = map[element.TopicPartition]Committed{}, nil, nil
	cfg := w.configOf(app, ref.Path)
	r, err := New(countPlan(t), cfg, withFrom(w.ports()), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.True(t, snapshot.RefusalOf(err).Has(snapshot.ReasonOffsetsExpired), "%v", err)
	cfg.From.AcceptDuplicates = true
	for range 3 {
		stop := w.startPlan(countPlan(t), cfg, withFrom(w.ports()), nil)
		w.produce(100, 7)
		w.outputsFrom(begin)
		require.NoError(t, stop())
	}
	w.exactFrom(begin)
}

// The application's own savepoint lies in its past.
func TestTheWishForOnesOwnSavepointIsIgnored(t *testing.T) {
	w := newWorld(t, 3)
	ref := w.cut(countPlan(t), aligned, 200)
	var from atomic.Pointer[FromInfo]
	lis := &Listener{StartedFrom: func(i FromInfo) { from.Store(&i) }}
	cfg := w.configOf(app, ref.Path)
	cfg.From.Claim = true
	stop := w.startPlan(countPlan(t), cfg, withFrom(w.ports()), lis)
	w.produce(100, 7)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
	require.DirExists(t, ref.Path, "nothing comes from it, so it is not taken for of no more use")
	cfg.From.Claim = false
	require.Equal(t, 3, from.Load().Ignored)
	require.Positive(t, from.Load().Beyond, "whoever wants to go back is told how")
	begin := contents(t, ref.Path)
	w.output = nil
	cfg.From.AcceptDuplicates = true
	stop = w.startPlan(countPlan(t), cfg, withFrom(w.ports()), lis)
	w.outputsFrom(begin)
	require.NoError(t, stop())
	w.exactFrom(begin)
	require.Len(t, from.Load().Moved, 3)
	stop = w.startPlan(countPlan(t), cfg, withFrom(w.ports()), lis)
	w.produce(100, 7)
	w.outputsFrom(begin)
	require.NoError(t, stop())
	w.exactFrom(begin)
	require.Equal(t, 3, from.Load().Ignored)
	require.Zero(t, from.Load().Beyond, "it has gone back")
}

// A claimed savepoint goes when its state is in a checkpoint of its own, and nobody misses it.
func TestAClaimedSavepointIsDisposedOf(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"chained", "exchange, more"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			ref := w.cut(forks[kind].before(t), aligned, 200)
			begin := contents(t, ref.Path)
			f := w.fork("fork", 2)
			cfg := f.configOf("fork", ref.Path)
			cfg.From.Claim = true
			var gone atomic.Pointer[[]string]
			lis := &Listener{Claimed: func(paths []string, err error) { require.NoError(t, err); gone.Store(&paths) }}
			stop := f.startPlan(forks[kind].after(t), cfg, withFrom(f.ports()), lis)
			require.Eventually(t, func() bool { return gone.Load() != nil }, 10*time.Second, time.Millisecond, "also when no record comes")
			require.NoError(t, stop())
			require.Equal(t, []string{ref.Path}, *gone.Load())
			_, err := os.Stat(ref.Path)
			require.ErrorIs(t, err, fs.ErrNotExist)
			var from atomic.Pointer[FromInfo]
			lis.StartedFrom = func(i FromInfo) { from.Store(&i) }
			stop = f.startPlan(forks[kind].after(t), cfg, withFrom(f.ports()), lis)
			f.produce(100, 7)
			f.outputsFrom(begin)
			require.NoError(t, stop())
			f.exactFrom(begin)
			require.Equal(t, 2, from.Load().Ignored)

			other := w.fork("other", 2) // it has never had it
			r, err := New(forks[kind].after(t), other.configOf("other", ref.Path), withFrom(other.ports()), nil)
			require.NoError(t, err)
			err = r.Run(t.Context())
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, ref.Path)
			require.Equal(t, fault.Usage, fault.CodeOf(err))
		})
	}
}

// Where it is gone nothing goes back, whatever was allowed: a damaged checkpoint is told to a partition without an offset as at
// every start.
func TestAClaimedSavepointThatIsGoneAndADamagedRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	r, err := New(latestPlan(t, false), w.config(), withFrom(w.ports()), nil)
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() > 50 })
	ref, err := r.Savepoint(t.Context(), "", t.TempDir())
	require.NoError(t, err)
	require.NoError(t, stop())
	f := w.fork("fork", 2)
	cfg := f.configOf("fork", ref.Path)
	cfg.From.AcceptDuplicates = true
	stop = f.startPlan(latestPlan(t, false), cfg, withFrom(f.ports()), nil)
	for range 3 {
		f.produce(100, 7)
		f.caughtUp()
	}
	require.NoError(t, stop())
	require.NoError(t, os.RemoveAll(ref.Path))
	f.damageRoot(1)
	stop = f.startPlan(latestPlan(t, false), cfg, withFrom(f.ports()), nil) // all have an offset
	f.produce(50, 7)
	f.caughtUp()
	require.NoError(t, stop())
	f.damageRoot(1)
	f.added(30)
	f.assign(3)
	r, err = New(latestPlan(t, false), cfg, withFrom(f.ports()), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.Corrupt, fault.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, ".root")
}

// Each of two instances takes its own partitions from the savepoint, also when they move before anything is committed, and
// only when all are safe the savepoint goes.
func TestInstancesShareASavepoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	ref := w.cut(countPlan(t), aligned, 300)
	begin := contents(t, ref.Path)
	f := w.fork("fork", 4)
	f.others = true
	a, b := f.member, f.join("i2")
	b.fork("fork")
	var fail atomic.Bool
	fail.Store(true)
	f.onCommit = func(c checkpoint.Commit) (bool, error) {
		theirs := slices.ContainsFunc(c.Offsets, func(o checkpoint.OffsetCommit) bool { return o.Position.Partition >= 2 })
		if fail.Load() && theirs {
			return false, errSpoiled
		}
		return true, nil
	}
	var gone atomic.Bool
	var stops []func() error
	for _, m := range []*member{a, b} {
		cfg := m.configOf("fork", ref.Path)
		cfg.From.Claim = true
		stops = append(stops, m.startPlan(countPlan(t), cfg, withFrom(m.ports()), &Listener{Claimed: func([]string, error) { gone.Store(true) }}))
	}
	time.Sleep(20 * time.Millisecond)
	f.move(a, b, 20*time.Millisecond, 2, 3)
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.committed[tp(0)].Found && f.committed[tp(1)].Found
	}, 10*time.Second, time.Millisecond)
	time.Sleep(3 * claimInterval)
	require.False(t, gone.Load(), "the other instance still needs it")
	fail.Store(false)
	f.produce(200, 7)
	f.outputsFrom(begin)
	require.Eventually(t, gone.Load, 10*time.Second, time.Millisecond)
	f.move(a, b, 5*time.Second, 1)
	f.produce(200, 7)
	f.outputsFrom(begin)
	for _, stop := range stops {
		require.NoError(t, stop())
	}
	f.exactFrom(begin)
}

// twoStates counts and sums behind one source.
func twoStates(t *testing.T) *topology.Plan {
	b := topology.New(app)
	in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
	topology.ToTopic(topology.Count(in, "count"), "out", "out", serde.String(), serde.Int64())
	topology.Count(in, "other")
	p, err := b.Plan()
	require.NoError(t, err)
	return p
}

func TestStateThatNothingTakesUpIsRefusedOrDropped(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"savepoint", "checkpoint"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, 2)
			ref := w.cut(twoStates(t), aligned, 200)
			f, cfg, begin := w, w.config(), map[string]int64{}
			if how == "savepoint" {
				f = w.fork("fork", 2)
				cfg = f.configOf("fork", ref.Path)
				begin = contents(t, ref.Path)
			}
			r, err := New(countPlan(t), cfg, withFrom(f.ports()), nil)
			require.NoError(t, err)
			err = r.Run(t.Context())
			require.Equal(t, fault.StateMismatch, fault.CodeOf(err))
			require.ErrorContains(t, err, "other/aggregate")
			cfg.AllowDropped = true
			var dropped atomic.Pointer[snapshot.DroppedStage]
			var restored, saidID atomic.Uint64
			var said atomic.Pointer[AttemptInfo]
			stop := f.startPlan(countPlan(t), cfg, withFrom(f.ports()), &Listener{
				Dropped: func(d snapshot.DroppedStage) { dropped.Store(&d) },
				Restored: func(_ element.TaskID, from snapshot.RootRef, _ snapshot.Stats, _ time.Duration) {
					restored.Store(max(restored.Load(), uint64(from.Name.ID)))
				},
				AttemptStarted: func(i AttemptInfo) { said.Store(&i); saidID.Store(restored.Load()) },
			})
			f.produce(100, 7)
			f.outputsFrom(begin)
			require.NoError(t, stop())
			require.Zero(t, said.Load().Fresh)
			if how == "savepoint" {
				require.Equal(t, 2, said.Load().Imported)
				require.Zero(t, said.Load().Checkpoint)
			} else {
				require.Positive(t, saidID.Load())
				require.EqualValues(t, saidID.Load(), said.Load().Checkpoint, "what was restored is what the attempt says that it goes on from")
			}
			require.Equal(t, "in", dropped.Load().Stage)
			require.Equal(t, []string{"other/aggregate"}, dropped.Load().States)
			dropped.Store(nil)
			cfg.AllowDropped, cfg.From = false, From{} // and that is that
			stop = f.startPlan(countPlan(t), cfg, withFrom(f.ports()), nil)
			f.produce(100, 7)
			f.outputsFrom(begin)
			require.NoError(t, stop())
			f.exactFrom(begin)
		})
	}
}

func TestASavepointOfAnotherClusterIsRefused(t *testing.T) {
	w := newWorld(t, 1)
	ref := w.cut(countPlan(t), aligned, 50)
	f := w.fork("fork", 1)
	cfg := f.configOf("fork", ref.Path)
	cfg.ClusterID = "c2"
	r, err := New(countPlan(t), cfg, withFrom(f.ports()), nil)
	require.NoError(t, err)
	err = r.Run(t.Context())
	require.Equal(t, fault.HandleMismatch, fault.CodeOf(err))
	require.ErrorContains(t, err, `cluster "c1"`)
}
