package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millweir/millweir/checkpoint"
	"github.com/millweir/millweir/element"
	"github.com/millweir/millweir/internal/fault"
	"github.com/millweir/millweir/snapshot"
	"github.com/millweir/millweir/topology"
)

// reports collects what a listener hears of merges and renewals.
type reports struct {
	mu      sync.Mutex
	failed  []error
	renewed []error // causes
	ended   []error
}

func (r *reports) listener() *Listener {
	return &Listener{
		Merged: func(_ element.TaskID, _ int, _ int64, _ time.Duration, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err != nil {
				r.failed = append(r.failed, err)
			}
		},
		Renewed: func(_ element.TaskID, _ int, cause error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.renewed = append(r.renewed, cause)
		},
		AttemptEnded: func(_ int, err error, _ fault.Recovery, _ time.Duration) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if err != nil {
				r.ended = append(r.ended, err)
			}
		},
	}
}

func (r *reports) of(what *[]error) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), *what...)
}

// newestRun wraps the checkpoints: it knows the newest run of a file in the newest committed root.
type newestRun struct {
	Checkpoints
	mu   *sync.Mutex
	last *snapshot.Root
	ref  *string
	most *int
}

func (n newestRun) WriteRoot(ctx context.Context, root *snapshot.Root) (snapshot.RootRef, error) {
	n.mu.Lock()
	*n.last = *root
	for _, task := range root.Tasks {
		*n.most = max(*n.most, len(task.Runs))
	}
	n.mu.Unlock()
	return n.Checkpoints.WriteRoot(ctx, root)
}

func (n newestRun) MarkCommitted(ctx context.Context, ref snapshot.RootRef) error {
	n.mu.Lock()
	for _, task := range n.last.Tasks {
		if len(task.Runs) > 0 && n.last.Name == ref.Name {
			*n.ref = task.Runs[len(task.Runs)-1].File
		}
	}
	n.mu.Unlock()
	return n.Checkpoints.MarkCommitted(ctx, ref)
}

// watchRuns lets a world's roots be seen: the longest chain, and the file of a run that is committed.
func watchRuns(w *world) (longest func() int, file func() string) {
	var n = newestRun{mu: new(sync.Mutex), last: new(snapshot.Root), ref: new(string), most: new(int)}
	w.wrap = func(c Checkpoints) Checkpoints { n.Checkpoints = c; return n }
	return func() int {
			n.mu.Lock()
			defer n.mu.Unlock()
			return *n.most
		}, func() string {
			n.mu.Lock()
			defer n.mu.Unlock()
			return *n.ref
		}
}

// A file of the committed chain is damaged under a running process. The merge finds it, once, and the next
// checkpoint has the whole state of the task: the chain is whole and short again, and what is damaged is cleaned away.
func TestADamagedRunIsReplacedByTheWholeState(t *testing.T) {
	t.Parallel()
	plans := map[string]func(*testing.T) *topology.Plan{
		"chained":  countPlan,
		"exchange": func(t *testing.T) *topology.Plan { return exchangePlan(t, 2) },
	}
	for kind, plan := range plans {
		for mode, set := range modes {
			t.Run(kind+"/"+mode, func(t *testing.T) {
				w := newWorld(t, 2)
				longest, file := watchRuns(w)
				var r reports
				cfg := w.config()
				set(&cfg)
				cfg.MaxChain = 4
				stop := w.startPlan(plan(t), cfg, w.ports(), r.listener())
				w.produceUntil(func() bool { return file() != "" })
				var bad string
				var damaged []string
				w.produceUntil(func() bool {
					_, err := os.Stat(filepath.Join(w.dir, bad))
					if len(r.of(&r.renewed)) > 0 { // asked behind Stat: a file goes after its chain was renewed
						return true
					}
					if bad == "" || err != nil { // or a merge had read it just before
						bad = file()
						damaged = append(damaged, bad)
						damage(t, filepath.Join(w.dir, bad))
					}
					return false
				})
				until := w.done() + 300
				w.produceUntil(func() bool { return w.done() > until })
				w.produceUntil(func() bool { // as soon as no checkpoint that is kept needs it
					_, err := os.Stat(filepath.Join(w.dir, bad))
					return errors.Is(err, fs.ErrNotExist)
				})
				require.NoError(t, stop())
				require.Empty(t, r.of(&r.ended))
				require.Less(t, longest(), 40)
				for _, err := range append(r.of(&r.failed), r.of(&r.renewed)...) {
					var damage *snapshot.CorruptError
					require.ErrorAs(t, err, &damage)
					require.Contains(t, damaged, damage.File)
				}
				require.LessOrEqual(t, len(r.of(&r.failed)), 4, "once for each task whose run is in the file")
				require.NoError(t, w.repo.VerifyAll(t.Context(), nil, func(v snapshot.Verified) { require.Empty(t, v.Damage) }))
				stop = w.startPlan(plan(t), cfg, w.ports(), r.listener()) // from the files
				w.produce(50, 7)
				w.outputs()
				require.NoError(t, stop())
				w.exact()
				require.Empty(t, r.of(&r.ended))
			})
		}
	}
}

