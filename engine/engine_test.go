package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
)

func TestGracefulStopCommitsEverything(t *testing.T) {
	w := newWorld(t, 3)
	cfg := w.config()
	cfg.Interval = time.Hour // only the first checkpoint of the attempt and the last one commit
	started := make(chan struct{})
	stop := w.start(cfg, &Listener{AttemptStarted: func(AttemptInfo) { close(started) }})
	<-started
	w.produce(500, 10)
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.open)+len(w.output) == 500
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, stop())
	w.exact()
	require.LessOrEqual(t, len(w.commits), 3)
	for tp, c := range w.committed {
		h, err := snapshot.ParseHandle(c.Metadata)
		require.NoError(t, err)
		require.Zero(t, c.LeaderEpoch, "%s: that of the last record", tp)
		require.Equal(t, c.LeaderEpoch, h.LeaderEpoch)
	}
}

// failOnce gives a function that returns err at its n-th call only.
func failOnce(n int64, err error) func() error {
	var calls atomic.Int64
	return func() error {
		if calls.Add(1) == n {
			return err
		}
		return nil
	}
}

var errPlanted = errors.New("planted failure")

// failing wraps the checkpoints with failures of single steps.
type failing struct {
	Checkpoints
	persist, root func() error
}

func (f failing) Persist(ctx context.Context, name element.CheckpointName, d []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	if f.persist != nil {
		if err := f.persist(); err != nil {
			return nil, err
		}
	}
	return f.Checkpoints.Persist(ctx, name, d)
}

func (f failing) WriteRoot(ctx context.Context, r *snapshot.Root) (snapshot.RootRef, error) {
	ref, err := f.Checkpoints.WriteRoot(ctx, r)
	if f.root != nil && err == nil {
		err = f.root() // written, but the answer is an error
	}
	return ref, err
}

// Every step of a checkpoint fails once; the output stays exact and the process goes on by itself.
func TestAFailureAtAnyStepOfACheckpointIsRolledBack(t *testing.T) {
	t.Parallel()
	unknown := fault.New(fault.Unconfirmed, fault.Failed, "no answer")
	cases := map[string]func(w *world){
		"persist": func(w *world) {
			w.wrap = func(c Checkpoints) Checkpoints { return failing{Checkpoints: c, persist: failOnce(3, errPlanted)} }
		},
		"root": func(w *world) {
			w.wrap = func(c Checkpoints) Checkpoints { return failing{Checkpoints: c, root: failOnce(3, errPlanted)} }
		},
		"seal": func(w *world) {
			f := failOnce(3, errPlanted)
			w.onSeal = func(element.CheckpointID) error { return f() }
		},
		"commit refused": func(w *world) {
			f := failOnce(4, errPlanted)
			w.onCommit = func(checkpoint.Commit) (bool, error) { err := f(); return err == nil, err }
		},
		"commit not known, done": func(w *world) {
			f := failOnce(4, unknown)
			w.onCommit = func(checkpoint.Commit) (bool, error) { return true, f() }
		},
		"commit not known, not done": func(w *world) {
			f := failOnce(4, unknown)
			w.onCommit = func(checkpoint.Commit) (bool, error) { err := f(); return err == nil, err }
		},
		"start positions not known": func(w *world) {
			f := failOnce(1, unknown)
			w.onCommit = func(checkpoint.Commit) (bool, error) { return true, f() }
		},
	}
	for name, plant := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			plant(w)
			var failed atomic.Int64
			stop := w.start(w.config(), &Listener{AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
				if err != nil {
					failed.Add(1)
				}
			}})
			w.produceUntil(func() bool { return failed.Load() > 0 })
			w.produce(20, 7)
			w.caughtUp()
			require.NoError(t, stop())
			w.exact()
			require.EqualValues(t, 1, failed.Load(), "the planted failure happened, and no other")
			require.Empty(t, w.open)
		})
	}
}

// A roll-back reuses the state in memory when the broker's handle is the one it stands at, and reads files otherwise.
func TestRollBackReusesStateOnlyAtTheCommittedRoot(t *testing.T) {
	run := func(applied bool) (reused, restored int64) {
		w := newWorld(t, 2)
		f := failOnce(4, fault.New(fault.Unconfirmed, fault.Failed, "no answer"))
		w.onCommit = func(checkpoint.Commit) (bool, error) { err := f(); return err == nil || applied, err }
		var nReused, nRestored atomic.Int64
		stop := w.start(w.config(), &Listener{
			Reused:   func(element.TaskID, snapshot.RootRef) { nReused.Add(1) },
			Restored: func(element.TaskID, snapshot.RootRef, snapshot.Stats, time.Duration) { nRestored.Add(1) },
		})
		w.produceUntil(func() bool { return nReused.Load()+nRestored.Load() > 0 })
		w.produce(20, 7)
		w.caughtUp()
		require.NoError(t, stop())
		w.exact()
		return nReused.Load(), nRestored.Load()
	}
	reused, restored := run(false)
	require.EqualValues(t, 2, reused)
	require.Zero(t, restored)
	reused, restored = run(true)
	require.Zero(t, reused)
	require.EqualValues(t, 2, restored)
}

