package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/serde"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// openSavepoint is a savepoint as the engine sees it.
type openSavepoint struct{ *snapshot.Savepoint }

func (s openSavepoint) Contents() *snapshot.Root { return s.Root }

// withSavepoints adds what reads, writes and deletes savepoints; opened counts those that are opened.
func withSavepoints(p Ports, opened *atomic.Int64) Ports {
	p.WriteSavepoint = func(ctx context.Context, dir string, head snapshot.SavepointHead, tasks []snapshot.SavepointTask) (snapshot.SavepointRef, error) {
		return snapshot.WriteSavepoint(ctx, snapshot.SavepointConfig{Dir: dir}, head, tasks)
	}
	p.OpenSavepoint = func(ctx context.Context, ref snapshot.SavepointRef) (Savepoint, error) {
		opened.Add(1)
		s, err := snapshot.OpenSavepoint(ctx, ref.Path)
		if err != nil {
			return nil, err
		}
		return openSavepoint{s}, nil
	}
	p.DisposeSavepoint = snapshot.DisposeSavepoint
	return p
}

// contents reads the counts of all keys out of a savepoint.
func contents(t *testing.T, path string) map[string]int64 {
	s, err := snapshot.OpenSavepoint(t.Context(), path)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Verify(t.Context())
	require.NoError(t, err)
	got := map[string]int64{}
	for _, e := range s.Root.Tasks {
		_, err := s.Restore(t.Context(), e, nil, func(e snapshot.Entry) error {
			n, err := serde.Int64().Decode(e.Value)
			got[string(e.Key)] = n
			return err
		})
		require.NoError(t, err)
	}
	return got
}

func (w *world) counts() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := map[string]int64{}
	for _, r := range w.output {
		got[string(r.Key)]++
	}
	return got
}

func TestASavepointHoldsTheWholeState(t *testing.T) {
	t.Parallel()
	plans := map[string]func(*testing.T) *topology.Plan{
		"chained":  countPlan,
		"exchange": func(t *testing.T) *topology.Plan { return exchangePlan(t, 3) },
	}
	for name, set := range modes {
		for kind, plan := range plans {
			t.Run(name+"/"+kind, func(t *testing.T) {
				w := newWorld(t, 3)
				dir := t.TempDir()
				cfg := w.config()
				set(&cfg)
				var opened atomic.Int64
				r, err := New(plan(t), cfg, withSavepoints(w.ports(), &opened), nil)
				require.NoError(t, err)
				stop := w.run(r)
				w.produceUntil(func() bool { return w.done() > 300 })
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				busy, err := r.Savepoint(ctx, "", dir) // while records flow
				require.NoError(t, err)
				require.NotEmpty(t, contents(t, busy.Path))
				w.produce(100, 7)
				w.outputs()
				w.caughtUp()
				still, err := r.Savepoint(ctx, "", dir) // and when nothing moves
				require.NoError(t, err)
				require.Equal(t, w.counts(), contents(t, still.Path))
				_, ok, err := r.Checkpoint(ctx)
				require.NoError(t, err)
				require.False(t, ok, "nothing has changed")
				require.NoError(t, stop())
				w.exact()
				list, err := snapshot.ListSavepoints(t.Context(), dir)
				require.NoError(t, err)
				require.Len(t, list, 2)
			})
		}
	}
}

func TestASavepointThatCannotBeWrittenIsNoFailureOfTheCheckpoint(t *testing.T) {
	w := newWorld(t, 1)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	var attempts, opened atomic.Int64
	r, err := New(countPlan(t), w.config(), withSavepoints(w.ports(), &opened), &Listener{AttemptStarted: func(AttemptInfo) { attempts.Add(1) }})
	require.NoError(t, err)
	stop := w.run(r)
	w.produceUntil(func() bool { return w.done() > 50 })
	_, err = r.Savepoint(t.Context(), "", file)
	require.ErrorContains(t, err, file)
	w.outputs()
	require.NoError(t, stop())
	w.exact()
	require.EqualValues(t, 1, attempts.Load())
}