// A file of the committed chain goes under a running process. The next root finds it, and that attempt is the last one that does:
// the states in memory are those of the committed checkpoint, as the offsets say, and the next one has all of them.
func TestARunWhoseFileGoesIsReplacedByTheWholeState(t *testing.T) {
	t.Parallel()
	plans := map[string]func(*testing.T) *topology.Plan{
		"chained":  countPlan,
		"exchange": func(t *testing.T) *topology.Plan { return exchangePlan(t, 2) },
	}
	for kind, plan := range plans {
		for tolerated := range 2 {
			t.Run(fmt.Sprintf("%s, %d failures tolerated", kind, tolerated), func(t *testing.T) {
				w := newWorld(t, 2)
				longest, file := watchRuns(w)
				var r reports
				cfg := w.config()
				cfg.TolerableFailures = tolerated
				cfg.MaxChain = 1000 // or a merge might have read the file just before it goes
				stop := w.startPlan(plan(t), cfg, w.ports(), r.listener())
				w.produceUntil(func() bool { return longest() > 3 })
				require.NoError(t, os.Remove(filepath.Join(w.dir, file())))
				w.produceUntil(func() bool { return len(r.of(&r.renewed)) >= 2 })
				until := w.done() + 300
				w.produceUntil(func() bool { return w.done() > until })
				w.caughtUp()
				require.NoError(t, stop())
				require.LessOrEqual(t, len(r.of(&r.ended)), 1-tolerated)
				for _, err := range append(r.of(&r.ended), r.of(&r.renewed)...) {
					require.ErrorContains(t, err, "the file is missing")
				}
				_, err := w.repo.Clean(t.Context(), nil, w.groupRoots) // the stop may have cut the last one short
				require.NoError(t, err)
				require.NoError(t, w.repo.VerifyAll(t.Context(), nil, func(v snapshot.Verified) { require.Empty(t, v.Damage) }))
				stop = w.startPlan(plan(t), cfg, w.ports(), r.listener()) // from the files
				w.produce(50, 7)
				w.outputs()
				require.NoError(t, stop())
				w.exact()
			})
		}
	}
}

// damage turns a byte of a file over, if it is there.
func damage(t *testing.T, file string) {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return // it has been cleaned away
	}
	require.NoError(t, err)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{b[len(b)-40] ^ 0xff}, int64(len(b)-40))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// unmergeable wraps the checkpoints: no merge succeeds, and Persist may be made to fail for whole states.
type unmergeable struct {
	Checkpoints
	err     error
	refuse  *atomic.Bool
	refused *atomic.Int64
}

func (u unmergeable) Merge(context.Context, element.CheckpointName, snapshot.TaskEntry) (snapshot.RunRef, error) {
	return snapshot.RunRef{}, u.err
}

func (u unmergeable) Persist(ctx context.Context, name element.CheckpointName, deltas []snapshot.TaskDelta) ([]snapshot.Persisted, error) {
	for _, d := range deltas {
		if d.Full && d.To > 1 && u.refuse.Load() {
			u.refused.Add(1)
			return nil, fault.Restartf(fault.CheckpointDir, "planted: the directory is full")
		}
	}
	return u.Checkpoints.Persist(ctx, name, deltas)
}