// Processes come and go without a goodbye: each run ends by a hard stop in the middle of something.
func TestKilledAndRestartedAtRandomStaysExact(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("ENGINE_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d: ENGINE_SEED=%d go test ./engine -run TestKilledAndRestartedAtRandomStaysExact", seed, seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	w := newWorld(t, 3)
	for range 25 {
		ctx, kill := context.WithCancel(context.Background())
		cfg := w.config()
		cfg.MaxChain = 3
		r, err := New(countPlan(t), cfg, w.ports(), nil)
		require.NoError(t, err)
		asg, err := r.awaitAssignment(ctx)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- r.attempt(context.Background(), ctx, 1, asg) }()
		w.produce(1+rnd.IntN(100), 11)
		time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
		kill()
		<-done
	}
	stop := w.start(w.config(), nil)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}

func TestALongChainIsMergedAndRestores(t *testing.T) {
	w := newWorld(t, 1)
	cfg := w.config()
	cfg.MaxChain = 4
	var merged, failed atomic.Int64
	lis := &Listener{Merged: func(_ element.TaskID, runs int, _ int64, _ time.Duration, err error) {
		if err != nil || runs <= 4 {
			failed.Add(1)
		}
		merged.Add(1)
	}}
	stop := w.start(cfg, lis)
	w.produceUntil(func() bool { return merged.Load() > 2 })
	w.caughtUp()
	require.NoError(t, stop())
	require.Positive(t, merged.Load())
	require.Zero(t, failed.Load())
	var runs int64
	stop = w.start(cfg, &Listener{Restored: func(_ element.TaskID, _ snapshot.RootRef, s snapshot.Stats, _ time.Duration) {
		runs = s.DeltaRuns + s.FullRuns
	}})
	w.produce(50, 50)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	require.Positive(t, runs)
	require.Less(t, runs, int64(20), "the chain stays short")
}

func TestALossEndsTheAttemptAndTheNextGoesOnWithTheRest(t *testing.T) {
	w := newWorld(t, 2)
	var rejoins, standby atomic.Int64
	stop := w.start(w.config(), &Listener{
		AttemptEnded: func(_ int, err error, rec fault.Recovery, delay time.Duration) {
			if rec == fault.Rejoin {
				require.Error(t, err)
				require.Zero(t, delay)
				rejoins.Add(1)
			}
		},
		StandingBy: func(int) { standby.Add(1) },
	})
	w.produce(100, 5)
	w.caughtUp()
	w.assign(1) // the membership was lost, then came back with one partition
	require.Eventually(t, func() bool { return rejoins.Load() == 1 }, 5*time.Second, time.Millisecond)
	w.mu.Lock()
	before := w.committed[tp(0)].Offset
	w.mu.Unlock()
	w.produce(100, 5)
	require.Eventually(t, func() bool { // a commit, so that the next loss is not one of several in a row
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.committed[tp(0)].Offset > before
	}, 5*time.Second, time.Millisecond)
	w.mu.Lock()
	require.LessOrEqual(t, w.committed[tp(1)].Offset, int64(50), "what is not owned is not processed")
	w.mu.Unlock()
	w.assign(0)
	require.Eventually(t, func() bool { return standby.Load() == 1 }, 5*time.Second, time.Millisecond)
	w.assign(2)
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
}

func TestEarlyCheckpointWhenUncommittedStateIsLarge(t *testing.T) {
	w := newWorld(t, 1)
	cfg := w.config()
	cfg.Interval = time.Hour
	cfg.UncommittedLimit = 2000
	var early atomic.Int64
	stop := w.start(cfg, &Listener{CheckpointCompleted: func(s checkpoint.CheckpointStats) {
		if s.Reason == checkpoint.Early {
			early.Add(1)
		}
	}})
	for round := range 3 {
		w.produce(100, 100000)
		require.Eventually(t, func() bool { return early.Load() > int64(round) }, 5*time.Second, time.Millisecond)
	}
	require.NoError(t, stop())
	stop = w.start(w.config(), nil) // what was fetched and not processed at the stop
	w.outputs()
	require.NoError(t, stop())
	w.exact()
}

func TestAStoppingErrorEndsTheRunnerAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.onSeal = func(element.CheckpointID) error { return fault.Stopf(fault.Denied, "not allowed") }
	r, err := New(countPlan(t), w.config(), w.ports(), nil)
	require.NoError(t, err)
	w.produce(10, 2)
	err = r.Run(t.Context())
	require.ErrorContains(t, err, "not allowed")
	require.Equal(t, fault.Denied, fault.CodeOf(err))
	require.Empty(t, w.output)
	require.Empty(t, w.open, "no attempt follows that would abort it, and readers would wait for its timeout")
}

func TestIdsGrowOverAttemptsAndProcesses(t *testing.T) {
	w := newWorld(t, 1)
	f := failOnce(3, errPlanted)
	w.onCommit = func(checkpoint.Commit) (bool, error) { err := f(); return err == nil, err }
	for i := range 3 {
		stop := w.start(w.config(), nil)
		w.produce(20, 3)
		w.caughtUp()
		require.NoError(t, stop(), fmt.Sprint(i))
	}
	w.exact()
	seen := map[element.CheckpointID]bool{}
	for _, id := range w.commits[1:] {
		require.False(t, seen[id])
		seen[id] = true
	}
}