func TestNobodyWaitsForASavepointOfAnEngineThatIsNotRunning(t *testing.T) {
	w := newWorld(t, 1)
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	_, err = r.Savepoint(t.Context(), "", t.TempDir())
	require.ErrorContains(t, err, "nothing is being processed")
	s, err := r.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, StandingBy, s.State)
}

// A recovery reads the savepoint that was cut along with the checkpoint, unless the checkpoint is preferred, and the
// checkpoint when the savepoint is damaged.
func TestRecoveryReadsTheSavepointOrTheCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		prefer, damaged bool
		opened          int64
	}{
		"the savepoint":              {false, false, 3},
		"the checkpoint":             {true, false, 0},
		"the checkpoint after all":   {false, true, 3},
		"the checkpoint, of damaged": {true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			dir := t.TempDir()
			var opened, unusable atomic.Int64
			cfg := w.config()
			r, err := New(countPlan(t), cfg, withSavepoints(w.ports(), &opened), nil)
			require.NoError(t, err)
			stop := w.run(r)
			w.produce(300, 7)
			w.outputs()
			w.caughtUp()
			ref, err := r.Savepoint(t.Context(), "", dir)
			require.NoError(t, err)
			require.NoError(t, stop())
			if c.damaged {
				data := filepath.Join(ref.Path, "state.data")
				b, err := os.ReadFile(data)
				require.NoError(t, err)
				for i := range b {
					b[i] ^= 1
				}
				require.NoError(t, os.WriteFile(data, b, 0o600))
			}
			cfg.PreferCheckpoint = c.prefer
			stop = w.startWithPorts(countPlan(t), cfg, withSavepoints(w.ports(), &opened), &Listener{
				SavepointUnusable: func(element.TaskID, snapshot.SavepointRef, error) { unusable.Add(1) },
			})
			w.produce(300, 7)
			w.outputs()
			require.NoError(t, stop())
			w.exact()
			require.Equal(t, c.opened, opened.Load())
			require.Equal(t, c.damaged && !c.prefer, unusable.Load() > 0)
		})
	}
}

func (m *member) startWithPorts(plan *topology.Plan, cfg Config, ports Ports, lis *Listener) func() error {
	return m.startPlan(plan, cfg, ports, lis)
}

// Every checkpoint writes everything, and each root consists of one run per task.
func TestFullSnapshots(t *testing.T) {
	for kind, plan := range map[string]func(*testing.T) *topology.Plan{
		"chained":  countPlan,
		"exchange": func(t *testing.T) *topology.Plan { return exchangePlan(t, 2) },
	} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, 2)
			var runs, sizes atomic.Int64
			cfg := w.config()
			cfg.FullSnapshots, cfg.MaxConcurrent, cfg.TolerableFailures, cfg.TransactionTimeout = true, 2, checkpoint.Unlimited, time.Hour
			var calls atomic.Int64
			w.wrap = func(c Checkpoints) Checkpoints {
				return failingPersist{rootWatch{c, func(root *snapshot.Root) {
					for _, e := range root.Tasks {
						runs.Store(max(runs.Load(), int64(len(e.Runs))))
						for _, r := range e.Runs {
							sizes.Store(max(sizes.Load(), r.Entries))
						}
					}
				}}, func() bool { return calls.Add(1)%4 == 0 }}
			}
			stop := w.startPlan(plan(t), cfg, w.ports(), nil)
			for range 30 {
				w.produce(20, 40)
				time.Sleep(time.Millisecond)
			}
			w.outputs()
			require.NoError(t, stop())
			w.exact()
			require.EqualValues(t, 1, runs.Load())
			require.GreaterOrEqual(t, sizes.Load(), int64(15))
			stop = w.startPlan(plan(t), w.config(), w.ports(), nil) // and incremental ones go on from it
			w.produce(200, 40)
			w.outputs()
			require.NoError(t, stop())
			w.exact()
		})
	}
}

type rootWatch struct {
	Checkpoints
	look func(*snapshot.Root)
}