// Merges fail for whatever reason: chains stay far below what a root can take.
func TestAChainThatCannotBeMergedIsRenewed(t *testing.T) {
	w := newWorld(t, 2)
	var r reports
	longest, _ := watchRuns(w)
	watch := w.wrap
	w.wrap = func(c Checkpoints) Checkpoints {
		return watch(unmergeable{c, errors.New("planted: input/output error"), new(atomic.Bool), new(atomic.Int64)})
	}
	cfg := w.config()
	cfg.MaxChain = 2
	stop := w.start(cfg, r.listener())
	w.produceUntil(func() bool { return len(r.of(&r.renewed)) > 4 })
	w.caughtUp()
	require.NoError(t, stop())
	require.Empty(t, r.of(&r.ended))
	require.LessOrEqual(t, longest(), farBeyond*cfg.MaxChain+4)
	require.ErrorContains(t, r.of(&r.renewed)[0], "input/output error")
	w.exact()
}

// The whole state cannot be written either, for lack of room say: the service goes on with what changes, tries it more and
// more rarely, and says why it has to.
func TestARenewalThatFailsIsTriedMoreAndMoreRarely(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var r reports
	longest, _ := watchRuns(w)
	watch := w.wrap
	var refuse atomic.Bool
	var refused atomic.Int64
	damage := fault.Stopf(fault.Corrupt, "%w", &snapshot.CorruptError{Checkpoint: "7-1", File: "x/y", Kind: "run", Reason: "planted"})
	w.wrap = func(c Checkpoints) Checkpoints { return watch(unmergeable{c, damage, &refuse, &refused}) }
	refuse.Store(true)
	lis := r.listener()
	var given []error
	lis.CheckpointAbandoned = func(_ []element.CheckpointID, _ checkpoint.FailureReason, err error) { given = append(given, err) }
	cfg := w.config()
	cfg.MaxChain, cfg.TolerableFailures = 2, 1
	cfg.Interval = 2 * time.Millisecond
	stop := w.start(cfg, lis)
	w.produceUntil(func() bool { return longest() > 60 })
	require.Less(t, refused.Load(), int64(12), "3, 5, 7, 10, 15, … runs")
	refuse.Store(false)
	w.produceUntil(func() bool { return len(r.of(&r.renewed)) > 0 })
	w.caughtUp()
	require.NoError(t, stop())
	require.Empty(t, r.of(&r.ended))
	require.NotEmpty(t, given)
	require.ErrorContains(t, given[0], "the directory is full")
	require.ErrorContains(t, given[0], "checkpoint 7-1: run x/y: planted")
	w.exact()
}

// A chain that is long when a process starts is merged at once: the next checkpoint may be far away.
func TestALongChainIsMergedAtTheStart(t *testing.T) {
	w := newWorld(t, 1)
	cfg := w.config()
	longest, _ := watchRuns(w)
	cfg.MaxChain = 100
	stop := w.start(cfg, nil)
	w.produceUntil(func() bool { return longest() > 8 })
	w.caughtUp()
	require.NoError(t, stop())
	cfg = w.config()
	cfg.MaxChain, cfg.Interval = 4, time.Hour
	var merged, completed atomic.Int64
	lis := &Listener{
		Merged: func(_ element.TaskID, runs int, _ int64, _ time.Duration, err error) {
			if err == nil && runs > 8 {
				merged.Add(1)
			}
		},
		CheckpointCompleted: func(checkpoint.CheckpointStats) { completed.Add(1) },
	}
	stop = w.start(cfg, lis)
	require.Eventually(t, func() bool { return merged.Load() > 0 }, 5*time.Second, time.Millisecond)
	require.Zero(t, completed.Load())
	w.produce(20, 7)
	w.outputs()
	require.NoError(t, stop())
	var runs int64
	stop = w.start(w.config(), &Listener{Restored: func(_ element.TaskID, _ snapshot.RootRef, s snapshot.Stats, _ time.Duration) {
		runs = s.DeltaRuns + s.FullRuns
	}})
	w.produce(20, 7)
	w.caughtUp()
	require.NoError(t, stop())
	require.EqualValues(t, 2, runs, "what was merged, and the checkpoint of the stop")
	w.exact()
}

