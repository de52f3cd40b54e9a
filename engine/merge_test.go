package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/snapshot"
)

// lateMerge wraps the checkpoints: a merge is finished when its attempt has ended.
type lateMerge struct {
	Checkpoints
	merged chan<- snapshot.RunRef
	forgot *sync.Map // by file
}

func (m lateMerge) Merge(ctx context.Context, name element.CheckpointName, entry snapshot.TaskEntry) (snapshot.RunRef, error) {
	run, err := m.Checkpoints.Merge(ctx, name, entry)
	if err == nil {
		select {
		case m.merged <- run:
			<-ctx.Done()
		default: // only the first one
		}
	}
	return run, err
}

func (m lateMerge) Forget(run snapshot.RunRef) {
	m.forgot.Store(run.File, true)
	m.Checkpoints.Forget(run)
}

// Nobody hears of a merge that ends after its attempt. Its run is used by the next attempt all the same.
func TestAMergeThatOutlivesItsAttemptIsNotLost(t *testing.T) {
	var fail atomic.Bool
	named, forgotten := outlivingMerge(t, func(w *world) {
		w.onCommit = func(checkpoint.Commit) (bool, error) {
			if fail.CompareAndSwap(true, false) {
				return false, errPlanted
			}
			return true, nil
		}
	}, func(*world) { fail.Store(true) })
	require.True(t, named)
	require.False(t, forgotten)
}

// Its partition was lost and has come back. Others may have taken the instance for gone meanwhile, and decided that the run
// goes: no root names it.
func TestAMergedRunIsGivenUpWithTheOwnershipThatItWasMadeUnder(t *testing.T) {
	named, forgotten := outlivingMerge(t, func(*world) {}, func(w *world) { w.assign(1) })
	require.False(t, named)
	require.True(t, forgotten)
}

// outlivingMerge tells what becomes of a run that is merged when its attempt ends. end lets it end.
func outlivingMerge(t *testing.T, prepare, end func(*world)) (isNamed, isForgotten bool) {
	w := newWorld(t, 1)
	prepare(w)
	merged := make(chan snapshot.RunRef, 1)
	var forgot sync.Map
	var named atomic.Bool
	var run atomic.Pointer[snapshot.RunRef]
	w.wrap = func(c Checkpoints) Checkpoints {
		return rooted{lateMerge{c, merged, &forgot}, func(root *snapshot.Root) {
			if r := run.Load(); r != nil && root.Tasks[0].Runs[0] == *r {
				named.Store(true)
			}
		}}
	}
	cfg := w.config()
	cfg.MaxChain = 2
	stop := w.start(cfg, nil)
	w.produceUntil(func() bool { return len(merged) > 0 })
	ref := <-merged
	run.Store(&ref)
	merged <- ref // only the first one is late
	end(w)
	w.produceUntil(func() bool {
		_, isForgotten = forgot.Load(ref.File)
		return named.Load() || isForgotten
	})
	w.caughtUp()
	require.NoError(t, stop())
	w.exact()
	return named.Load(), isForgotten
}

// rooted wraps the checkpoints: it sees the roots.
type rooted struct {
	Checkpoints
	see func(*snapshot.Root)
}

func (r rooted) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	r.see(root)
	return r.Checkpoints.WriteRoot(ctx, root)
}

// An instance whose attempts end after their first commit merges as well: the chains do not grow from attempt to attempt. The
// clock stands still while merges run, so that no attempt begins before what it would wait for on a fast machine.
func TestChainsStayShortWhenAttemptsAreShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		var longest, roots, commits atomic.Int64
		w.wrap = func(c Checkpoints) Checkpoints {
			return rooted{c, func(root *snapshot.Root) {
				roots.Add(1)
				for _, task := range root.Tasks {
					longest.Store(max(longest.Load(), int64(len(task.Runs))))
				}
			}}
		}
		w.onCommit = func(checkpoint.Commit) (bool, error) {
			if commits.Add(1)%2 == 0 {
				return false, errPlanted
			}
			return true, nil
		}
		cfg := w.config()
		cfg.MaxChain = 3
		stop := w.start(cfg, nil)
		for n := range int64(9) {
			w.produceUntil(func() bool { return roots.Load() > 10*n })
		}
		require.NoError(t, stop())
		require.Less(t, longest.Load(), int64(12))
	})
}

// chains wraps the checkpoints: it notes the longest chain of each root.
type chains struct {
	Checkpoints
	mu      *sync.Mutex
	longest *[]int
}

func (c chains) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := 0
	for _, t := range root.Tasks {
		most = max(most, len(t.Runs))
	}
	*c.longest = append(*c.longest, most)
	return c.Checkpoints.WriteRoot(ctx, root)
}

// However many tasks there are, merging keeps up with them: chains, and with them the roots, do not grow with their
// number. The clock stands still while merges run, so a round has time for all of them on any machine.
func TestChainsStayShortWithManyTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 40)
		var mu sync.Mutex
		var longest []int
		w.wrap = func(c Checkpoints) Checkpoints { return chains{c, &mu, &longest} }
		cfg := w.config()
		cfg.MaxChain, cfg.Interval = 3, 50*time.Millisecond
		stop := w.start(cfg, nil)
		deadline := time.Now().Add(30 * time.Second)
		for done := false; !done; {
			require.True(t, time.Now().Before(deadline))
			w.produce(200, 40) // every task changes between any two checkpoints
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			done = len(longest) >= 75
			mu.Unlock()
		}
		require.NoError(t, stop())
		require.Less(t, slices.Max(longest), 6, "one merge per checkpoint would let them grow to the number of tasks: %v", longest)
	})
}