func (r rootWatch) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	r.look(root)
	return r.Checkpoints.WriteRoot(ctx, root)
}

// With async false no task processes anything between its barrier and the end of the writing. Behind an exchange there is
// something to process although the sources stand still: what an unaligned barrier has overtaken.
func TestSynchronousSnapshotsStopProcessing(t *testing.T) {
	t.Parallel()
	for _, exchange := range []bool{false, true} {
		for _, sync := range []bool{false, true} {
			t.Run(fmt.Sprintf("exchange %v, sync %v", exchange, sync), func(t *testing.T) {
				w := newWorld(t, 2)
				var writing atomic.Bool
				var during, overtaken atomic.Int64
				w.wrap = func(c Checkpoints) Checkpoints { return slowPersist{c, &writing} }
				b := topology.New(app)
				in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
				if exchange {
					in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
				}
				seen := topology.Map(in, "seen", func(_, v string) string {
					if exchange {
						time.Sleep(50 * time.Microsecond)
					}
					if writing.Load() {
						during.Add(1)
					}
					return v
				})
				topology.ToTopic(topology.Count(seen, "count"), "out", "out", serde.String(), serde.Int64())
				plan, err := b.Plan()
				require.NoError(t, err)
				cfg := w.config()
				cfg.SyncSnapshots, cfg.Unaligned = sync, exchange
				stop := w.startPlan(plan, cfg, w.ports(), &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
					if s.Unaligned {
						overtaken.Add(s.Buffered)
					}
				}})
				if exchange {
					w.produce(1500, 7)
				} else {
					w.produceUntil(func() bool { return w.done() > 600 })
				}
				w.outputs()
				require.NoError(t, stop())
				w.exact()
				require.Equal(t, exchange, overtaken.Load() > 0)
				require.Equal(t, sync, during.Load() == 0, "%d records while the state was written", during.Load())
			})
		}
	}
}

// Nor does a timer fire then, whatever the barriers are like: behind an exchange the sources stand still, and nothing overtaken
// is there to process when barriers are aligned, but timers come due.
func TestSynchronousSnapshotsStopTimers(t *testing.T) {
	t.Parallel()
	for _, exchange := range []bool{false, true} {
		for _, sync := range []bool{false, true} {
			t.Run(fmt.Sprintf("exchange %v, sync %v", exchange, sync), func(t *testing.T) {
				w := newWorld(t, 1)
				var writing atomic.Bool
				var during atomic.Int64
				w.wrap = func(c Checkpoints) Checkpoints { return slowPersist{c, &writing} }
				b := topology.New(app)
				in := topology.FromTopic(b, "in", "in", serde.String(), serde.String())
				if exchange {
					in = topology.GroupBy(in, "by-key", serde.String(), serde.String(), func(k, _ string) string { return k }, topology.Parallelism(2))
				}
				base := time.Now().Add(20 * time.Millisecond) // one timer comes due each millisecond
				timed := topology.Process(in, "timed", func() topology.Processor[string, string, int64] { return &alarm{base: base} })
				seen := topology.Map(timed, "seen", func(_ string, n int64) int64 {
					if writing.Load() {
						during.Add(1)
					}
					return n
				})
				topology.ToTopic(seen, "out", "out", serde.String(), serde.Int64())
				plan, err := b.Plan()
				require.NoError(t, err)
				cfg := w.config()
				cfg.SyncSnapshots = sync
				w.produce(200, 7)
				stop := w.startPlan(plan, cfg, w.ports(), nil)
				w.outputs()
				require.NoError(t, stop())
				w.exact()
				require.Equal(t, sync, during.Load() == 0, "%d timers while the state was written", during.Load())
			})
		}
	}
}

type slowPersist struct {
	Checkpoints
	writing *atomic.Bool
}

func (s slowPersist) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	s.writing.Store(true)
	defer s.writing.Store(false)
	time.Sleep(10 * time.Millisecond)
	return s.Checkpoints.Persist(ctx, name, deltas)
}