// Checkpoints are committed between the merge that finds damage and the checkpoint that renews the chain: those that were in
// flight, or all, where a renewal failed. No merge of them reads the file again.
func TestADamagedChainIsNotMergedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		bad  *unmerged
		want int
	}{
		"no failure":                 {want: 1},
		"another failure":            {bad: &unmerged{}, want: 1},
		"damage":                     {bad: &unmerged{damage: true}},
		"damage, renewed in vain":    {bad: &unmerged{damage: true, again: 6}},
		"damage, to be renewed soon": {bad: &unmerged{damage: true, again: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			var id element.TaskID
			a := &attempt{
				r:     &Runner{cfg: Config{MaxChain: 4}},
				order: []element.TaskID{id},
				tasks: map[element.TaskID]*owned{id: {committed: snapshot.TaskEntry{Runs: make([]snapshot.RunRef, 5)}}},
			}
			if c.bad != nil {
				a.merge.bad = map[element.TaskID]*unmerged{id: c.bad}
			}
			require.Len(t, a.due(), c.want)
		})
	}
}

func TestWhenTheWholeStateIsWritten(t *testing.T) {
	damage, other := &unmerged{damage: true}, &unmerged{}
	for name, c := range map[string]struct {
		runs, inFlight, maxChain int
		bad                      *unmerged
		want                     bool
	}{
		"merges do their work":         {runs: 500, maxChain: 16},
		"they do not keep up":          {runs: 1024, maxChain: 16, want: true},
		"whatever the threshold":       {runs: 2048, maxChain: 3000},
		"damage":                       {runs: 17, maxChain: 16, bad: damage, want: true},
		"of another chain":             {runs: 16, maxChain: 16, bad: damage},
		"another failure":              {runs: 64, maxChain: 16, bad: other},
		"another failure, for long":    {runs: 65, maxChain: 16, bad: other, want: true},
		"not again at once":            {runs: 25, maxChain: 16, bad: &unmerged{damage: true, again: 26}},
		"again later":                  {runs: 26, maxChain: 16, bad: &unmerged{damage: true, again: 26}, want: true},
		"a file is gone":               {runs: 2, maxChain: 16, bad: &unmerged{damage: true, lost: true, again: 26}, want: true},
		"always at the limit":          {runs: 4095, inFlight: 1, maxChain: 16, bad: &unmerged{again: 5000}, want: true},
		"also with a large threshold":  {runs: 4096, maxChain: 5000, want: true},
		"not while there is room left": {runs: 4094, inFlight: 1, maxChain: 16, bad: &unmerged{again: 5000}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, needsRenewal(c.runs, c.inFlight, c.maxChain, c.bad))
		})
	}
}

// A checkpoint may have the whole state for both reasons, and others be in flight meanwhile that have what changes.
func TestSavepointsWhileChainsAreRenewed(t *testing.T) {
	t.Parallel()
	for name, set := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.wrap = func(c Checkpoints) Checkpoints {
				damage := fault.Stopf(fault.Corrupt, "%w", &snapshot.CorruptError{Kind: "run", Reason: "planted"})
				return unmergeable{c, damage, new(atomic.Bool), new(atomic.Int64)}
			}
			cfg, dir := w.config(), t.TempDir()
			set(&cfg)
			cfg.MaxChain = 1
			var rep reports
			var opened atomic.Int64
			r, err := New(exchangePlan(t, 2), cfg, withSavepoints(w.ports(), &opened), rep.listener())
			require.NoError(t, err)
			stop := w.run(r)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for range 8 {
				until := w.done() + 40
				w.produceUntil(func() bool { return w.done() > until })
				ref, err := r.Savepoint(ctx, "", dir)
				require.NoError(t, err)
				require.NotEmpty(t, contents(t, ref.Path))
			}
			w.outputs()
			w.caughtUp()
			ref, err := r.Savepoint(ctx, "", dir)
			require.NoError(t, err)
			require.Equal(t, w.counts(), contents(t, ref.Path))
			require.NoError(t, stop())
			w.exact()
			require.Greater(t, len(rep.of(&rep.renewed)), 8)
			require.Empty(t, rep.of(&rep.ended))
		})
	}
}
